"""HBM traffic in closed form, under two names that are never mixed.

`paper_*`: the published algorithms, S, P and O in the io dtype, l and m in fp32, initialisation
uncounted. `launched_*`: our kernels with their tiles, matmul re-reads included; equal to the
counters, to the byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from fa_kernels.masks import MIXED, SKIPPED, attended_pairs, causal_offset, key_end, tile_map
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.standard import softmax_reads
from fa_kernels.tiling import Tiling

#: Tensors in the order of every table and legend. "out" is O, partial or final; "lse" is lse and,
#: where they live in HBM, m and l; "mask" a block mask and the lists of tiles made from it.
TENSORS = ("q", "k", "v", "s", "p", "out", "lse", "mask")


@dataclass(frozen=True)
class Traffic:
    """Bytes moved between HBM and the chip, per tensor."""

    read_bytes: Mapping[str, int] = field(default_factory=dict)
    written_bytes: Mapping[str, int] = field(default_factory=dict)

    def of(self, tensor: str) -> int:
        """Bytes read plus bytes written of one tensor."""
        return self.read_bytes.get(tensor, 0) + self.written_bytes.get(tensor, 0)

    @property
    def total_bytes(self) -> int:
        """All bytes read plus all bytes written."""
        return sum(self.read_bytes.values()) + sum(self.written_bytes.values())

    def times(self, factor: int) -> Traffic:
        """The traffic of `factor` independent heads."""
        return Traffic(
            {name: factor * n for name, n in self.read_bytes.items()},
            {name: factor * n for name, n in self.written_bytes.items()},
        )

    def plus(self, other: Traffic) -> Traffic:
        """Both together, tensor by tensor."""

        def added(mine: Mapping[str, int], theirs: Mapping[str, int]) -> dict[str, int]:
            both = {*mine, *theirs}
            return {t: mine.get(t, 0) + theirs.get(t, 0) for t in TENSORS if t in both}

        return Traffic(
            added(self.read_bytes, other.read_bytes),
            added(self.written_bytes, other.written_bytes),
        )

    def intensity(self, flops: int) -> float:
        """Arithmetic intensity in FLOP per byte; infinite where nothing moves."""
        return flops / self.total_bytes if self.total_bytes else float("inf")

    def same_as(self, other: Traffic) -> bool:
        """True if every tensor's reads and writes agree to the byte (absent counts as 0)."""
        return all(
            mine.get(t, 0) == theirs.get(t, 0)
            for mine, theirs in (
                (self.read_bytes, other.read_bytes),
                (self.written_bytes, other.written_bytes),
            )
            for t in TENSORS
        )


def paper_standard(problem: AttentionProblem) -> Traffic:
    """Algorithm 0 as published: Q, K -> S; S -> P; P, V -> O, each through HBM. Θ(Nd + N²)."""
    scores = problem.seqlen_q * problem.seqlen_k * problem.itemsize * problem.heads
    q, kv = problem.q_bytes, problem.kv_bytes
    return Traffic(
        {"q": q, "k": kv, "v": kv, "s": scores, "p": scores},
        {"s": scores, "p": scores, "out": q},
    )


