"""Standard attention, element by element: every score and every output reads its own operands."""

from __future__ import annotations

import numpy as np

from fa_kernels.masks import key_ends
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.hbm import Hbm, compute_dtype
from fa_kernels.tiling import Tiling


def standard_naive(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    problem: AttentionProblem,
    tiling: Tiling | None = None,
    hbm: Hbm | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """01_standard_naive in NumPy (FlashAttention, Algorithm 0); one row of Q at a time.

    Args:
        q: (batch, nheads, seqlen_q, head_dim); k, v: (batch, nheads, seqlen_k, head_dim).
        tiling: has no meaning here; taken so that all algorithms are called alike.

    Returns:
        out like q, and lse (batch, nheads, seqlen_q) in float32 (float64 for float64 input).
        A fully masked row gives out 0 and lse -inf.
    """
    hbm = hbm or Hbm()
    lead, nq, nk = q.shape[:2], problem.seqlen_q, problem.seqlen_k
    s = np.zeros((*lead, nq, nk), q.dtype)
    p, out = np.zeros_like(s), np.zeros(q.shape, q.dtype)
    lse = np.full((*lead, nq), -np.inf, compute_dtype(q.dtype))
    for row, end in enumerate(key_ends(problem)):
        if end > 0:
            _one_row(row, slice(0, end), (q, k, v, s, p, out, lse), problem, hbm)
    hbm.store("lse", lse, lse)
    hbm.store("out", out, out)
    return out, lse


def _one_row(
    row: int, keys: slice, tensors: tuple[np.ndarray, ...], problem: AttentionProblem, hbm: Hbm
) -> None:
    q, k, v, s, p, out, lse = tensors
    each_key = (*q.shape[:2], keys.stop, problem.head_dim)
    # Every score reads its own copy of the row of Q, and every output column that of P.
    q_i = hbm.load("q", np.broadcast_to(q[..., row, None, :], each_key))
    k_j = hbm.load("k", k[..., keys, :])
    hbm.store("s", s[..., row, keys], problem.scale * (q_i * k_j).sum(axis=-1))
    m_i = hbm.load("s", s[..., row, keys]).max(axis=-1, keepdims=True)
    l_i = np.exp(hbm.load("s", s[..., row, keys]) - m_i).sum(axis=-1, keepdims=True)
    hbm.store("p", p[..., row, keys], np.exp(hbm.load("s", s[..., row, keys]) - m_i) / l_i)
    lse[..., row] = (m_i + np.log(l_i))[..., 0]
    p_i = hbm.load("p", np.broadcast_to(p[..., row, keys, None], each_key))
    out[..., row, :] = (p_i * hbm.load("v", v[..., keys, :])).sum(axis=-2)
