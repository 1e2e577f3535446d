"""FlashAttention in NumPy, in both loop orders, with and without a block mask.

Q outside, K/V inside is FlashAttention-2's Algorithm 1; K/V outside is the first paper's
Algorithm 1, and Algorithm 5 with a block mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fa_kernels import tile_list
from fa_kernels.masks import keep_mask, key_end, split_by_mask
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.hbm import Hbm, compute_dtype
from fa_kernels.reference.online_softmax import OnlineSoftmax
from fa_kernels.tile_list import FLAG_BITS, FLAG_FIRST, FLAG_LAST, FLAG_MIXED
from fa_kernels.tiling import Tiling

Array = np.ndarray
#: Called after every visit with the rows, the keys, the state and alpha.
OnStep = Callable[[slice, slice, OnlineSoftmax, np.ndarray], None]


def flash_q_outer(
    q: Array,
    k: Array,
    v: Array,
    problem: AttentionProblem,
    tiling: Tiling,
    hbm: Hbm | None = None,
    *,
    on_step: OnStep | None = None,
) -> tuple[Array, Array]:
    """04_flash_q_outer in NumPy: S and P live in one tile and never reach main memory.

    Args:
        q: (batch, nheads, seqlen_q, head_dim); k, v: (batch, nheads, seqlen_k, head_dim).
        problem, tiling: sizes, masks and scale; tile sizes.
        hbm: the memory to load from and store to (counted when it is a `CountingHbm`).

    Returns:
        out like q, and lse (batch, nheads, seqlen_q) in float32 (float64 for float64 input).
        A fully masked row gives out 0 and lse -inf.
    """
    return _by_mask(q, k, v, problem, _q_outer, tiling, hbm or Hbm(), on_step)


def _q_outer(
    tensors: Sequence[Array],
    problem: AttentionProblem,
    tiling: Tiling,
    hbm: Hbm,
    on_step: OnStep | None,
) -> None:
    q, k, v, out, lse = tensors
    lists = tile_list.by_q(problem, tiling)
    for i in range(lists.lists):
        rows = _tile(i, tiling.block_m, problem.seqlen_q)
        q_i = hbm.load("q", q[..., rows, :])
        state = OnlineSoftmax.empty(q.shape[:2], q_i.shape[-2], problem.head_dim, lse.dtype)
        for entry in _read_list(lists, i, problem, hbm):
            end = key_end(problem, rows.stop - 1)
            cols = _tile(entry >> FLAG_BITS, tiling.block_n, end)
            k_j = hbm.load("k", k[..., cols, :])
            v_j = hbm.load("v", v[..., cols, :])
            s_ij = _scores(q_i, k_j, rows, cols, entry, problem, hbm)
            alpha = state.update(s_ij, v_j)
            if on_step is not None:
                on_step(rows, cols, state, alpha)
        hbm.store("out", out[..., rows, :], state.output())
        hbm.store("lse", lse[..., rows], state.lse())


def flash_kv_outer(
    q: Array,
    k: Array,
    v: Array,
    problem: AttentionProblem,
    tiling: Tiling,
    hbm: Hbm | None = None,
    *,
    o_io_dtype: bool = False,
    on_step: OnStep | None = None,
) -> tuple[Array, Array]:
    """03_flash_kv_outer in NumPy: Algorithm 1, K and V once, O, l and m through main memory.

    O is normalised at every visit and carried in fp32; with `o_io_dtype` in q's own dtype, which
    rounds it at every visit. Other arguments, results and masked rows as `flash_q_outer`.
    """
    return _by_mask(q, k, v, problem, _kv_outer, tiling, hbm or Hbm(), on_step, o_io_dtype)


def flash_kv_outer_io(
    q: Array,
    k: Array,
    v: Array,
    problem: AttentionProblem,
    tiling: Tiling,
    hbm: Hbm | None = None,
    *,
    on_step: OnStep | None = None,
) -> tuple[Array, Array]:
    """`flash_kv_outer` with O carried in the io dtype (-DO_IO_DTYPE)."""
    return flash_kv_outer(q, k, v, problem, tiling, hbm, o_io_dtype=True, on_step=on_step)


def _kv_outer(
    tensors: Sequence[Array],
    problem: AttentionProblem,
    tiling: Tiling,
    hbm: Hbm,
    on_step: OnStep | None,
    o_io_dtype: bool,
) -> None:
    q, k, v, out, lse = tensors
    lists = tile_list.by_kv(problem, tiling)
    # Between visits O lives in `o`, m in `lse`, and l beside it.
    o = out if o_io_dtype or q.dtype.itemsize > 2 else np.zeros(q.shape, lse.dtype)
    l_hbm = np.zeros_like(lse)
    k_end = key_end(problem, problem.seqlen_q - 1)
    for j in range(-(-k_end // tiling.block_n)):
        visits = _read_list(lists, j, problem, hbm)
        if not len(visits):
            continue  # no Q tile attends this K/V tile
        cols = _tile(j, tiling.block_n, k_end)
        k_j, v_j = hbm.load("k", k[..., cols, :]), hbm.load("v", v[..., cols, :])
        for entry in visits:
            rows = _tile(entry >> FLAG_BITS, tiling.block_m, problem.seqlen_q)
            q_i = hbm.load("q", q[..., rows, :])
            if entry & FLAG_FIRST:
                state = OnlineSoftmax.empty(q.shape[:2], q_i.shape[-2], q.shape[-1], lse.dtype)
            else:
                state = _read_back(o, lse, l_hbm, rows, hbm)
            s_ij = _scores(q_i, k_j, rows, cols, entry, problem, hbm)
            alpha = state.update(s_ij, v_j)
            if on_step is not None:
                on_step(rows, cols, state, alpha)
            if entry & FLAG_LAST:
                hbm.store("out", out[..., rows, :], state.output())
                hbm.store("lse", lse[..., rows], state.lse())
            else:
                hbm.store("out", o[..., rows, :], state.output())
                hbm.store("lse", lse[..., rows], state.m_i)
                hbm.store("lse", l_hbm[..., rows], state.l_i)
    for entry in _read_list(lists, lists.lists - 1, problem, hbm):  # Q tiles that attend nothing
        rows = _tile(entry >> FLAG_BITS, tiling.block_m, problem.seqlen_q)
        hbm.store("out", out[..., rows, :], 0.0)
        hbm.store("lse", lse[..., rows], -np.inf)


def _by_mask(
    q: Array, k: Array, v: Array, problem: AttentionProblem, loops: Callable[..., None], *rest: Any
) -> tuple[Array, Array]:
    """out and lse, filled in by `loops` for each group of heads that share a mask."""
    out = np.zeros(q.shape, q.dtype)
    lse = np.full(q.shape[:-1], -np.inf, compute_dtype(q.dtype))
    for batches, heads, group in split_by_mask(problem):
        loops([x[batches, heads] for x in (q, k, v, out, lse)], group, *rest)
    return out, lse


def _tile(index: int, block: int, end: int) -> slice:
    return slice(index * block, min((index + 1) * block, end))


def _read_back(o: Array, m_hbm: Array, l_hbm: Array, rows: slice, hbm: Hbm) -> OnlineSoftmax:
    """The state as the visit before left it; diag(l) undoes its division."""
    m_i, l_i = hbm.load("lse", m_hbm[..., rows]), hbm.load("lse", l_hbm[..., rows])
    return OnlineSoftmax(m_i, l_i, l_i[..., None] * hbm.load("out", o[..., rows, :]))


def _read_list(
    lists: tile_list.TileLists, index: int, problem: AttentionProblem, hbm: Hbm
) -> list[int]:
    """One list of tiles. Without a block mask it follows from the sizes and is not in memory."""
    if problem.block_mask is None:
        return lists.of(index).tolist()
    hbm.fetch("mask", lists.start[index : index + 2])
    return hbm.fetch("mask", lists.of(index)).tolist()


def _scores(
    q_i: Array,
    k_j: Array,
    rows: slice,
    cols: slice,
    entry: int,
    problem: AttentionProblem,
    hbm: Hbm,
) -> Array:
    """S of one tile, -inf where it is masked."""
    mask = problem.block_mask
    if mask is None or not entry & FLAG_MIXED:  # a whole tile does not look at the mask
        problem = replace(problem, block_mask=None)
    else:
        block_rows = slice(rows.start // mask.block_m, (rows.stop - 1) // mask.block_m + 1)
        block_cols = slice(cols.start // mask.block_n, (cols.stop - 1) // mask.block_n + 1)
        hbm.fetch("mask", mask.keep[0, 0, block_rows, block_cols])
    s_ij = problem.scale * (q_i @ np.swapaxes(k_j, -1, -2))
    return np.where(keep_mask(problem, rows, cols), s_ij, -np.inf).astype(q_i.dtype)
