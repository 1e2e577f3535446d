"""FlashAttention in NumPy, Q blocks in the outer loop (FlashAttention-2, Algorithm 1)."""

from __future__ import annotations

import numpy as np

from fa_kernels.masks import keep_mask
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.hbm import Hbm, compute_dtype
from fa_kernels.reference.online_softmax import OnlineSoftmax
from fa_kernels.reference.standard import row_tiles
from fa_kernels.tiling import Tiling


def flash_q_outer(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    problem: AttentionProblem,
    tiling: Tiling,
    hbm: Hbm | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """04_flash_q_outer in NumPy: S and P live in one tile and never reach main memory.

    Args:
        q: (batch, nheads, seqlen_q, head_dim); k, v: (batch, nheads, seqlen_k, head_dim).
        problem, tiling: sizes, mask and scale; tile sizes.
        hbm: the memory to load from and store to (counted when it is a `CountingHbm`).

    Returns:
        out like q, and lse (batch, nheads, seqlen_q) in float32 (float64 for float64 input).
        A fully masked row gives out 0 and lse -inf.
    """
    hbm = hbm or Hbm()
    out = np.zeros(q.shape, q.dtype)
    compute = compute_dtype(q.dtype)
    lse = np.full(q.shape[:-1], -np.inf, compute)
    for rows, end in row_tiles(problem, tiling.block_m):
        q_i = hbm.load("q", q[..., rows, :])
        state = OnlineSoftmax.empty(q.shape[:2], q_i.shape[-2], problem.head_dim, compute)
        for j0 in range(0, end, tiling.block_n):
            cols = slice(j0, min(j0 + tiling.block_n, end))
            k_j = hbm.load("k", k[..., cols, :])
            v_j = hbm.load("v", v[..., cols, :])
            s_ij = problem.scale * (q_i @ np.swapaxes(k_j, -1, -2))
            s_ij = np.where(keep_mask(problem, rows, cols), s_ij, -np.inf).astype(compute)
            state.update(s_ij, v_j)
        hbm.store("out", out[..., rows, :], state.output())
        hbm.store("lse", lse[..., rows], state.lse())
    return out, lse
