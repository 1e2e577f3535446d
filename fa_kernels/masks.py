"""Mask predicates: which keys a row attends, and which tiles of the attention matrix are kept.

Causal and window keep a diagonal band, one range of keys in every row, so two numbers say all. A
block mask may drop any block; a key is attended where both keep it. An element mask is a value like
a bias and skips nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fa_kernels.block_mask import BlockMask, per_mask
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling

#: States of a tile in `tile_map`: no kept element; the block mask drops some; it keeps all.
SKIPPED, MIXED, WHOLE = 0, 1, 2
#: Pieces that tiles and mask blocks together may cut the attention matrix into.
MAX_CELLS = 2**28


@dataclass(frozen=True)
class Band:
    """The keys that causal and window leave: row i attends max(0, i + begin) <= j <= i + end."""

    begin: int
    end: int


def band(problem: AttentionProblem) -> Band:
    """The diagonal band of one (unpacked) problem.

    `end` is 0 for causal top_left, seqlen_k - seqlen_q for bottom_right, from which a window
    counts. An unbounded side reaches past every key of every row; an empty band is one that ends
    before the first key of every row.
    """
    offset = problem.seqlen_k - problem.seqlen_q
    left, right = problem.window or (None, None)
    ends = [problem.seqlen_k]
    if problem.causal is not None:
        ends.append(0 if problem.causal == "top_left" else offset)
    if right is not None:
        ends.append(offset + right)
    begin = -problem.seqlen_q if left is None else offset - left
    end = min(ends)
    return Band(begin, end) if begin <= end else Band(-problem.seqlen_q, -problem.seqlen_q)


def key_begin(problem: AttentionProblem, row: int) -> int:
    """The first key that row `row` may attend, in 0..seqlen_k; all before it are masked."""
    return max(0, min(problem.seqlen_k, row + band(problem).begin))


def key_end(problem: AttentionProblem, row: int) -> int:
    """One past the last key that row `row` may attend, in 0..seqlen_k; see `band`."""
    return max(0, min(problem.seqlen_k, row + band(problem).end + 1))


def key_ranges(problem: AttentionProblem) -> tuple[np.ndarray, np.ndarray]:
    """(`key_begin`, `key_end`) of every row, each (seqlen_q,) int64; begin <= end."""
    rows, limits = np.arange(problem.seqlen_q, dtype=np.int64), band(problem)
    ends = np.clip(rows + limits.end + 1, 0, problem.seqlen_k)
    return np.minimum(np.clip(rows + limits.begin, 0, problem.seqlen_k), ends), ends


def attended_pairs(problem: AttentionProblem) -> int:
    """Number of (query row, key) pairs that causal, window and block mask keep, over all heads.

    Element masks and dropout are values: what they drop is still computed, and counted.
    """
    if problem.packed is not None:
        return sum(attended_pairs(one) for _, _, one in problem.sequences())
    mask = problem.block_mask
    if mask is None:
        limits, sizes = band(problem), (problem.seqlen_q, problem.seqlen_k)
        pairs = _clipped_sum(limits.end + 1, *sizes) - _clipped_sum(limits.begin, *sizes)
        return pairs * problem.heads
    share = problem.heads // (mask.lead[0] * mask.lead[1])
    limits = band(problem)
    everything = problem.causal is None and problem.window is None
    sizes = (problem.seqlen_q, problem.seqlen_k)
    return share * _masked_pairs(mask, everything, limits.begin, limits.end, *sizes)


def _clipped_sum(start: int, count: int, limit: int) -> int:
    """The sum of start + i, held within 0..limit, over i < count; exact, in no time."""
    low = min(max(0, -start), count)
    high = max(low, min(limit - start, count))
    return (high - low) * (2 * start + low + high - 1) // 2 + (count - high) * limit


@per_mask(entries=256)
def _masked_pairs(
    mask: BlockMask, everything: bool, begin: int, end: int, seqlen_q: int, seqlen_k: int
) -> int:
    """Attended pairs over the mask's own batches and heads; kept, since large masks take time."""
    starts = np.arange(mask.blocks[0]) * mask.block_m
    if everything:
        rows = np.minimum(starts + mask.block_m, seqlen_q) - starts
        missing = mask.blocks[1] * mask.block_n - seqlen_k  # what the last block lacks
        keys = np.count_nonzero(mask.keep, axis=-1) * mask.block_n - mask.keep[..., -1] * missing
        return int((keys * rows).sum())
    pairs = 0
    for block_row, start in enumerate(starts):
        rows = np.arange(int(start), min(int(start) + mask.block_m, seqlen_q))
        keep = mask.keep[:, :, block_row]
        whole = np.cumsum(keep, axis=-1, dtype=np.int64) - keep
        ends = np.clip(rows + end + 1, 0, seqlen_k)
        begins = np.minimum(np.clip(rows + begin, 0, seqlen_k), ends)
        for sign, keys in ((1, ends), (-1, begins)):
            # Kept keys before key x: whole blocks by a running sum, then part of one.
            block = np.minimum(keys // mask.block_n, mask.blocks[1] - 1)
            part = keep[..., block] * (keys - block * mask.block_n)
            pairs += sign * int((whole[..., block] * mask.block_n + part).sum())
    return pairs


def matmul_flops(problem: AttentionProblem) -> int:
    """FLOPs of Q K^T and P V over the attended pairs: 4 d per pair, all batches and heads.

    Convention: exact attended pairs, so a square causal problem counts N (N + 1) / 2 pairs,
    not N^2 / 2. Softmax work is not counted (as in the papers).
    """
    return 4 * problem.head_dim * attended_pairs(problem)


def keep_mask(problem: AttentionProblem, rows: slice | np.ndarray, cols: slice) -> np.ndarray:
    """What causal, window and block mask keep of some rows and keys, True = attend.

    (rows, cols), or (batch or 1, nheads or 1, rows, cols) where the problem has a block mask.
    """
    if isinstance(rows, slice):
        rows = np.arange(*rows.indices(problem.seqlen_q))
    limits, keys = band(problem), np.arange(cols.start, cols.stop)
    diagonal = keys[None, :] - rows[:, None]
    kept = (diagonal >= limits.begin) & (diagonal <= limits.end)
    mask = problem.block_mask
    if mask is None:
        return kept
    block_rows = rows // mask.block_m
    return kept & mask.keep[:, :, block_rows][..., keys // mask.block_n]


@dataclass(frozen=True)
class Part:
    """Heads of a call that share one sequence and one mask, and the problem they make.

    `batches`, `heads`, `q_rows`, `k_rows` cut q, out and the like, and k, v spread over the heads
    of q; `masks` is their batch in `Extras`, which of packed sequences is the sequence.
    """

    batches: slice
    heads: slice
    q_rows: slice
    k_rows: slice
    masks: slice
    problem: AttentionProblem

    def of_q(self, array: np.ndarray) -> np.ndarray:
        """This part of an array with the batches, heads and rows of q."""
        return array[self.batches, self.heads, self.q_rows]

    def of_k(self, array: np.ndarray) -> np.ndarray:
        """This part of an array with the rows of k and the heads of q."""
        return array[self.batches, self.heads, self.k_rows]


def parts(problem: AttentionProblem) -> Iterator[Part]:
    """A call cut where masks and sequences differ; one part for most calls.

    Every part has a k/v head for each head of q: spread k and v first.
    """
    problem = replace(problem, nheads_kv=problem.nheads)
    heads = slice(0, problem.nheads)
    if problem.packed is not None:
        for number, (q_rows, k_rows, one) in enumerate(problem.sequences()):
            yield Part(slice(0, 1), heads, q_rows, k_rows, slice(number, number + 1), one)
        return
    rows = (slice(0, problem.seqlen_q), slice(0, problem.seqlen_k))
    mask = problem.block_mask
    if mask is None or mask.lead == (1, 1):
        batches = slice(0, problem.batch)
        yield Part(batches, heads, *rows, batches, problem)
        return
    for b, h in itertools.product(*map(range, mask.lead)):
        batches = slice(0, problem.batch) if mask.lead[0] == 1 else slice(b, b + 1)
        heads = slice(0, problem.nheads) if mask.lead[1] == 1 else slice(h, h + 1)
        nbatch, nheads = batches.stop - batches.start, heads.stop - heads.start
        one = replace(
            problem, batch=nbatch, nheads=nheads, nheads_kv=nheads, block_mask=mask.at(b, h)
        )
        yield Part(batches, heads, *rows, batches, one)


def tile_map(problem: AttentionProblem, tiling: Tiling) -> np.ndarray:
    """What is left of every tile: uint8 (batch or 1, nheads or 1, q_tiles, k_tiles).

    SKIPPED: no pair of the tile is attended. WHOLE: the block mask keeps all of it (causal or
    window may still cut it). MIXED: the block mask drops some of its elements.
    """
    sizes = (problem.seqlen_q, problem.seqlen_k, tiling.block_m, tiling.block_n)
    limits = band(problem)
    return _tile_map(problem.block_mask, limits.begin, limits.end, *sizes)


@per_mask(entries=16)
def _tile_map(
    mask: BlockMask | None,
    begin: int,
    end: int,
    seqlen_q: int,
    seqlen_k: int,
    block_m: int,
    block_n: int,
) -> np.ndarray:
    # Cut rows and keys at the edges of tiles and of mask blocks: a cell then lies in one of each.
    mask_m, mask_n = (2**24, 2**24) if mask is None else (mask.block_m, mask.block_n)
    row_cuts, row_tile = _cuts(seqlen_q, block_m, mask_m)
    col_cuts, col_tile = _cuts(seqlen_k, block_n, mask_n)
    keep = np.ones((1, 1, 1, 1), bool) if mask is None else mask.keep
    cells = (len(row_cuts) - 1) * (len(col_cuts) - 1) * keep.shape[0] * keep.shape[1]
    if cells > MAX_CELLS:
        raise ValueError(
            f"tiles of {block_m} x {block_n} and mask blocks of {mask_m} x {mask_n} cut the "
            f"attention matrix into {cells} pieces, the limit is {MAX_CELLS}: use larger tiles "
            "(raise M), larger mask blocks or a shorter sequence."
        )
    kept = keep[:, :, row_cuts[:-1] // mask_m][..., col_cuts[:-1] // mask_n]
    whole = _reduce_tiles(np.logical_and, kept, row_tile, col_tile)
    # The band touches a cell if the last row's end and the first row's begin leave a key of it.
    kept = kept & (col_cuts[None, :-1] < row_cuts[1:, None] + end)
    kept = kept & (col_cuts[None, 1:] > row_cuts[:-1, None] + begin)
    some = _reduce_tiles(np.logical_or, kept, row_tile, col_tile)
    state = np.where(some, np.where(whole, WHOLE, MIXED), SKIPPED).astype(np.uint8)
    state.setflags(write=False)
    return state


def _cuts(length: int, tile: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Sorted edges of tiles and blocks, 0..length, and the index of each tile's first cell."""
    tile_edges = np.arange(0, length, tile)
    edges = np.unique(np.concatenate([tile_edges, np.arange(0, length, block), [length]]))
    return edges, np.searchsorted(edges, tile_edges)


def _reduce_tiles(
    op: np.ufunc, cells: np.ndarray, row_tile: np.ndarray, col_tile: np.ndarray
) -> np.ndarray:
    return op.reduceat(op.reduceat(cells, row_tile, axis=-2), col_tile, axis=-1)
