"""Measure one point live, for the Run buttons of the explorer and of the mask editor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from fa_kernels.cuda.launch import gpu_arch, refuse_memory, smem_limit_bytes
from fa_kernels.measure.check import Truth
from fa_kernels.measure.memory import free_pools
from fa_kernels.measure.point import Progress, measure_problem, our_contender, random_inputs
from fa_kernels.measure.records import Row
from fa_kernels.measure.timing import Flush, Latency, time_interleaved, time_once
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.variants import ALGORITHMS, VARIANTS, fastest


def measure_point(
    problem: AttentionProblem,
    tiling: Tiling,
    on_progress: Progress = lambda fraction, text: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[Row]:
    """Rows of every algorithm at one point of the explorer, on the current GPU.

    Args:
        problem, tiling: the point; tiles are clipped to the sequence as in every launch.
        on_progress: called with (fraction done, what is being done).
        cancelled: polled between steps; rows measured so far have been yielded by then.

    Yields:
        Memory, counted bytes and latency of each algorithm, each with its status; one that does not
        fit or is refused yields one row that says so. Algorithms that take no block mask are
        measured without it, and their rows say so.
    """
    able = [v for v in ALGORITHMS.values() if problem.dtype in v.dtypes]
    dense = replace(problem, block_mask=None)
    masked = [v for v in able if problem.block_mask is not None and v.block_sparse]
    work = [(problem, masked), (dense, [v for v in able if v not in masked])]
    work = [(p, variants) for p, variants in work if variants]
    apart = "timed apart: block-sparse calls in one round, dense ones in another"
    apart = apart if len(work) > 1 else ""
    flush = Flush()
    try:
        for i, (p, variants) in enumerate(work):

            def part(fraction: float, text: str, i: int = i) -> None:
                on_progress((i + fraction) / len(work), text)

            contenders = [our_contender(variant, tiling, p) for variant in variants]
            for row in measure_problem(p, contenders, flush, part, cancelled):
                yield replace(row, detail=row.detail or apart)
    finally:
        free_pools()  # S, P and the flush buffer are gigabytes that the reader's next cell may need


@dataclass(frozen=True)
class MaskTiming:
    """Forward times of `problem`, which has a block mask, and of the same call without it.

    `error`: the largest of the masked output from float64, at sampled rows of every head;
    `variant`: which of ours it was.
    """

    problem: AttentionProblem
    dense: Latency
    masked: Latency
    error: float
    variant: str


def time_mask(
    problem: AttentionProblem,
    on_progress: Progress = lambda fraction, text: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[MaskTiming]:
    """Our fastest rung with the problem's block mask and without it, in turns, on this GPU.

    A drawn mask has no name, so there is no row of a run for it: the timing itself is yielded,
    unless it was cancelled. Progress and `cancelled` as in `measure_point`.

    Raises:
        ValueError: not enough GPU memory.
        RuntimeError: the masked result is wrong; a wrong result is never timed.
    """
    variant, dense = VARIANTS[fastest(gpu_arch())], replace(problem, block_mask=None)
    tilings = [variant.tiling_for(p, smem_limit_bytes()) for p in (dense, problem)]
    memory = variant.memory(problem)
    refuse_memory("timing this mask", 2 * (memory.input_bytes + memory.output_bytes))
    try:
        on_progress(0.0, "compiling")
        inputs = random_inputs(problem)
        calls = [
            our_contender(variant, tiling, p).prepare(*inputs, p)
            for tiling, p in zip(tilings, (dense, problem), strict=True)
        ]
        if cancelled():
            return
        on_progress(0.3, "checking")
        out, lse = calls[1]()
        check = Truth(inputs, problem).check(out, lse, variant.roundings(problem, tilings[1]))
        if not check.ok:
            raise RuntimeError(
                f"the masked result is wrong: error {check.out_err:.3g}, limit "
                f"{check.out_limit:.3g}. Please report it."
            )
        on_progress(0.6, "timing")
        flush = Flush()
        first = [time_once(call, flush) for call in calls]
        times = time_interleaved(calls, flush, first, cancelled)
        if times[0] is not None and times[1] is not None and not cancelled():
            yield MaskTiming(problem, times[0], times[1], check.out_err, variant.name)
    finally:
        free_pools()
