"""Lists of kept tiles against brute force: the elements of every tile, looked at one by one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_kernels import tile_list
from fa_kernels.block_mask import BlockMask
from fa_kernels.masks import parts
from fa_kernels.problem import AttentionProblem
from fa_kernels.tile_list import FLAG_BITS, FLAG_FIRST, FLAG_LAST, FLAG_MIXED, TileLists
from fa_kernels.tiling import Tiling
from tests.reference.problems import MASKS, SHAPES, allowed_pairs, bounded, random_mask

Entry = tuple[int, frozenset[int]]
FLAGS = (FLAG_MIXED, FLAG_FIRST, FLAG_LAST)


def read(lists: TileLists, index: int, lead: int = 0) -> list[Entry]:
    """(tile, flags) of one list."""
    return [
        (int(e) >> FLAG_BITS, frozenset(flag for flag in FLAGS if int(e) & flag))
        for e in lists.of(index, lead)
    ]


def kept_tiles(problem: AttentionProblem, tiling: Tiling) -> tuple[np.ndarray, np.ndarray]:
    """Bool (q_tiles, k_tiles): attended at all; and cut by the block mask. One mask only."""
    mask = problem.block_mask
    assert mask is not None and mask.lead == (1, 1)
    allowed = allowed_pairs(problem)[0, 0]
    kept = mask.keep[0, 0].repeat(mask.block_m, 0).repeat(mask.block_n, 1)
    kept = kept[: problem.seqlen_q, : problem.seqlen_k]
    tiles = [
        (slice(i, i + tiling.block_m), slice(j, j + tiling.block_n))
        for i in range(0, problem.seqlen_q, tiling.block_m)
        for j in range(0, problem.seqlen_k, tiling.block_n)
    ]
    shape = (-(-problem.seqlen_q // tiling.block_m), -(-problem.seqlen_k // tiling.block_n))
    visited = np.array([allowed[at].any() for at in tiles]).reshape(shape)
    mixed = np.array([not kept[at].all() for at in tiles]).reshape(shape)
    return visited, mixed


def groups(problem: AttentionProblem) -> Iterator[tuple[int, AttentionProblem]]:
    """(lead, problem with the one mask of it), in the order of the lists."""
    for lead, part in enumerate(parts(problem)):
        yield lead, part.problem


def assert_by_q(problem: AttentionProblem, tiling: Tiling) -> None:
    lists = tile_list.by_q(problem, tiling)
    for lead, group in groups(problem):
        visited, mixed = kept_tiles(group, tiling)
        assert lists.lists == len(visited)
        for i, row in enumerate(visited):
            want = [
                (j, frozenset({FLAG_MIXED} if mixed[i, j] else ())) for j in np.flatnonzero(row)
            ]
            assert read(lists, i, lead) == want


def assert_by_kv(problem: AttentionProblem, tiling: Tiling) -> None:
    lists = tile_list.by_kv(problem, tiling)
    for lead, group in groups(problem):
        visited, mixed = kept_tiles(group, tiling)
        assert lists.lists == visited.shape[1] + 1
        for j in range(visited.shape[1]):
            want = []
            for i in np.flatnonzero(visited[:, j]):
                seen = np.flatnonzero(visited[i])
                flags = {
                    FLAG_MIXED: mixed[i, j],
                    FLAG_FIRST: seen[0] == j,
                    FLAG_LAST: seen[-1] == j,
                }
                want.append((i, frozenset(flag for flag, is_set in flags.items() if is_set)))
            assert read(lists, j, lead) == want
        nothing = [tile for tile, _ in read(lists, lists.lists - 1, lead)]
        assert nothing == np.flatnonzero(~visited.any(axis=1)).tolist()


sizes = st.integers(1, 30)
blocks = st.integers(1, 34)
leads = st.sampled_from(((1, 1), (1, 3), (2, 1), (2, 3)))
side = st.one_of(st.none(), st.integers(0, 40))
windows = st.one_of(st.none(), st.tuples(side, side))
Window = tuple[int | None, int | None] | None


@given(sizes, sizes, blocks, blocks, blocks, blocks, leads, st.sampled_from(MASKS), windows)
@bounded
def test_lists_are_what_the_elements_say(
    nq: int, nk: int, mask_m: int, mask_n: int, block_m: int, block_n: int,
    lead: tuple[int, int], causal: str | None, window: Window,
) -> None:  # fmt: skip
    mask = random_mask(nq, nk, mask_m, mask_n, lead, seed=31 * nq + nk)
    problem = AttentionProblem(2, 3, nq, nk, 8, causal=causal, window=window, block_mask=mask)
    assert_by_q(problem, Tiling(block_m, block_n))
    assert_by_kv(problem, Tiling(block_m, block_n))


@pytest.mark.parametrize("causal", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_lists_on_awkward_shapes(shape: tuple[int, int], causal: str | None) -> None:
    for mask_block, tile in (((16, 16), (64, 32)), ((128, 96), (32, 32)), ((24, 40), (64, 64))):
        mask = random_mask(*shape, *mask_block, (2, 3))
        problem = AttentionProblem(2, 3, *shape, 8, causal=causal, block_mask=mask)
        assert_by_q(problem, Tiling(*tile))
        assert_by_kv(problem, Tiling(*tile))


@given(sizes, sizes, blocks, blocks, st.sampled_from(MASKS))
@bounded
def test_both_orders_visit_the_same_tiles(
    nq: int, nk: int, block_m: int, block_n: int, causal: str | None
) -> None:
    mask = random_mask(nq, nk, 5, 7, seed=nq)
    problem = AttentionProblem(1, 1, nq, nk, 8, causal=causal, block_mask=mask)
    tiling = Tiling(block_m, block_n)
    by_q, by_kv = tile_list.by_q(problem, tiling), tile_list.by_kv(problem, tiling)
    q_first = {(i, j) for i in range(by_q.lists) for j, _ in read(by_q, i)}
    kv_first = [(i, j, flags) for j in range(by_kv.lists - 1) for i, flags in read(by_kv, j)]
    assert {(i, j) for i, j, _ in kv_first} == q_first and len(kv_first) == len(q_first)
    for flag in (FLAG_FIRST, FLAG_LAST):  # once for every Q tile that is visited at all
        once = [i for i, _, flags in kv_first if flag in flags]
        assert sorted(once) == sorted({i for i, _ in q_first})


def test_lists_by_hand() -> None:
    """Three Q tiles, four K/V tiles of 8; the last Q tile attends nothing."""
    keep = [
        [True, True, False, False, False, False, True, False],
        [False, False, True, True, False, False, True, True],
        [False] * 8,
    ]
    mask = BlockMask.from_dense(keep, 8, 4)
    problem = AttentionProblem(1, 1, 24, 32, 8, block_mask=mask)
    q = tile_list.by_q(problem, Tiling(8, 8))
    assert [q.of(i).tolist() for i in range(3)] == [[0, 3 << 3 | 1], [1 << 3, 3 << 3], []]
    kv = tile_list.by_kv(problem, Tiling(8, 8))
    first, last = FLAG_FIRST, FLAG_LAST
    assert [kv.of(j).tolist() for j in range(4)] == [
        [0 | first], [1 << 3 | first], [], [0 | last | 1, 1 << 3 | last],
    ]  # fmt: skip
    assert [entry >> FLAG_BITS for entry in kv.of(4).tolist()] == [2]


def test_lists_have_the_kernels_types() -> None:
    mask = random_mask(113, 203, 16, 16, (2, 3))
    problem = AttentionProblem(2, 3, 113, 203, 8, block_mask=mask)
    for lists in (
        tile_list.by_q(problem, Tiling(32, 32)),
        tile_list.by_kv(problem, Tiling(32, 32)),
    ):
        assert (lists.start.dtype, lists.entries.dtype) == (np.int64, np.int32)
        assert lists.lead == (2, 3) and len(lists.start) == 6 * lists.lists + 1
        assert lists.start[0] == 0 and lists.start[-1] == len(lists.entries)
        assert (np.diff(lists.start) >= 0).all()


def test_a_mask_that_keeps_nothing_gives_empty_lists() -> None:
    mask = BlockMask.from_dense(np.zeros((2, 2), bool), 8, 8)
    problem = AttentionProblem(1, 1, 16, 16, 8, block_mask=mask)
    assert len(tile_list.by_q(problem, Tiling(8, 8)).entries) == 0
    kv = tile_list.by_kv(problem, Tiling(8, 8))
    assert [entry >> FLAG_BITS for entry in kv.of(2).tolist()] == [0, 1] and len(kv.entries) == 2


# -- without a block mask: ranges -----------------------------------------------------------


@given(sizes, sizes, blocks, blocks, st.sampled_from(MASKS), windows)
@bounded
def test_ranges_of_tiles_are_the_lists(
    nq: int, nk: int, block_m: int, block_n: int, causal: str | None, window: Window
) -> None:
    """What kernels compute from the band, without a list in memory."""
    problem = AttentionProblem(1, 1, nq, nk, 8, causal=causal, window=window)
    tiling, allowed = Tiling(block_m, block_n), allowed_pairs(problem)
    lists = tile_list.by_q(problem, tiling)
    all_rows = tile_list.q_tiles(problem, block_m)
    assert [row for rows in all_rows for row in range(nq)[rows]] == list(range(nq))
    for i, rows in enumerate(all_rows):
        visited = tile_list.k_tiles(problem, rows, block_n)
        assert [tile for tile, _ in read(lists, i)] == list(visited)
        cols = [tile_list.keys_of(problem, rows, j, block_n) for j in visited]
        loaded = np.zeros(nk, bool)
        for j, keys in zip(visited, cols, strict=True):
            assert keys.start == j * block_n < keys.stop <= nk
            loaded[keys] = True
        attended = allowed[rows].any(axis=0)
        assert not (attended & ~loaded).any(), "every attended key is loaded"
        last = np.flatnonzero(allowed[rows.stop - 1])
        assert not cols or cols[-1].stop == last[-1] + 1, "and none after the last row's last"


@given(sizes, sizes, blocks, blocks, st.sampled_from(MASKS), windows)
@bounded
def test_every_kv_tile_between_the_first_and_the_last_is_attended(
    nq: int, nk: int, block_m: int, block_n: int, causal: str | None, window: Window
) -> None:
    problem = AttentionProblem(1, 1, nq, nk, 8, causal=causal, window=window)
    lists = tile_list.by_kv(problem, Tiling(block_m, block_n))
    visited = [j for j in range(lists.lists - 1) if len(lists.of(j))]
    assert visited == list(tile_list.k_tiles(problem, slice(0, nq), block_n))


def test_no_rows_visit_no_tile() -> None:
    problem = AttentionProblem(1, 1, 0, 8, 8)
    assert tile_list.q_tiles(problem, 4) == []
    assert list(tile_list.k_tiles(problem, slice(0, 0), 4)) == []


def test_without_keys_every_q_tile_attends_nothing() -> None:
    lists = tile_list.by_kv(AttentionProblem(1, 1, 9, 0, 8), Tiling(4, 4))
    assert [entry >> FLAG_BITS for entry in lists.of(lists.lists - 1).tolist()] == [0, 1, 2]
    assert lists.lists == 1


def _problem(lead: tuple[int, int], causal: str | None = None) -> AttentionProblem:
    rng = np.random.default_rng(3)
    mask = BlockMask(rng.random((*lead, 9, 7)) < 0.4, 24, 40)
    return AttentionProblem(2, 3, 210, 270, 16, causal=causal, block_mask=mask)


@pytest.mark.parametrize("causal", [None, "bottom_right"])
@pytest.mark.parametrize("lead", [(1, 1), (1, 3), (2, 3)])
def test_queues_hold_the_lists_of_every_tile_the_longest_first(
    lead: tuple[int, int], causal: str | None
) -> None:
    problem, tiling = _problem(lead, causal), Tiling(32, 16)
    lists, found = tile_list.by_q(problem, tiling), tile_list.queues(problem, tiling)
    for mask in range(lead[0] * lead[1]):
        records = found.records[mask]
        assert sorted(records["tile"]) == list(range(lists.lists))
        assert (np.diff(records["count"]) <= 0).all()
        for place, tile in enumerate(records["tile"]):
            assert found.of(place, mask).tolist() == lists.of(int(tile), mask).tolist()


def test_queues_by_keys_begin_at_different_rows_and_go_round() -> None:
    problem, tiling = _problem((1, 3)), Tiling(32, 16)
    lists = tile_list.by_kv(problem, tiling)
    found = tile_list.queues(problem, tiling, by_keys=True, longest_first=False)
    firsts = set()
    for mask, tile in np.ndindex(3, lists.lists - 1):  # the last list is of no tile
        assert found.records[mask, tile]["tile"] == tile
        entries = found.of(tile, mask)
        without_order = lists.of(tile, mask) & ~(FLAG_FIRST | FLAG_LAST)
        assert sorted(entries) == sorted(without_order)
        start = entries.tolist().index(without_order[0]) if len(entries) else 0
        assert np.roll(entries, -start).tolist() == without_order.tolist()
        firsts.add(start)
    assert len(firsts) > 3
