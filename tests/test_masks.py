"""Mask predicates against the definition, drawn as a matrix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_kernels.masks import keep_mask, kept_pairs, key_end, key_ends, matmul_flops
from fa_kernels.problem import AttentionProblem
from tests.reference.problems import MASKS, allowed_pairs, bounded

sizes = st.integers(0, 30)


@given(sizes, sizes, st.sampled_from(MASKS))
@bounded
def test_predicates_draw_the_same_mask(nq: int, nk: int, causal: str | None) -> None:
    problem = AttentionProblem(1, 1, nq, nk, 8, causal=causal)
    allowed = allowed_pairs(problem)
    everything = keep_mask(problem, slice(0, nq), slice(0, nk))
    np.testing.assert_array_equal(everything, allowed)
    np.testing.assert_array_equal(key_ends(problem), allowed.sum(axis=1))
    assert [key_end(problem, row) for row in range(nq)] == key_ends(problem).tolist()
    assert kept_pairs(problem) == allowed.sum()


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
    short = AttentionProblem(1, 1, 2, 5, 8, causal="bottom_right")
    assert key_ends(short).tolist() == [4, 5]
    assert key_ends(AttentionProblem(1, 1, 2, 5, 8, causal="top_left")).tolist() == [1, 2]
    tall = AttentionProblem(1, 1, 4, 2, 8, causal="bottom_right")
    assert key_ends(tall).tolist() == [0, 0, 1, 2]  # the first rows see no key at all


def test_flops_count_kept_pairs_exactly() -> None:
    dense = AttentionProblem(64, 16, 1024, 1024, 64)
    assert matmul_flops(dense) == 4 * 64 * 16 * 1024**2 * 64
    n = 1024
    causal = AttentionProblem(2, 3, n, n, 64, causal="bottom_right")
    assert matmul_flops(causal) == 4 * 64 * 2 * 3 * n * (n + 1) // 2


@pytest.mark.parametrize("causal", MASKS)
def test_long_sequences_do_not_overflow(causal: str | None) -> None:
    n = 2**20
    pairs = kept_pairs(AttentionProblem(1, 1, n, n, 64, causal=causal))
    assert pairs == (n * n if causal is None else n * (n + 1) // 2)
