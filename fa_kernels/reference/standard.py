"""Standard attention (Algorithm 0): S = Q K^T, P = softmax(S), O = P V through main memory."""

from __future__ import annotations

import math

import numpy as np

from fa_kernels.masks import keep_mask, key_end, key_ends
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.hbm import Hbm, compute_dtype
from fa_kernels.reference.online_softmax import OnlineSoftmax
from fa_kernels.tiling import Tiling

Array = np.ndarray

#: Rows of S up to this many bytes (in fp32) are kept on chip by the softmax launch, so S is read
#: once; longer rows are read twice. 64 KiB leaves room for three blocks on an SM.
ROW_CACHE_BYTES = 64 * 1024


def softmax_reads(seqlen_k: int) -> int:
    """How often the softmax launch reads S: once while a row fits on chip, else twice."""
    return 1 if 4 * seqlen_k <= ROW_CACHE_BYTES else 2


def attention_float64(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, problem: AttentionProblem
) -> tuple[np.ndarray, np.ndarray]:
    """The formula in float64, the truth everything is held against.

    Args:
        q, k, v: (batch, nheads, seqlen, head_dim), any float dtype.
        problem: gives softmax_scale and the mask.

    Returns:
        out (batch, nheads, seqlen_q, head_dim) and lse (batch, nheads, seqlen_q), float64.
        A fully masked row gives out 0 and lse -inf.
    """
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = problem.scale * (q @ np.swapaxes(k, -1, -2))
    if problem.causal is not None or problem.block_mask is not None:
        everything = keep_mask(problem, slice(0, problem.seqlen_q), slice(0, problem.seqlen_k))
        s = np.where(everything, s, -np.inf)
    state = OnlineSoftmax.empty(q.shape[:2], problem.seqlen_q, problem.head_dim, s.dtype)
    state.update(s, v)  # one block that holds every key: the safe softmax itself
    return state.output(), state.lse()


def standard_tiled(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    problem: AttentionProblem,
    tiling: Tiling,
    hbm: Hbm | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """02_standard_tiled in NumPy: three launches, S and P in the io dtype between them.

    Shapes as `attention_float64`; out has q's dtype, lse is float32 (float64 for float64 input).
    """
    hbm = hbm or Hbm()
    lead, nq, nk = q.shape[:2], problem.seqlen_q, problem.seqlen_k
    s = np.zeros((*lead, nq, nk), q.dtype)
    p = np.zeros_like(s)
    out = np.zeros(q.shape, q.dtype)
    lse = np.full((*lead, nq), -np.inf, compute_dtype(q.dtype))
    _scores(q, k, s, problem, tiling, hbm)
    _softmax(s, p, lse, problem, hbm)
    _output(p, v, out, problem, tiling, hbm)
    return out, lse


def row_tiles(problem: AttentionProblem, block_m: int) -> list[tuple[slice, int]]:
    """(rows, key_end) of every Q tile: the leading keys that its last row attends."""
    tiles = []
    for i0 in range(0, problem.seqlen_q, block_m):
        i1 = min(i0 + block_m, problem.seqlen_q)
        tiles.append((slice(i0, i1), key_end(problem, i1 - 1)))
    return tiles


def _scores(
    q: Array, k: Array, s: Array, problem: AttentionProblem, tiling: Tiling, hbm: Hbm
) -> None:
    for rows, end in row_tiles(problem, tiling.block_m):
        for j0 in range(0, end, tiling.block_n):
            cols = slice(j0, min(j0 + tiling.block_n, end))
            q_i = hbm.load("q", q[..., rows, :])
            k_j = hbm.load("k", k[..., cols, :])
            s_ij = problem.scale * (q_i @ np.swapaxes(k_j, -1, -2))
            hbm.store("s", s[..., rows, cols], s_ij, valid=keep_mask(problem, rows, cols))


def _softmax(s: Array, p: Array, lse: Array, problem: AttentionProblem, hbm: Hbm) -> None:
    for row, end in enumerate(key_ends(problem)):
        if end == 0:
            continue  # fully masked: lse stays -inf, and the output launch reads nothing
        for _ in range(softmax_reads(problem.seqlen_k)):
            s_i = hbm.load("s", s[..., row, :end])
        m_i = s_i.max(axis=-1, keepdims=True)
        p_i = np.exp(s_i - m_i)
        l_i = p_i.sum(axis=-1, keepdims=True)
        hbm.store("p", p[..., row, :end], p_i / l_i)
        lse[..., row] = (m_i + np.log(l_i))[..., 0]
    hbm.store("lse", lse, lse)


def _output(
    p: Array, v: Array, out: Array, problem: AttentionProblem, tiling: Tiling, hbm: Hbm
) -> None:
    for rows, end in row_tiles(problem, tiling.block_m):
        acc = np.zeros(out[..., rows, :].shape, compute_dtype(out.dtype))
        for j0 in range(0, end, tiling.block_n):
            cols = slice(j0, min(j0 + tiling.block_n, end))
            kept = keep_mask(problem, rows, cols)
            p_ij = np.where(kept, hbm.load("p", p[..., rows, cols], valid=kept), 0.0)
            acc += p_ij.astype(acc.dtype) @ hbm.load("v", v[..., cols, :])
        hbm.store("out", out[..., rows, :], acc)


def scale_in_log2(problem: AttentionProblem) -> float:
    """softmax_scale * log2(e): the kernels use exp2, so exp(x) = exp2(x log2 e) costs nothing."""
    return problem.scale * math.log2(math.e)
