"""Awkward shapes, random inputs and an independent formula, for every test of attention itself."""

from __future__ import annotations

import numpy as np
from hypothesis import settings

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.problem import AttentionProblem

#: (seqlen_q, seqlen_k): one element, below a tile, no multiple of anything, longer q than k
#: (causal bottom_right then masks whole rows), one key.
SHAPES = ((1, 1), (17, 17), (113, 203), (203, 113), (239, 1))
LONG = (1023, 1024)
HEAD_DIMS = (1, 20, 63, 64, 96, 128, 256)
MASKS = (None, "bottom_right", "top_left")

#: For property tests: few examples, the same ones every time, and nothing written to disk.
bounded = settings(deadline=None, max_examples=40, derandomize=True, database=None)

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


def random_inputs(problem: AttentionProblem, dtype: str = "float64", seed: int = 0) -> Arrays:
    """q, k, v, (batch, nheads, seqlen, head_dim), standard normal."""
    rng = np.random.default_rng(seed)

    def normal(seqlen: int) -> np.ndarray:
        shape = (problem.batch, problem.nheads, seqlen, problem.head_dim)
        return rng.standard_normal(shape).astype(io_dtype(dtype))

    return normal(problem.seqlen_q), normal(problem.seqlen_k), normal(problem.seqlen_k)


def random_mask(
    nq: int,
    nk: int,
    block_m: int,
    block_n: int,
    lead: tuple[int, int] = (1, 1),
    *,
    density: float = 0.4,
    seed: int = 0,
) -> BlockMask:
    """A block mask of independent blocks: rows and columns of blocks may keep nothing."""
    shape = (*lead, max(1, -(-nq // block_m)), max(1, -(-nk // block_n)))
    return BlockMask.from_dense(
        np.random.default_rng(seed).random(shape) < density, block_m, block_n
    )


def allowed_pairs(problem: AttentionProblem) -> np.ndarray:
    """Bool (seqlen_q, seqlen_k) from the definition of the masks, without fa_kernels.masks.

    With a block mask (batch or 1, nheads or 1, seqlen_q, seqlen_k).
    """
    shape = (problem.seqlen_q, problem.seqlen_k)
    allowed = np.ones(shape, bool)
    if problem.causal is not None:
        shift = problem.seqlen_k - problem.seqlen_q if problem.causal == "bottom_right" else 0
        allowed = np.tril(allowed, k=shift)
    mask = problem.block_mask
    if mask is None:
        return allowed
    elements = mask.keep.repeat(mask.block_m, axis=-2).repeat(mask.block_n, axis=-1)
    return allowed & elements[..., : shape[0], : shape[1]]


def plain_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, problem: AttentionProblem
) -> tuple[np.ndarray, np.ndarray]:
    """out and lse in float64 from the textbook formula; nothing of the package computes here."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = np.einsum("bhid,bhjd->bhij", q, k) * problem.scale
    s = np.where(allowed_pairs(problem), s, -np.inf)
    lse = np.logaddexp.reduce(s, axis=-1)
    weights = np.exp(s - np.where(np.isneginf(lse), 0.0, lse)[..., None])
    return np.einsum("bhij,bhjd->bhid", weights, v), lse
