"""Bytes of every variant in five ways: two models, a count in the kernel, two hardware counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import ipywidgets

from fa_kernels.device import device as find_device
from fa_kernels.figures.point import (
    Point,
    checked_head_dim,
    checked_seqlen,
    checked_sram_kib,
    device_words,
    ratio_text,
)
from fa_kernels.figures.recorded_numbers import RecordedNumbers
from fa_kernels.figures.traffic_ways import (
    COUNTED,
    DRAM,
    L2,
    LAUNCHED,
    METRICS,
    WAYS,
    Ways,
    all_ways,
    traffic_ways_spec,
)
from fa_kernels.masks import matmul_flops
from fa_kernels.problem import DTYPE_FROM_SHORT, SHORT_DTYPE, AttentionProblem, dtype_name
from fa_kernels.session import Session, in_use
from fa_kernels.tiling import Tiling, refuse_smem
from fa_kernels.units import KIB, traffic
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.explorer_point import default_device
from fa_kernels.widgets.knob import Knob
from fa_kernels.widgets.live_figure import LiveFigure
from fa_kernels.widgets.text import html_table, labels

SEQLENS = tuple(2**e for e in range(7, 17))
HEAD_DIMS = (16, 32, 64, 96, 128, 192, 256)
SRAM_KIB = (8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
#: The variant that the sentence is about: the one that keeps most on chip.
SAID = "flash_q_outer"
#: In px: these figures are readable narrower than the explorer, so that a projector's large
#: letters do not make the page scroll sideways.
LEAST_WIDTH = 800
#: Value of the dropdown's first line; None would leave the closed dropdown blank.
_NO_PRESET = ""


@dataclass(frozen=True)
class Setting:
    """What the controls show; `batch_heads` is None for the grid's 16384 tokens of width 2048."""

    N: int
    d: int
    M_kib: int
    dtype: str
    batch_heads: tuple[int, int] | None = None

    @classmethod
    def of(cls, N: object, d: object, M_kib: object, dtype: object) -> Setting:
        """Checked arguments.

        Raises:
            ValueError: a bad value; value, limit and remedy.
        """
        short = SHORT_DTYPE[dtype_name(dtype)]
        return cls(checked_seqlen(N), checked_head_dim(d), checked_sram_kib(M_kib), short)

    def point(self, device: str) -> Point:
        """The point on a device. Models need no launch: a launch that device refuses is one, too.

        Raises:
            ValueError: tiles or sizes out of range; value, limit and remedy.
        """
        name = DTYPE_FROM_SHORT[self.dtype]
        problem = AttentionProblem.of_tokens(self.N, self.d, name)
        if self.batch_heads is not None:
            batch, heads = self.batch_heads
            problem = replace(problem, batch=batch, nheads=heads, nheads_kv=heads)
        tiling = Tiling.from_sram(self.M_kib * KIB, self.d, name).clipped(self.N, self.N)
        return Point(problem, self.M_kib * KIB, tiling, find_device(device))


def refused(point: Point) -> list[str]:
    """Labels of the variants that the point's device cannot launch with these tiles."""
    found = []
    for variant in VARIANTS.values():
        limit = point.device.smem_per_block_bytes
        sizes = (point.tiling, point.problem.head_dim, point.problem.dtype)
        if point.problem.dtype not in variant.dtypes:
            continue
        try:
            refuse_smem(point.plan(variant).layout, *sizes, limit, point.device.name)
        except (ValueError, NotImplementedError):
            found.append(variant.label)
    return found


def presets(numbers: RecordedNumbers) -> list[tuple[str, Setting]]:
    """The shapes that have DRAM counters, as settings, longest name last."""
    text, found = labels("traffic_ways"), {}
    for number in numbers.rows(METRICS[DRAM]):
        row = number.row
        for kib in SRAM_KIB:
            tiling = Tiling.from_sram(kib * KIB, row.head_dim, row.dtype)
            tiling = tiling.clipped(row.seqlen_q, row.seqlen_k)
            if (tiling.block_m, tiling.block_n) != (row.block_m, row.block_n):
                continue
            plain = AttentionProblem.of_tokens(row.seqlen_q, row.head_dim, row.dtype)
            same = (row.batch, row.nheads) == (plain.batch, plain.nheads)
            other = None if same else (row.batch, row.nheads)
            short = SHORT_DTYPE[row.dtype]
            setting = Setting(row.seqlen_q, row.head_dim, kib, short, other)
            name = text["preset"].format(
                seqlen=setting.N, head_dim=setting.d, sram=kib, dtype=short
            )
            if other:
                name = text["preset_batch"].format(preset=name, batch=other[0], heads=other[1])
            found[setting] = name
            break  # the smallest budget that gives these tiles
    order = sorted(found, key=lambda s: (s.batch_heads or (0, 0), s.dtype, s.d, s.N, s.M_kib))
    return [(found[setting], setting) for setting in order]


