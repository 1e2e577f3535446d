"""The lower bound of attention's IO over M: the law, the algorithms, where they meet a floor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fa_kernels.device import Device
from fa_kernels.device import device as find_device
from fa_kernels.figures.lower_bound import (
    COUNTED,
    DRAM,
    FLOOR,
    FREE,
    KV_OUTER,
    LAW,
    LINES,
    Q_OUTER,
    LowerBound,
    Point,
    lower_bound_spec,
    recorded_points,
)
from fa_kernels.figures.over_seqlen import SEQLENS
from fa_kernels.figures.point import (
    checked_head_dim,
    checked_seqlen,
    device_words,
    ratio_text,
)
from fa_kernels.figures.recorded_numbers import RecordedNumbers
from fa_kernels.session import Session
from fa_kernels.units import KIB, capacity, significant
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.explorer_point import recorded_on
from fa_kernels.widgets.headline import MOVED, Headline
from fa_kernels.widgets.setting import (
    HEAD_DIMS,
    SRAM_KIB,
    Setting,
    dtype_choice,
    number_knob,
)
from fa_kernels.widgets.setting_view import SettingView
from fa_kernels.widgets.text import html_table, labels

_ANY_KIB = 64


def takeaway(bound: LowerBound, device: Device, itemsize: int) -> str:
    """Where the algorithms stop to fall, how far from the floor, and what a block can have."""
    text, nd = labels("lower_bound"), bound.N * bound.d
    least = bound.kv_outer(bound.one_pass)
    smem = device.smem_per_block_bytes
    return str(text["said"]).format(
        law=significant(bound.law_meets_floor), pass_=f"{bound.one_pass / nd:.3g}",
        least=significant(least), ratio=f"{least / FLOOR:.3g}",
        device=device_words(device), block=capacity(smem),
        share=ratio_text(nd / (smem / itemsize)),
        here=significant(bound.kv_outer(smem / itemsize)),
        q_outer=significant(bound.q_outer(smem / itemsize)),
    )  # fmt: skip


def bound_table(bound: LowerBound, setting: Setting, points: Sequence[Point], itemsize: int) -> str:
    """Elements moved at some M, in units of N d, as HTML."""
    text = labels("lower_bound")
    n, d = bound.N, bound.d
    named = [("d", d), ("d²", d * d), *((f"{kib} KiB", kib * KIB // itemsize) for kib in (64, 192))]
    named += [("N d / 4", n * d // 4), ("N d", n * d), (text["one_pass"], bound.one_pass)]
    named += [(text["free_floor"], bound.free_meets_floor)]
    body = []
    for name, m in sorted(named, key=lambda pair: pair[1]):
        cells = [name, f"{m}"]
        for line in (LAW, KV_OUTER, Q_OUTER, FREE):
            value = bound.at(line, m)
            cells.append(text["none"] if value is None else significant(value, 4))
        body.append([*cells, f"{FLOOR}"])
    head = [text["column_where"], text["column_m"]]
    head += [text["lines"][line] for line in (LAW, KV_OUTER, Q_OUTER, FREE)] + [text["floor"]]
    runs = {way: sorted({p.run_id for p in points if p.way == way}) for way in (COUNTED, DRAM)}
    source = "; ".join(
        f"{text['ways'][way]}: {', '.join(found) or text['not_recorded']}"
        for way, found in runs.items()
    )
    caption = text["caption"].format(N=n, d=d, dtype=setting.dtype, source=source)
    return html_table("lower-bound", caption, head, body, "falab-table falab-dense")


class LowerBoundView(SettingView):
    """Elements moved over M; `bound` holds the numbers, `points` what was recorded."""

    bound: LowerBound
    drawn: Setting
    points: Sequence[Point]

    section, mark = "lower_bound", "lower-bound"
    has_presets = True

    def __init__(self, setting: Setting, device: str, numbers: RecordedNumbers) -> None:
        self.seqlen = number_knob("seqlen", SEQLENS, setting.N, checked_seqlen)
        self.head_dim = number_knob("head_dim", HEAD_DIMS, setting.d, checked_head_dim)
        self.dtype = dtype_choice(setting.dtype)
        controls = (self.seqlen, self.head_dim, self.dtype)
        super().__init__(setting, device, numbers, controls)

    @property
    def setting(self) -> Setting:
        """What the controls show now."""
        return Setting(self.seqlen.value, self.head_dim.value, _ANY_KIB, self.dtype.value)

    def headline(self) -> Headline:
        """Bytes of one head in both loop orders, with as much M as a block of the GPU may have."""
        text, device = labels("headline"), find_device(self.device)
        setting, bound = self.drawn, self.bound
        itemsize = setting.point(self.device).problem.itemsize
        m = device.smem_per_block_bytes / itemsize
        one = setting.N * setting.d * itemsize
        orders = (("flash_kv_outer", bound.kv_outer(m)), ("flash_q_outer", bound.q_outer(m)))
        return {
            text["at_block"].format(variant=VARIANTS[name].label): (multiple * one, MOVED)
            for name, multiple in orders
        }

    def ghost_scales(self, before: Any) -> Mapping[str, float]:
        """The axis counts in N d, which was another then."""
        now = self.setting
        return {"yaxis": before.N * before.d / (now.N * now.d)}

    def draw(self, setting: Setting, stamp: float) -> None:
        """Compute and show a setting."""
        problem, device = setting.point(self.device).problem, find_device(self.device)
        self.drawn = setting
        bound = self.bound = LowerBound(setting.N, setting.d)
        points = self.points = recorded_points(problem, SRAM_KIB, self.numbers)
        said = takeaway(bound, device, problem.itemsize)
        alt = self.text["figure"].format(
            sentence=said, lines=", ".join(self.text["lines"][line] for line in LINES)
        )
        spec = lower_bound_spec(bound, points, device, problem.itemsize, self.text)
        self.show(spec, alt, said, bound_table(bound, setting, points, problem.itemsize), stamp)


def lower_bound(
    N: int = 4096,
    d: int = 64,
    *,
    dtype: str = "fp16",
    device: str | None = None,
    session: Session | None = None,
) -> LowerBoundView:
    """Elements moved over M from d to beyond N d: the law N² d² / M, both loop orders, the floor.

    The theorem says that no algorithm stays below the law for all M; the figure shows why it cannot
    say so of each M: at M = N d the law is N d, less than reading the input. Where counts and DRAM
    bytes were recorded, they stand beside the models.

    Args and errors as `traffic_ways`; d = 1 to 256.
    """
    slug, numbers = recorded_on(device, session)
    return LowerBoundView(Setting.of(N, d, _ANY_KIB, dtype), slug, numbers)
