"""Bytes of every variant in five ways: two models, a count in the kernel, two hardware counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fa_kernels.figures.over_seqlen import SEQLENS
from fa_kernels.figures.point import (
    Point,
    checked_head_dim,
    checked_seqlen,
    checked_sram_kib,
    ratio_text,
)
from fa_kernels.figures.recorded_numbers import RecordedNumbers
from fa_kernels.figures.traffic_ways import (
    COUNTED,
    DRAM,
    L2,
    LAUNCHED,
    METRICS,
    SHOWABLE,
    WAYS,
    Ways,
    all_ways,
    traffic_ways_spec,
)
from fa_kernels.masks import matmul_flops
from fa_kernels.problem import SHORT_DTYPE, AttentionProblem
from fa_kernels.session import Session
from fa_kernels.tiling import Tiling
from fa_kernels.units import KIB, traffic
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.explorer_point import recorded_on
from fa_kernels.widgets.headline import MOVED, Headline
from fa_kernels.widgets.refused import limit_words
from fa_kernels.widgets.setting import (
    HEAD_DIMS,
    SRAM_KIB,
    Setting,
    dtype_choice,
    number_knob,
)
from fa_kernels.widgets.setting_view import Control, SettingView
from fa_kernels.widgets.text import html_table, labels

#: The variant that the sentence is about: the one that keeps most on chip.
SAID = "flash_q_outer"


def presets(numbers: RecordedNumbers) -> list[tuple[str, Setting]]:
    """The shapes that have DRAM counters, as settings, longest name last."""
    text, found = labels("traffic_ways"), {}
    for number in numbers.rows(METRICS[DRAM], *SHOWABLE):
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
        return f"{first} {_without_l2(ways)}"
    read, once = ways.reads[1], point.problem.q_bytes + 2 * point.problem.kv_bytes
    # The figure's mark is of both directions: without this the two numbers seem to disagree.
    moved = ways.bytes[DRAM]
    written = "" if moved is None else text["written"].format(moved=traffic(moved))
    second = text["answered"].format(
        share=f"{100 * ways.l2_share:.0f}",
        dram=traffic(read),
        ratio=ratio_text(read / once),
        written=written,
    )
    return f"{first} {second}"


def _without_l2(ways: Ways) -> str:
    """How much of what is asked for DRAM moved, or that nobody counted it."""
    text, launched, moved = (
        labels("traffic_ways")["takeaway"],
        ways.bytes[LAUNCHED],
        ways.bytes[DRAM],
    )
    if moved is None or not launched:
        return str(text["unknown"]).format(compulsory=traffic(ways.compulsory_bytes))
    share = 100 * moved / launched
    return str(text["dram" if moved < launched else "dram_all"]).format(
        dram=traffic(moved), launched=traffic(launched), label=VARIANTS[ways.variant].label,
        share=f"{share:.0f}" if share >= 1 else f"{share:.1g}",
    )  # fmt: skip


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
    for way in (COUNTED, L2, DRAM):
        found = [row.runs[way] for row in rows if way in row.runs]
        name = f"source_{way}_bare" if way == DRAM and bare else f"source_{way}"
        said = text[name if found else f"missing_{way}"].format(runs=", ".join(sorted({*found})))
        some = found and len(found) < len(rows)
        sources.append(f"{said}, {text['source_some']}" if some else said)
    return str(text["caption"]).format(
        problem=point.problem.describe(),
        sram=point.sram_kib,
        tiles=f"{point.tiling.block_m} × {point.tiling.block_n}",
        sources="; ".join(sources),
    )


class TrafficWays(SettingView):
    """The five ways; `point` is what they show."""

    section, mark = "traffic_ways", "ways"
    point: Point
    rows: Sequence[Ways]

    def __init__(self, setting: Setting, device: str, numbers: RecordedNumbers) -> None:
        text = labels(self.section)
        self._batch_heads = self._opening_heads = setting.batch_heads
        self.seqlen = number_knob("seqlen", SEQLENS, setting.N, checked_seqlen)
        self.head_dim = number_knob("head_dim", HEAD_DIMS, setting.d, checked_head_dim)
        self.sram = number_knob("sram", SRAM_KIB, setting.M_kib, checked_sram_kib)
        self.dtype = dtype_choice(setting.dtype)
        found = presets(numbers)
        first = (text["presets_choose" if found else "presets_none"], None)
        self.preset = Choice(text["presets"], [first, *found], None)
        self.preset.disabled = not found
        self.preset.observe(lambda change: self.apply(change.new, self.preset.stamp), "value")
        controls = (self.seqlen, self.head_dim, self.sram, self.dtype)
        super().__init__(setting, device, numbers, controls, [self.preset])

    @property
    def setting(self) -> Setting:
        """What the controls show now."""
        sizes = (self.seqlen.value, self.head_dim.value, self.sram.value, self.dtype.value)
        return Setting(*sizes, self._batch_heads)

    def apply(self, setting: Setting | None, stamp: float = 0.0) -> None:
        """Set every control at once; the list's first line, which is none, changes nothing."""
        if setting is None or self._quiet:
            return
        self._quiet = True
        try:
            self._batch_heads = setting.batch_heads
            for knob, value in (
                (self.seqlen, setting.N), (self.head_dim, setting.d), (self.sram, setting.M_kib)
            ):  # fmt: skip
                knob.error, knob.value = "", value
            self.dtype.value = setting.dtype
        finally:
            self._quiet = False
        self.update(stamp)

    def moved(self, control: Control) -> None:
        """Another N, d or dtype: the grid's batch again."""
        if control is not self.sram:
            self._batch_heads = None
        if self.preset.value not in (None, self.setting):
            self.preset.value = None  # it is not what is shown any more
        self.update(control.stamp)

    def said(self) -> dict[str, str]:
        """With the batch of a recorded shape, which has no control."""
        found = super().said()
        if self._batch_heads is not None:
            found[str(self.text["batch_heads"])] = " × ".join(map(str, self._batch_heads))
        return found

    def restore(self, values: Mapping[Control, Any]) -> None:
        """The batch belongs to the setting, too."""
        super().restore(values)
        self._batch_heads, self.preset.value = self._opening_heads, None

    def headline(self) -> Headline:
        """Bytes of every variant by the launched model, and DRAM's where they were counted."""
        text, found = labels("headline"), {}
        for row in self.rows:
            label = VARIANTS[row.variant].label
            found[text["moved"].format(variant=label)] = (row.bytes[LAUNCHED], MOVED)
            found[text["dram"].format(variant=label)] = (row.bytes[DRAM], MOVED)
        return found

    def draw(self, setting: Setting, stamp: float) -> None:
        """Compute and show a setting."""
        point = self.point = setting.point(self.device)
        rows = all_ways(point, self.numbers)
        said = takeaway(point, rows)
        alt = self.text["figure"].format(sentence=said)
        table = ways_table(point, rows)
        if note := limit_words(point):
            table += f'<div class="falab-note">{escape(note)}</div>'
        self.rows = rows
        self.show(traffic_ways_spec(rows, self.text), alt, said, table, stamp)


def traffic_ways(
    N: int = 4096,
    d: int = 64,
    M_kib: int = 64,
    *,
    dtype: str = "fp16",
    batch_heads: tuple[int, int] | None = None,
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
        batch_heads: (batch, heads) of a recorded shape, as the list says them.
        device: slug of a GPU in data/devices; default: the one that is here or was recorded on.
        session: what `fa.session` returned; default: the current one.

    Raises:
        ValueError: a bad value; value, limit and remedy.
        TypeError: `session` is not one.
    """
    slug, numbers = recorded_on(device, session)
    return TrafficWays(Setting.of(N, d, M_kib, dtype, batch_heads), slug, numbers)
