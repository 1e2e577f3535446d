"""The column `block_mask` of rows.csv: pattern and block size, from which the mask comes back."""

from __future__ import annotations

import re

from fa_kernels.block_mask import BlockMask
from fa_kernels.measure.seal import RecordError
from fa_kernels.patterns import PATTERNS
from fa_kernels.problem import AttentionProblem

_MASK = re.compile(r"([a-z]+) (\d+)x(\d+)")


def mask_text(problem: AttentionProblem) -> str:
    """The column `block_mask` of a problem; "" without a mask.

    Raises:
        RecordError: a mask that its name, block size and density do not bring back.
    """
    mask = problem.block_mask
    if mask is None:
        return ""
    sizes = (problem.seqlen_q, problem.seqlen_k, mask.block_m, mask.block_n)
    if mask.name not in PATTERNS or mask != BlockMask.pattern(mask.name, *sizes, mask.density):
        raise RecordError(
            f"a block mask named {mask.name!r} is not what BlockMask.pattern makes: a row holds "
            "pattern, block size and density, which would bring back another mask."
        )
    return f"{mask.name} {mask.block_m}x{mask.block_n}"


def parse_mask(text: str) -> tuple[str, int, int]:
    """(pattern, block_m, block_n) of the column `block_mask`.

    Raises:
        ValueError: not what `mask_text` writes.
    """
    match = _MASK.fullmatch(text)
    if match is None or match[1] not in PATTERNS:
        raise ValueError(
            f"block_mask = {text!r} is not a pattern and its block size, like 'local 64x64'"
        )
    return match[1], int(match[2]), int(match[3])
