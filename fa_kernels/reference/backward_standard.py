"""The gradients of standard attention (FlashAttention, Algorithm 3): dP and dS through main memory.

P is kept from the forward, or rebuilt by its first two launches; the products are tiled like its.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fa_kernels import tile_list
from fa_kernels.extras import NO_EXTRAS, Extras
from fa_kernels.masks import keep_mask, key_ranges, parts
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.hbm import Hbm, compute_dtype
from fa_kernels.reference.online_softmax import softmax_rows
from fa_kernels.reference.scores import each_part, per_query_head, tile_dropout, tile_scores
from fa_kernels.reference.standard import (
    ROW_CACHE_BYTES,
    softmax_reads,
    store_probabilities,
    store_scores,
)
from fa_kernels.tiling import Tiling

Array = np.ndarray
Gradients = tuple[Array, Array, Array]


def gradient_reads(seqlen_k: int) -> int:
    """How often the dS launch reads P and dP: once while a row of both fits on chip, else twice."""
    return 1 if 8 * seqlen_k <= ROW_CACHE_BYTES - 1024 else 2  # the launch needs a little besides


def sum_group(array: Array, problem: AttentionProblem) -> Array:
    """(batch, nheads_kv, ...) from (batch, nheads, ...): the sum over the heads that share k, v."""
    if problem.group == 1:
        return array
    return array.reshape(array.shape[0], -1, problem.group, *array.shape[2:]).sum(axis=2)


def attention_backward_float64(
    d_out: Array,
    q: Array,
    k: Array,
    v: Array,
    problem: AttentionProblem,
    extras: Extras = NO_EXTRAS,
) -> Gradients:
    """The gradients by the formula in float64, the truth everything is held against.

    Args:
        d_out, q: (batch, nheads, seqlen_q, head_dim); k, v: (batch, nheads_kv, seqlen_k, head_dim);
            any float dtype.
        problem, extras: as `attention_float64`.

    Returns:
        dq, dk, dv, shaped like q, k, v, float64. A fully masked row has gradient 0 and adds 0.
    """
    d_out, q, k, v = (x.astype(np.float64) for x in (d_out, q, k, v))
    k, v = per_query_head(k, problem), per_query_head(v, problem)
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    spread = replace(problem, nheads_kv=problem.nheads)
    for one, own, of_q, of_k in each_part(spread, extras, (d_out, q, dq), (k, v, dk, dv)):
        if one.seqlen_k > 0:
            _formula((*of_q, *of_k), one, own)
    return dq, sum_group(dk, problem), sum_group(dv, problem)


def _formula(tensors: tuple[Array, ...], problem: AttentionProblem, extras: Extras) -> None:
    """Writes dq, dk and dv of one part."""
    d_out, q, dq, k, v, dk, dv = tensors
    at = (slice(0, problem.seqlen_q), slice(0, problem.seqlen_k))
    p, _ = softmax_rows(tile_scores(q, k, *at, problem, extras, Hbm()))
    z = extras.keep_factor(problem, *at, q.dtype)
    z = np.ones_like(p) if z is None else z
    dp = z * (d_out @ np.swapaxes(v, -1, -2))
    ds = problem.scale * p * (dp - (p * dp).sum(axis=-1, keepdims=True))
    dq[...] = ds @ k
    dk[...] = np.swapaxes(ds, -1, -2) @ q
    dv[...] = np.swapaxes(p * z, -1, -2) @ d_out


def standard_tiled_backward(
    d_out: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array | None,
    lse: Array | None,
    problem: AttentionProblem,
    tiling: Tiling,
    hbm: Hbm | None = None,
    *,
    extras: Extras = NO_EXTRAS,
    deterministic: bool = False,
    p: Array | None = None,
) -> Gradients:
    """02_standard_tiled_backward in NumPy: five launches, and two before them to rebuild P.

    Args:
        d_out, q, k, v: as `attention_backward_float64`.
        out, lse: not looked at; taken so that all algorithms are called alike.
        deterministic: has no meaning here, every launch is.
        p: the forward's P, that before dropout, (batch, nheads, seqlen_q, seqlen_k) in q's dtype;
            of packed sequences (sequences, nheads, longest_q, longest_k). None rebuilds it.

    Returns:
        dq, dk, dv like q, k, v. P, dP and dS are in q's dtype in main memory.
    """
    hbm = hbm or Hbm()
    dq, dk, dv = (np.zeros(x.shape, x.dtype) for x in (q, k, v))
    k, v = per_query_head(k, problem), per_query_head(v, problem)
    for part in parts(problem):
        one = part.problem
        at = (slice(0, one.seqlen_q), slice(0, one.seqlen_k))
        own = extras.part(part.masks, part.heads, *at)
        d_out_p, q_p, dq_p = (part.of_q(x) for x in (d_out, q, dq))
        k_p, v_p = part.of_k(k), part.of_k(v)
        # A call with this kernel has no block mask: a part holds all the heads.
        dk_p, dv_p = dk[part.batches, :, part.k_rows], dv[part.batches, :, part.k_rows]
        if p is None:
            p_p = _rebuilt(q_p, k_p, one, tiling, own, softmax_reads(problem.seqlen_k), hbm)
        else:
            p_p = p[(part.masks, part.heads, *at)]
        launches = _Launches(one, tiling, own, hbm)
        launches.transposed_product(("p", p_p), ("d_out", d_out_p), ("dv", dv_p))
        ds = launches.d_probabilities(d_out_p, v_p)
        launches.d_scores(p_p, ds, gradient_reads(problem.seqlen_k))
        launches.d_queries(ds, k_p, dq_p)
        launches.transposed_product(("ds", ds), ("q", q_p), ("dk", dk_p))
    return dq, dk, dv


def _rebuilt(
    q: Array,
    k: Array,
    problem: AttentionProblem,
    tiling: Tiling,
    extras: Extras,
    reads: int,
    hbm: Hbm,
) -> Array:
    """P by the forward's first two launches, S and lse with it."""
    s = np.zeros((*q.shape[:-1], problem.seqlen_k), q.dtype)
    p, lse = np.zeros_like(s), np.zeros(q.shape[:-1], compute_dtype(q.dtype))
    store_scores(q, k, s, problem, tiling, extras, hbm)
    store_probabilities(s, p, lse, problem, reads, hbm)
    return p


