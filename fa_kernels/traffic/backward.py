"""HBM traffic of the backward pass in closed form, under the two names of `traffic.model`.

`paper_*`: the published algorithms, dP, dS and dq in the io dtype, statistics in fp32,
initialisation uncounted. `launched_*`: our kernels, equal to the counters to the byte; an atomic
addition is a read and a write. With a bias they hold while no row is looked at twice
(`recompute.LARGE_LSE`): that depends on values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fa_kernels.masks import attended_pairs
from fa_kernels.problem import ITEMSIZE, AttentionProblem
from fa_kernels.reference.backward_standard import gradient_reads
from fa_kernels.reference.standard import softmax_reads
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.model import (
    RowTiles,
    Traffic,
    cell_bytes,
    list_bytes,
    mean_passes,
    per_sequence,
    visits_of_masks,
)


@per_sequence
def paper_standard_backward(problem: AttentionProblem) -> Traffic:
    """FlashAttention, Algorithm 3: dV, dP, dS, dQ, dK in turn, each through HBM. Θ(Nd + N²)."""
    scores = problem.seqlen_q * problem.seqlen_k * problem.itemsize * problem.heads
    q, kv = problem.q_bytes, problem.kv_bytes
    return Traffic(
        {"q": q, "k": kv, "v": kv, "d_out": 2 * q, "p": 2 * scores, "dp": scores, "ds": 2 * scores},
        {"dq": q, "dk": kv, "dv": kv, "dp": scores, "ds": scores},
    )


@per_sequence
def paper_flash_kv_outer_backward(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    """FlashAttention, Algorithm 4: K, V, dK, dV once; Q, O, dO, l, m and dQ, twice, per visit.

    With a block mask a fraction s of the visits. Θ(N² d² / M), like the forward.
    """
    visits = mean_passes(problem, tiling, -1)
    q, kv, stats = round(visits * problem.q_bytes), problem.kv_bytes, 2 * problem.lse_bytes
    read = {"q": q, "k": kv, "v": kv, "out": q, "lse": round(visits * stats), "d_out": q, "dq": q}
    return Traffic(read, {"dq": q, "dk": kv, "dv": kv})


@per_sequence
def paper_flash_q_outer_backward(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    """FlashAttention-2, Algorithm 2: D first; K, V, dK, dV once; per visit Q, dO, L, D, dQ twice.

    Its line 9 also loads O, which nothing after it uses: not counted.
    """
    visits = mean_passes(problem, tiling, -1)
    q, kv = round(visits * problem.q_bytes), problem.kv_bytes
    stats = round(visits * problem.lse_bytes)
    read = {"q": q, "k": kv, "v": kv, "out": problem.q_bytes, "lse": stats}
    read |= {"d_out": q + problem.q_bytes, "dq": q, "delta": stats}
    return Traffic(read, {"dq": q, "dk": kv, "dv": kv, "delta": problem.lse_bytes})


def launched_standard_tiled_backward(
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    deterministic: bool = False,
    p_given: bool = False,
) -> Traffic:
    """02_standard_tiled_backward: each product re-reads its operands tile by tile.

    Scores count their kept elements only. Without `p_given` S and P of the forward come first.
    """
    reads = softmax_reads(problem.seqlen_k), gradient_reads(problem.seqlen_k)
    return _standard_tiled(problem, tiling, *reads, p_given)


@per_sequence
def _standard_tiled(
    problem: AttentionProblem, tiling: Tiling, s_reads: int, dp_reads: int, p_given: bool
) -> Traffic:
    tiles = RowTiles.of(problem, tiling.block_m, tiling.block_n)
    row_bytes = problem.head_dim * problem.itemsize * problem.heads
    kv = tiles.keys(tiling.block_n) * row_bytes  # once for every Q tile of every head
    q = int((tiles.rows * tiles.visits).sum()) * row_bytes  # once for every tile of S
    pairs = attended_pairs(problem)
    kept = pairs * problem.itemsize
    read = {"q": q, "k": kv, "v": kv, "d_out": 2 * q, "p": (1 + dp_reads) * kept}
    read |= {"dp": dp_reads * kept, "ds": 2 * kept, "mask": 2 * problem.keep_given * pairs}
    written = {"dq": problem.q_bytes, "dk": problem.kv_bytes, "dv": problem.kv_bytes}
    total = Traffic(read, written | {"dp": kept, "ds": kept})
    if p_given:
        return total
    read = {"q": q, "k": kv, "s": s_reads * kept, "mask": _score_bytes(problem) * pairs}
    return total.plus(Traffic(read, {"s": kept, "p": kept, "lse": problem.lse_bytes}))


def _score_bytes(problem: AttentionProblem) -> int:
    """Bytes of element mask and bias that one score looks at."""
    bias = 0 if problem.bias_dtype is None else ITEMSIZE[problem.bias_dtype]
    return problem.masked + bias


@dataclass(frozen=True)
class _Visits:
    """Visits of tiles, over all heads: how many; rows of q they load, those of a first visit to a
    Q tile left out; keys that K/V-owned and Q-owned loops load; the tiles that visit nothing; the
    blocks of the mask that each of the loops looks at."""

    number: int
    rows: int
    rows_again: int
    keys_once: int
    keys_per_q_tile: int
    nothing: int
    cells_by_keys: int
    cells_by_rows: int

    @classmethod
    def of(cls, problem: AttentionProblem, tiling: Tiling, boxes: bool = False) -> _Visits:
        """`boxes`: K/V-owned loops load whole tiles, also past the last key attended."""
        tiles = RowTiles.of(problem, tiling.block_m, tiling.block_n)
        # All rows as one tile: where K and V begin and end.
        everyone = RowTiles.of(problem, max(1, problem.seqlen_q), tiling.block_n)
        if problem.block_mask is not None:
            return cls._under_mask(problem, tiling, tiles, int(everyone.ends.sum()), boxes)
        heads, again = problem.heads, np.maximum(tiles.visits - 1, 0)
        keys = everyone.keys(tiling.block_n, problem.seqlen_k if boxes else 0)
        return cls(
            number=0,  # there are no lists to count
            rows=heads * int((tiles.visits * tiles.rows).sum()),
            rows_again=heads * int((again * tiles.rows).sum()),
            keys_once=heads // problem.group * keys,
            keys_per_q_tile=heads * tiles.keys(tiling.block_n),
            nothing=0,
            cells_by_keys=0,
            cells_by_rows=0,
        )

    @classmethod
    def _under_mask(
        cls, problem: AttentionProblem, tiling: Tiling, tiles: RowTiles, k_end: int, boxes: bool
    ) -> _Visits:
        masks = visits_of_masks(problem, tiling)
        sums = np.zeros(7, np.int64)
        for mask in masks:
            count = mask.visited.sum(axis=1)
            i, j = np.nonzero(mask.visited)
            keys = np.minimum(tiling.block_n, tiles.ends[i] - j * tiling.block_n)
            cells = [
                cell_bytes(problem, tiling, tiles.rows, mask.mixed, ends)
                for ends in (np.full_like(tiles.ends, k_end), tiles.ends)
            ]
            rows, again = count * tiles.rows, np.maximum(count - 1, 0) * tiles.rows
            sums += [len(i), rows.sum(), again.sum(), keys.sum(), (count == 0).sum(), *cells]
        number, rows, again, per_tile, nothing, by_keys, by_rows = (
            int(n) * (problem.heads // len(masks)) for n in sums
        )
        visited = np.stack([mask.visited.any(axis=0) for mask in masks])
        loaded_to = problem.seqlen_k if boxes else k_end
        once = _keys_of_groups(problem, tiling, visited, loaded_to)
        return cls(number, rows, again, once, per_tile, nothing, by_keys, by_rows)


def _keys_of_groups(
    problem: AttentionProblem, tiling: Tiling, visited: np.ndarray, k_end: int
) -> int:
    """Keys that are loaded once for a group of heads, if one of them visits their tile.

    `visited` (masks, k_tiles): whether a Q tile under that mask visits that K/V tile.
    """
    assert problem.block_mask is not None and problem.nheads_kv is not None
    batches, heads = problem.block_mask.lead
    groups: np.ndarray = visited.reshape(batches, heads, -1)
    if heads > 1:
        by_kv_head = groups.reshape(batches, problem.nheads_kv, problem.group, -1)
        groups = np.logical_or.reduce(by_kv_head, axis=2)
    starts = np.nonzero(groups)[2] * tiling.block_n
    keys = int(np.minimum(tiling.block_n, k_end - starts).sum())
    return keys * problem.batch * problem.nheads_kv // (groups.shape[0] * groups.shape[1])


@per_sequence
def launched_flash_kv_outer_backward(
    problem: AttentionProblem, tiling: Tiling, *, deterministic: bool = False
) -> Traffic:
    """03_flash_kv_outer_backward: K, V once; Q, O, dO, lse and dq, in fp32, once per visit.

    The first visit of a Q tile reads no dq; the last writes it in the io dtype.
    """
    visits = _Visits.of(problem, tiling)
    row_bytes, partial = problem.head_dim * problem.itemsize, 4 * problem.head_dim
    moved = _by_keys(problem, tiling, visits, nothing=True)
    again = partial * visits.rows_again
    carried = Traffic(
        {"out": row_bytes * visits.rows, "dq": again}, {"dq": again + problem.q_bytes}
    )
    return moved.plus(carried).plus(_statistics(problem))


@per_sequence
def launched_flash_q_outer_backward(
    problem: AttentionProblem, tiling: Tiling, *, deterministic: bool = False
) -> Traffic:
    """04_flash_q_outer_backward: delta first; K, V once; Q, dO, lse, delta and dq, twice, a visit.

    dq is added in fp32 and converted last. `deterministic`: instead Q, dO, lse, delta and dq once,
    and K, V once per Q tile.
    """
    return _q_outer_backward(problem, tiling, _Visits.of(problem, tiling), deterministic)


@per_sequence
def launched_flash_wgmma_backward(
    problem: AttentionProblem, tiling: Tiling, *, deterministic: bool = False
) -> Traffic:
    """06_flash_wgmma_backward: the same, with K/V tiles as whole boxes. `deterministic` is
    refused by its plan and has no meaning here."""
    return _q_outer_backward(problem, tiling, _Visits.of(problem, tiling, boxes=True), False)


def _q_outer_backward(
    problem: AttentionProblem, tiling: Tiling, visits: _Visits, deterministic: bool
) -> Traffic:
    d, per_row = problem.head_dim, problem.lse_bytes
    moved = _by_keys(problem, tiling, visits).plus(_statistics(problem))
    moved = moved.plus(Traffic({"delta": 4 * visits.rows}))
    delta = Traffic({"d_out": problem.q_bytes, "out": problem.q_bytes}, {"delta": per_row})
    if deterministic:
        return moved.plus(delta).plus(_by_rows(problem, tiling, visits))
    added = 4 * d * visits.rows
    moved = moved.plus(delta).plus(Traffic({"dq": added}, {"dq": added}))
    if problem.itemsize == 4:  # added up in dq itself
        return moved
    return moved.plus(Traffic({"dq": 4 * d * problem.q_rows}, {"dq": problem.q_bytes}))


def _by_keys(
    problem: AttentionProblem, tiling: Tiling, visits: _Visits, nothing: bool = False
) -> Traffic:
    """What a K/V-owned loop moves to rebuild P and dS and to own dk and dv.

    `nothing`: it also walks the list of Q tiles that visit nothing.
    """
    row_bytes = problem.head_dim * problem.itemsize
    q, kv = row_bytes * visits.rows, row_bytes * visits.keys_once
    lists = 0
    if problem.block_mask is not None:
        each = -(-problem.seqlen_k // tiling.block_n) + nothing
        lists = list_bytes(problem.heads * each, visits.number + nothing * visits.nothing)
    stats = 4 * visits.rows * (1 if problem.bias_dtype is None else 2)
    read = {"q": q, "d_out": q, "k": kv, "v": kv, "lse": stats}
    read |= {"mask": lists + visits.cells_by_keys + _values(problem)}
    return Traffic(read, {"dk": problem.kv_bytes, "dv": problem.kv_bytes})


def _by_rows(problem: AttentionProblem, tiling: Tiling, visits: _Visits) -> Traffic:
    """What the Q-owned launch moves to own dq."""
    kv = problem.head_dim * problem.itemsize * visits.keys_per_q_tile
    lists = 0
    if problem.block_mask is not None:
        q_tiles = -(-problem.seqlen_q // tiling.block_m)
        lists = list_bytes(problem.heads * q_tiles, visits.number)
    stats = problem.lse_bytes * (1 if problem.bias_dtype is None else 2)
    read = {"q": problem.q_bytes, "d_out": problem.q_bytes, "k": kv, "v": kv, "lse": stats}
    read |= {"mask": lists + visits.cells_by_rows + _values(problem), "delta": problem.lse_bytes}
    return Traffic(read, {"dq": problem.q_bytes})


def _statistics(problem: AttentionProblem) -> Traffic:
    """With a bias: lse to the two numbers that P is rebuilt from, while none is looked at twice."""
    if problem.bias_dtype is None:
        return Traffic()
    return Traffic({"lse": problem.lse_bytes}, {"lse": 2 * problem.lse_bytes})


def _values(problem: AttentionProblem) -> int:
    """Bytes of element mask, bias and explicit dropout mask over the attended pairs."""
    each = _score_bytes(problem) + problem.keep_given
    return each * attended_pairs(problem) if each else 0