def takeaway(point: Point, rows: Sequence[Ways]) -> str:
    """What the figure says about `SAID`, in one or two sentences."""
    text = labels("traffic_ways")["takeaway"]
    ways = next(row for row in rows if row.variant == SAID)
    q_tiles = point.passes[0]
    first = text["reread" if q_tiles > 1 else "once"].format(
        label=VARIANTS[SAID].label, launched=traffic(ways.bytes[LAUNCHED] or 0), q_tiles=q_tiles
    )
    if ways.l2_share is None or ways.reads is None:
        return f"{first} {text['unknown'].format(compulsory=traffic(ways.compulsory_bytes))}"
    read, once = ways.reads[1], point.problem.q_bytes + 2 * point.problem.kv_bytes
    second = text["answered"].format(
        share=f"{100 * ways.l2_share:.0f}", dram=traffic(read), ratio=ratio_text(read / once)
    )
    return f"{first} {second}"


def ways_table(point: Point, rows: Sequence[Ways]) -> str:
    """The numbers behind the figure in whole bytes, with their sources, as HTML."""
    text = labels("traffic_ways")
    head = [text["variant"], *(text["columns"][way] for way in WAYS)]
    head += [text["compulsory"], text["intensity"]]
    body = []
    for row in rows:
        cells = [_exact(row.bytes[way], text["not_recorded"]) for way in WAYS]
        intensity = matmul_flops(point.problem) / (row.bytes[LAUNCHED] or 1)
        label = VARIANTS[row.variant].label
        body.append([label, *cells, _exact(row.compulsory_bytes, ""), f"{intensity:.3g}"])
    css = "falab-table falab-dense falab-ways"
    return html_table("traffic-ways", caption(point, rows), head, body, css=css)


def _exact(nbytes: float | None, missing: str) -> str:
    return missing if nbytes is None else f"{round(nbytes):,}".replace(",", "\u202f")


def caption(point: Point, rows: Sequence[Ways]) -> str:
    """The point, and the run behind every column."""
    text = labels("traffic_ways")
    sources = [text["source_models"]]
    bare = any(DRAM in row.runs and not row.written_back for row in rows)
    hardware = "hardware_bare" if bare else "hardware"
    for name, ways in (("counted", (COUNTED,)), (hardware, (L2, DRAM))):
        runs = sorted({row.runs[way] for row in rows for way in ways if way in row.runs})
        found = text[f"source_{name}"].format(runs=", ".join(runs))
        sources.append(found if runs else text[f"missing_{name.removesuffix('_bare')}"])
    return str(text["caption"]).format(
        problem=point.problem.describe(),
        sram=point.sram_kib,
        tiles=f"{point.tiling.block_m} × {point.tiling.block_n}",
        sources="; ".join(sources),
    )


def number_knob(
    text: Mapping[str, Any],
    name: str,
    values: Sequence[int],
    value: int,
    check: Callable[[object], int],
) -> Knob:
    """A knob named and described by a widget's labels."""
    return Knob(
        check=check, label=text[name], description=text[f"{name}_description"],
        unit=text.get(f"{name}_unit", ""), values=list(values), value=value,
    )  # fmt: skip


def dtype_choice(text: Mapping[str, Any], value: str, options: Sequence[str]) -> Any:
    """A dropdown of io dtypes by short name."""
    return ipywidgets.Dropdown(
        options=list(options), value=value, description=text["dtype"],
        layout=ipywidgets.Layout(width="120px"), style={"description_width": "initial"},
    )  # fmt: skip


