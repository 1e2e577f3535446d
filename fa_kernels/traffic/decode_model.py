"""HBM traffic of a decoding step: of 07_decode_split_kv to the byte, and the NumPy count of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from fa_kernels.decode_problem import TILE_KEYS, DecodeProblem, lowest_key, split_tiles
from fa_kernels.reference.decode import append, chunks_of_row, flash_decode
from fa_kernels.traffic.counter import CountingHbm, countable
from fa_kernels.traffic.model import Traffic

#: Bytes of an fp32 (partial out, lse) and of a page number.
_WORD = 4


def launched_decode(
    problem: DecodeProblem,
    totals: Sequence[int],
    num_splits: int,
    block_rows: int,
    merged_on_chip: bool = False,
) -> Traffic:
    """What 07_decode_split_kv and its append and merge move.

    k and v: every key from the first tile that a row attends to the last key, once per block of
    rows; with an append also the new tokens, read and written. q: once per split that has a tile.
    "out" and "lse" with their partial ones, of which out is moved only for rows that saw a key: the
    merge skips the splits whose lse is -inf, and no others.
    "mask": a page number (4 bytes) per tile and block of rows, and for each 16 bytes that an append
    moves, which threads do that look for themselves. Reads of cache_seqlens are not counted, nor
    are they in the kernels.

    Args:
        totals: tokens of each sequence, new ones included.
        block_rows: rows of a k/v head in one block, GROUP_ROWS of the plan.
        merged_on_chip: a cluster of blocks merges the splits; nothing partial is moved.
    """
    total = Traffic()
    for tokens, times in Counter(map(int, totals)).items():
        of_one = _of_sequence(problem, tokens, num_splits, block_rows, merged_on_chip)
        total = total.plus(of_one.times(times))
    return total


def _of_sequence(
    problem: DecodeProblem, total: int, num_splits: int, block_rows: int, merged_on_chip: bool
) -> Traffic:
    p, heads = problem, problem.nheads_kv
    blocks = -(-p.rows // block_rows)
    splits = split_tiles(total, p.seqlen_q, p.left, num_splits)
    tiles = [max(0, stop - first) for first, stop in splits]
    first = lowest_key(total, p.seqlen_q, p.left) // TILE_KEYS
    keys = max(0, total - first * TILE_KEYS)
    row_bytes = p.head_dim * p.itemsize
    read = {
        "q": heads * p.rows * row_bytes * sum(count > 0 for count in tiles),
        "k": heads * (keys * blocks + p.seqlen_new) * row_bytes,
        "v": heads * (keys * blocks + p.seqlen_new) * row_bytes,
    }
    written = {name: heads * p.seqlen_new * row_bytes for name in ("k", "v") if p.seqlen_new}
    written |= {"out": heads * p.rows * row_bytes, "lse": heads * p.rows * _WORD}
    if p.paged:
        read["mask"] = heads * blocks * sum(tiles) * _WORD
        read["mask"] += append_chunks(p) // p.batch * _WORD
    if num_splits > 1 and not merged_on_chip:
        out = heads * seen_rows(p, total, splits) * p.head_dim * _WORD
        lse = heads * p.rows * num_splits * _WORD
        read |= {"out": out, "lse": lse}
        written = written | {"out": written["out"] + out, "lse": written["lse"] + lse}
    return Traffic(read, written)


def append_chunks(problem: DecodeProblem) -> int:
    """Threads that append: one for each 16 bytes of a row of k_new, and the same of v_new."""
    p = problem
    return p.batch * p.nheads_kv * p.seqlen_new * chunks_of_row(p)


def seen_rows(problem: DecodeProblem, total: int, splits: Sequence[tuple[int, int]]) -> int:
    """(row, split) pairs of one k/v head in which the row attends a key of the split."""
    position = total - problem.seqlen_q + np.arange(problem.seqlen_q)
    lowest = np.maximum(0, position - (total if problem.left is None else problem.left))
    pairs = 0
    for first, stop in splits:
        begin, end = np.int64(first * TILE_KEYS), min(stop * TILE_KEYS, total) - 1
        pairs += int(np.sum(np.maximum(begin, lowest) <= np.minimum(end, position)))
    return pairs * problem.group


def count_decode(
    problem: DecodeProblem,
    totals: Sequence[int],
    num_splits: int,
    block_rows: int,
    merged_on_chip: bool = False,
) -> Traffic:
    """Run the reference on arrays of ones and count what it moves, tile by tile."""
    dtype, hbm = countable(problem.dtype), CountingHbm()
    k, v = (np.ones(problem.cache_shape, dtype) for _ in range(2))
    table = None
    if problem.page_size is not None:
        # Which pages they are does not matter; page 0 may serve them all.
        table = np.zeros((problem.batch, problem.capacity // problem.page_size), np.int32)
    if problem.seqlen_new:
        new = np.ones(problem.new_shape, dtype)
        before = [total - problem.seqlen_new for total in totals]
        append(k, v, new, new, before, problem, table, hbm)
    flash_decode(
        np.ones(problem.q_shape, dtype), k, v, totals, problem, num_splits,
        block_table=table, block_rows=block_rows, merged_on_chip=merged_on_chip, hbm=hbm,
    )  # fmt: skip
    return hbm.traffic()
