"""What rebuilding S and P costs in FLOPs and saves in bytes, and what recorded times say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fa_kernels.device import Device
from fa_kernels.figures.backward_cost import (
    DETERMINISTIC,
    ON_TENSOR_CORES,
    READS_P,
    REBUILDS,
    Cost,
    FastTimes,
    cost_of,
    costs,
    recorded_in,
)
from fa_kernels.figures.over_seqlen import SEQLENS
from fa_kernels.figures.point import checked_head_dim, checked_seqlen, ratio_text
from fa_kernels.figures.recompute import recompute_spec
from fa_kernels.figures.recorded_backward import RecordedBackward
from fa_kernels.figures.rungs import number_of
from fa_kernels.problem import DTYPE_FROM_SHORT, SHORT_DTYPE, AttentionProblem, dtype_name
from fa_kernels.session import Session, in_use
from fa_kernels.units import duration, flops, traffic
from fa_kernels.widgets.drawn_view import DrawnView
from fa_kernels.widgets.headline import MOVED, TIME, Headline
from fa_kernels.widgets.saved_memory import recorded_backward
from fa_kernels.widgets.setting import HEAD_DIMS, dtype_choice, number_knob
from fa_kernels.widgets.text import html_table, labels

_COLUMNS = (
    "column_way", "column_products", "column_flops", "column_bytes", "column_intensity",
    "column_bytes_ms", "column_arithmetic_ms", "column_forward", "column_backward", "column_ratio",
)  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """N, d and dtype by its short name; batch and heads are the grid's."""

    N: int
    d: int
    dtype: str

    @classmethod
    def of(cls, N: object, d: object, dtype: object) -> Sizes:
        """Checked arguments.

        Raises:
            ValueError: a bad value; value, limit and remedy.
        """
        return cls(checked_seqlen(N), checked_head_dim(d), SHORT_DTYPE[dtype_name(dtype)])

    @property
    def problem(self) -> AttentionProblem:
        """16384 tokens of width 2048, or one sequence."""
        return AttentionProblem.of_tokens(self.N, self.d, DTYPE_FROM_SHORT[self.dtype])


def fast_times(device: Device, session: Session | None) -> FastTimes:
    """What the runs of kind "speed" of a device hold of the ways on tensor cores."""
    used = in_use(session)
    return FastTimes.on(device, used.run, used.root)


def takeaway(found: Sequence[Cost], device: Device) -> str:
    """What the fifth product buys in bytes, and what it does to the time where it is known."""
    fast = _on_tensor_cores(found, device)
    return " ".join(part for part in (_without_tensor_cores(found, bool(fast)), fast) if part)


def _without_tensor_cores(found: Sequence[Cost], others: bool) -> str:
    """Bytes and times of reading P and of rebuilding it on the fp32 units."""
    text = labels("recompute_cost")
    reads, rebuilds, own_dq = (cost_of(way, found) for way in (READS_P, REBUILDS, DETERMINISTIC))
    before, after = reads.traffic.total_bytes, rebuilds.traffic.total_bytes
    said = text["said_fewer" if after < before else "said_more"].format(
        products=rebuilds.way.products, instead=reads.way.products,
        percent=f"{100 * (rebuilds.flops / reads.flops - 1):.0f}",
        after=traffic(after), before=traffic(before),
        share=f"{abs(100 * (1 - after / before)):.0f}",
    )  # fmt: skip
    if reads.backward_ms is None or rebuilds.backward_ms is None:
        return f"{said} {text['said_no_time_of_these' if others else 'said_no_time']}"
    said += " " + text["said_time"].format(
        ratio=ratio_text(rebuilds.backward_ms / reads.backward_ms),
        rebuilds=duration(rebuilds.backward_ms), reads=duration(reads.backward_ms),
    )  # fmt: skip
    if own_dq.backward_ms is not None:
        said += " " + text["said_deterministic"].format(
            time=duration(own_dq.backward_ms), products=own_dq.way.products
        )  # fmt: skip
    return f"{said} {_what_binds(reads)}"


def _what_binds(cost: Cost) -> str:
    """Whether the pass that reads P has to wait for its bytes or for its arithmetic."""
    name = "said_bytes" if cost.bytes_ms > cost.arithmetic_ms else "said_arithmetic"
    return str(labels("recompute_cost")[name]).format(
        bytes=duration(cost.bytes_ms), arithmetic=duration(cost.arithmetic_ms)
    )


def _on_tensor_cores(found: Sequence[Cost], device: Device) -> str:
    """How long the N × N matrices alone would take beside all five products on tensor cores.

    Of the last rung that was timed. Also why there is no such time; "" where nothing was timed.
    """
    text, problem = labels("recompute_cost"), found[0].at.problem
    able, reads = [c for c in found if c.way.on_tensor_cores], cost_of(READS_P, found)
    if not able:
        known = any(problem.dtype in way.algorithm.dtypes for way in ON_TENSOR_CORES)
        what = device.name if known else SHORT_DTYPE[problem.dtype]
        return str(text["said_no_gpu" if known else "said_no_dtype"]).format(what=what)
    fast = next((cost for cost in reversed(able) if cost.backward_ms), None)
    if fast is None or fast.backward_ms is None:
        return "" if reads.backward_ms is None else str(text["said_fast_unknown"])
    scores_ms = reads.scores_bytes / (device.hbm_bandwidth_gb_s * 1e6)
    one_ms = fast.backward_ms / fast.way.products
    return str(text["said_fast"]).format(
        rung=number_of(fast.way.algorithm), products=fast.way.products,
        time=duration(fast.backward_ms), one=duration(one_ms), scores=duration(scores_ms),
        of_one=ratio_text(scores_ms / one_ms), of_all=ratio_text(scores_ms / fast.backward_ms),
    )  # fmt: skip