class _Launches:
    """The launches of one part of a call; its tensors have a head for each head of q."""

    def __init__(self, problem: AttentionProblem, tiling: Tiling, extras: Extras, hbm: Hbm) -> None:
        self.problem, self.tiling, self.extras, self.hbm = problem, tiling, extras, hbm
        self.q_tiles = tile_list.q_tiles(problem, tiling.block_m)

    def d_probabilities(self, d_out: Array, v: Array) -> Array:
        """dP = (d_out V^T) times dropout, a tile each; (batch, nheads, seqlen_q, seqlen_k)."""
        dp = np.zeros((*d_out.shape[:-1], self.problem.seqlen_k), d_out.dtype)
        for rows in self.q_tiles:
            for j in tile_list.k_tiles(self.problem, rows, self.tiling.block_n):
                cols = tile_list.keys_of(self.problem, rows, j, self.tiling.block_n)
                d_out_i = self.hbm.load("d_out", d_out[..., rows, :])
                dp_ij = d_out_i @ np.swapaxes(self.hbm.load("v", v[..., cols, :]), -1, -2)
                dp_ij = self._dropped(dp_ij, rows, cols)
                kept = keep_mask(self.problem, rows, cols)
                self.hbm.store("dp", dp[..., rows, cols], dp_ij, valid=kept)
        return dp

    def d_scores(self, p: Array, ds: Array, reads: int) -> None:
        """dS = P (dP - rowsum(dP P)), row by row, in place of dP."""
        for row, (begin, end) in enumerate(zip(*key_ranges(self.problem), strict=True)):
            if begin == end:
                continue
            for _ in range(reads):
                p_i = self.hbm.load("p", p[..., row, begin:end])
                dp_i = self.hbm.load("dp", ds[..., row, begin:end])
            delta = (dp_i * p_i).sum(axis=-1, keepdims=True)
            self.hbm.store("ds", ds[..., row, begin:end], p_i * (dp_i - delta))

    def d_queries(self, ds: Array, k: Array, dq: Array) -> None:
        """dQ = scale dS K, a tile of rows each."""
        for rows in self.q_tiles:
            acc = np.zeros(dq[..., rows, :].shape, compute_dtype(dq.dtype))
            for j in tile_list.k_tiles(self.problem, rows, self.tiling.block_n):
                cols = tile_list.keys_of(self.problem, rows, j, self.tiling.block_n)
                ds_ij = self._kept("ds", ds, rows, cols)
                acc += ds_ij @ self.hbm.load("k", k[..., cols, :])
            self.hbm.store("dq", dq[..., rows, :], self.problem.scale * acc)

    def transposed_product(
        self, left: tuple[str, Array], right: tuple[str, Array], result: tuple[str, Array]
    ) -> None:
        """dV = (P times dropout)^T d_out or dK = scale dS^T Q: a tile of keys each, summed over
        the heads that share it; tensors with their names."""
        block_n, everyone = self.tiling.block_n, slice(0, self.problem.seqlen_q)
        scale, dtype = (self.problem.scale if result[0] == "dk" else 1.0), result[1].dtype
        for j in range(-(-self.problem.seqlen_k // block_n)):
            whole = slice(j * block_n, min((j + 1) * block_n, self.problem.seqlen_k))
            shape = (*right[1].shape[:2], whole.stop - whole.start, self.problem.head_dim)
            acc = np.zeros(shape, compute_dtype(dtype))
            for rows in self.q_tiles:
                if j not in tile_list.k_tiles(self.problem, rows, block_n):
                    continue
                cols = tile_list.keys_of(self.problem, everyone, j, block_n)
                left_ij = self._kept(*left, rows, cols)
                if left[0] == "p":
                    left_ij = self._dropped(left_ij, rows, cols)
                right_i = self.hbm.load(right[0], right[1][..., rows, :])
                keys = cols.stop - cols.start
                acc[..., :keys, :] += np.swapaxes(left_ij, -1, -2) @ right_i
            group = acc.shape[1] // result[1].shape[1]
            total = acc.reshape(acc.shape[0], -1, group, *acc.shape[2:]).sum(axis=2)
            self.hbm.store(result[0], result[1][..., whole, :], scale * total)

    def _kept(self, name: str, scores: Array, rows: slice, cols: slice) -> Array:
        """A tile of P or dS: what causal and window keep of it, 0 elsewhere."""
        kept = keep_mask(self.problem, rows, cols)
        tile = self.hbm.load(name, scores[..., rows, cols], valid=kept)
        return np.where(kept, tile, 0.0).astype(tile.dtype)

    def _dropped(self, tile: Array, rows: slice, cols: slice) -> Array:
        """A tile of P or dP times what dropout makes of it."""
        z = tile_dropout(rows, cols, self.problem, self.extras, self.hbm, tile.dtype)
        return tile if z is None else tile * z
