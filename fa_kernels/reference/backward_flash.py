"""The gradients by recomputation, in both loop orders: S and P are rebuilt tile by tile.

From the forward only O and lse are kept. K/V tiles outside with dq carried through main memory is
FlashAttention's Algorithm 4; delta computed before and dq added to from all blocks at once is
FlashAttention-2's Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from fa_kernels.extras import NO_EXTRAS, Extras
from fa_kernels.masks import Part, parts
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.hbm import Hbm, compute_dtype
from fa_kernels.reference.recompute import Heads, Tensors
from fa_kernels.tile_list import FLAG_FIRST, FLAG_LAST
from fa_kernels.tiling import Tiling

Array = np.ndarray
Gradients = tuple[Array, Array, Array]
#: delta of some rows, (..., rows), from the heads, the rows and the tile of d_out.
Delta = Callable[[Heads, slice, Array], Array]
#: Adds a tile to dq: the heads, the rows, the entry of the visit and the tile.
AddDq = Callable[[Heads, slice, int, Array], None]


def flash_kv_outer_backward(
    d_out: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    problem: AttentionProblem,
    tiling: Tiling,
    hbm: Hbm | None = None,
    *,
    extras: Extras = NO_EXTRAS,
    deterministic: bool = False,
) -> Gradients:
    """03_flash_kv_outer_backward in NumPy: K/V tiles outside, dq through main memory in fp32.

    Args:
        d_out, q, out: (batch, nheads, seqlen_q, head_dim); k, v: (batch, nheads_kv, seqlen_k,
            head_dim); lse: (batch, nheads, seqlen_q), as the forward gave it.
        deterministic: has no meaning here, nothing is summed in an order left to chance.

    Returns:
        dq, dk, dv like q, k, v; dk and dv are sums over the heads that share them. A fully masked
        row has gradient 0 and adds 0.
    """
    call = _Call((d_out, q, k, v, out, lse), problem, tiling, extras, hbm or Hbm())
    call.set_statistics()
    call.own_keys(_delta_from_out, _carry_dq)
    for heads in call.heads:
        for _, rows in heads.unvisited_rows():
            heads.hbm.store("dq", heads.at.dq[..., rows, :], 0.0)
    return call.gradients


def _delta_from_out(heads: Heads, rows: slice, d_out_i: Array) -> Array:
    return (d_out_i * heads.load("out", rows)).sum(axis=-1)


def _carry_dq(heads: Heads, rows: slice, entry: int, dq_i: Array) -> None:
    """dq of a Q tile as the visit before left it, plus this one's share."""
    if not entry & FLAG_FIRST:
        dq_i = dq_i + heads.load("dq", rows, heads.at.dq_sum)
    where = heads.at.dq if entry & FLAG_LAST else heads.at.dq_sum
    heads.hbm.store("dq", where[..., rows, :], dq_i)


def flash_q_outer_backward(
    d_out: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    problem: AttentionProblem,
    tiling: Tiling,
    hbm: Hbm | None = None,
    *,
    extras: Extras = NO_EXTRAS,
    deterministic: bool = False,
) -> Gradients:
    """04_flash_q_outer_backward in NumPy: a K/V tile each, dq added atomically in fp32.

    An atomic addition reads and writes. `deterministic`: dq is left to a launch of its own, a tile
    of rows each, which computes S and dP again. Other arguments and results as
    `flash_kv_outer_backward`.
    """
    tensors = (d_out, q, k, v, out, lse)
    return _q_outer_backward(_Call(tensors, problem, tiling, extras, hbm or Hbm()), deterministic)


def flash_q_outer_boxes_backward(
    d_out: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    problem: AttentionProblem,
    tiling: Tiling,
    hbm: Hbm | None = None,
    *,
    extras: Extras = NO_EXTRAS,
    deterministic: bool = False,
) -> Gradients:
    """06_flash_wgmma_backward in NumPy: `flash_q_outer_backward` that loads K/V tiles whole, also
    the keys that no row attends. Its kernel has no `deterministic` dq; here it is in order anyway.
    """
    tensors = (d_out, q, k, v, out, lse)
    return _q_outer_backward(_Call(tensors, problem, tiling, extras, hbm or Hbm(), True), False)


def _q_outer_backward(call: _Call, deterministic: bool) -> Gradients:
    call.set_statistics()
    for heads in call.heads:
        heads.set_delta()
    call.own_keys(_delta_from_memory, None if deterministic else _add_dq)
    for heads in call.heads:
        if deterministic:
            heads.own_rows()
        elif call.at.dq is not call.at.dq_sum:
            for rows in heads.q_tiles:
                dq_i = heads.load("dq", rows, heads.at.dq_sum)
                call.hbm.store("dq", heads.at.dq[..., rows, :], dq_i)
    return call.gradients


