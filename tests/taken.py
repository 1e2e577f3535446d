"""Generic problems and tiles as each variant takes them: what it refuses has tests of its own."""

from __future__ import annotations

from dataclasses import replace

from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling, round_up
from fa_kernels.variants import Variant


def taken(variant: Variant, problem: AttentionProblem) -> AttentionProblem:
    """`problem` in a dtype of the variant's, and with whole rows where it takes no others."""
    dtype = problem.dtype if problem.dtype in variant.dtypes else variant.dtypes[0]
    step = 16 // replace(problem, dtype=dtype).itemsize if variant.whole_rows else 1
    return replace(problem, dtype=dtype, head_dim=round_up(problem.head_dim, step))


def taken_with_tiles(
    variant: Variant, problem: AttentionProblem, tiling: Tiling
) -> tuple[AttentionProblem, Tiling]:
    """The same, and the tiles nearest to `tiling` that the variant can have."""
    problem = taken(variant, problem)
    return problem, variant.nearest_tiling(problem, tiling)
