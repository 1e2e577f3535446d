"""Mask predicates against the definition, drawn as a matrix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_kernels.block_mask import BlockMask
from fa_kernels.masks import (
    MIXED,
    SKIPPED,
    WHOLE,
    attended_pairs,
    band,
    keep_mask,
    key_begin,
    key_end,
    key_ranges,
    matmul_flops,
    parts,
    tile_map,
)
from fa_kernels.packed import Packed
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from tests.reference.problems import MASKS, SHAPES, allowed_pairs, bounded, random_mask

sizes = st.integers(0, 30)
side = st.one_of(st.none(), st.integers(0, 40))
windows = st.one_of(st.none(), st.tuples(side, side))
Window = tuple[int | None, int | None] | None
positive = st.integers(1, 30)
blocks = st.integers(1, 34)
leads = st.sampled_from(((1, 1), (1, 3), (2, 1), (2, 3)))


def masked(
    nq: int,
    nk: int,
    block_m: int,
    block_n: int,
    lead: tuple[int, int],
    causal: str | None,
    window: Window = None,
) -> AttentionProblem:
    """Two batches, three heads, and a random block mask that depends on the sizes alone."""
    mask = random_mask(nq, nk, block_m, block_n, lead, density=0.5, seed=31 * nq + nk)
    return AttentionProblem(2, 3, nq, nk, 8, causal=causal, window=window, block_mask=mask)


@given(sizes, sizes, st.sampled_from(MASKS), windows)
@bounded
def test_predicates_draw_the_same_mask(
    nq: int, nk: int, causal: str | None, window: Window
) -> None:
    problem = AttentionProblem(1, 1, nq, nk, 8, causal=causal, window=window)
    allowed = allowed_pairs(problem)
    everything = keep_mask(problem, slice(0, nq), slice(0, nk))
    np.testing.assert_array_equal(everything, allowed)
    begins, ends = key_ranges(problem)
    np.testing.assert_array_equal(ends - begins, allowed.sum(axis=1))
    for row, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        assert (key_begin(problem, row), key_end(problem, row)) == (begin, end)
        assert begin == end or allowed[row, begin:end].all()
    assert attended_pairs(problem) == allowed.sum()


@given(st.integers(1, 30), st.integers(1, 30), st.sampled_from(MASKS), windows)
@bounded
def test_only_leading_rows_attend_nothing(
    nq: int, nk: int, causal: str | None, window: Window
) -> None:
    """What kernels rely on: a tile's keys lie between its first row's begin and its last's end."""
    problem = AttentionProblem(1, 1, nq, nk, 8, causal=causal, window=window)
    seen = allowed_pairs(problem).any(axis=1)
    assert (np.diff(seen.astype(int)) >= 0).all()
    begins, ends = key_ranges(problem)
    assert (np.diff(begins) >= 0).all() and (np.diff(ends) >= 0).all()
    assert (begins[~seen] == 0).all() and (ends[~seen] == 0).all()


def test_a_window_counts_from_the_diagonal_that_ends_in_the_last_corner() -> None:
    """Row i attends keys i + seqlen_k - seqlen_q - left ... + right, both of them included."""
    begins, ends = key_ranges(AttentionProblem(1, 1, 4, 6, 8, window=(1, 2)))
    assert (begins.tolist(), ends.tolist()) == ([1, 2, 3, 4], [5, 6, 6, 6])
    begins, ends = key_ranges(AttentionProblem(1, 1, 4, 6, 8, window=(0, 0)))
    assert (begins.tolist(), ends.tolist()) == ([2, 3, 4, 5], [3, 4, 5, 6])
    # causal on top: bottom_right is a right side of 0.
    sizes = (1, 1, 4, 6, 8)
    assert band(AttentionProblem(*sizes, causal="bottom_right", window=(3, 9))) == band(
        AttentionProblem(*sizes, window=(3, 0))
    )


def test_a_window_that_causal_leaves_nothing_of_is_empty() -> None:
    """top_left attends j <= i, a left side of 1 attends j >= i + 3: no pair is left."""
    problem = AttentionProblem(1, 1, 4, 8, 8, causal="top_left", window=(1, None))
    assert not allowed_pairs(problem).any() and attended_pairs(problem) == 0
    begins, ends = key_ranges(problem)
    assert not begins.any() and not ends.any()
    assert (tile_map(problem, Tiling(2, 2)) == SKIPPED).all()


@given(st.data(), st.sampled_from(MASKS))
@bounded
def test_a_tile_of_the_mask_is_the_mask_of_the_tile(data: st.DataObject, causal: str) -> None:
    problem = AttentionProblem(1, 1, 23, 31, 8, causal=causal)
    i, j = data.draw(st.integers(0, 22)), data.draw(st.integers(0, 30))
    rows = slice(i, data.draw(st.integers(i + 1, 23)))
    cols = slice(j, data.draw(st.integers(j + 1, 31)))
    tile = keep_mask(problem, rows, cols)
    np.testing.assert_array_equal(tile, allowed_pairs(problem)[rows, cols])


