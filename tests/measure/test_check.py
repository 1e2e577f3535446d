"""Correct before timed: what passes, and that what is wrong does not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.measure.check import EPS, SAMPLED_ROWS, Check, Truth, sample_rows
from fa_kernels.problem import AttentionProblem
from tests.reference.problems import (
    MASKS,
    Arrays,
    plain_attention,
    random_inputs,
    random_mask,
)

PROBLEM = AttentionProblem(2, 3, 70, 40, 20, "float16", "bottom_right")  # 30 rows are masked


def truth_of(problem: AttentionProblem = PROBLEM) -> tuple[Truth, Arrays]:
    inputs = random_inputs(problem, problem.dtype)
    return Truth(inputs, problem, xp=np), inputs


@pytest.mark.parametrize("dtype", EPS)
def test_eps_is_the_spacing_at_one(dtype: str) -> None:
    import ml_dtypes

    assert float(ml_dtypes.finfo(dtype).eps) == EPS[dtype]


@pytest.mark.parametrize("causal", MASKS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_formula_rounded_to_the_io_dtype_passes(dtype: str, causal: str | None) -> None:
    problem = AttentionProblem(2, 3, 70, 40, 20, dtype, causal)
    truth, inputs = truth_of(problem)
    out, lse = plain_attention(*inputs, problem)
    check = truth.check(out.astype(io_dtype(dtype)), lse.astype(np.float32))
    assert check.ok and check.rows == 70
    assert check.out_err <= EPS[dtype] * np.abs(out).max()
    assert 0 < check.out_limit < 40 * EPS[dtype]


def test_the_limit_is_twice_a_plain_runs_error_plus_one_rounding_unit_and_a_sum() -> None:
    problem = AttentionProblem(1, 1, 40, 40, 20, "float16")
    truth, (q, k, v) = truth_of(problem)
    want, _ = plain_attention(q, k, v, problem)
    s = (problem.scale * (q.astype("f4") @ k.astype("f4").swapaxes(-1, -2))).astype("f2")
    e = np.exp(s.astype("f4") - s.max(-1, keepdims=True).astype("f4"))
    p = (e / e.sum(-1, keepdims=True)).astype("f2")
    plain = (p.astype("f4") @ v.astype("f4")).astype("f2")
    limit = 2 * np.abs(plain - want).max() + EPS["float16"] * np.abs(want).max()
    # Summing P V term by term in fp32: sqrt(seqlen_k) u max P |V|.
    of_sum, _ = plain_attention(q, k, np.abs(v), problem)
    limit += math.sqrt(40) * 2.0**-24 * of_sum.max()
    assert truth.check(plain).out_limit == pytest.approx(limit, rel=1e-6)
    # Every rounding of O beyond the last may add half a unit of the largest V.
    more = truth.check(plain, roundings=9).out_limit - truth.check(plain).out_limit
    assert more == pytest.approx(8 * EPS["float16"] / 2 * np.abs(v).max())
    assert truth.check(plain).ok


def outputs() -> tuple[Truth, np.ndarray, np.ndarray]:
    truth, inputs = truth_of()
    out, lse = plain_attention(*inputs, PROBLEM)
    return truth, out.astype(np.float16), lse.astype(np.float32)


def test_one_wrong_element_fails() -> None:
    truth, out, lse = outputs()
    for index in ((0, 0, 30, 0), (1, 2, 69, 19)):
        wrong = out.copy()
        wrong[index] += np.float16(0.02)
        assert not truth.check(wrong, lse).ok
        wrong_lse = lse.copy()
        wrong_lse[index[:3]] += np.float32(0.02)
        check = truth.check(out, wrong_lse)
        assert not check.ok and check.lse_err > check.lse_limit


@pytest.mark.parametrize("lead", [(1, 1), (1, 3), (2, 1), (2, 3)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_block_masks_are_checked_head_by_head(dtype: str, lead: tuple[int, int]) -> None:
    mask = random_mask(70, 40, 16, 8, lead)
    problem = AttentionProblem(2, 3, 70, 40, 20, dtype, "top_left", block_mask=mask)
    truth, inputs = truth_of(problem)
    out, lse = (x.astype(np.float32) for x in plain_attention(*inputs, problem))
    out = out.astype(io_dtype(dtype))
    assert truth.check(out, lse).ok
    dense = AttentionProblem(2, 3, 70, 40, 20, dtype, "top_left")
    assert not Truth(inputs, dense, xp=np).check(out, lse).ok
    if lead != (1, 1):  # the mask of another head is wrong, too
        moved = replace(problem, block_mask=BlockMask.from_dense(mask.keep[::-1, ::-1], 16, 8))
        assert not Truth(inputs, moved, xp=np).check(out, lse).ok


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_fails(value: float) -> None:
    truth, out, lse = outputs()
    out[1, 0, 50, 3] = value
    assert not truth.check(out, lse).ok
    truth, out, lse = outputs()
    lse[1, 0, 50] = value
    assert not truth.check(out, lse).ok


def test_masked_rows_must_be_zero_and_minus_infinity() -> None:
    truth, out, lse = outputs()
    assert truth.check(out, lse).ok
    for wrong in (0.0, -1e30, np.inf):
        bad = lse.copy()
        bad[0, 0, 0] = wrong
        assert not truth.check(out, bad).ok
    out[0, 0, 0, 0] = 0.5
    assert not truth.check(out, lse).ok


@pytest.mark.parametrize(
    "mistake", ["scale", "mask", "transposed heads", "no mask", "zeros", "shifted keys"]
)
def test_typical_mistakes_fail(mistake: str) -> None:
    problem = AttentionProblem(2, 3, 60, 60, 20, "float16", "bottom_right")
    truth, (q, k, v) = truth_of(problem)
    sizes = (2, 3, 60, 60, 20, "float16")
    other = {
        "scale": AttentionProblem(*sizes, "bottom_right", softmax_scale=1 / math.sqrt(21)),
        "mask": AttentionProblem(2, 3, 60, 59, 20, "float16", "bottom_right"),
        "no mask": AttentionProblem(*sizes),
    }.get(mistake, problem)
    if mistake == "mask":
        k, v = k[:, :, :59], v[:, :, :59]
    if mistake == "shifted keys":
        k = np.roll(k, 1, axis=2)
    out, lse = plain_attention(q, k, v, other)
    if mistake == "transposed heads":
        out = out[:, ::-1]
    if mistake == "zeros":
        out = np.zeros_like(out)
    assert not truth.check(out.astype(np.float16), lse.astype(np.float32)).ok


def test_lse_is_optional() -> None:
    truth, out, _ = outputs()
    check = truth.check(out)
    assert check.ok and check.lse_err == 0.0


@pytest.mark.parametrize(
    ("errors", "ok"),
    [
        ((1.0, 1.0, 1.0, 1.0), True), ((1.1, 1.0, 0.0, 1.0), False), ((0.0, 1.0, 1.1, 1.0), False),
        ((math.nan, 1.0, 0.0, 1.0), False), ((0.0, 1.0, math.nan, 1.0), False),
        ((math.inf, math.inf, 0.0, 0.0), False), ((0.0, 0.0, math.inf, math.inf), False),
        ((0.5, math.nan, 0.0, 0.0), False),
    ],
)  # fmt: skip
def test_ok_means_finite_and_within_the_limit(
    errors: tuple[float, float, float, float], ok: bool
) -> None:
    assert Check(*errors, rows=1).ok is ok


def test_short_problems_are_checked_whole_and_long_ones_with_both_ends() -> None:
    short = AttentionProblem(1, 1, 2 * SAMPLED_ROWS, 4, 8)
    np.testing.assert_array_equal(sample_rows(short), np.arange(2 * SAMPLED_ROWS))
    for n in (2 * SAMPLED_ROWS + 1, 4096, 65536):
        rows = sample_rows(AttentionProblem(1, 1, n, 4, 8))
        assert len(rows) == len(set(rows.tolist())) == SAMPLED_ROWS
        assert rows[0] == 0 and rows[-1] == n - 1 and (np.diff(rows) > 0).all()
        np.testing.assert_array_equal(rows, sample_rows(AttentionProblem(1, 1, n, 4, 8)))


def test_only_the_sampled_rows_are_looked_at() -> None:
    problem = AttentionProblem(1, 2, 50, 40, 20, "float32", "top_left")
    inputs = random_inputs(problem, "float32")
    truth = Truth(inputs, problem, xp=np, rows=np.array([0, 7, 49]))
    out, lse = (x.astype(np.float32) for x in plain_attention(*inputs, problem))
    out[:, :, 8] = np.nan
    assert truth.check(out, lse).ok and truth.check(out, lse).rows == 3
    out[:, :, 7] = np.nan
    assert not truth.check(out, lse).ok
