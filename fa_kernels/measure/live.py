"""Measure one point live, for the explorer's Run button."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fa_kernels.measure.memory import free_pools
from fa_kernels.measure.point import Progress, measure_problem, our_contender
from fa_kernels.measure.records import Row
from fa_kernels.measure.timing import Flush
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.variants import VARIANTS


def measure_point(
    problem: AttentionProblem,
    tiling: Tiling,
    on_progress: Progress = lambda fraction, text: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[Row]:
    """Rows of every variant at one point of the explorer, on the current GPU.

    Args:
        problem, tiling: the point; tiles are clipped to the sequence as in every launch.
        on_progress: called with (fraction done, what is being done).
        cancelled: polled between steps; rows measured so far have been yielded by then.

    Yields:
        Memory, counted bytes and latency of each variant, each with its status; a variant that does
        not fit or is refused yields one row that says so.
    """
    contenders = [our_contender(variant, tiling, problem) for variant in VARIANTS.values()]
    try:
        yield from measure_problem(problem, contenders, Flush(), on_progress, cancelled)
    finally:
        free_pools()  # S, P and the flush buffer are gigabytes that the reader's next cell may need
