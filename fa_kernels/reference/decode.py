"""Decoding with a KV cache in NumPy: append, then split-KV attention, then a merge by lse.

Source: Flash-Decoding (Dao, Haziza, Massa, Sizov 2023); pages: PagedAttention (Kwon et al. 2023,
arXiv 2309.06180). One query row gives the GPU one block per head: so the keys are split as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fa_kernels.decode_problem import TILE_KEYS, DecodeProblem, split_tiles
from fa_kernels.reference.hbm import Hbm, compute_dtype
from fa_kernels.reference.online_softmax import OnlineSoftmax

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class CacheOfOne:
    """k and v of one sequence as tiles of keys, wherever they lie.

    Contiguous: k, v (nheads_kv, max_seqlen, head_dim). Paged: k, v (num_pages, nheads_kv,
    page_size, head_dim) and `pages`, the numbers of this sequence's pages in order.
    """

    k: Array
    v: Array
    pages: Array | None

    def tile(self, j: int, keys: int, hbm: Hbm) -> tuple[Array, Array]:
        """The first `keys` keys of tile j, as views (nheads_kv, keys, head_dim).

        A page is a whole number of tiles, so a tile lies in one page: one look at the table.
        """
        k, v, key = self.k, self.v, j * TILE_KEYS
        if self.pages is not None:
            page_size = k.shape[-2]
            # Every k/v head is a block of its own, and looks for itself.
            looks = np.broadcast_to(self.pages[key // page_size], k.shape[1:2])
            page = int(hbm.fetch("mask", looks)[0])
            k, v, key = k[page], v[page], key % page_size
        return k[:, key : key + keys], v[:, key : key + keys]


def caches(
    k_cache: Array, v_cache: Array, problem: DecodeProblem, block_table: Array | None
) -> Iterator[CacheOfOne]:
    """The cache of every sequence."""
    for b in range(problem.batch):
        if block_table is None:
            yield CacheOfOne(k_cache[b], v_cache[b], None)
        else:
            yield CacheOfOne(k_cache, v_cache, block_table[b])


def append(
    k_cache: Array,
    v_cache: Array,
    k_new: Array,
    v_new: Array,
    cache_seqlens: Sequence[int],
    problem: DecodeProblem,
    block_table: Array | None = None,
    hbm: Hbm | None = None,
) -> None:
    """Write the new keys and values behind the `cache_seqlens` tokens that are there, in place.

    Args:
        k_cache, v_cache, block_table: as `flash_decode`.
        k_new, v_new: (batch, nheads_kv, seqlen_new, head_dim).
        cache_seqlens: tokens of each sequence before.
    """
    hbm = hbm or Hbm()
    for b, cache in enumerate(caches(k_cache, v_cache, problem, block_table)):
        for i in range(problem.seqlen_new):
            position = cache_seqlens[b] + i
            k, v = cache.k, cache.v
            if cache.pages is not None:
                # The GPU moves a row in pieces of 16 bytes, by threads that look for themselves.
                looks = (problem.nheads_kv, chunks_of_row(problem))
                of_token = cache.pages[position // k.shape[-2]]
                page = int(hbm.fetch("mask", np.broadcast_to(of_token, looks))[0, 0])
                k, v, position = k[page], v[page], position % k.shape[-2]
            for name, to, new in (("k", k, k_new), ("v", v, v_new)):
                hbm.store(name, to[:, position], hbm.fetch(name, new[b, :, i]))


def chunks_of_row(problem: DecodeProblem) -> int:
    """Pieces of 16 bytes, the last perhaps shorter, in a row of head_dim elements."""
    return -(-problem.head_dim * problem.itemsize // 16)


def flash_decode(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    totals: Sequence[int],
    problem: DecodeProblem,
    num_splits: int = 1,
    *,
    block_table: Array | None = None,
    block_rows: int | None = None,
    merged_on_chip: bool = False,
    hbm: Hbm | None = None,
) -> tuple[Array, Array]:
    """Attention of the last rows of each sequence over its cache, in `num_splits` parts.

    Args:
        q: (batch, nheads, seqlen_q, head_dim); row i stands at position total - seqlen_q + i.
        k_cache, v_cache: (batch, nheads_kv, max_seqlen, head_dim), or pages (num_pages, nheads_kv,
            page_size, head_dim) with `block_table` (batch, max_pages).
        totals: tokens of each sequence, new ones included.
        block_rows: rows of a k/v head that share a read of its keys; None: all. The result does
            not depend on it, the bytes do.
        merged_on_chip: what the splits leave for their merge stays out of `hbm`.
        hbm: the memory to load from and store to (counted when it is a `CountingHbm`).

    Returns:
        out like q; lse (batch, nheads, seqlen_q) in float32 (float64 for float64). A row with no
        key gives out 0 and lse -inf.
    """
    hbm = hbm or Hbm()
    wide = compute_dtype(q.dtype)
    out, lse = np.empty(q.shape, q.dtype), np.empty(q.shape[:3], wide)
    step = block_rows or problem.rows
    for b, cache in enumerate(caches(k_cache, v_cache, problem, block_table)):
        # The rows of the heads that share a k/v head, one below the other: one tile of rows.
        q_b, out_b = (_packed(x[b], problem) for x in (q, out))
        lse_b = lse[b].reshape(problem.nheads_kv, problem.rows)
        for first in range(0, problem.rows, step):
            rows = slice(first, min(first + step, problem.rows))
            between = Hbm() if merged_on_chip else hbm
            block = _Block(q_b[:, rows], cache, totals[b], rows, problem, hbm, between)
            block.attend(num_splits, out_b[:, rows], lse_b[:, rows])  # views of out and lse
    return out, lse


def _packed(x: Array, problem: DecodeProblem) -> Array:
    """(nheads, seqlen_q, d) as (nheads_kv, group * seqlen_q, d)."""
    return x.reshape(problem.nheads_kv, problem.rows, problem.head_dim)


@dataclass(frozen=True, eq=False)
class _Block:
    """Some rows of every k/v head of one sequence: what one block of the GPU does for one head."""

    q: Array
    cache: CacheOfOne
    total: int
    rows: slice
    problem: DecodeProblem
    hbm: Hbm
    between: Hbm  # where splits leave what their merge reads

    def attend(self, num_splits: int, out: Array, lse: Array) -> None:
        """All splits and, if there are several, their merge, into out and lse."""
        p, hbm = self.problem, self.hbm
        tiles = split_tiles(self.total, p.seqlen_q, p.left, num_splits)
        states = [self._split(first, stop) for first, stop in tiles]
        if num_splits == 1:
            hbm.store("out", out, _output(states[0]))
            hbm.store("lse", lse, states[0].lse())
            return
        partial_lse = np.empty((num_splits, *lse.shape), lse.dtype)
        partial_out = np.zeros((*partial_lse.shape, p.head_dim), lse.dtype)
        for s, state in enumerate(states):
            self.between.store("lse", partial_lse[s], state.lse())
            seen = saw_a_key(partial_lse[s])[..., None]
            self.between.store("out", partial_out[s], _output(state), seen)
        merged, merged_lse = merge(partial_out, partial_lse, self.between)
        hbm.store("out", out, merged)
        hbm.store("lse", lse, merged_lse)

    def _split(self, first: int, stop: int) -> OnlineSoftmax:
        """The online softmax over one split's tiles of keys."""
        p, hbm = self.problem, self.hbm
        lead, rows = (p.nheads_kv,), self.rows.stop - self.rows.start
        state = OnlineSoftmax.empty(lead, rows, p.head_dim, compute_dtype(self.q.dtype))
        if first >= stop:
            return state
        q = hbm.load("q", self.q)
        for j in range(first, stop):
            key = j * TILE_KEYS
            keys = min(TILE_KEYS, self.total - key)
            k_j, v_j = self.cache.tile(j, keys, hbm)
            k, v = hbm.load("k", k_j), hbm.load("v", v_j)
            s = p.scale * (q @ k.swapaxes(-1, -2))
            kept = kept_keys(p, self.total, self.rows, slice(key, key + keys))
            # A Python float keeps fp32 scores fp32.
            state.update(np.where(kept, s, -np.inf).astype(s.dtype), v)
        return state


