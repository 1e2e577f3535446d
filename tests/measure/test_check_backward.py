"""Gradients that pass, and that wrong ones do not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.extras import NO_EXTRAS, Extras
from fa_kernels.measure import check, check_backward
from fa_kernels.measure.check import EPS
from fa_kernels.measure.check_backward import (
    SCORES_OF_ALL_HEADS,
    BackwardTruth,
    GradientCheck,
    sample_kv_heads,
)
from fa_kernels.problem import AttentionProblem
from tests.chain_rule import plain_gradients
from tests.reference.calls import calls
from tests.reference.problems import Arrays, bounded, random_inputs, random_mask

PROBLEM = AttentionProblem(2, 4, 40, 30, 16, "float16", "bottom_right", nheads_kv=2)


def gradient_of(inputs: Arrays) -> np.ndarray:
    rng = np.random.default_rng(99)
    return rng.standard_normal(inputs[0].shape).astype(inputs[0].dtype)


def made(
    problem: AttentionProblem = PROBLEM, extras: Extras = NO_EXTRAS, **options: Any
) -> tuple[BackwardTruth, Arrays, np.ndarray]:
    inputs = random_inputs(problem, problem.dtype)
    d_out = gradient_of(inputs)
    return BackwardTruth(inputs, d_out, problem, extras, np, **options), inputs, d_out


def rounded(gradients: Arrays, dtype: str) -> Arrays:
    dq, dk, dv = (x.astype(io_dtype(dtype)) for x in gradients)
    return dq, dk, dv


@bounded
@given(st.data(), st.sampled_from(["float16", "bfloat16", "float32"]))
def test_the_chain_rule_passes_under_any_options(data: st.DataObject, dtype: str) -> None:
    call = data.draw(calls(dtype=dtype, io=dtype))
    assume(0 not in (call.problem.q_rows, call.problem.kv_rows))
    d_out = gradient_of(call.inputs)
    truth = BackwardTruth(call.inputs, d_out, call.problem, call.extras, np)
    q, k, v = call.inputs
    gradients = plain_gradients(d_out, q, k, v, call.problem, call.extras)
    found = truth.check(*rounded(gradients, dtype))
    assert found.ok, found


def test_float64_agrees_with_the_chain_rule_to_the_last_bits() -> None:
    problem = replace(PROBLEM, dtype="float64", dropout_p=0.3, seed=3, window=(9, None))
    truth, inputs, d_out = made(problem)
    found = truth.check(*plain_gradients(d_out, *inputs, problem))
    assert found.ok and max(found.limits.values()) < 1e-12


def test_the_limit_is_three_times_a_plain_runs_error_a_unit_and_a_sum() -> None:
    problem = AttentionProblem(1, 1, 40, 30, 20, "float16")
    truth, (q, k, v), d_out = made(problem)
    _, _, want = plain_gradients(d_out, q, k, v, problem)
    s = (problem.scale * (q.astype("f4") @ k.astype("f4").swapaxes(-1, -2))).astype("f2")
    e = np.exp(s.astype("f4") - s.max(-1, keepdims=True).astype("f4"))
    p = (e / e.sum(-1, keepdims=True)).astype("f2").astype("f4").swapaxes(-1, -2)
    plain = (p @ d_out.astype("f4")).astype("f2")
    limit = 3 * np.abs(plain - want).max() + EPS["float16"] * np.abs(want).max()
    # Sums over 40 rows; a score summed twice, over 20 products; lse.
    e = np.exp(problem.scale * (q.astype("f8") @ k.astype("f8").swapaxes(-1, -2)))
    of_scores = np.abs(q).astype("f8") @ np.abs(k).astype("f8").swapaxes(-1, -2)
    relative = math.sqrt(40) + math.sqrt(20) * problem.scale * of_scores.max()
    relative += np.abs(np.log(e.sum(-1))).max()
    limit += relative * 2.0**-24 * (p @ np.abs(d_out).astype("f4")).max()
    exact = rounded(plain_gradients(d_out, q, k, v, problem), "float16")
    found = truth.check(*exact)
    assert found.limits["dv"] == pytest.approx(limit, rel=1e-6)
    assert found.ok and found.errors["dv"] == np.abs(exact[2] - want).max()


@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
@pytest.mark.parametrize("change", [0.02, np.nan, np.inf])
def test_one_wrong_element_fails(name: str, change: float) -> None:
    truth, inputs, d_out = made()
    gradients = dict(zip(("dq", "dk", "dv"), plain_gradients(d_out, *inputs, PROBLEM), strict=True))
    assert truth.check(**gradients).ok
    gradients[name][1, 1, 29, 15] += change
    found = truth.check(**gradients)
    assert not found.ok
    assert [n for n, error in found.errors.items() if not error <= found.limits[n]] == [name]


#: Backward passes that forget something: each of these was wrong in a public library once.
MISTAKES: dict[str, dict[str, Any]] = {
    "causal": {"causal": None},
    "the other alignment": {"causal": "top_left"},
    "scale": {"softmax_scale": 0.3},
    "window": {"window": (8, 2)},
    "seed": {"seed": 8},
    "dropout's scale": {"dropout_p": 0.2},
    "dropout": {"dropout_p": 0.0},
    "block mask": {"block_mask": None},
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_option_that_was_forgotten_is_seen(mistake: str) -> None:
    problem = replace(
        PROBLEM, window=(9, 2), dropout_p=0.3, seed=7, block_mask=random_mask(40, 30, 8, 8)
    )
    truth, inputs, d_out = made(problem)
    assert truth.check(*plain_gradients(d_out, *inputs, problem)).ok
    wrong = replace(problem, **MISTAKES[mistake])
    assert not truth.check(*plain_gradients(d_out, *inputs, wrong)).ok


def test_dk_and_dv_are_sums_over_the_group() -> None:
    truth, inputs, d_out = made()
    dq, dk, dv = plain_gradients(d_out, *inputs, PROBLEM)
    first = d_out.copy()
    first[:, 1::2] = 0  # only the first head of each group
    _, some_dk, some_dv = plain_gradients(first, *inputs, PROBLEM)
    assert not truth.check(dq, some_dk, dv).ok
    assert not truth.check(dq, dk, some_dv).ok
    assert not truth.check(dq, dk[:, ::-1], dv[:, ::-1]).ok


def test_pieces_of_the_rows_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Huge heads are taken some rows at a time."""
    whole, inputs, d_out = made()
    gradients = rounded(plain_gradients(d_out, *inputs, PROBLEM), "float16")
    want = whole.check(*gradients)
    monkeypatch.setattr(check_backward, "SCORES_AT_ONCE", 7 * 30)
    found = made()[0].check(*gradients)
    assert found.ok
    for name in ("dq", "dk", "dv"):
        assert found.errors[name] == pytest.approx(want.errors[name], abs=1e-12)
        assert found.limits[name] == pytest.approx(want.limits[name], rel=0.1)