def test_bottom_right_ends_in_the_last_corner_and_top_left_starts_in_the_first() -> None:
    def ends(nq: int, nk: int, causal: str) -> list[int]:
        begins, ends = key_ranges(AttentionProblem(1, 1, nq, nk, 8, causal=causal))
        assert not begins.any()
        return ends.tolist()

    assert ends(2, 5, "bottom_right") == [4, 5]
    assert ends(2, 5, "top_left") == [1, 2]
    assert ends(4, 2, "bottom_right") == [0, 0, 1, 2]  # the first rows see no key at all


def test_flops_count_attended_pairs_exactly() -> None:
    dense = AttentionProblem(64, 16, 1024, 1024, 64)
    assert matmul_flops(dense) == 4 * 64 * 16 * 1024**2 * 64
    n = 1024
    causal = AttentionProblem(2, 3, n, n, 64, causal="bottom_right")
    assert matmul_flops(causal) == 4 * 64 * 2 * 3 * n * (n + 1) // 2


@pytest.mark.parametrize("causal", MASKS)
def test_long_sequences_do_not_overflow(causal: str | None) -> None:
    n = 2**24
    pairs = attended_pairs(AttentionProblem(1, 1, n, n, 64, causal=causal))
    assert pairs == (n * n if causal is None else n * (n + 1) // 2)
    window = AttentionProblem(1, 1, n, n, 64, causal=causal, window=(9, 0))
    assert attended_pairs(window) == 10 * n - 45


@given(st.lists(st.tuples(sizes, sizes), min_size=1, max_size=5), st.sampled_from(MASKS), windows)
@bounded
def test_packed_sequences_are_masked_each_for_itself(
    lengths: list[tuple[int, int]], causal: str | None, window: Window
) -> None:
    ends = [np.cumsum([0, *column]).tolist() for column in zip(*lengths, strict=True)]
    packed = Packed(tuple(ends[0]), tuple(ends[1]))
    longest = (packed.longest_q, packed.longest_k)
    problem = AttentionProblem(
        len(lengths), 2, *longest, 8, causal=causal, window=window, packed=packed
    )
    alone = [AttentionProblem(1, 2, *n, 8, causal=causal, window=window) for n in lengths]
    assert attended_pairs(problem) == sum(2 * allowed_pairs(one).sum() for one in alone)
    assert [part.problem for part in parts(problem)] == alone


# -- block masks ----------------------------------------------------------------------------


@given(positive, positive, blocks, blocks, leads, st.sampled_from(MASKS), windows)
@bounded
def test_a_block_mask_is_drawn_element_by_element(
    nq: int, nk: int, block_m: int, block_n: int, lead: tuple[int, int], causal: str | None,
    window: Window,
) -> None:  # fmt: skip
    problem = masked(nq, nk, block_m, block_n, lead, causal, window)
    allowed = allowed_pairs(problem)
    everything = keep_mask(problem, slice(0, nq), slice(0, nk))
    np.testing.assert_array_equal(everything, allowed)
    assert attended_pairs(problem) == np.broadcast_to(allowed, (2, 3, nq, nk)).sum()
    assert matmul_flops(problem) == 4 * 8 * attended_pairs(problem)


@given(st.data(), leads, st.sampled_from(MASKS))
@bounded
def test_a_tile_of_a_block_mask_is_the_mask_of_the_tile(
    data: st.DataObject, lead: tuple[int, int], causal: str | None
) -> None:
    problem = masked(23, 31, 5, 7, lead, causal)
    i, j = data.draw(st.integers(0, 22)), data.draw(st.integers(0, 30))
    rows = slice(i, data.draw(st.integers(i + 1, 23)))
    cols = slice(j, data.draw(st.integers(j + 1, 31)))
    allowed = allowed_pairs(problem)
    np.testing.assert_array_equal(keep_mask(problem, rows, cols), allowed[..., rows, cols])
    some = np.array([22, 0, 7, 7])  # rows by index, in any order
    np.testing.assert_array_equal(keep_mask(problem, some, cols), allowed[..., some, cols])


def brute_tile_map(problem: AttentionProblem, tiling: Tiling) -> np.ndarray:
    """`tile_map` from the element masks of every tile: the definition, word by word."""
    allowed = allowed_pairs(problem)
    kept: np.ndarray = np.ones((problem.seqlen_q, problem.seqlen_k), bool)
    if problem.block_mask is not None:
        mask = problem.block_mask
        kept = mask.keep.repeat(mask.block_m, axis=-2).repeat(mask.block_n, axis=-1)
        kept = kept[..., : problem.seqlen_q, : problem.seqlen_k]
    lead = (1, 1) if problem.block_mask is None else problem.block_mask.lead
    allowed, kept = (x.reshape((1,) * (4 - x.ndim) + x.shape) for x in (allowed, kept))
    starts = [range(0, n, b) for n, b in zip(
        (problem.seqlen_q, problem.seqlen_k), (tiling.block_m, tiling.block_n), strict=True
    )]  # fmt: skip
    state = np.zeros((*lead, *map(len, starts)), np.uint8)
    for b, h, i, j in np.ndindex(*state.shape):
        rows = slice(i * tiling.block_m, (i + 1) * tiling.block_m)
        cols = slice(j * tiling.block_n, (j + 1) * tiling.block_n)
        if allowed[b, h, rows, cols].any():
            state[b, h, i, j] = WHOLE if kept[b, h, rows, cols].all() else MIXED
        else:
            state[b, h, i, j] = SKIPPED
    return state


@given(positive, positive, blocks, blocks, blocks, blocks, leads, st.sampled_from(MASKS), windows)
@bounded
def test_the_tile_map_is_what_the_elements_say(
    nq: int, nk: int, mask_m: int, mask_n: int, block_m: int, block_n: int,
    lead: tuple[int, int], causal: str | None, window: Window,
) -> None:  # fmt: skip
    problem, tiling = masked(nq, nk, mask_m, mask_n, lead, causal, window), Tiling(block_m, block_n)
    state = tile_map(problem, tiling)
    assert state.dtype == np.uint8
    np.testing.assert_array_equal(state, brute_tile_map(problem, tiling))


@pytest.mark.parametrize("causal", MASKS)
@pytest.mark.parametrize("shape", (*SHAPES, (239, 240)))
def test_the_tile_map_on_awkward_shapes(shape: tuple[int, int], causal: str | None) -> None:
    """Mask blocks that are smaller, larger, a divisor, a multiple and none of it."""
    for mask_block, tile in (
        ((16, 16), (64, 32)), ((128, 96), (32, 32)), ((24, 40), (64, 64)), ((1, 1), (17, 33)),
        ((100, 7), (33, 17)), ((500, 500), (64, 64)),
    ):  # fmt: skip
        problem, tiling = masked(*shape, *mask_block, (2, 1), causal), Tiling(*tile)
        np.testing.assert_array_equal(tile_map(problem, tiling), brute_tile_map(problem, tiling))


@given(positive, positive, blocks, blocks, st.sampled_from(MASKS), windows)
@bounded
def test_without_a_block_mask_no_tile_is_mixed(
    nq: int, nk: int, block_m: int, block_n: int, causal: str | None, window: Window
) -> None:
    problem = AttentionProblem(2, 3, nq, nk, 8, causal=causal, window=window)
    tiling = Tiling(block_m, block_n)
    state = tile_map(problem, tiling)
    assert state.shape[:2] == (1, 1) and not (state == MIXED).any()
    np.testing.assert_array_equal(state, brute_tile_map(problem, tiling))


def test_a_tile_map_cannot_be_changed_behind_the_cache() -> None:
    problem = masked(23, 31, 5, 7, (1, 1), None)
    state = tile_map(problem, Tiling(8, 8))
    with pytest.raises(ValueError, match="read-only"):
        state[...] = SKIPPED
    assert tile_map(problem, Tiling(8, 8)) is state


@pytest.mark.parametrize("lead", [(1, 1), (1, 3), (2, 1), (2, 3)])
def test_every_head_is_in_one_group_with_its_own_mask(lead: tuple[int, int]) -> None:
    problem = masked(23, 31, 5, 7, lead, "bottom_right")
    whole = np.broadcast_to(allowed_pairs(problem), (2, 3, 23, 31))
    seen = np.zeros((2, 3), int)
    groups = list(parts(problem))
    for part in groups:
        group = part.problem
        seen[part.batches, part.heads] += 1
        assert (group.batch, group.nheads) == seen[part.batches, part.heads].shape
        assert group.block_mask is not None and group.block_mask.lead == (1, 1)
        assert part.masks == part.batches
        np.testing.assert_array_equal(
            np.broadcast_to(allowed_pairs(group), (group.batch, group.nheads, 23, 31)),
            part.of_q(whole),
        )
    assert (seen == 1).all() and len(groups) == lead[0] * lead[1]
    assert sum(attended_pairs(part.problem) for part in groups) == attended_pairs(problem)


def test_without_a_block_mask_there_is_one_part_with_a_kv_head_for_each_head() -> None:
    problem = AttentionProblem(2, 3, 23, 31, 8, causal="top_left", nheads_kv=1)
    (part,) = parts(problem)
    assert part.problem == AttentionProblem(2, 3, 23, 31, 8, causal="top_left")
    rows, keys = np.zeros((2, 3, 23, 8)), np.zeros((2, 3, 31, 8))
    assert part.of_q(rows).shape == rows.shape and part.of_k(keys).shape == keys.shape


def test_pairs_under_a_block_mask_do_not_overflow() -> None:
    n = 2**20
    mask = BlockMask.pattern("local", n, n, 2**12, 2**12, 0.5)
    problem = AttentionProblem(64, 16, n, n, 64, block_mask=mask)
    assert attended_pairs(problem) == 64 * 16 * n * n // 2