def _output(state: OnlineSoftmax) -> Array:
    """acc / l; 0 for a row without a key, also where V holds NaN, which 0 times it would be."""
    return np.where(state.l_i[..., None] == 0.0, 0.0, state.output())


def kept_keys(problem: DecodeProblem, total: int, rows: slice, keys: slice) -> Array:
    """Which `keys` the packed `rows` attend, bool (rows, keys): none after its own position."""
    row = np.arange(rows.start, rows.stop) % problem.seqlen_q
    position = (total - problem.seqlen_q + row)[:, None]
    key = np.arange(keys.start, keys.stop)
    kept = (key <= position) & (key < total)
    return kept if problem.left is None else kept & (key >= position - problem.left)


def saw_a_key(lse: Array) -> Array:
    """False for rows that attended no key: their partial out says nothing and is not moved."""
    return lse != -np.inf


def merge(partial_out: Array, partial_lse: Array, hbm: Hbm | None = None) -> tuple[Array, Array]:
    """out and lse of all splits from those of each: weights exp(lse_s - lse).

    Args:
        partial_out: (splits, ..., rows, head_dim); partial_lse: (splits, ..., rows), natural log,
            -inf where a split saw no key.

    Returns:
        out (..., rows, head_dim), 0 where no split saw a key; lse (..., rows), -inf there.
    """
    hbm = hbm or Hbm()
    parts_lse = hbm.load("lse", partial_lse)
    seen = saw_a_key(parts_lse)[..., None]
    parts = np.where(seen, hbm.load("out", partial_out, seen), 0.0)
    highest = parts_lse.max(axis=0)
    # As in the online softmax: -inf - -inf is NaN.
    safe = np.where(highest == -np.inf, 0.0, highest).astype(parts_lse.dtype)
    weights = np.exp(parts_lse - safe)
    total = weights.sum(axis=0)
    with np.errstate(divide="ignore"):
        lse = safe + np.log(total)
    out = (weights[..., None] * parts).sum(axis=0) / np.where(total == 0.0, 1.0, total)[..., None]
    return out.astype(parts_lse.dtype), lse.astype(parts_lse.dtype)