def test_a_sample_of_heads_looks_at_those_alone() -> None:
    truth, inputs, d_out = made(kv_heads=[(0, 1), (1, 0)])
    dq, dk, dv = plain_gradients(d_out, *inputs, PROBLEM)
    dq[0, :2] = dk[0, 0] = dv[1, 1] = np.nan
    found = truth.check(dq, dk, dv)
    assert found.ok and found.heads == 2
    dq[1, 1, 20] += 1.0
    assert not truth.check(dq, dk, dv).ok


def test_small_calls_are_checked_whole_and_huge_ones_with_both_ends() -> None:
    assert sample_kv_heads(PROBLEM) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    huge = AttentionProblem(4, 32, 65536, 65536, 64, nheads_kv=8)
    chosen = sample_kv_heads(huge)
    assert 2 <= len(chosen) < 32 and chosen == sorted(set(chosen))
    assert chosen[0] == (0, 0) and chosen[-1] == (3, 7)
    assert len(chosen) == 2 or len(chosen) * 4 * 65536**2 <= SCORES_OF_ALL_HEADS
    assert chosen == sample_kv_heads(huge)


@pytest.mark.parametrize(
    ("error", "limit", "ok"),
    [(1.0, 1.0, True), (1.1, 1.0, False), (math.nan, 1.0, False), (math.inf, math.inf, False),
     (0.0, math.nan, False)],
)  # fmt: skip
def test_ok_means_finite_and_within_the_limit(error: float, limit: float, ok: bool) -> None:
    good = {"dq": 0.0, "dk": 0.0, "dv": 0.0}
    for name in good:
        found = GradientCheck({**good, name: error}, {**good, name: limit}, 1)
        assert found.ok is ok


def test_one_budget_of_memory_for_both_directions() -> None:
    assert check_backward.SCORES_AT_ONCE == check.SCORES_AT_ONCE
