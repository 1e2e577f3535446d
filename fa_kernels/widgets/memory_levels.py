"""The levels of a GPU's memory: capacity and bandwidth, by the data sheet and as measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from fa_kernels.device import Device
from fa_kernels.device import device as find_device
from fa_kernels.figures.memory_levels import Level, bandwidth, levels_of, levels_spec
from fa_kernels.figures.point import device_words, ratio_text
from fa_kernels.figures.recorded_ceilings import MeasuredCeilings
from fa_kernels.session import Session, in_use
from fa_kernels.units import capacity, significant
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.controls import device_options
from fa_kernels.widgets.drawn_view import DrawnView
from fa_kernels.widgets.explorer_point import default_device
from fa_kernels.widgets.headline import HELD, Headline
from fa_kernels.widgets.text import html_table, labels

_COLUMNS = (
    "column_level", "column_sm", "column_gpu", "column_sheet", "column_measured", "column_ratio",
)  # fmt: skip
#: What "tens of thousands" covers.
_TENS_OF_THOUSANDS = (1e4, 1e5)


@dataclass(frozen=True)
class Gaps:
    """What separates shared memory from HBM on one GPU, as ratios.

    `faster` by the data sheet and `faster_measured` (None: not measured) of all SMs together;
    `larger_gpu`: HBM over the shared memory of all SMs, `larger_block`: over what a block may have.
    """

    faster: float
    faster_measured: float | None
    larger_gpu: float
    larger_block: float

    @classmethod
    def of(cls, device: Device, levels: Mapping[str, Level]) -> Gaps:
        """Of the levels of a device."""
        shared, hbm = levels["shared"], levels["hbm"]
        measured = None
        if shared.measured_gb_s and hbm.measured_gb_s:
            measured = shared.measured_gb_s / hbm.measured_gb_s
        return cls(
            (shared.sheet_gb_s or 0.0) / (hbm.sheet_gb_s or 1.0), measured,
            hbm.total_bytes / shared.total_bytes, hbm.total_bytes / device.smem_per_block_bytes,
        )  # fmt: skip

    @property
    def claim(self) -> str:
        """Label of the verdict on "tens of thousands of times smaller"."""
        low, high = _TENS_OF_THOUSANDS
        for name, ratio in (("claim_gpu", self.larger_gpu), ("claim_block", self.larger_block)):
            if low <= ratio < high:
                return name
        return "claim_between" if self.larger_gpu < low < self.larger_block else "claim_neither"


def takeaway(device: Device, levels: Mapping[str, Level]) -> str:
    """How much faster and smaller than HBM shared memory is, of all SMs and of one."""
    text, gaps = labels("memory_levels"), Gaps.of(device, levels)
    shared, hbm = levels["shared"], levels["hbm"]
    sheet = shared.sheet_gb_s or 0.0
    said = [
        text["said_speed"].format(
            device=device_words(device), ratio=ratio_text(gaps.faster).removesuffix("×"),
            shared=bandwidth(sheet), hbm=bandwidth(hbm.sheet_gb_s or 0.0),
        )
    ]  # fmt: skip
    if gaps.faster_measured:
        said.append(
            text["said_speed_measured"].format(
                ratio=ratio_text(gaps.faster_measured).removesuffix("×"),
                shared=bandwidth(shared.measured_gb_s or 0.0),
                hbm=bandwidth(hbm.measured_gb_s or 0.0),
            )
        )
    if sheet / device.sm_count < (hbm.sheet_gb_s or 0.0):
        said.append(text["said_one"].format(one=bandwidth(sheet / device.sm_count)))
    said.append(
        text["said_size"].format(
            per_gpu=significant(float(f"{gaps.larger_gpu:.2g}")),
            per_block=significant(float(f"{gaps.larger_block:.2g}")),
        )
    )
    return " ".join([*said, text[gaps.claim]])


def run_words(measured: MeasuredCeilings) -> str:
    """The run that measured, or that there is none and how to make one."""
    text = labels("memory_levels")
    return str(text["measured_run" if measured else "no_run"]).format(run=measured.run_id)


def levels_table(device: Device, levels: Mapping[str, Level], measured: MeasuredCeilings) -> str:
    """The numbers behind the figure, one row per level, and where they are from, as HTML."""
    text, body, sources = labels("memory_levels"), [], []
    for name, level in levels.items():
        if level.source:
            words = text["source_registers"] if name == "registers" else "{source}"
            said = f"{text['levels'][name]}: {words.format(source=level.source)}."
            sources.append(f"<li>{escape(said)}</li>")
        sheet, seen = level.sheet_gb_s, level.measured_gb_s
        body.append(
            [
                text["levels"][name], capacity(level.part_bytes) if level.part_bytes else "",
                capacity(level.total_bytes),
                text["none"] if sheet is None else bandwidth(sheet),
                text["no_measured"] if seen is None else bandwidth(seen),
                f"{level.ratio:.3f}" if level.ratio else "",
            ]
        )  # fmt: skip
    l2 = ""
    if levels["l2"].measured_gb_s:
        apart = measured.rate("l2_read_apart") is not None
        l2 = f" {text['measured_l2_apart' if apart else 'measured_l2']}"
    caption = text["caption"].format(
        device=device.name, sms=device.sm_count, block=capacity(device.smem_per_block_bytes),
        sm=capacity(device.smem_per_sm_bytes), measured=run_words(measured) + l2,
    )  # fmt: skip
    head = [text[name] for name in _COLUMNS]
    table = html_table("memory-levels", caption, head, body, "falab-table falab-dense")
    # Not a column: a document's name and address are longer than the table is wide.
    return (
        f'{table}<div class="falab-note" style="overflow-wrap: anywhere">'
        f"{escape(text['sources'])}<ul>{''.join(sources)}</ul></div>"
    )


@dataclass(frozen=True)
class OnDevice:
    """What the controls show: the slug of a device."""

    device: str


class MemoryLevels(DrawnView):
    """Capacity and bandwidth of registers, shared memory, L2 and HBM of a device.

    `gaps` are those of the device that is shown.
    """

    gaps: Gaps
    levels: Mapping[str, Level]

    section, mark = "memory_levels", "levels"
    least_width = 860

    def __init__(self, device: Device, session: Session) -> None:
        self.session = session
        self.device = Choice(labels("explorer")["device"], device_options(), device.slug)
        super().__init__(OnDevice(device.slug), (self.device,))

    @property
    def setting(self) -> OnDevice:
        """The device that is chosen."""
        return OnDevice(self.device.value)

    def headline(self) -> Headline:
        """Bandwidth and capacity of both ends, by the data sheet."""
        text = labels("headline")
        return {
            text["bandwidth"].format(level=text[name]): (self.levels[name].sheet_gb_s, "GB/s")
            for name in ("shared", "hbm")
        } | {
            text["capacity"].format(level=text[name]): (self.levels[name].total_bytes, HELD)
            for name in ("shared", "hbm")
        }

    def draw(self, setting: OnDevice, stamp: float) -> None:
        """Compute and show a device."""
        sheet = find_device(setting.device)
        measured = MeasuredCeilings.on(sheet, self.session.root)
        levels = self.levels = levels_of(sheet, measured)
        self.gaps = Gaps.of(sheet, levels)
        said = takeaway(sheet, levels)
        alt = self.text["figure"].format(sentence=said)
        table = levels_table(sheet, levels, measured)
        self.show(levels_spec(levels, self.text), alt, said, table, stamp)


def memory_levels(device: str | None = None, session: Session | None = None) -> MemoryLevels:
    """What each level of a GPU's memory holds and how fast it gives it.

    By the data sheet, with its source, and as the newest run of kind "ceilings" of that GPU
    measured it, where there is one.

    Args:
        device: slug of the GPU, such as "h200"; default: the session's.
        session: what `fa.session` returned; default: the current one.

    Raises:
        ValueError: no such device; TypeError: `session` is not one.
    """
    used = in_use(session)
    return MemoryLevels(find_device(default_device(used) if device is None else device), used)
