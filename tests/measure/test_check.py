"""Correct before timed: what passes, and that what is wrong does not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.extras import Extras
from fa_kernels.measure.check import EPS, SAMPLED_ROWS, Check, Truth, sample_rows
from fa_kernels.packed import Packed
from fa_kernels.problem import AttentionProblem
from tests.reference.calls import Call, calls
from tests.reference.problems import (
    MASKS,
    Arrays,
    bounded,
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


# -- every option -----------------------------------------------------------------------------


def rounded(call: Call, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """out and lse of the textbook formula as a kernel would give them."""
    out, lse = plain_attention(*call.inputs, call.problem, call.extras)
    return out.astype(io_dtype(dtype)), np.maximum(lse, -np.inf).astype(np.float32)


@bounded
@given(st.data(), st.sampled_from(["float16", "bfloat16", "float32"]))
def test_the_formula_passes_under_any_options(data: st.DataObject, dtype: str) -> None:
    call = data.draw(calls(dtype=dtype, io=dtype))
    assume(0 not in (call.problem.q_rows, call.problem.kv_rows))
    truth = Truth(call.inputs, call.problem, extras=call.extras, xp=np)
    check = truth.check(*rounded(call, dtype))
    assert check.ok, check


def sized(**options: Any) -> AttentionProblem:
    return AttentionProblem(2, 4, 40, 40, 16, "float16", **options)


MASK = np.random.default_rng(3).random((2, 1, 40, 40)) < 0.7
BIAS = np.random.default_rng(4).standard_normal((1, 4, 1, 40)).astype(np.float16)
OVER = (2, 4, 40, 40)
LIKE_Q = np.broadcast_to(MASK, OVER), np.broadcast_to(BIAS, OVER)
PACKED = Packed((0, 15, 40), (0, 25, 40))
OPTIONS: dict[str, tuple[AttentionProblem, Extras]] = {
    "window": (sized(window=(5, 3)), Extras()),
    "mask": (sized(masked=True), Extras(mask=LIKE_Q[0])),
    "bias": (sized(bias_dtype="float16"), Extras(bias=LIKE_Q[1])),
    "drawn dropout": (sized(dropout_p=0.3, seed=1), Extras()),
    "given dropout": (sized(dropout_p=0.3, keep_given=True), Extras(dropout_keep=LIKE_Q[0])),
    "scale": (sized(softmax_scale=-0.7), Extras()),
    "packed": (
        AttentionProblem(2, 4, 25, 25, 16, "float16", "bottom_right", packed=PACKED), Extras(),
    ),
}  # fmt: skip
#: What a call with these options must not be taken for.
WRONG: dict[str, dict[str, Any]] = {
    "window": {"window": (5, 2)},
    "drawn dropout": {"seed": 2},
    "given dropout": {"dropout_p": 0.28},
    "scale": {"softmax_scale": 0.7},
    "packed": {"causal": "top_left"},
}


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_was_ignored_is_seen(name: str, group: int) -> None:
    problem, extras = OPTIONS[name]
    problem = replace(problem, nheads_kv=4 // group)
    inputs = random_inputs(problem, "float16")
    truth = Truth(inputs, problem, extras=extras, xp=np)

    def ok(one: AttentionProblem, own: Extras) -> bool:
        out, lse = plain_attention(*inputs, one, own)
        return truth.check(out.astype(np.float16), lse.astype(np.float32)).ok

    assert ok(problem, extras)
    if name in WRONG:
        assert not ok(replace(problem, **WRONG[name]), extras)
    if extras.mask is not None:
        assert not ok(problem, replace(extras, mask=extras.mask[::-1]))
    if extras.bias is not None:
        assert not ok(problem, replace(extras, bias=extras.bias[:, ::-1]))
    if extras.dropout_keep is not None:
        assert not ok(problem, replace(extras, dropout_keep=extras.dropout_keep[::-1]))


def test_another_mapping_of_heads_is_seen() -> None:
    problem = replace(sized(), nheads_kv=2)
    q, k, v = random_inputs(problem, "float16")
    truth = Truth((q, k, v), problem, xp=np)
    out, lse = plain_attention(q, k[:, ::-1], v[:, ::-1], problem)
    assert not truth.check(out.astype(np.float16), lse.astype(np.float32)).ok


def test_rows_of_huge_biases_do_not_widen_the_limit_of_others() -> None:
    """A row of nothing but finfo.min attends all its keys alike, and its lse is about finfo.min."""
    bias = np.zeros((1, 1, 40, 40), np.float32)
    bias[0, 0, 7] = np.finfo(np.float32).min
    problem = AttentionProblem(1, 1, 40, 40, 16, "float32", bias_dtype="float32")
    inputs, extras = random_inputs(problem, "float32"), Extras(bias=bias)
    truth = Truth(inputs, problem, extras=extras, xp=np)
    exact, exact_lse = plain_attention(*inputs, problem, extras)
    out, lse = exact.astype(np.float32), exact_lse.astype(np.float32)
    np.testing.assert_allclose(out[0, 0, 7], inputs[2].mean(axis=2)[0, 0], atol=1e-6)
    check = truth.check(out, lse)
    assert check.ok and check.lse_limit < 1e-4
    for row, wrong in ((7, -np.inf), (7, -3e38), (7, np.nan), (8, lse[0, 0, 8] + 1e-3)):
        bad = lse.copy()
        bad[0, 0, row] = wrong
        assert not truth.check(out, bad).ok
    out[0, 0, 7] = 0.0
    assert not truth.check(out, lse).ok


def test_scores_that_go_through_memory_are_rounded_with_the_bias_in_them() -> None:
    """Beside -300 a score in bf16 has a spacing of 2: only a kernel that stores S may lose it."""
    problem = AttentionProblem(1, 2, 40, 40, 16, "bfloat16", bias_dtype="float32")
    bias = np.full((1, 2, 40, 40), -300.0, np.float32)
    inputs, extras = random_inputs(problem, "bfloat16"), Extras(bias=bias)
    truth = Truth(inputs, problem, extras=extras, xp=np)
    exact, _ = plain_attention(*inputs, problem, extras)
    coarse, coarse_lse = plain_attention(*inputs, problem, extras, "bfloat16")
    assert truth.check(exact.astype(io_dtype("bfloat16"))).ok
    assert not truth.check(coarse.astype(io_dtype("bfloat16"))).ok
    stored = (coarse.astype(io_dtype("bfloat16")), coarse_lse.astype(np.float32))
    assert truth.check(*stored, scores_in_io=True).ok


def test_packed_sequences_are_sampled_one_by_one() -> None:
    long, short = 2 * SAMPLED_ROWS + 50, 30
    packed = Packed((0, long, long, long + short), (0, 4, 8, 8))
    rows = sample_rows(AttentionProblem(3, 1, long, 4, 8, packed=packed))
    assert len(rows) == SAMPLED_ROWS + short
    assert {0, long - 1, long, long + short - 1} <= set(rows.tolist())


def test_float64_is_held_to_float64() -> None:
    problem = replace(PROBLEM, dtype="float64")
    truth, inputs = truth_of(problem)
    out, lse = plain_attention(*inputs, problem)
    check = truth.check(out, lse)
    assert check.ok and check.out_limit < 1e-13
    assert not truth.check(out + 1e-12, lse).ok
    assert not truth.check(out, lse.astype(np.float32)).ok


def test_a_plain_run_that_overflows_widens_nothing() -> None:
    """Scores beyond 65504 are infinite in fp16: the formula is then NaN, the kernels are not."""
    problem = AttentionProblem(1, 1, 8, 8, 16, "float16")
    q, k, v = (np.full((1, 1, 8, 16), 200.0, np.float16) for _ in range(3))
    truth = Truth((q, k, v), problem, xp=np)
    out, lse = plain_attention(q, k, v, problem)
    check = truth.check(out.astype(np.float16), lse.astype(np.float32))
    assert check.ok and math.isfinite(check.out_limit + check.lse_limit)
