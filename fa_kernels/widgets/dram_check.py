"""Why DRAM moves less than was asked for: working sets against the L2, bounds against counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fa_kernels.figures.point import Point, device_words
from fa_kernels.figures.recorded_numbers import RecordedNumbers
from fa_kernels.figures.theme import TENSOR_LABELS
from fa_kernels.figures.traffic_ways import shown_at
from fa_kernels.figures.working_set import WorkingSet, working_set
from fa_kernels.session import Session
from fa_kernels.units import capacity, traffic
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.explorer_point import recorded_on
from fa_kernels.widgets.refused import limit_words
from fa_kernels.widgets.setting import Setting
from fa_kernels.widgets.text import html_table, labels, text_table

#: A counter may miss what is still in the L2 after it was emptied: this share is forgiven.
TOLERANCE = 0.01


@dataclass(frozen=True)
class DramLine:
    """One variant: what it reads again, the least that DRAM has to move, and what it moved.

    `dram_bytes` are the call's own DRAM bytes and what it had left in the L2 to be written back.
    `again` is None where the device cannot launch the variant: nobody is at work at one time.
    """

    label: str
    again: WorkingSet | None
    compulsory_bytes: int
    launched_bytes: int
    dram_bytes: float | None

    @property
    def ratio(self) -> float | None:
        """Measured over the lower bound: at least 1 if the bound is one."""
        return None if self.dram_bytes is None else self.dram_bytes / self.compulsory_bytes

    @property
    def of_launched(self) -> float | None:
        """Measured over what the kernel asks for: small where the L2 answers."""
        return None if self.dram_bytes is None else self.dram_bytes / self.launched_bytes


@dataclass(frozen=True)
class DramCheck:
    """One line per variant, shown as a table."""

    point: Point
    lines: Sequence[DramLine]
    run_ids: Sequence[str]

    @property
    def ok(self) -> bool:
        """True if no measured number lies below its lower bound (by more than `TOLERANCE`)."""
        return all(line.ratio is None or line.ratio >= 1 - TOLERANCE for line in self.lines)

    @property
    def recorded(self) -> bool:
        """True if there is anything to hold the bounds against."""
        return any(line.dram_bytes is not None for line in self.lines)

    def cells(self) -> list[list[str]]:
        """The table as text: a row of heads, then one row per variant."""
        text = labels("dram_check")
        columns = ("variant", "again", "set", "l2", "compulsory", "launched", "dram", "ratio")
        rows = [[text[name] for name in (*columns, "of_launched")]]
        for line in self.lines:
            row = [line.label, *_set_cells(line.again)]
            row += [traffic(line.compulsory_bytes), traffic(line.launched_bytes)]
            if line.dram_bytes is None or line.ratio is None or line.of_launched is None:
                row += [text["not_recorded"], "", ""]
            else:
                share = f"{100 * line.of_launched:.3g} %"
                row += [traffic(line.dram_bytes), f"{line.ratio:.3g}", share]
            rows.append(row)
        return rows

    def caption(self) -> str:
        """The point, the cache, the runs, and the verdict in words."""
        text = labels("dram_check")
        verdict = text["unrecorded"]
        if self.recorded:
            verdict = text["holds" if self.ok else "fails"].format(runs=", ".join(self.run_ids))
        gpu = self.point.device
        verdict = f"{verdict} {limit_words(self.point)}".rstrip()
        return str(text["caption"]).format(
            problem=self.point.problem.describe(), sram=self.point.sram_kib,
            device=device_words(gpu), l2=capacity(gpu.l2_bytes), verdict=verdict,
        )  # fmt: skip

    def __str__(self) -> str:
        return text_table(self.caption(), self.cells())

    def _repr_html_(self) -> str:
        head, *body = self.cells()
        return html_table("dram-check", self.caption(), head, body, "falab-table falab-dense")


def _set_cells(again: WorkingSet | None) -> list[str]:
    """What is read again, how much of it is in use at once, and whether the L2 can hold it."""
    text = labels("dram_check")
    if again is None:
        return [text["refused"], "", ""]
    heads = text["whole" if again.whole else "heads"].format(heads=again.heads)
    names = ", ".join(TENSOR_LABELS[t] for t in again.tensors)
    shown = f"{names} {heads}" if names else text["nothing"]
    return [shown, capacity(again.set_bytes), text["fits" if again.fits else "too_large"]]


def dram_line(name: str, point: Point, numbers: RecordedNumbers) -> DramLine:
    """The bounds of one variant, and what its counters say."""
    variant, problem, tiling = VARIANTS[name], point.problem, point.tiling
    moved = numbers.find(name, problem, tiling, "dram_bytes")
    left = numbers.find(name, problem, tiling, "dram_writeback_bytes")
    # Without the writeback the sum lacks what had not left the L2 yet: no number to hold a
    # bound against.
    dram = moved.value + left.value if moved and left else None
    launched = point.traffic(variant).total_bytes
    again = None if point.refusal(variant) else working_set(variant, point)
    return DramLine(variant.label, again, point.compulsory_bytes(variant), launched, dram)


def check_dram(
    N: int = 4096,
    d: int = 64,
    M_kib: int = 64,
    *,
    dtype: str = "fp16",
    device: str | None = None,
    session: Session | None = None,
) -> DramCheck:
    """Hold the least that DRAM must move, every tensor once, against hardware counters.

    Beside it the reason: how many bytes a variant reads again and has in use at one time, and
    whether the L2 of the device's data sheet can hold them.

    Args and errors as `traffic_ways`.
    """
    slug, numbers = recorded_on(device, session)
    point = Setting.of(N, d, M_kib, dtype).point(slug)
    names = shown_at(point)
    lines = [dram_line(name, point, numbers) for name in names]
    found = [numbers.find(n, point.problem, point.tiling, "dram_bytes") for n in names]
    return DramCheck(point, lines, sorted({number.run_id for number in found if number}))