def _delta_from_memory(heads: Heads, rows: slice, d_out_i: Array) -> Array:
    return heads.hbm.load("delta", heads.at.delta[..., rows])


def _add_dq(heads: Heads, rows: slice, entry: int, dq_i: Array) -> None:
    total = heads.load("dq", rows, heads.at.dq_sum) + dq_i
    heads.hbm.store("dq", heads.at.dq_sum[..., rows, :], total)


def _parts_by_key_head(problem: AttentionProblem) -> Iterator[Part]:
    """`parts`; heads that share k and v one by one, since one block goes over them in turn."""
    for part in parts(problem):
        if problem.group == 1:
            yield part
            continue
        one = replace(part.problem, nheads=1, nheads_kv=1)
        for head in range(part.heads.start, part.heads.stop):
            yield replace(part, heads=slice(head, head + 1), problem=one)


class _Call:
    """The tensors and the heads of one call, by the k/v heads that they share."""

    def __init__(
        self,
        arrays: tuple[Array, ...],
        problem: AttentionProblem,
        tiling: Tiling,
        extras: Extras,
        hbm: Hbm,
        boxes: bool = False,
    ) -> None:
        """`boxes`: K/V tiles are loaded whole."""
        d_out, q, k, v, out, lse = arrays
        wide = compute_dtype(q.dtype)
        dq, dk, dv = (np.zeros(x.shape, x.dtype) for x in (q, k, v))
        dq_sum = dq if q.dtype == wide else np.zeros(q.shape, wide)
        row_m, ones, delta = lse.astype(wide), np.ones(lse.shape, wide), np.zeros(lse.shape, wide)
        self.at = Tensors(q, d_out, out, row_m, ones, delta, dq, dq_sum, k, v, dk, dv)
        self.tiling, self.hbm, self.biased = tiling, hbm, problem.bias_dtype is not None
        self.boxes = boxes
        self.groups: dict[tuple[int, ...], list[Heads]] = {}
        for part in _parts_by_key_head(problem):
            first = part.heads.start // problem.group
            kv_heads = part.heads if problem.group == 1 else slice(first, first + 1)
            rows, cols = slice(0, part.problem.seqlen_q), slice(0, part.problem.seqlen_k)
            own = extras.part(part.masks, part.heads, rows, cols)
            heads = Heads(self.at.part(part, kv_heads), part.problem, own, tiling, hbm)
            self.groups.setdefault((part.masks.start, first), []).append(heads)

    @property
    def heads(self) -> list[Heads]:
        """All of them."""
        return [heads for group in self.groups.values() for heads in group]

    @property
    def gradients(self) -> Gradients:
        """dq, dk, dv."""
        return self.at.dq, self.at.dk, self.at.dv

    def set_statistics(self) -> None:
        """The launch that only a call with a bias needs."""
        if self.biased:
            for heads in self.heads:
                heads.set_statistics()

    def own_keys(self, delta: Delta, add_dq: AddDq | None) -> None:
        """dk and dv, a K/V tile each; add_dq None leaves dq out."""
        for group in self.groups.values():
            for index in range(-(-group[0].problem.seqlen_k // self.tiling.block_n)):
                self._own_keys(group, index, delta, add_dq)

    def _own_keys(self, group: list[Heads], index: int, delta: Delta, add_dq: AddDq | None) -> None:
        """One K/V tile: a loop over the Q tiles of every head that shares it."""
        at, seqlen_k = group[0].at, group[0].problem.seqlen_k
        keys = slice(index * self.tiling.block_n, min((index + 1) * self.tiling.block_n, seqlen_k))
        dk_j = np.zeros(at.dk[..., keys, :].shape, at.row_m.dtype)
        dv_j, loaded = np.zeros_like(dk_j), None
        for heads in group:
            cols = heads.keys_of_all(index)
            for entry, rows in heads.of_keys(index):
                n = cols.stop - cols.start
                if loaded is None:  # nobody attends some K/V tiles: they are not loaded at all
                    box = keys if self.boxes else cols
                    k_j, v_j = heads.load("k", box), heads.load("v", box)
                    loaded = k_j[..., :n, :], v_j[..., :n, :]
                q_i, d_out_i = heads.load("q", rows), heads.load("d_out", rows)
                delta_i = delta(heads, rows, d_out_i)[..., None]
                stats = (*heads.statistics(rows), delta_i)
                p_ij, ds_ij = heads.p_and_ds((q_i, d_out_i, *loaded), stats, rows, cols, entry)
                dv_j[..., :n, :] += np.swapaxes(p_ij, -1, -2) @ d_out_i
                dk_j[..., :n, :] += np.swapaxes(ds_ij, -1, -2) @ q_i
                if add_dq is not None:
                    add_dq(heads, rows, entry, ds_ij @ loaded[0])
        self.hbm.store("dk", at.dk[..., keys, :], dk_j)
        self.hbm.store("dv", at.dv[..., keys, :], dv_j)
