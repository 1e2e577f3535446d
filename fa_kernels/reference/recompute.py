"""The tiles of a backward pass by recomputation: P and dS from q, k, v, d_out and the lse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fa_kernels import tile_list
from fa_kernels.extras import Extras
from fa_kernels.masks import Part
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.hbm import Hbm
from fa_kernels.reference.online_softmax import OnlineSoftmax
from fa_kernels.reference.visit import VisitedTiles, read_list
from fa_kernels.tile_list import FLAG_BITS
from fa_kernels.tiling import Tiling

Array = np.ndarray

#: Beyond this |lse| a call with a bias computes the statistics of a row again: fp32 holds lse to
#: 6e-5 here, and where all the biases of a row are finfo.min nothing of log(l).
LARGE_LSE = 1024.0


@dataclass(frozen=True)
class Tensors:
    """What lies in main memory, of a whole call or as some heads see it.

    P = exp(S - row_m) row_scale. `dq_sum` holds the partial sums of dq in fp32; it is dq itself
    where that is wide enough.
    """

    q: Array
    d_out: Array
    out: Array
    row_m: Array
    row_scale: Array
    delta: Array
    dq: Array
    dq_sum: Array
    k: Array
    v: Array
    dk: Array
    dv: Array

    def part(self, part: Part, kv_heads: slice) -> Tensors:
        """The views of one part whose heads use these heads of k and v."""
        views = {}
        for name, array in vars(self).items():
            if name in ("k", "v", "dk", "dv"):
                views[name] = array[part.batches, kv_heads, part.k_rows]
            else:
                views[name] = part.of_q(array)
        return Tensors(**views)


class Heads:
    """Heads of q that share a sequence and a block mask, and the loops over their tiles."""

    def __init__(
        self, tensors: Tensors, problem: AttentionProblem, extras: Extras, tiling: Tiling, hbm: Hbm
    ) -> None:
        self.at, self.problem, self.extras = tensors, problem, extras
        self.tiling, self.hbm = tiling, hbm
        self.tiles = VisitedTiles.of(problem, extras, hbm)
        self.q_tiles = tile_list.q_tiles(problem, tiling.block_m)

    def of_keys(self, index: int) -> Iterator[tuple[int, slice]]:
        """(entry, rows) of the Q tiles that one K/V tile visits."""
        lists = tile_list.by_kv(self.problem, self.tiling)
        for entry in read_list(lists, index, self.problem, self.hbm):
            yield entry, self.q_tiles[entry >> FLAG_BITS]

    def of_rows(self, index: int) -> Iterator[tuple[int, slice]]:
        """(entry, keys) of the K/V tiles that one Q tile visits."""
        lists = tile_list.by_q(self.problem, self.tiling)
        for entry in read_list(lists, index, self.problem, self.hbm):
            j, rows = entry >> FLAG_BITS, self.q_tiles[index]
            yield entry, tile_list.keys_of(self.problem, rows, j, self.tiling.block_n)

    def unvisited_rows(self) -> Iterator[tuple[int, slice]]:
        """(entry, rows) of the Q tiles that visit nothing."""
        return self.of_keys(-(-self.problem.seqlen_k // self.tiling.block_n))

    def keys_of_all(self, index: int) -> slice:
        """The keys of a K/V tile that are loaded where all rows of q come to it."""
        everyone = slice(0, self.problem.seqlen_q)
        return tile_list.keys_of(self.problem, everyone, index, self.tiling.block_n)

    def load(self, name: str, at: slice, array: Array | None = None) -> Array:
        """A tile of q, d_out, out, k or v, or of `array` under that name."""
        array = getattr(self.at, name) if array is None else array
        return self.hbm.load(name, array[..., at, :])

    def statistics(self, rows: slice) -> tuple[Array, Array]:
        """row_m, +inf where nothing is attended so that P is 0, and row_scale; (..., rows, 1)."""
        m_i = self.hbm.load("lse", self.at.row_m[..., rows])
        m_i = np.where(m_i == -np.inf, np.inf, m_i).astype(m_i.dtype)
        scale = np.ones_like(m_i)
        if self.problem.bias_dtype is not None:
            scale = self.hbm.load("lse", self.at.row_scale[..., rows])
        return m_i[..., None], scale[..., None]

    def p_and_ds(
        self, operands: tuple[Array, ...], stats: tuple[Array, ...], rows: slice, cols: slice,
        entry: int,
    ) -> tuple[Array, Array]:  # fmt: skip
        """P times dropout, and dS times the scale, of one tile.

        `operands` are q, d_out, k, v of the tile; `stats` row_m, row_scale and delta of its rows.
        """
        q_i, d_out_i, k_j, v_j = operands
        row_m, row_scale, delta = stats
        s_ij = self.tiles.scores(q_i, k_j, rows, cols, entry)
        p_ij = np.exp(s_ij - row_m) * row_scale
        dp_ij = d_out_i @ np.swapaxes(v_j, -1, -2)
        dropout = self.tiles.dropout(rows, cols, entry, dp_ij.dtype)
        z_ij = np.ones_like(p_ij) if dropout is None else dropout
        return p_ij * z_ij, self.problem.scale * p_ij * (dp_ij * z_ij - delta)

    def set_statistics(self) -> None:
        """row_m and row_scale from lse; with a bias from the scores again where it is large."""
        for i, rows in enumerate(self.q_tiles):
            m_i = self.hbm.load("lse", self.at.row_m[..., rows])
            scale = np.ones_like(m_i)
            large = np.isfinite(m_i) & (np.abs(m_i) > LARGE_LSE)
            for b, h in np.argwhere(large.any(axis=-1)).tolist():
                state, again = self._alone(b, h)._softmax_of_rows(i), large[b, h]
                m_i[b, h, again] = state.m_i[0, 0, again]
                scale[b, h, again] = 1.0 / state.l_i[0, 0, again]
            self.hbm.store("lse", self.at.row_m[..., rows], m_i)
            self.hbm.store("lse", self.at.row_scale[..., rows], scale)

    def _alone(self, batch: int, head: int) -> Heads:
        """One (batch, head): each decides for itself whether it looks at its scores again."""
        b, h = slice(batch, batch + 1), slice(head, head + 1)
        at = Tensors(**{name: array[b, h] for name, array in vars(self.at).items()})
        extras = self.extras.part(b, h, slice(None), slice(None))
        one = replace(self.problem, batch=1, nheads=1, nheads_kv=1)
        return Heads(at, one, extras, self.tiling, self.hbm)

    def _softmax_of_rows(self, index: int) -> OnlineSoftmax:
        rows = self.q_tiles[index]
        q_i = self.load("q", rows)
        state = OnlineSoftmax.empty(q_i.shape[:2], q_i.shape[-2], 0, q_i.dtype)
        for entry, cols in self.of_rows(index):
            s_ij = self.tiles.scores(q_i, self.load("k", cols), rows, cols, entry)
            self.tiles.dropout(rows, cols, entry, s_ij.dtype)  # the same softmax as the forward's
            state.update(s_ij, np.zeros((*s_ij.shape[:2], s_ij.shape[-1], 0), s_ij.dtype))
        return state

    def set_delta(self) -> None:
        """delta = rowsum(d_out out), which is rowsum(P dP)."""
        for rows in self.q_tiles:
            delta_i = (self.load("d_out", rows) * self.load("out", rows)).sum(axis=-1)
            self.hbm.store("delta", self.at.delta[..., rows], delta_i)

    def own_rows(self) -> None:
        """dq, a tile of rows each, from S and dP computed again."""
        for i, rows in enumerate(self.q_tiles):
            q_i, d_out_i = self.load("q", rows), self.load("d_out", rows)
            delta = self.hbm.load("delta", self.at.delta[..., rows])[..., None]
            stats = (*self.statistics(rows), delta)
            dq_i = np.zeros_like(q_i)
            for entry, cols in self.of_rows(i):
                k_j, v_j = self.load("k", cols), self.load("v", cols)
                _, ds_ij = self.p_and_ds((q_i, d_out_i, k_j, v_j), stats, rows, cols, entry)
                dq_i += ds_ij @ k_j
            self.hbm.store("dq", self.at.dq[..., rows, :], dq_i)