def cost_table(found: Sequence[Cost], device: Device, runs: Sequence[str]) -> str:
    """The numbers behind the figure, one row per way, as HTML; `runs` hold the times."""
    text = labels("recompute_cost")
    head = [text[column] for column in _COLUMNS]
    base, body = cost_of(READS_P, found).backward_ms, []
    for cost in found:
        ratio = f"{cost.backward_ms / base:.2f}" if base and cost.backward_ms else ""
        body.append(
            [
                text["ways"][cost.way.key], str(cost.way.products), flops(cost.flops),
                traffic(cost.traffic.total_bytes), f"{cost.traffic.intensity(cost.flops):.3g}",
                duration(cost.bytes_ms), duration(cost.arithmetic_ms),
                *(duration(x) if x else text["not_recorded"]
                  for x in (cost.forward_ms, cost.backward_ms)),
                ratio,
            ]
        )  # fmt: skip
    source = text["source"].format(run=", ".join(runs)) if runs else text["no_source"]
    problem = found[0].at.problem.describe()
    caption = text["caption"].format(
        problem=problem, device=device.name, source=source, tiles=tiles_words(found)
    )
    return html_table("recompute-cost", caption, head, body, "falab-table falab-dense falab-ways")


def tiles_words(found: Sequence[Cost]) -> str:
    """The tiles of every way, those of the ways on tensor cores by themselves: they differ."""
    text, others, fast = labels("recompute_cost"), "", dict[str, str]()
    for cost in found:
        tiles = f"{cost.at.tiling.block_m} × {cost.at.tiling.block_n}"
        if cost.way.on_tensor_cores:
            fast[number_of(cost.way.algorithm)] = tiles
        else:
            others = text["tiles"].format(tiles=tiles)
    if not fast:
        return others
    each = [text["tiles_rung"].format(tiles=tiles, rung=rung) for rung, tiles in fast.items()]
    alike = len(set(fast.values())) == 1
    listed = next(iter(fast.values())) if alike else " and ".join(each)
    return f"{others}, {text['tiles_fast'].format(tiles=listed)}"


class RecomputeCost(DrawnView):
    """The backward passes side by side."""

    section, mark = "recompute_cost", "recompute"
    has_presets = True

    def __init__(
        self, sizes: Sizes, device: Device, runs: RecordedBackward, fast: FastTimes
    ) -> None:
        self.device, self.runs, self.fast = device, runs, fast
        self.seqlen = number_knob("seqlen", SEQLENS, sizes.N, checked_seqlen)
        self.head_dim = number_knob("head_dim", HEAD_DIMS, sizes.d, checked_head_dim)
        self.dtype = dtype_choice(sizes.dtype)
        super().__init__(sizes, (self.seqlen, self.head_dim, self.dtype))

    @property
    def setting(self) -> Sizes:
        """What the controls show now."""
        return Sizes(self.seqlen.value, self.head_dim.value, self.dtype.value)

    def headline(self) -> Headline:
        """Bytes and recorded time of every way through the backward pass."""
        text, ways = labels("headline"), self.text["ways"]
        found: dict[str, tuple[float | None, str]] = {}
        for cost in self.found:
            way = {"variant": ways[cost.way.key]}
            found[text["moved"].format(**way)] = (cost.traffic.total_bytes, MOVED)
            found[text["time"].format(**way)] = (cost.backward_ms, TIME)
        return found

    def draw(self, setting: Sizes, stamp: float) -> None:
        """Compute and show a setting."""
        found = self.found = costs(setting.problem, self.device, self.runs, self.fast)
        said = takeaway(found, self.device)
        alt = self.text["figure"].format(sentence=said)
        table = cost_table(found, self.device, recorded_in(found, self.runs, self.fast))
        self.show(recompute_spec(found, self.text), alt, said, table, stamp)


def recompute_cost(
    N: int = 4096,
    d: int = 64,
    *,
    dtype: str = "fp16",
    device: str | None = None,
    session: Session | None = None,
) -> RecomputeCost:
    """Bytes, FLOPs and recorded times of reading P from HBM and of rebuilding it on the chip.

    Bytes are the launched models of the backward passes, by tensor; FLOPs are exact. Times are
    recorded; the marks beside them say what arithmetic and bytes alone would take. The ways on
    tensor cores have their tiles and their runs, of kind "speed", for themselves.

    Args:
        N, d: sequence length and head dimension; batch and heads follow (16384 tokens of width
            2048).
        dtype, device, session: as `traffic_ways`.

    Raises:
        ValueError: a bad value; value, limit and remedy.
        TypeError: `session` is not one.
    """
    sheet, runs = recorded_backward(device, session)
    return RecomputeCost(Sizes.of(N, d, dtype), sheet, runs, fast_times(sheet, session))
