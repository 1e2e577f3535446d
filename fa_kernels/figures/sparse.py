"""The pattern and density controls as checked values, and a point's traffic under a pattern."""

from __future__ import annotations

from dataclasses import replace

from fa_kernels.patterns import EVEN_PATTERNS
from fa_kernels.problem import AttentionProblem
from fa_kernels.traffic import patterns
from fa_kernels.traffic.model import Traffic
from fa_kernels.traffic.patterns import Blocks
from fa_kernels.variants import Variant

DENSE = "dense"
#: What the pattern control offers: patterns whose cost has a closed form.
CHOICES = (DENSE, *EVEN_PATTERNS)


def checked_pattern(name: object) -> str:
    """A name of `CHOICES`, or a ValueError that lists them."""
    if name not in CHOICES:
        raise ValueError(f"pattern = {name!r} is not known: use one of {', '.join(CHOICES)}.")
    return str(name)


def checked_density(value: object) -> float:
    """The density asked for as a float in (0, 1], or a ValueError that says what it must be."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0.0 < value <= 1.0:  # type: ignore[operator]
        raise ValueError(
            f"density = {value!r} is out of range: it must be above 0 and at most 1. "
            "It is the fraction of blocks to keep, for example 0.25."
        )
    return float(value)  # type: ignore[arg-type]


def row_name(blocks: Blocks) -> str:
    """What the column `block_mask` of a recorded row calls the pattern: "local 64x64"."""
    return f"{blocks.name} {blocks.tiling.block_m}x{blocks.tiling.block_n}"


def launched(variant: Variant, problem: AttentionProblem, blocks: Blocks) -> Traffic:
    """`variant.launched` of the dense `problem` with this pattern on it."""
    closed = patterns.launched(variant.name, problem, blocks)
    return closed or variant.launched(_masked(problem, blocks), blocks.tiling)


def paper(variant: Variant, problem: AttentionProblem, blocks: Blocks) -> Traffic:
    """`variant.paper` of the dense `problem` with this pattern on it."""
    closed = patterns.paper(variant.name, problem, blocks)
    return closed or variant.paper(_masked(problem, blocks), blocks.tiling)


def _masked(problem: AttentionProblem, blocks: Blocks) -> AttentionProblem:
    return replace(problem, block_mask=blocks.mask())