def _passes(problem: AttentionProblem, tiling: Tiling, along: int) -> Fraction:
    """How often Algorithms 1 and 5 go over Q (along = -1) or over K and V (along = -2).

    The number of tiles along the other axis; with a block mask the mean number that is kept.
    """
    length, block = (
        (problem.seqlen_k, tiling.block_n) if along == -1 else (problem.seqlen_q, tiling.block_m)
    )
    if problem.block_mask is None:
        return Fraction(-(-length // block))
    state = tile_map(replace(problem, causal=None), tiling)  # the papers skip by block mask alone
    kept = int(np.count_nonzero(state != SKIPPED))
    return Fraction(kept * state.shape[along], state.size)


def paper_flash_kv_outer(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    """FlashAttention Algorithm 1 as published: K, V once; Q, O, l, m per visit. Θ(N² d² / M).

    With a block mask Algorithm 5: a fraction s of the visits, Θ(Nd + N² d² s / M).
    """
    passes = _passes(problem, tiling, -1)
    q, kv = round(passes * problem.q_bytes), problem.kv_bytes
    stats = round(passes * 2 * problem.lse_bytes)
    return Traffic(
        {"q": q, "k": kv, "v": kv, "out": q, "lse": stats},
        {"out": q, "lse": stats},
    )


def paper_flash_q_outer(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    """FlashAttention-2 Algorithm 1 as published: Q, O, L once; K, V once per Q block.

    With a block mask the kept fraction of the K and V blocks.
    """
    passes = _passes(problem, tiling, -2)
    q, kv = problem.q_bytes, round(passes * problem.kv_bytes)
    return Traffic({"q": q, "k": kv, "v": kv}, {"out": q, "lse": problem.lse_bytes})


def _row_tile_sizes(problem: AttentionProblem, block_m: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows, key_end) of every Q tile as int64 arrays."""
    starts = np.arange(0, problem.seqlen_q, block_m, dtype=np.int64)
    stops = np.minimum(starts + block_m, problem.seqlen_q)
    ends = np.clip(stops + causal_offset(problem), 0, problem.seqlen_k)
    return stops - starts, ends


def launched_standard_tiled(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    """02_standard_tiled: every tile of S re-reads its Q and K rows, every tile of O re-reads V.

    S and P count their kept elements only; S is read once or twice (`softmax_reads`).
    """
    rows, ends = _row_tile_sizes(problem, tiling.block_m)
    row_bytes = problem.head_dim * problem.itemsize
    kv = int(ends.sum()) * row_bytes
    q = int((rows * -(-ends // tiling.block_n)).sum()) * row_bytes
    kept = attended_pairs(problem) // problem.heads * problem.itemsize
    per_head = Traffic(
        {"q": q, "k": kv, "v": kv, "s": softmax_reads(problem.seqlen_k) * kept, "p": kept},
        {
            "s": kept,
            "p": kept,
            "out": problem.seqlen_q * row_bytes,
            "lse": 4 * problem.seqlen_q,
        },
    )
    return per_head.times(problem.heads)


def launched_standard_naive(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    """01_standard_naive: every element of S reads its rows of Q and K, every one of O its of P, V.

    S is read three times (maximum, sum, division); masked elements never move; no tiles.
    """
    kept = attended_pairs(problem) * problem.itemsize
    each = problem.head_dim * kept
    return Traffic(
        {"q": each, "k": each, "v": each, "s": 3 * kept, "p": each},
        {"s": kept, "p": kept, "out": problem.q_bytes, "lse": problem.lse_bytes},
    )


@dataclass(frozen=True)
class _Tiles:
    """Tiles under one mask: rows and last key of every Q tile, (q_tiles,); which tiles are visited
    and which of them look at the mask, bool (q_tiles, k_tiles)."""

    rows: np.ndarray
    ends: np.ndarray
    visits: np.ndarray
    mixed: np.ndarray


def _tiles_of_masks(problem: AttentionProblem, tiling: Tiling) -> list[_Tiles]:
    rows, ends = _row_tile_sizes(problem, tiling.block_m)
    state = tile_map(problem, tiling)
    state = state.reshape(-1, *state.shape[2:])
    return [_Tiles(rows, ends, one != SKIPPED, one == MIXED) for one in state]


def _cells(problem: AttentionProblem, tiling: Tiling, tiles: _Tiles, ends: np.ndarray) -> int:
    """Blocks of the mask that mixed tiles read, one byte each; `ends` (q_tiles,): last key read."""
    mask = problem.block_mask
    if mask is None or not tiles.mixed.any():
        return 0
    i, j = np.nonzero(tiles.mixed)
    q0, k0 = i * tiling.block_m, j * tiling.block_n
    last_row = q0 + tiles.rows[i] - 1
    last_key = np.minimum(k0 + tiling.block_n, ends[i]) - 1
    rows = last_row // mask.block_m - q0 // mask.block_m + 1
    cols = last_key // mask.block_n - k0 // mask.block_n + 1
    return int((rows * cols).sum())


def _list_bytes(lists: int, entries: int) -> int:
    """Lists of tiles as the kernels read them: two 8-byte bounds a list, 4 bytes an entry."""
    return 16 * lists + 4 * entries


def launched_flash_q_outer(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    """04_flash_q_outer: Q, O and lse once; the kept prefix of K and V once per Q tile.

    With a block mask only its tiles of K and V, and the lists that name them.
    """
    row_bytes = problem.head_dim * problem.itemsize
    once = {"out": problem.q_bytes, "lse": problem.lse_bytes}
    if problem.block_mask is None:
        _, ends = _row_tile_sizes(problem, tiling.block_m)
        kv = int(ends.sum()) * row_bytes * problem.heads
        return Traffic({"q": problem.q_bytes, "k": kv, "v": kv}, once)
    kv = mask_bytes = 0
    masks = _tiles_of_masks(problem, tiling)
    for tiles in masks:
        i, j = np.nonzero(tiles.visits)
        keys = np.minimum(tiling.block_n, tiles.ends[i] - j * tiling.block_n)
        kv += int(keys.sum()) * row_bytes
        mask_bytes += _list_bytes(len(tiles.rows), len(i))
        mask_bytes += _cells(problem, tiling, tiles, tiles.ends)
    share = problem.heads // len(masks)
    return Traffic(
        {"q": problem.q_bytes, "k": share * kv, "v": share * kv, "mask": share * mask_bytes}, once
    )


def launched_flash_kv_outer(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    """03_flash_kv_outer: K and V once; Q, O, m and l once per visit, O in fp32.

    The first visit of a Q tile reads no O, m, l; the last writes out and lse instead of them.
    """
    return _kv_outer(problem, tiling, o_itemsize=4)


def launched_flash_kv_outer_io(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    """`launched_flash_kv_outer` with O carried in the io dtype (-DO_IO_DTYPE)."""
    return _kv_outer(problem, tiling, o_itemsize=problem.itemsize)


def _kv_outer(problem: AttentionProblem, tiling: Tiling, o_itemsize: int) -> Traffic:
    d = problem.head_dim
    k_end = key_end(problem, problem.seqlen_q - 1)
    q_rows = again = kv_rows = mask_bytes = 0
    masks = [None] if problem.block_mask is None else _tiles_of_masks(problem, tiling)
    for tiles in masks:
        rows, ends = _row_tile_sizes(problem, tiling.block_m)
        if tiles is None:
            visits, kv = -(-ends // tiling.block_n), k_end
        else:
            visits = tiles.visits.sum(axis=1)
            loaded = np.nonzero(tiles.visits.any(axis=0))[0] * tiling.block_n
            kv = int(np.minimum(tiling.block_n, k_end - loaded).sum())
            nothing = int((visits == 0).sum())
            lists = -(-k_end // tiling.block_n) + 1
            mask_bytes += _list_bytes(lists, int(visits.sum()) + nothing)
            mask_bytes += _cells(problem, tiling, tiles, np.full_like(ends, k_end))
        q_rows += int((visits * rows).sum())
        again += int((np.maximum(visits - 1, 0) * rows).sum())
        kv_rows += kv
    share = problem.heads // len(masks)
    kv_bytes, partial = share * kv_rows * d * problem.itemsize, share * again * d * o_itemsize
    stats = share * again * 8
    read = {"q": share * q_rows * d * problem.itemsize, "k": kv_bytes, "v": kv_bytes}
    read |= {"out": partial, "lse": stats}
    if mask_bytes:
        read["mask"] = share * mask_bytes
    return Traffic(read, {"out": partial + problem.q_bytes, "lse": stats + problem.lse_bytes})
