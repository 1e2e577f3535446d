"""Element mask, bias and dropout mask of a call, and the parts of them that tiles ask for."""

from __future__ import annotations

import numpy as np
import pytest

from fa_kernels.dropout import dropout_keep
from fa_kernels.extras import NO_EXTRAS, Extras
from fa_kernels.masks import parts
from fa_kernels.packed import Packed
from fa_kernels.problem import AttentionProblem
from tests.reference.calls import random_extras
from tests.reference.problems import random_mask

SIZES = (2, 3, 23, 31, 8)
ALL = AttentionProblem(*SIZES, masked=True, bias_dtype="float32", dropout_p=0.2, keep_given=True)
ROWS, COLS = slice(4, 11), slice(3, 20)


def test_a_part_is_the_same_arrays_cut() -> None:
    extras = random_extras(ALL)
    part = extras.part(slice(1, 2), slice(1, 3), ROWS, COLS)
    for whole, cut in (
        (extras.mask, part.mask), (extras.bias, part.bias),
        (extras.dropout_keep, part.dropout_keep),
    ):  # fmt: skip
        np.testing.assert_array_equal(cut, whole[1:2, 1:3, 4:11, 3:20])
    assert (part.first_batch, part.first_head) == (1, 1)
    again = part.part(slice(0, 1), slice(1, 2), slice(0, 7), slice(0, 17))
    assert (again.first_batch, again.first_head) == (1, 2), "counted from the whole"


def test_a_part_of_nothing_is_nothing() -> None:
    part = NO_EXTRAS.part(slice(0, 1), slice(0, 1), ROWS, COLS)
    assert part.mask is part.bias is part.dropout_keep is None


def test_without_dropout_there_is_no_factor() -> None:
    problem = AttentionProblem(*SIZES, masked=True)
    assert random_extras(problem).keep_factor(problem, ROWS, COLS, np.dtype("f4")) is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_factor_is_zero_or_one_over_what_is_kept(dtype: str) -> None:
    extras = random_extras(ALL)
    factor = extras.keep_factor(ALL, ROWS, COLS, np.dtype(dtype))
    assert factor is not None and factor.dtype == dtype and factor.shape == (2, 3, 7, 17)
    want = extras.dropout_keep[..., ROWS, COLS] / 0.8
    np.testing.assert_allclose(factor, want, rtol=1e-6)


def test_a_drawn_factor_counts_batches_and_heads_of_the_whole() -> None:
    problem = AttentionProblem(*SIZES, dropout_p=0.5, seed=9)
    whole = NO_EXTRAS.keep_factor(problem, slice(0, 23), slice(0, 31), np.dtype("f4"))
    assert whole is not None
    drawn = dropout_keep(0.5, 9, np.arange(2), np.arange(3), np.arange(23), np.arange(31))
    np.testing.assert_array_equal(whole, 2.0 * drawn)
    for lead in ((1, 3), (2, 1), (2, 3)):
        masked = AttentionProblem(
            *SIZES, dropout_p=0.5, seed=9, block_mask=random_mask(23, 31, 8, 8, lead)
        )
        for part in parts(masked):
            own = NO_EXTRAS.part(part.masks, part.heads, slice(0, 23), slice(0, 31))
            factor = own.keep_factor(part.problem, ROWS, COLS, np.dtype("f4"))
            np.testing.assert_array_equal(factor, part.of_q(whole)[..., ROWS, COLS])


def test_sequences_count_as_batches_and_rows_from_their_start() -> None:
    packed = Packed((0, 9, 23), (0, 11, 31))
    problem = AttentionProblem(2, 3, 14, 20, 8, dropout_p=0.5, seed=9, packed=packed)
    (_, second) = parts(problem)
    own = Extras().part(second.masks, second.heads, slice(0, 14), slice(0, 20))
    factor = own.keep_factor(second.problem, slice(0, 5), slice(2, 6), np.dtype("f4"))
    drawn = dropout_keep(0.5, 9, np.array([1]), np.arange(3), np.arange(5), np.arange(2, 6))
    np.testing.assert_array_equal(factor, 2.0 * drawn)
