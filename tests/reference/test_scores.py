"""One tile of scores: what masks an element, what only shifts it, and what is read for it."""

from __future__ import annotations

import numpy as np
import pytest

from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.extras import NO_EXTRAS, Extras
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.scores import (
    add_bias,
    each_part,
    per_query_head,
    storable_scores,
    tile_dropout,
    tile_scores,
)
from fa_kernels.traffic.counter import CountingHbm
from tests.reference.calls import random_extras
from tests.reference.problems import allowed_pairs, random_inputs, random_mask

LOWEST = np.finfo(np.float32).min


def test_only_a_bias_of_minus_infinity_masks() -> None:
    s = np.array([1.0, -1e32, -np.inf, np.nan, 2.0], np.float32)
    bias = np.array([LOWEST, LOWEST, LOWEST, LOWEST, -np.inf], np.float32)
    got = add_bias(s, bias)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, np.array([LOWEST, LOWEST, LOWEST, np.nan, -np.inf], "f4"))


@pytest.mark.parametrize(
    ("dtype", "lowest"),
    [("float16", -65504.0), ("bfloat16", -3.3895313892515355e38), ("float32", float(LOWEST))],
)
def test_a_biased_score_stays_finite_in_the_io_dtype(dtype: str, lowest: float) -> None:
    s, io = np.array([LOWEST, -np.inf, np.nan, 1.0], np.float32), io_dtype(dtype)
    kept = storable_scores(s, Extras(bias=s), io).astype(io).astype("f8")
    np.testing.assert_array_equal(kept, [lowest, -np.inf, np.nan, 1.0])
    assert storable_scores(s, NO_EXTRAS, io) is s, "without a bias nothing is held back"


def test_a_head_of_k_serves_its_group() -> None:
    problem = AttentionProblem(1, 6, 4, 4, 8, nheads_kv=2)
    k = np.arange(2.0).reshape(1, 2, 1, 1)
    assert per_query_head(k, problem)[0, :, 0, 0].tolist() == [0, 0, 0, 1, 1, 1]
    whole = AttentionProblem(1, 6, 4, 4, 8)
    assert per_query_head(k, whole) is k


def test_parts_of_outputs_are_views_to_write_to() -> None:
    mask = random_mask(9, 9, 4, 4, (2, 3))
    problem = AttentionProblem(2, 3, 9, 9, 8, block_mask=mask)
    out, k = np.zeros((2, 3, 9, 8)), np.zeros((2, 3, 9, 8))
    for number, (one, _, (part,), (keys,)) in enumerate(each_part(problem, NO_EXTRAS, [out], [k])):
        assert part.shape == keys.shape == (one.batch, one.nheads, 9, 8)
        part[...] = number + 1
    np.testing.assert_array_equal(out[:, :, 0, 0], [[1, 2, 3], [4, 5, 6]])


def test_a_tile_reads_the_values_of_its_structurally_kept_elements_alone() -> None:
    """1 byte of mask, 4 of bias and 1 of dropout mask; nothing where causal or window drop."""
    problem = AttentionProblem(
        2, 3, 23, 31, 8, causal="bottom_right", window=(6, None), masked=True,
        bias_dtype="float32", dropout_p=0.5, keep_given=True,
    )  # fmt: skip
    extras, (q, k, _) = random_extras(problem), random_inputs(problem)
    rows, cols = slice(5, 14), slice(8, 20)
    pairs = 6 * int(allowed_pairs(problem)[rows, cols].sum())
    assert 0 < pairs < 6 * 9 * 12
    hbm = CountingHbm()
    s = tile_scores(q[..., rows, :], k[..., cols, :], rows, cols, problem, extras, hbm)
    assert hbm.read_bytes == {"mask": 5 * pairs} and s.shape == (2, 3, 9, 12)
    kept = allowed_pairs(problem)[rows, cols] & extras.mask[..., rows, cols]
    np.testing.assert_array_equal(np.isneginf(s), ~kept | np.isneginf(extras.bias[..., rows, cols]))
    tile_dropout(rows, cols, problem, extras, hbm, s.dtype)
    assert hbm.read_bytes == {"mask": 6 * pairs}
