"""Measure one point live, for the explorer's Run button."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from fa_kernels.measure.memory import free_pools
from fa_kernels.measure.point import Progress, measure_problem, our_contender
from fa_kernels.measure.records import Row
from fa_kernels.measure.timing import Flush
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.variants import ALGORITHMS


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
