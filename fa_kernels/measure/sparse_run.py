"""Block-sparse attention on record: time against density beside FlexAttention and dense cuDNN."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda.launch import gpu_arch, load_in_parallel, smem_limit_bytes
from fa_kernels.measure import records, timing
from fa_kernels.measure.baselines import BASELINES, packages_of
from fa_kernels.measure.point import measure_problem, our_contender, peer_contender
from fa_kernels.measure.progress import measure_each
from fa_kernels.measure.sparse_lists import list_rows
from fa_kernels.measure.special_run import open_run
from fa_kernels.measure.speed_backward import backward_plans, backward_rows
from fa_kernels.problem import AttentionProblem
from fa_kernels.variants import FAST, VARIANTS, fastest

#: Variants of ours that a run may hold, the fastest first: a GPU runs its own.
OURS = tuple(reversed(FAST))
BATCH, NHEADS, DTYPE, BLOCK = 2, 16, "bfloat16", 128
SEQLENS, HEAD_DIMS, PASSES = (8192, 65536), (64, 128), ("fwd", "bwd")
PATTERN, DENSITIES = "butterfly", (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32)
#: At the longer N: FlexAttention up to this density and this d alone, which keeps a run to minutes.
FLEX_DENSITY, FLEX_HEAD_DIM = 1 / 4, 128
#: At the longer N the gradients of these densities alone: to check one takes longer than to time.
LONG_BACKWARD = (1.0, 1 / 4, 1 / 16)
#: Masks of other shapes, at the shorter N and the larger d: (pattern, density, causal). The causal
#: one last: FlexAttention is compiled anew for it.
OTHERS = (("global", 1 / 8, None), ("local", 1 / 4, "bottom_right"))


@dataclass(frozen=True)
class SparsePoint:
    """One problem and pass, and the peers that are timed beside ours."""

    problem: AttentionProblem
    pass_: str
    peers: tuple[str, ...]

    @property
    def seqlen_q(self) -> int:
        """N, by which the time left is estimated."""
        return self.problem.seqlen_q

    def describe(self) -> str:
        """In words."""
        return f"{self.pass_} {self.problem.describe()}"


def dense_problem(seqlen: int, head_dim: int) -> AttentionProblem:
    """The call without a mask."""
    return AttentionProblem(BATCH, NHEADS, seqlen, seqlen, head_dim, DTYPE)


def masked(
    problem: AttentionProblem, density: float, pattern: str = PATTERN, causal: str | None = None
) -> AttentionProblem:
    """`problem` under a block mask."""
    sizes = (problem.seqlen_q, problem.seqlen_k, BLOCK, BLOCK)
    mask = BlockMask.pattern(pattern, *sizes, density)
    return replace(problem, causal=causal, block_mask=mask)


def points() -> list[SparsePoint]:
    """What a run measures, the most important first: it may be stopped in time."""
    return [
        point
        for seqlen in SEQLENS
        for pass_ in PASSES
        for head_dim in HEAD_DIMS
        for point in _curve(seqlen, head_dim, pass_)
    ]


def _curve(seqlen: int, head_dim: int, pass_: str) -> Iterator[SparsePoint]:
    """Dense, then every density; at the shorter N the other masks, too."""
    dense, short = dense_problem(seqlen, head_dim), seqlen == SEQLENS[0]
    yield SparsePoint(dense, pass_, ("torch_cudnn",))
    for density in DENSITIES if short or pass_ == "fwd" else LONG_BACKWARD:
        quick = short or (density <= FLEX_DENSITY and head_dim == FLEX_HEAD_DIM)
        yield SparsePoint(masked(dense, density), pass_, ("flex",) if quick else ())
    for pattern, density, causal in OTHERS if short and head_dim == FLEX_HEAD_DIM else ():
        yield SparsePoint(masked(dense, density, pattern, causal), pass_, ("flex",))


def _plans(work: Sequence[SparsePoint]) -> Iterator[Any]:
    limit, name = smem_limit_bytes(), fastest(gpu_arch())
    variant = VARIANTS[name]
    for point in work:
        problem = point.problem
        tiling = variant.tiling_for(problem, limit)
        for count in (False, True) if point.pass_ == "fwd" else (False,):
            yield variant.plan(problem, tiling, count_traffic=count)
        if point.pass_ == "bwd":
            yield from backward_plans(problem, (name,))


def measure_point(
    point: SparsePoint, peers: Sequence[str], flush: timing.Flush
) -> list[records.Row]:
    """Rows of our fastest and of those of the point's peers that are installed: checked, timed.

    Of a forward under a mask also what the lists of the mask cost.
    """
    problem, beside = point.problem, [name for name in point.peers if name in peers]
    name = fastest(gpu_arch())
    if point.pass_ == "bwd":
        return list(backward_rows(problem, (name,), beside, flush))
    variant = VARIANTS[name]
    tiling = variant.tiling_for(problem, smem_limit_bytes())
    ours = our_contender(variant, tiling, problem)
    others = [peer_contender(BASELINES[name], problem) for name in beside]
    found = list(measure_problem(problem, [ours, *others], flush))
    if problem.block_mask is not None:
        found += list_rows(problem, variant, tiling, flush)
    return found


def _is_done(point: SparsePoint, rows: Sequence[records.Row]) -> bool:
    return any(
        row.metric == "latency_ms" and row.pass_ == point.pass_ and row.problem == point.problem
        for row in rows
    )


def record_sparse(
    root: Path,
    label: str,
    command: str,
    resume: str | None = None,
    commit: str | None = None,
    seconds: float | None = None,
    say: Callable[[str], None] = print,
) -> tuple[Path, bool]:
    """Measure every point into a run of kind "sparse"; its folder, and whether it is whole.

    Arguments and errors as `backward_run.record_backward`.
    """
    start, asked = time.monotonic(), ("flex", "torch_cudnn")
    peers = tuple(name for name in asked if BASELINES[name].installed)
    packages = packages_of(peers)
    about: dict[str, Any] = {"packages": packages} if packages else {}
    folder, rows = open_run(
        "sparse", label, command, root, resume, commit, method=timing.METHODS["cold"], **about
    )
    if absent := [name for name in asked if name not in peers]:
        say(f"not installed: {', '.join(absent)}")
    work = [point for point in points() if not _is_done(point, rows)]
    say(f"{len(rows)} rows recorded, {len(work)} points to do")
    compiled = load_in_parallel(_plans(work))
    say(f"compiled {compiled} kernels in {time.monotonic() - start:.0f} s")
    flush = timing.Flush()

    def measure(point: SparsePoint) -> list[records.Row]:
        return measure_point(point, peers, flush)

    return folder, measure_each(folder, work, measure, _summary, start, seconds, say)


def _summary(rows: Sequence[records.Row]) -> str:
    times = [
        f"{row.series} {row.median:.3g} ms"
        for row in rows
        if row.metric == "latency_ms" and row.median is not None
    ]
    lists = [f"{row.metric} {row.median:.3g}" for row in rows if "lists_us" in row.metric]
    failed = [f"{row.series} {row.status}: {row.detail}" for row in rows if row.status != "ok"]
    return ", ".join([*times, *lists, *failed])
