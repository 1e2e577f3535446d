"""Bytes of FlashAttention's figure 2, left and right, each under the name of how it is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fa_kernels.device import Device
from fa_kernels.measure.paper import PublishedRow
from fa_kernels.measure.paper_calls import (
    FIG2_LEFT,
    IN_FIGURE,
    PEERS,
    RIGHT_DENSITIES,
    SPARSE_IN_FIGURE,
    figure_2_right,
    masked,
)
from fa_kernels.measure.paper_numbers import Number, PaperNumbers
from fa_kernels.measure.verdict import NOT_COMPARED, Verdict, listed
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.units import significant, span
from fa_kernels.variants import VARIANTS

#: How bytes are known, and what they are called: modelled for the launches, added up in our
#: kernels, and by hardware counters between L2 and SMs, atomic operations included, and at DRAM,
#: there with what was written back after the call.
LEVELS: Mapping[str, str] = {
    "launched": "launched model",
    "counted": "counted in the kernel",
    "l2": "L2 ↔ SM",
    "dram": "DRAM",
}
BY_HARDWARE = ("l2", "dram")
COUNTERS = "L2 and DRAM, by hardware counters"
NOT_READ = (
    'not read by hardware counters in any run: `make measure ARGS="--counters --shapes figure2"`'
)
LEFT_PASSES = ("fwd", "bwd", "both")


@dataclass(frozen=True)
class Moved:
    """Bytes of a pass of one call by level; a level that nothing says is not there.

    `kept` is the fraction of blocks, 1 without a mask; `runs` hold what is recorded of it.
    """

    series: str
    pass_: str
    kept: float
    by_level: Mapping[str, float]
    runs: tuple[str, ...] = ()


def moved(
    series: str, pass_: str, problem: AttentionProblem, numbers: PaperNumbers, device: Device
) -> Moved:
    """What is known of a pass of ours or of a peer; of ours with the tiles that a call takes.

    Forward and backward together are modelled and counted pass by pass; hardware counters are those
    of both as one call, in which the L2 carries over what it holds.
    """
    found: dict[str, float] = {}
    runs: list[str] = []
    own: tuple[Tiling | None, ...] = (None,)
    if series in VARIANTS:
        own = _tilings(series, problem, device)
        passes = ("fwd", "bwd") if pass_ == "both" else (pass_,)
        found["launched"] = sum(_modelled(series, one, problem, own) for one in passes)
        parts = [
            numbers.find(series, one, problem, "hbm_bytes", tiling=own[one == "bwd"])
            for one in passes
        ]
        known = [part for part in parts if part]
        if len(known) == len(parts):
            found["counted"] = sum(part.value for part in known)
            runs += [part.run_id for part in known]
    tiling = own[0] if pass_ == "fwd" else own[-1]

    def read(metric: str) -> Number | None:
        return numbers.find(series, pass_, problem, metric, tiling=tiling)

    l2, atomic = read("l2_bytes"), read("l2_atomic_bytes")
    dram, left = read("dram_bytes"), read("dram_writeback_bytes")
    if l2 and (atomic or pass_ == "fwd"):  # no forward adds to memory
        found["l2"] = l2.value + (atomic.value if atomic else 0.0)
        runs.append(l2.run_id)
    if dram and left and dram.run_id == left.run_id:
        found["dram"] = dram.value + left.value
        runs.append(dram.run_id)
    kept = 1.0 if problem.block_mask is None else problem.block_mask.density
    return Moved(series, pass_, kept, found, tuple(dict.fromkeys(runs)))


def _tilings(series: str, problem: AttentionProblem, device: Device) -> tuple[Tiling, Tiling]:
    """Those that forward and backward take by themselves on a device."""
    variant, limit = VARIANTS[series], device.smem_per_block_bytes
    assert variant.backward is not None
    own = variant.default_tiling(problem.head_dim, problem.itemsize, limit)
    backward = variant.backward.tiling_for(problem, limit)
    return own.clipped(problem.seqlen_q, problem.seqlen_k), backward


def _modelled(
    series: str, pass_: str, problem: AttentionProblem, own: Sequence[Tiling | None]
) -> float:
    variant = VARIANTS[series]
    backward, options = variant.backward, dict[str, Any]()
    assert backward is not None and own[0] is not None and own[-1] is not None
    if pass_ == "fwd":
        return variant.launched(problem, own[0]).total_bytes
    if "p" in backward.saved:
        options["p_given"] = True  # kept from the forward, as frameworks do
    return backward.launched(problem, own[-1], **options).total_bytes


def left_bytes(numbers: PaperNumbers, device: Device) -> tuple[Moved, ...]:
    """Figure 2 (left): every pass of everybody who computes its call, forward and backward last."""
    series = (IN_FIGURE[0], PEERS[0], *IN_FIGURE[1:], *PEERS[1:])
    found = [moved(s, p, FIG2_LEFT, numbers, device) for s in series for p in LEFT_PASSES]
    return tuple(one for one in found if one.by_level)


def right_bytes(numbers: PaperNumbers, device: Device) -> tuple[Moved, ...]:
    """Figure 2 (right): forward and backward at each density, the dense call last, by series."""
    dense = figure_2_right()
    problems = [*(masked(dense, density) for density in RIGHT_DENSITIES), dense]
    return tuple(
        moved(series, "both", problem, numbers, device)
        for series in SPARSE_IN_FIGURE
        for problem in problems
    )


def left_counters(rows: Sequence[PublishedRow], numbers: PaperNumbers, device: Device) -> Verdict:
    """What hardware counters say of figure 2 (left), beside the bytes that kernels ask for."""
    both = [one for one in left_bytes(numbers, device) if one.pass_ == "both"]
    said = []
    if read := [one for one in both if "dram" in one.by_level]:
        parts = [f"{_gb(one, 'dram')} GB for {_who(one.series)}" for one in read]
        said.append(f"in forward and backward DRAM moves {listed(parts)}")
    if asked := [one for one in both if "l2" in one.by_level]:
        parts = []
        for one in asked:
            counted = one.by_level.get("counted")
            beside = f" ({_gb(one, 'counted')} GB counted in the kernel)" if counted else ""
            parts.append(f"{_gb(one, 'l2')} GB for {_who(one.series)}{beside}")
        said.append(f"SMs ask the L2 for {listed(parts)}")
    said += _missing(both)
    about = rows[0].source.partition(", version ")[0]
    return Verdict(about, COUNTERS, NOT_COMPARED, _sentence(said), (), _runs(both))


def right_moved(rows: Sequence[PublishedRow], numbers: PaperNumbers, device: Device) -> Verdict:
    """Bytes of figure 2 (right) over the kept fraction, in percent of those of the dense call."""
    found, said = right_bytes(numbers, device), []
    for series in SPARSE_IN_FIGURE:
        *sparse, dense = [one for one in found if one.series == series]
        shares = []
        for level, name in LEVELS.items():
            if level in dense.by_level and all(level in one.by_level for one in sparse):
                left = [100 * one.by_level[level] / dense.by_level[level] for one in sparse]
                shares.append(f"{span(left)} % ({name})")
        if shares:
            kept = span([100 * one.kept for one in sparse])
            said.append(
                f"{_who(series)} keeping {kept} % of the blocks moves, of the bytes of the dense "
                f"call, {listed(shares)}"
            )
    said += _missing(found)
    said.append("the figure shows no bytes")
    return Verdict(
        rows[0].source, "bytes, block-sparse", NOT_COMPARED, _sentence(said), (), _runs(found)
    )


def _missing(found: Sequence[Moved]) -> list[str]:
    """Whose call no hardware counter was read of, and the remedy; [] where all were."""
    without = [one for one in found if not all(level in one.by_level for level in BY_HARDWARE)]
    if not without:
        return []
    names = dict.fromkeys(_who(one.series) for one in without)
    whole = len(without) == len(found)
    return [f"L2 and DRAM are {NOT_READ}" if whole else f"{', '.join(names)}: {NOT_READ}"]


def _who(series: str) -> str:
    return f"rung {VARIANTS[series].kernel[:2]}" if series in VARIANTS else series


def _gb(one: Moved, level: str) -> str:
    return significant(one.by_level[level] / 1e9)


def _runs(found: Sequence[Moved]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(run_id for one in found for run_id in one.runs))


def _sentence(parts: Sequence[str]) -> str:
    return f"{'; '.join(parts)}."
