"""The tiles that a kernel walks: ranges under causal and window, lists under a block mask."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fa_kernels.masks import MIXED, SKIPPED, key_begin, key_end, tile_map
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling

#: An entry is index << FLAG_BITS | flags; block_mask.cuh has the same names.
FLAG_BITS = 3
#: The block mask drops elements of this tile.
FLAG_MIXED = 1
#: Nothing was accumulated for this Q tile before; nothing will be after.
FLAG_FIRST, FLAG_LAST = 2, 4


def q_tiles(problem: AttentionProblem, block_m: int) -> list[slice]:
    """The rows of every Q tile; the last one may be short."""
    starts = range(0, problem.seqlen_q, block_m)
    return [slice(start, min(start + block_m, problem.seqlen_q)) for start in starts]


def k_tiles(problem: AttentionProblem, rows: slice, block_n: int) -> range:
    """The K/V tiles with a key that causal and window leave some of `rows`: always neighbours."""
    if rows.start == rows.stop:
        return range(0)
    first, end = key_begin(problem, rows.start), key_end(problem, rows.stop - 1)
    return range(first // block_n, -(-end // block_n))


def keys_of(problem: AttentionProblem, rows: slice, index: int, block_n: int) -> slice:
    """The keys of one K/V tile that are loaded for `rows`: to the end of the last row's range.

    Keys before the first row's range are loaded too: the tile starts where all its kind start.
    """
    end = key_end(problem, rows.stop - 1)
    return slice(index * block_n, min((index + 1) * block_n, end))


@dataclass(frozen=True)
class TileLists:
    """Kept tiles, list by list, for every (batch or 1, nheads or 1) that has a mask of its own.

    List i of lead l is entries[start[l * lists + i] : start[l * lists + i + 1]]. `start` is int64,
    `entries` int32. by_q: list i holds the K/V tiles that Q tile i visits, ascending. by_kv: list
    j holds the Q tiles that K/V tile j visits, and one list more the Q tiles that attend nothing.
    """

    start: np.ndarray
    entries: np.ndarray
    lists: int
    lead: tuple[int, int]

    def of(self, index: int, lead: int = 0) -> np.ndarray:
        """The entries of one list."""
        at = lead * self.lists + index
        return self.entries[self.start[at] : self.start[at + 1]]


def by_q(problem: AttentionProblem, tiling: Tiling) -> TileLists:
    """For Q tiles in the outer loop: which K/V tiles each visits."""
    state = tile_map(problem, tiling)
    return _lists(state, np.zeros(state.shape, np.int32))


def by_kv(problem: AttentionProblem, tiling: Tiling) -> TileLists:
    """For K/V tiles in the outer loop: which Q tiles each visits, with FLAG_FIRST and FLAG_LAST."""
    state = tile_map(problem, tiling)
    kept = state != SKIPPED
    seen = np.cumsum(kept, axis=-1, dtype=np.int32)  # visits of a Q tile, this one included
    flags = FLAG_FIRST * (seen == 1) + FLAG_LAST * (seen == seen[..., -1:])
    # The list of Q tiles that attend nothing: all of them where there is no key.
    visited = kept.any(axis=-1, keepdims=True)
    nothing = np.where(visited, SKIPPED, MIXED).astype(np.uint8)
    state = np.concatenate([state, nothing], axis=-1)
    flags = np.concatenate([flags, np.zeros_like(nothing)], axis=-1)
    return _lists(np.swapaxes(state, -1, -2), np.swapaxes(flags, -1, -2).astype(np.int32))


def _lists(state: np.ndarray, flags: np.ndarray) -> TileLists:
    batch, head, row, index = np.nonzero(state != SKIPPED)
    where = (batch, head, row, index)
    mixed = (state[where] == MIXED).astype(np.int32) * FLAG_MIXED
    entries = (index.astype(np.int32) << FLAG_BITS) | flags[where] | mixed
    lead = state.shape[:2]
    counts = (state != SKIPPED).sum(axis=-1, dtype=np.int64).reshape(-1)
    start = np.concatenate([[0], np.cumsum(counts)])
    return TileLists(start, entries.astype(np.int32), state.shape[2], (lead[0], lead[1]))


#: What is known of a list: ListHead of tile_queue.cuh.
LIST_RECORD = np.dtype([("start", "<i8"), ("tile", "<i4"), ("count", "<i4")])


@dataclass(frozen=True)
class Queues:
    """Kept tiles as 05 walks them: its blocks take one list each, in the order of `records`.

    `records` is `LIST_RECORD` (masks, lists): where a list begins in `entries` (int32), the tile
    whose list it is, and its length. cuda/block_lists.cu makes the same on the GPU.
    """

    records: np.ndarray
    entries: np.ndarray

    def of(self, place: int, mask: int = 0) -> np.ndarray:
        """The entries of the list that stands at `place`."""
        record = self.records[mask, place]
        return self.entries[record["start"] : record["start"] + record["count"]]


def queues(
    problem: AttentionProblem, tiling: Tiling, by_keys: bool = False, longest_first: bool = True
) -> Queues:
    """The K/V tiles of every Q tile, or `by_keys` the Q tiles of every K/V tile.

    Longest lists first, so that no late long one idles the GPU; equal ones by their tiles. Lists
    by keys begin each at another Q tile and go round: blocks that add to the same tiles of dq
    rarely meet there.
    """
    state = tile_map(problem, tiling)
    state = np.swapaxes(state, -1, -2) if by_keys else state
    state = state.reshape(-1, *state.shape[2:])
    counts = (state != SKIPPED).sum(axis=-1)
    ends = np.cumsum(counts.reshape(-1)).reshape(counts.shape)
    records = np.zeros(counts.shape, LIST_RECORD)
    records["start"], records["count"] = ends - counts, counts
    records["tile"] = np.arange(counts.shape[1])
    pieces = []
    for mask, tile in np.ndindex(*counts.shape):
        (index,) = np.nonzero(state[mask, tile] != SKIPPED)
        entries = (index << FLAG_BITS) | (state[mask, tile, index] == MIXED) * FLAG_MIXED
        shift = len(index) * tile // counts.shape[1] if by_keys else 0
        pieces.append(np.roll(entries, -shift).astype(np.int32))
    if longest_first:
        order = np.argsort(-counts, axis=-1, kind="stable")
        records = np.take_along_axis(records, order, axis=-1)
    return Queues(records, np.concatenate(pieces) if pieces else np.zeros(0, np.int32))
