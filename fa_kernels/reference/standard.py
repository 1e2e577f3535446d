"""Standard attention (Algorithm 0): S = Q K^T, P = softmax(S), O = P V through main memory."""

from __future__ import annotations

import math

import numpy as np

from fa_kernels import tile_list
from fa_kernels.extras import NO_EXTRAS, Extras
from fa_kernels.masks import keep_mask, key_ranges
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.hbm import Hbm, compute_dtype
from fa_kernels.reference.online_softmax import OnlineSoftmax, softmax_rows
from fa_kernels.reference.scores import (
    each_part,
    empty_outputs,
    storable_scores,
    tile_dropout,
    tile_scores,
)
from fa_kernels.tiling import Tiling

Array = np.ndarray

#: Rows of S up to this many bytes (in fp32) are kept on chip by the softmax launch, so S is read
#: once; longer rows are read twice. 64 KiB leaves room for three blocks on an SM.
ROW_CACHE_BYTES = 64 * 1024


def softmax_reads(seqlen_k: int) -> int:
    """How often the softmax launch reads S: once while a row fits on chip, else twice.

    Of packed sequences the longest decides for all, since they share one launch.
    """
    return 1 if 4 * seqlen_k <= ROW_CACHE_BYTES else 2


def attention_float64(
    q: Array, k: Array, v: Array, problem: AttentionProblem, *, extras: Extras = NO_EXTRAS
) -> tuple[Array, Array]:
    """The formula in float64, the truth everything is held against.

    Args:
        q: (batch, nheads, seqlen_q, head_dim); k, v: (batch, nheads_kv, seqlen_k, head_dim), any
            float dtype.
        problem: gives softmax_scale, causal, window, block mask, dropout and packed sequences.
        extras: element mask, bias and explicit dropout mask.

    Returns:
        out (batch, nheads, seqlen_q, head_dim) and lse (batch, nheads, seqlen_q), float64.
        A fully masked row gives out 0 and lse -inf.
    """
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    out, lse = empty_outputs(q)
    hbm, dtype = Hbm(), q.dtype
    for one, own, (q_all, o, stats), (k_all, v_all) in each_part(
        problem, extras, (q, out, lse), (k, v)
    ):
        # One block that holds every key: the safe softmax itself.
        at = (slice(0, one.seqlen_q), slice(0, one.seqlen_k))
        state = OnlineSoftmax.empty(q_all.shape[:2], one.seqlen_q, one.head_dim, dtype)
        s = tile_scores(q_all, k_all, *at, one, own, hbm)
        state.update(s, v_all, tile_dropout(*at, one, own, hbm, dtype))
        o[...], stats[...] = state.output(), state.lse()
    return out, lse


def standard_tiled(
    q: Array,
    k: Array,
    v: Array,
    problem: AttentionProblem,
    tiling: Tiling,
    hbm: Hbm | None = None,
    *,
    extras: Extras = NO_EXTRAS,
) -> tuple[Array, Array]:
    """02_standard_tiled in NumPy: three launches, S and P in the io dtype between them.

    P in main memory is that before dropout. Shapes as `attention_float64`; out has q's dtype, lse
    is float32 (float64 for float64 input).
    """
    hbm = hbm or Hbm()
    out, lse = empty_outputs(q)
    reads = softmax_reads(problem.seqlen_k)
    for one, own, (q_rows, o, stats), (k_rows, v_rows) in each_part(
        problem, extras, (q, out, lse), (k, v)
    ):
        s = np.zeros((*q_rows.shape[:2], one.seqlen_q, one.seqlen_k), q.dtype)
        p = np.zeros_like(s)
        store_scores(q_rows, k_rows, s, one, tiling, own, hbm)
        store_probabilities(s, p, stats, one, reads, hbm)
        _output(p, v_rows, o, one, tiling, own, hbm)
    return out, lse


def store_scores(
    q: Array,
    k: Array,
    s: Array,
    problem: AttentionProblem,
    tiling: Tiling,
    extras: Extras,
    hbm: Hbm,
) -> None:
    """The first launch, on one part of a call: writes s (batch, nheads, seqlen_q, seqlen_k)."""
    for rows in tile_list.q_tiles(problem, tiling.block_m):
        for j in tile_list.k_tiles(problem, rows, tiling.block_n):
            cols = tile_list.keys_of(problem, rows, j, tiling.block_n)
            q_i = hbm.load("q", q[..., rows, :])
            k_j = hbm.load("k", k[..., cols, :])
            s_ij = tile_scores(q_i, k_j, rows, cols, problem, extras, hbm)
            s_ij = storable_scores(s_ij, extras, s.dtype)
            hbm.store("s", s[..., rows, cols], s_ij, valid=keep_mask(problem, rows, cols))


def store_probabilities(
    s: Array, p: Array, lse: Array, problem: AttentionProblem, reads: int, hbm: Hbm
) -> None:
    """The second launch: writes p, that before dropout, and lse; s is read `reads` times."""
    for row, (begin, end) in enumerate(zip(*key_ranges(problem), strict=True)):
        if begin == end:
            continue  # no key at all: lse stays -inf, and the output launch reads nothing
        for _ in range(reads):
            s_i = hbm.load("s", s[..., row, begin:end])
        p_i, lse[..., row] = softmax_rows(s_i)
        hbm.store("p", p[..., row, begin:end], p_i)
    hbm.store("lse", lse, lse)


def _output(
    p: Array,
    v: Array,
    out: Array,
    problem: AttentionProblem,
    tiling: Tiling,
    extras: Extras,
    hbm: Hbm,
) -> None:
    for rows in tile_list.q_tiles(problem, tiling.block_m):
        acc = np.zeros(out[..., rows, :].shape, compute_dtype(out.dtype))
        for j in tile_list.k_tiles(problem, rows, tiling.block_n):
            cols = tile_list.keys_of(problem, rows, j, tiling.block_n)
            kept = keep_mask(problem, rows, cols)
            p_ij = np.where(kept, hbm.load("p", p[..., rows, cols], valid=kept), 0.0)
            dropout = tile_dropout(rows, cols, problem, extras, hbm, acc.dtype)
            p_ij = (p_ij if dropout is None else p_ij * dropout).astype(acc.dtype)
            acc += p_ij @ hbm.load("v", v[..., cols, :])
        hbm.store("out", out[..., rows, :], acc)


def scale_in_log2(problem: AttentionProblem) -> float:
    """softmax_scale * log2(e): the kernels use exp2, so exp(x) = exp2(x log2 e) costs nothing."""
    return problem.scale * math.log2(math.e)
