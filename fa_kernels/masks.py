"""Mask predicates: which keys a row attends, and which tiles of the attention matrix are kept.

A causal mask keeps a prefix of the keys of every row, so its length says all. A block mask may drop
any block; a key is attended where both keep it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fa_kernels.block_mask import BlockMask, per_mask
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling

#: States of a tile in `tile_map`: no kept element; the block mask drops some; it keeps all.
SKIPPED, MIXED, WHOLE = 0, 1, 2
#: Pieces that tiles and mask blocks together may cut the attention matrix into.
MAX_CELLS = 2**28


def causal_offset(problem: AttentionProblem) -> int:
    """Row i attends keys j <= i + offset: 0 for top_left, seqlen_k - seqlen_q for bottom_right.

    Without a mask the offset is seqlen_k, which keeps every key of every row.
    """
    if problem.causal is None:
        return problem.seqlen_k
    return 0 if problem.causal == "top_left" else problem.seqlen_k - problem.seqlen_q


def key_end(problem: AttentionProblem, row: int) -> int:
    """How many leading keys the causal mask leaves row `row`, in 0..seqlen_k."""
    return max(0, min(problem.seqlen_k, row + causal_offset(problem) + 1))


def key_ends(problem: AttentionProblem) -> np.ndarray:
    """`key_end` of every row, (seqlen_q,) int64."""
    rows = np.arange(problem.seqlen_q, dtype=np.int64)
    return np.clip(rows + causal_offset(problem) + 1, 0, problem.seqlen_k)


def attended_pairs(problem: AttentionProblem) -> int:
    """Number of (query row, key) pairs that are attended, over all batches and heads."""
    mask = problem.block_mask
    if mask is None:
        return int(key_ends(problem).sum()) * problem.heads
    share = problem.heads // (mask.lead[0] * mask.lead[1])
    return share * _masked_pairs(
        mask, problem.causal, causal_offset(problem), problem.seqlen_q, problem.seqlen_k
    )


@per_mask(entries=256)
def _masked_pairs(
    mask: BlockMask, causal: str | None, offset: int, seqlen_q: int, seqlen_k: int
) -> int:
    """Attended pairs over the mask's own batches and heads; kept, since large masks take time."""
    starts = np.arange(mask.blocks[0]) * mask.block_m
    if causal is None:
        rows = np.minimum(starts + mask.block_m, seqlen_q) - starts
        missing = mask.blocks[1] * mask.block_n - seqlen_k  # what the last block lacks
        keys = np.count_nonzero(mask.keep, axis=-1) * mask.block_n - mask.keep[..., -1] * missing
        return int((keys * rows).sum())
    pairs = 0
    for block_row, start in enumerate(starts):
        # Kept keys before key x: whole blocks by a running sum, then part of one.
        stop = min(int(start) + mask.block_m, seqlen_q)
        ends = np.clip(np.arange(int(start), stop) + offset + 1, 0, seqlen_k)
        keep = mask.keep[:, :, block_row]
        whole = np.cumsum(keep, axis=-1, dtype=np.int64) - keep
        block = np.minimum(ends // mask.block_n, mask.blocks[1] - 1)
        part = keep[..., block] * (ends - block * mask.block_n)
        pairs += int((whole[..., block] * mask.block_n + part).sum())
    return pairs


def matmul_flops(problem: AttentionProblem) -> int:
    """FLOPs of Q K^T and P V over the attended pairs: 4 d per pair, all batches and heads.

    Convention: exact attended pairs, so a square causal problem counts N (N + 1) / 2 pairs,
    not N^2 / 2. Softmax work is not counted (as in the papers).
    """
    return 4 * problem.head_dim * attended_pairs(problem)


def keep_mask(problem: AttentionProblem, rows: slice | np.ndarray, cols: slice) -> np.ndarray:
    """The boolean mask of some rows and keys, True = attend.

    (rows, cols), or (batch or 1, nheads or 1, rows, cols) where the problem has a block mask.
    """
    ends = key_ends(problem)[rows]
    keys = np.arange(cols.start, cols.stop)
    kept = keys[None, :] < ends[:, None]
    mask = problem.block_mask
    if mask is None:
        return kept
    block_rows = np.arange(problem.seqlen_q)[rows] // mask.block_m
    return kept & mask.keep[:, :, block_rows][..., keys // mask.block_n]


def split_by_mask(
    problem: AttentionProblem,
) -> Iterator[tuple[slice, slice, AttentionProblem]]:
    """(batches, heads, their problem) for every group that shares one mask.

    One group unless the block mask differs per batch or head.
    """
    mask = problem.block_mask
    lead = (1, 1) if mask is None else mask.lead
    if mask is None or lead == (1, 1):
        yield slice(0, problem.batch), slice(0, problem.nheads), problem
        return
    for b, h in itertools.product(range(lead[0]), range(lead[1])):
        batches = slice(0, problem.batch) if lead[0] == 1 else slice(b, b + 1)
        heads = slice(0, problem.nheads) if lead[1] == 1 else slice(h, h + 1)
        nbatch, nheads = batches.stop - batches.start, heads.stop - heads.start
        yield (
            batches,
            heads,
            replace(
                problem, batch=nbatch, nheads=nheads, nheads_kv=nheads, block_mask=mask.at(b, h)
            ),
        )


def tile_map(problem: AttentionProblem, tiling: Tiling) -> np.ndarray:
    """What is left of every tile: uint8 (batch or 1, nheads or 1, q_tiles, k_tiles).

    SKIPPED: no pair of the tile is attended. WHOLE: the block mask keeps all of it (a causal mask
    may still cut it). MIXED: the block mask drops some of its elements.
    """
    sizes = (problem.seqlen_q, problem.seqlen_k, tiling.block_m, tiling.block_n)
    return _tile_map(problem.block_mask, problem.causal, causal_offset(problem), *sizes)


@per_mask(entries=16)
def _tile_map(
    mask: BlockMask | None,
    causal: str | None,
    offset: int,
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
    if causal is not None:  # the last row of a cell attends the most keys
        kept = kept & (col_cuts[None, :-1] < row_cuts[1:, None] + offset)
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