class TrafficWays(ipywidgets.VBox):
    """Sentence, knobs, figure and table, kept in step; `point` is what they show."""

    def __init__(self, setting: Setting, device: str, numbers: RecordedNumbers) -> None:
        self._text, self._device, self._numbers = labels("traffic_ways"), device, numbers
        self._quiet, self._batch_heads = False, setting.batch_heads
        self.point = setting.point(device)
        text = self._text
        self.seqlen = number_knob(text, "seqlen", SEQLENS, setting.N, checked_seqlen)
        self.head_dim = number_knob(text, "head_dim", HEAD_DIMS, setting.d, checked_head_dim)
        self.sram = number_knob(text, "sram", SRAM_KIB, setting.M_kib, checked_sram_kib)
        self.dtype = dtype_choice(text, setting.dtype, ["fp16", "bf16", "fp32"])
        found = presets(numbers)
        first = (text["presets_choose" if found else "presets_none"], _NO_PRESET)
        self.preset = ipywidgets.Dropdown(
            options=[first, *found], value=_NO_PRESET, disabled=not found,
            description=text["presets"],
            layout=ipywidgets.Layout(width="430px"), style={"description_width": "initial"},
        )  # fmt: skip
        self.sentence, self.message = ipywidgets.HTML(), ipywidgets.HTML()
        self.figure, self.table = LiveFigure(least_width=LEAST_WIDTH), ipywidgets.HTML()
        for knob in (self.seqlen, self.head_dim):
            knob.observe(lambda change: self._resized(change.owner.stamp), "value")
        self.sram.observe(lambda change: self.update(change.owner.stamp), "value")
        self.dtype.observe(lambda change: self._resized(0.0), "value")
        self.preset.observe(lambda change: self.apply(change.new), "value")
        self._draw(self.point, 0.0)
        row = ipywidgets.Layout(flex_flow="row wrap", align_items="center", width="100%")
        knobs = [self.seqlen, self.head_dim, self.sram]
        super().__init__(
            [
                self.sentence,
                ipywidgets.HBox([*knobs, self.dtype, self.preset], layout=row),
                self.message,
                self.figure,
                self.table,
            ]
        )

    @property
    def setting(self) -> Setting:
        """What the controls show now."""
        sizes = (self.seqlen.value, self.head_dim.value, self.sram.value, self.dtype.value)
        return Setting(*sizes, self._batch_heads)

    def apply(self, setting: Setting | str) -> None:
        """Set every control at once; the dropdown's first line, which is none, changes nothing."""
        if not isinstance(setting, Setting):
            return
        self._quiet = True
        try:
            self._batch_heads = setting.batch_heads
            self.seqlen.value, self.head_dim.value = setting.N, setting.d
            self.sram.value, self.dtype.value = setting.M_kib, setting.dtype
        finally:
            self._quiet = False
        self.update()

    def update(self, stamp: float = 0.0) -> None:
        """Follow the controls; where that cannot be computed, say why and keep what is there."""
        if self._quiet:
            return
        setting = self.setting
        if self.preset.value not in (_NO_PRESET, setting):
            self.preset.value = _NO_PRESET  # it is not what is shown any more
        try:
            self._draw(setting.point(self._device), stamp)
        except ValueError as error:
            self._complain(self._text["kept"].format(sentence=error))
        else:
            self._complain("")

    def _resized(self, stamp: float) -> None:
        if not self._quiet:
            self._batch_heads = None  # another N, d or dtype: the grid's batch again
            self.update(stamp)

    def _draw(self, point: Point, stamp: float) -> None:
        rows = all_ways(point, self._numbers)
        said = takeaway(point, rows)
        alt = self._text["figure"].format(sentence=said)
        self.figure.show(traffic_ways_spec(rows, self._text), alt, stamp)
        self.sentence.value = f'<div class="falab-sentence" data-fa-ways>{escape(said)}</div>'
        names = refused(point)
        note = ""
        if names:
            note = self._text["device_limit"].format(
                device=device_words(point.device), names=", ".join(names)
            )
            note = f'<div class="falab-note">{escape(note)}</div>'
        self.table.value = ways_table(point, rows) + note
        self.point = point

    def _complain(self, text: str) -> None:
        self.figure.stale = bool(text)
        for shown in (self.sentence, self.table):
            (shown.add_class if text else shown.remove_class)("falab-stale")
        html = f'<div class="falab-message" role="alert" data-fa-message>{escape(text)}</div>'
        self.message.value = html if text else ""


def numbers_of(session: Session, device: str) -> RecordedNumbers:
    """Every recorded number of a device, the session's run first."""
    return RecordedNumbers.on(find_device(device), session.run, session.root)


def traffic_ways(
    N: int = 4096,
    d: int = 64,
    M_kib: int = 64,
    *,
    dtype: str = "fp16",
    device: str | None = None,
    session: Session | None = None,
) -> TrafficWays:
    """Bytes of one forward pass of every variant, in five ways that are never mixed.

    Paper model, launched model, counted in the kernel, L2 and DRAM by hardware counters. Where a
    number was not recorded at this point, the column says so.

    Args:
        N, d, M_kib: sequence length, head dimension, SRAM budget; batch and heads follow (16384
            tokens of width 2048), but for recorded shapes chosen from the list.
        dtype: "fp16", "bf16" or "fp32".
        device: slug of a GPU in data/devices; default: the one that is here or was recorded on.
        session: what `fa.session` returned; default: the current one.

    Raises:
        ValueError: a bad value; value, limit and remedy.
        TypeError: `session` is not one.
    """
    used = in_use(session)
    slug = default_device(used) if device is None else find_device(device).slug
    return TrafficWays(Setting.of(N, d, M_kib, dtype), slug, numbers_of(used, slug))
