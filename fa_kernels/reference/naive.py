"""Standard attention, element by element: every score and every output reads its own operands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fa_kernels.extras import NO_EXTRAS, Extras
from fa_kernels.masks import key_ranges
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.hbm import Hbm
from fa_kernels.reference.online_softmax import softmax_rows
from fa_kernels.reference.scores import (
    each_part,
    empty_outputs,
    masked_scores,
    storable_scores,
    tile_dropout,
)
from fa_kernels.tiling import Tiling

Array = np.ndarray


def standard_naive(
    q: Array,
    k: Array,
    v: Array,
    problem: AttentionProblem,
    tiling: Tiling | None = None,
    hbm: Hbm | None = None,
    *,
    extras: Extras = NO_EXTRAS,
) -> tuple[Array, Array]:
    """01_standard_naive in NumPy (FlashAttention, Algorithm 0); one row of Q at a time.

    Args:
        q: (batch, nheads, seqlen_q, head_dim); k, v: (batch, nheads_kv, seqlen_k, head_dim).
        tiling: has no meaning here; taken so that all algorithms are called alike.
        extras: element mask, bias and explicit dropout mask.

    Returns:
        out like q, and lse (batch, nheads, seqlen_q) in float32 (float64 for float64 input).
        A fully masked row gives out 0 and lse -inf.
    """
    hbm = hbm or Hbm()
    out, lse = empty_outputs(q)
    for one, own, of_q, of_k in each_part(problem, extras, (q, out, lse), (k, v)):
        s = np.zeros((*of_q[0].shape[:2], one.seqlen_q, one.seqlen_k), q.dtype)
        tensors = (*of_q, *of_k, s, np.zeros_like(s))
        for row, (begin, end) in enumerate(zip(*key_ranges(one), strict=True)):
            if begin < end:
                _one_row(row, slice(int(begin), int(end)), tensors, one, own, hbm)
    hbm.store("lse", lse, lse)
    hbm.store("out", out, out)
    return out, lse


def _one_row(
    row: int,
    keys: slice,
    tensors: Sequence[Array],
    problem: AttentionProblem,
    extras: Extras,
    hbm: Hbm,
) -> None:
    q, out, lse, k, v, s, p = tensors
    each_key = (*q.shape[:2], keys.stop - keys.start, problem.head_dim)
    at = (slice(row, row + 1), keys)
    # Every score reads its own copy of the row of Q, and every output column that of P.
    q_i = hbm.load("q", np.broadcast_to(q[..., row, None, :], each_key))
    k_j = hbm.load("k", k[..., keys, :])
    products = problem.scale * (q_i * k_j).sum(axis=-1)[..., None, :]
    s_i = masked_scores(products, *at, problem, extras, hbm)
    hbm.store("s", s[..., row, keys], storable_scores(s_i, extras, s.dtype)[..., 0, :])
    for _ in ("maximum", "sum", "division"):
        s_i = hbm.load("s", s[..., row, keys])
    p_i, lse[..., row] = softmax_rows(s_i)
    dropout = tile_dropout(*at, problem, extras, hbm, p_i.dtype)
    hbm.store("p", p[..., row, keys], p_i if dropout is None else p_i * dropout[..., 0, :])
    p_i = hbm.load("p", np.broadcast_to(p[..., row, keys, None], each_key))
    out[..., row, :] = (p_i * hbm.load("v", v[..., keys, :])).sum(axis=-2)
