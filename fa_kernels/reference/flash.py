"""FlashAttention in NumPy, in both loop orders, under every mask.

Q outside, K/V inside is FlashAttention-2's Algorithm 1; K/V outside is the first paper's
Algorithm 1, and Algorithm 5 with a block mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fa_kernels import tile_list
from fa_kernels.extras import NO_EXTRAS, Extras
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.hbm import Hbm
from fa_kernels.reference.online_softmax import OnlineSoftmax
from fa_kernels.reference.scores import each_part, empty_outputs
from fa_kernels.reference.visit import VisitedTiles, read_list
from fa_kernels.tile_list import FLAG_BITS, FLAG_FIRST, FLAG_LAST
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
    extras: Extras = NO_EXTRAS,
    on_step: OnStep | None = None,
) -> tuple[Array, Array]:
    """04_flash_q_outer in NumPy: S and P live in one tile and never reach main memory.

    Args:
        q: (batch, nheads, seqlen_q, head_dim); k, v: (batch, nheads_kv, seqlen_k, head_dim).
        problem, tiling: sizes, masks, dropout and scale; tile sizes.
        hbm: the memory to load from and store to (counted when it is a `CountingHbm`).
        extras: element mask, bias and explicit dropout mask.

    Returns:
        out like q, and lse (batch, nheads, seqlen_q) in float32 (float64 for float64 input).
        A fully masked row gives out 0 and lse -inf.
    """
    return _by_part((q, k, v), problem, extras, _q_outer, tiling, hbm, on_step)


def flash_q_outer_boxes(
    q: Array,
    k: Array,
    v: Array,
    problem: AttentionProblem,
    tiling: Tiling,
    hbm: Hbm | None = None,
    *,
    extras: Extras = NO_EXTRAS,
    on_step: OnStep | None = None,
) -> tuple[Array, Array]:
    """06_flash_wgmma in NumPy: `flash_q_outer` that loads every tile of K and V that it visits
    whole, also the keys that no row of the Q tile attends. Arguments and results as there."""
    return _by_part((q, k, v), problem, extras, _q_outer, tiling, hbm, on_step, True)


def _q_outer(
    tensors: Sequence[Array],
    tiles: VisitedTiles,
    tiling: Tiling,
    on_step: OnStep | None,
    boxes: bool = False,
) -> None:
    q, out, lse, k, v = tensors
    problem, hbm = tiles.problem, tiles.hbm
    lists = tile_list.by_q(problem, tiling)
    for i, rows in enumerate(tile_list.q_tiles(problem, tiling.block_m)):
        q_i = hbm.load("q", q[..., rows, :])
        state = OnlineSoftmax.empty(q.shape[:2], q_i.shape[-2], problem.head_dim, lse.dtype)
        for entry in read_list(lists, i, problem, hbm):
            cols = tile_list.keys_of(problem, rows, entry >> FLAG_BITS, tiling.block_n)
            box = slice(cols.start, cols.start + tiling.block_n) if boxes else cols
            attended = slice(0, cols.stop - cols.start)
            k_j = hbm.load("k", k[..., box, :])[..., attended, :]
            v_j = hbm.load("v", v[..., box, :])[..., attended, :]
            s_ij = tiles.scores(q_i, k_j, rows, cols, entry)
            alpha = state.update(s_ij, v_j, tiles.dropout(rows, cols, entry, s_ij.dtype))
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
    extras: Extras = NO_EXTRAS,
    o_io_dtype: bool = False,
    on_step: OnStep | None = None,
) -> tuple[Array, Array]:
    """03_flash_kv_outer in NumPy: Algorithm 1, K and V once, O, l and m through main memory.

    O is normalised at every visit and carried in fp32; with `o_io_dtype` in q's own dtype, which
    rounds it at every visit. Other arguments, results and masked rows as `flash_q_outer`.
    """
    return _by_part((q, k, v), problem, extras, _kv_outer, tiling, hbm, on_step, o_io_dtype)


def flash_kv_outer_io(
    q: Array,
    k: Array,
    v: Array,
    problem: AttentionProblem,
    tiling: Tiling,
    hbm: Hbm | None = None,
    *,
    extras: Extras = NO_EXTRAS,
    on_step: OnStep | None = None,
) -> tuple[Array, Array]:
    """`flash_kv_outer` with O carried in the io dtype (-DO_IO_DTYPE)."""
    return flash_kv_outer(
        q, k, v, problem, tiling, hbm, extras=extras, o_io_dtype=True, on_step=on_step
    )


def _kv_outer(
    tensors: Sequence[Array],
    tiles: VisitedTiles,
    tiling: Tiling,
    on_step: OnStep | None,
    o_io_dtype: bool,
) -> None:
    q, out, lse, k, v = tensors
    problem, hbm = tiles.problem, tiles.hbm
    lists = tile_list.by_kv(problem, tiling)
    # Between visits O lives in `o`, m in `lse`, and l beside it.
    o = out if o_io_dtype or q.dtype.itemsize > 2 else np.zeros(q.shape, lse.dtype)
    l_hbm = np.zeros_like(lse)
    everyone = slice(0, problem.seqlen_q)
    q_tiles = tile_list.q_tiles(problem, tiling.block_m)
    for j in tile_list.k_tiles(problem, everyone, tiling.block_n):
        visits = read_list(lists, j, problem, hbm)
        if not len(visits):
            continue  # no Q tile attends this K/V tile
        cols = tile_list.keys_of(problem, everyone, j, tiling.block_n)
        k_j, v_j = hbm.load("k", k[..., cols, :]), hbm.load("v", v[..., cols, :])
        for entry in visits:
            rows = q_tiles[entry >> FLAG_BITS]
            q_i = hbm.load("q", q[..., rows, :])
            if entry & FLAG_FIRST:
                state = OnlineSoftmax.empty(q.shape[:2], q_i.shape[-2], q.shape[-1], lse.dtype)
            else:
                state = _read_back(o, lse, l_hbm, rows, hbm)
            s_ij = tiles.scores(q_i, k_j, rows, cols, entry)
            alpha = state.update(s_ij, v_j, tiles.dropout(rows, cols, entry, s_ij.dtype))
            if on_step is not None:
                on_step(rows, cols, state, alpha)
            if entry & FLAG_LAST:
                hbm.store("out", out[..., rows, :], state.output())
                hbm.store("lse", lse[..., rows], state.lse())
            else:
                hbm.store("out", o[..., rows, :], state.output())
                hbm.store("lse", lse[..., rows], state.m_i)
                hbm.store("lse", l_hbm[..., rows], state.l_i)
    for entry in read_list(lists, lists.lists - 1, problem, hbm):  # Q tiles that attend nothing
        rows = q_tiles[entry >> FLAG_BITS]
        hbm.store("out", out[..., rows, :], 0.0)
        hbm.store("lse", lse[..., rows], -np.inf)


def _by_part(
    inputs: Sequence[Array],
    problem: AttentionProblem,
    extras: Extras,
    loops: Callable[..., None],
    tiling: Tiling,
    hbm: Hbm | None,
    *rest: Any,
) -> tuple[Array, Array]:
    """out and lse, filled in by `loops` for each sequence or group of heads that share a mask."""
    q, k, v = inputs
    hbm = hbm or Hbm()
    out, lse = empty_outputs(q)
    for one, own, of_q, of_k in each_part(problem, extras, (q, out, lse), (k, v)):
        loops((*of_q, *of_k), VisitedTiles.of(one, own, hbm), tiling, *rest)
    return out, lse


def _read_back(o: Array, m_hbm: Array, l_hbm: Array, rows: slice, hbm: Hbm) -> OnlineSoftmax:
    """The state as the visit before left it; diag(l) undoes its division."""
    m_i, l_i = hbm.load("lse", m_hbm[..., rows]), hbm.load("lse", l_hbm[..., rows])
    return OnlineSoftmax(m_i, l_i, l_i[..., None] * hbm.load("out", o[..., rows, :]))
