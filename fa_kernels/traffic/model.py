"""HBM traffic in closed form, under two names that are never mixed.

`paper_*`: the published algorithms, S, P and O in the io dtype, l and m in fp32, initialisation
uncounted. `launched_*`: our kernels with their tiles, matmul re-reads included; equal to the
counters, to the byte.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from fa_kernels import tile_list
from fa_kernels.masks import MIXED, SKIPPED, attended_pairs, band, key_end, tile_map
from fa_kernels.problem import HOST_ITEMSIZE, AttentionProblem
from fa_kernels.reference.standard import softmax_reads
from fa_kernels.tiling import Tiling

#: Tensors in the order of every table and legend. "out" is O, partial or final; "lse" is lse and,
#: where they live in HBM, m and l; "mask" all that says which pairs count and how: block mask and
#: the lists of tiles made from it, element mask, bias, explicit dropout mask.
TENSORS = ("q", "k", "v", "s", "p", "out", "lse", "mask")
#: What the backward pass moves besides; "dq" is dq, partial or final.
BACKWARD_TENSORS = ("d_out", "dq", "dk", "dv", "delta", "dp", "ds")
ALL_TENSORS = (*TENSORS, *BACKWARD_TENSORS)


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
            return {t: mine.get(t, 0) + theirs.get(t, 0) for t in ALL_TENSORS if t in both}

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
            for t in ALL_TENSORS
        )


Model = Callable[..., Traffic]


def per_sequence(model: Model) -> Model:
    """`model`, which of packed sequences is its sum over them."""

    @functools.wraps(model)
    def of_any(problem: AttentionProblem, *rest: Any, **options: Any) -> Traffic:
        if problem.packed is None:
            return model(problem, *rest, **options)
        total = Traffic()
        for one, times in Counter(one for _, _, one in problem.sequences()).items():
            total = total.plus(model(one, *rest, **options).times(times))
        return total

    return of_any


@per_sequence
def paper_standard(problem: AttentionProblem) -> Traffic:
    """Algorithm 0 as published: Q, K -> S; S -> P; P, V -> O, each through HBM. Θ(Nd + N²)."""
    scores = problem.seqlen_q * problem.seqlen_k * problem.itemsize * problem.heads
    q, kv = problem.q_bytes, problem.kv_bytes
    return Traffic(
        {"q": q, "k": kv, "v": kv, "s": scores, "p": scores},
        {"s": scores, "p": scores, "out": q},
    )


def mean_passes(problem: AttentionProblem, tiling: Tiling, along: int) -> Fraction:
    """How often Algorithms 1 and 5 go over Q (along = -1) or over K and V (along = -2).

    The number of tiles along the other axis; with a block mask the mean number that is kept.
    """
    length, block = (
        (problem.seqlen_k, tiling.block_n) if along == -1 else (problem.seqlen_q, tiling.block_m)
    )
    if problem.block_mask is None:
        return Fraction(-(-length // block))
    # The papers skip by block mask alone.
    state = tile_map(replace(problem, causal=None, window=None), tiling)
    kept = int(np.count_nonzero(state != SKIPPED))
    return Fraction(kept * state.shape[along], state.size)


@per_sequence
def paper_flash_kv_outer(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    """FlashAttention Algorithm 1 as published: K, V once; Q, O, l, m per visit. Θ(N² d² / M).

    With a block mask Algorithm 5: a fraction s of the visits, Θ(Nd + N² d² s / M).
    """
    passes = mean_passes(problem, tiling, -1)
    q, kv = round(passes * problem.q_bytes), problem.kv_bytes
    stats = round(passes * 2 * problem.lse_bytes)
    return Traffic(
        {"q": q, "k": kv, "v": kv, "out": q, "lse": stats},
        {"out": q, "lse": stats},
    )


@per_sequence
def paper_flash_q_outer(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    """FlashAttention-2 Algorithm 1 as published: Q, O, L once; K, V once per Q block.

    With a block mask the kept fraction of the K and V blocks.
    """
    passes = mean_passes(problem, tiling, -2)
    q, kv = problem.q_bytes, round(passes * problem.kv_bytes)
    return Traffic({"q": q, "k": kv, "v": kv}, {"out": q, "lse": problem.lse_bytes})


@dataclass(frozen=True)
class RowTiles:
    """The Q tiles, (q_tiles,) int64 each: rows, and of the K/V tiles that causal and window leave
    them the first, how many there are, and where the last key that is loaded ends."""

    rows: np.ndarray
    first: np.ndarray
    visits: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, problem: AttentionProblem, block_m: int, block_n: int) -> RowTiles:
        limits = band(problem)
        starts = np.arange(0, problem.seqlen_q, block_m, dtype=np.int64)
        stops = np.minimum(starts + block_m, problem.seqlen_q)
        # The band never begins past the last key, but may end before the first.
        first = np.maximum(starts + limits.begin, 0) // block_n
        ends = np.maximum(np.minimum(stops + limits.end, problem.seqlen_k), 0)
        return cls(stops - starts, first, -(-ends // block_n) - first, ends)

    def keys(self, block_n: int, seqlen_k: int = 0) -> int:
        """Keys that all Q tiles together load: whole K/V tiles, the last up to the last key that is
        attended; with `seqlen_k` up to where it, or the sequence, ends."""
        ends = self.ends
        if seqlen_k:
            ends = (self.first + self.visits) * block_n
            np.minimum(ends, seqlen_k, out=ends)
            np.copyto(ends, self.ends, where=self.visits <= 0)
        return int(ends.sum() - block_n * self.first.sum())


def _values(problem: AttentionProblem, lists: int = 0) -> dict[str, int]:
    """Bytes read of "mask": an element of each array over the attended pairs for each of them.

    These are element mask, bias and explicit dropout mask. `lists`: what a block mask adds.
    """
    bias = 0 if problem.bias_dtype is None else HOST_ITEMSIZE[problem.bias_dtype]
    each = problem.masked + bias + problem.keep_given
    total = lists + (each * attended_pairs(problem) if each else 0)
    return {"mask": total} if total else {}


def launched_standard_tiled(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    """02_standard_tiled: every tile of S re-reads its Q and K rows, every tile of O re-reads V.

    S and P count their kept elements only; S is read once or twice (`softmax_reads`).
    """
    return _standard_tiled(problem, tiling, softmax_reads(problem.seqlen_k))


@per_sequence
def _standard_tiled(problem: AttentionProblem, tiling: Tiling, reads: int) -> Traffic:
    tiles = RowTiles.of(problem, tiling.block_m, tiling.block_n)
    row_bytes = problem.head_dim * problem.itemsize * problem.heads
    kv = tiles.keys(tiling.block_n) * row_bytes
    q = int((tiles.rows * tiles.visits).sum()) * row_bytes
    kept = attended_pairs(problem) * problem.itemsize
    read = {"q": q, "k": kv, "v": kv, "s": reads * kept, "p": kept}
    return Traffic(
        read | _values(problem),
        {"s": kept, "p": kept, "out": problem.q_bytes, "lse": problem.lse_bytes},
    )


@per_sequence
def launched_standard_naive(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    """01_standard_naive: every element of S reads its rows of Q and K, every one of O its of P, V.

    S is read three times (maximum, sum, division); masked elements never move; no tiles.
    """
    kept = attended_pairs(problem) * problem.itemsize
    each = problem.head_dim * kept
    return Traffic(
        {"q": each, "k": each, "v": each, "s": 3 * kept, "p": each} | _values(problem),
        {"s": kept, "p": kept, "out": problem.q_bytes, "lse": problem.lse_bytes},
    )


@dataclass(frozen=True)
class MaskVisits:
    """Tiles under one block mask, bool (q_tiles, k_tiles): visited, and looking at the mask."""

    visited: np.ndarray
    mixed: np.ndarray


def visits_of_masks(problem: AttentionProblem, tiling: Tiling) -> list[MaskVisits]:
    """Those of every block mask, the masks in order of batch and head."""
    state = tile_map(problem, tiling)
    return [MaskVisits(one != SKIPPED, one == MIXED) for one in state.reshape(-1, *state.shape[2:])]


def cell_bytes(
    problem: AttentionProblem, tiling: Tiling, rows: np.ndarray, mixed: np.ndarray, ends: np.ndarray
) -> int:
    """Blocks of the mask that mixed tiles read, one byte each; `ends` (q_tiles,): last key read."""
    mask = problem.block_mask
    if mask is None or not mixed.any():
        return 0
    i, j = np.nonzero(mixed)
    q0, k0 = i * tiling.block_m, j * tiling.block_n
    last_row = q0 + rows[i] - 1
    last_key = np.minimum(k0 + tiling.block_n, ends[i]) - 1
    block_rows = last_row // mask.block_m - q0 // mask.block_m + 1
    block_cols = last_key // mask.block_n - k0 // mask.block_n + 1
    return int((block_rows * block_cols).sum())


def list_bytes(lists: int, entries: int) -> int:
    """Lists of tiles as the kernels read them: two 8-byte bounds a list, 4 bytes an entry."""
    return 16 * lists + 4 * entries


@per_sequence
def launched_flash_q_outer(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    """04_flash_q_outer: Q, O and lse once; the K and V tiles that a Q tile attends, once for each.

    With a block mask also the lists that name them.
    """
    return _q_outer(problem, tiling, boxes=False)


@per_sequence
def launched_flash_wgmma(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    """06_flash_wgmma: the same, with K/V tiles as whole boxes, also past the last key attended."""
    return _q_outer(problem, tiling, boxes=True)


def _q_outer(problem: AttentionProblem, tiling: Tiling, boxes: bool) -> Traffic:
    row_bytes = problem.head_dim * problem.itemsize
    tiles = RowTiles.of(problem, tiling.block_m, tiling.block_n)
    once = {"out": problem.q_bytes, "lse": problem.lse_bytes}
    if problem.block_mask is None:
        keys = tiles.keys(tiling.block_n, problem.seqlen_k if boxes else 0)
        kv = keys * row_bytes * problem.heads
        return Traffic({"q": problem.q_bytes, "k": kv, "v": kv} | _values(problem), once)
    kv = lists = 0
    masks = visits_of_masks(problem, tiling)
    for visits in masks:
        i, j = np.nonzero(visits.visited)
        ends = problem.seqlen_k if boxes else tiles.ends[i]
        kv += int(np.minimum(tiling.block_n, ends - j * tiling.block_n).sum()) * row_bytes
        lists += list_bytes(len(tiles.rows), len(i))
        lists += cell_bytes(problem, tiling, tiles.rows, visits.mixed, tiles.ends)
    share = problem.heads // len(masks)
    read = {"q": problem.q_bytes, "k": share * kv, "v": share * kv}
    return Traffic(read | _values(problem, share * lists), once)


@per_sequence
def launched_flash_kv_outer(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    """03_flash_kv_outer: K and V once; Q, O, m and l once per visit, O in fp32.

    The first visit of a Q tile reads no O, m, l; the last writes out and lse instead of them.
    """
    return _kv_outer(problem, tiling, o_itemsize=4)


@per_sequence
def launched_flash_kv_outer_io(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    """`launched_flash_kv_outer` with O carried in the io dtype (-DO_IO_DTYPE)."""
    return _kv_outer(problem, tiling, o_itemsize=problem.itemsize)


def _kv_outer(problem: AttentionProblem, tiling: Tiling, o_itemsize: int) -> Traffic:
    tiles = RowTiles.of(problem, tiling.block_m, tiling.block_n)
    # All rows as one tile: where K and V begin and end.
    span = tile_list.k_tiles(problem, slice(0, problem.seqlen_q), tiling.block_n)
    k_end = key_end(problem, problem.seqlen_q - 1) if span else 0
    q_rows = again = keys = lists = 0
    masks = [None] if problem.block_mask is None else visits_of_masks(problem, tiling)
    for visits in masks:
        if visits is None:
            count = tiles.visits
            keys += k_end - span.start * tiling.block_n
        else:
            count = visits.visited.sum(axis=1)
            loaded = np.nonzero(visits.visited.any(axis=0))[0] * tiling.block_n
            keys += int(np.minimum(tiling.block_n, k_end - loaded).sum())
            nothing = int((count == 0).sum())
            lists += list_bytes(len(span) + 1, int(count.sum()) + nothing)
            ends = np.full_like(tiles.ends, k_end)
            lists += cell_bytes(problem, tiling, tiles.rows, visits.mixed, ends)
        q_rows += int((count * tiles.rows).sum())
        again += int((np.maximum(count - 1, 0) * tiles.rows).sum())
    share, d = problem.heads // len(masks), problem.head_dim
    kv_bytes, partial = share * keys * d * problem.itemsize, share * again * d * o_itemsize
    stats = share * again * 8
    read = {"q": share * q_rows * d * problem.itemsize, "k": kv_bytes, "v": kv_bytes}
    read |= {"out": partial, "lse": stats} | _values(problem, share * lists)
    return Traffic(read, {"out": partial + problem.q_bytes, "lse": stats + problem.lse_bytes})
