"""Every option, alone and combined, in every reference: held against the formula and its laws."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.dropout import dropout_keep, keep_scale
from fa_kernels.extras import NO_EXTRAS, Extras
from fa_kernels.measure.check import EPS
from fa_kernels.packed import Packed
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.flash import flash_kv_outer_io
from fa_kernels.reference.naive import standard_naive
from fa_kernels.reference.standard import attention_float64
from fa_kernels.tiling import Tiling
from tests.reference.calls import (
    FLASH,
    ODD,
    STANDARD,
    Call,
    Reference,
    assert_close,
    calls,
    every_reference,
    random_extras,
)
from tests.reference.problems import bounded, plain_attention, random_inputs


def loop_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, problem: AttentionProblem, extras: Extras
) -> tuple[np.ndarray, np.ndarray]:
    """out and lse element by element from the definitions of all options, for tiny shapes."""
    out, lse = np.zeros(q.shape), np.full(q.shape[:-1], -np.inf)
    for b, h, i in np.ndindex(problem.batch, problem.nheads, problem.seqlen_q):
        scores, factors = {}, {}
        for j in range(problem.seqlen_k):
            if not attends(problem, b, h, i, j):
                continue
            score = problem.scale * math.fsum(q[b, h, i] * k[b, h // problem.group, j])
            score += 0.0 if extras.bias is None else float(extras.bias[b, h, i, j])
            if score == -math.inf or not (extras.mask is None or extras.mask[b, h, i, j]):
                continue
            scores[j], factors[j] = score, 1.0
            if extras.dropout_keep is not None:
                factors[j] = extras.dropout_keep[b, h, i, j] / (1 - problem.dropout_p)
            elif problem.dropout_p:
                one = dropout_keep(
                    problem.dropout_p, problem.seed or 0, b, h, np.array([i]), np.array([j])
                )
                factors[j] = one[0, 0] * keep_scale(problem.dropout_p)
        if scores:
            m = max(scores.values())
            total = math.fsum(math.exp(s - m) for s in scores.values())
            lse[b, h, i] = m + math.log(total)
            for j, s in scores.items():
                out[b, h, i] += math.exp(s - m) / total * factors[j] * v[b, h // problem.group, j]
    return out, lse


def attends(problem: AttentionProblem, b: int, h: int, i: int, j: int) -> bool:
    """The definition of causal, window and block mask, for one pair."""
    shift = problem.seqlen_k - problem.seqlen_q
    left, right = problem.window or (None, None)
    mask = problem.block_mask
    return not (
        (problem.causal == "top_left" and j > i)
        or (problem.causal == "bottom_right" and j > i + shift)
        or (left is not None and j < i + shift - left)
        or (right is not None and j > i + shift + right)
        or (mask is not None and not np.broadcast_to(
            mask.keep, (problem.batch, problem.nheads, *mask.blocks)
        )[b, h, i // mask.block_m, j // mask.block_n])
    )  # fmt: skip


def tiny(call: Call) -> bool:
    p = call.problem
    return p.packed is None and p.heads * p.seqlen_q * p.seqlen_k <= 500


@given(calls().filter(tiny))
@bounded
def test_the_truth_is_the_definition_pair_by_pair(call: Call) -> None:
    truth = attention_float64(*call.inputs, call.problem, extras=call.extras)
    assert_close(truth, loop_attention(*call.inputs, call.problem, call.extras))


@given(calls())
@bounded
def test_the_truth_is_the_textbook_formula(call: Call) -> None:
    truth = attention_float64(*call.inputs, call.problem, extras=call.extras)
    assert_close(truth, plain_attention(*call.inputs, call.problem, call.extras))


@pytest.mark.parametrize("reference", FLASH.values(), ids=FLASH)
def test_flash_is_the_truth(reference: Reference) -> None:
    @given(calls())
    @bounded
    def over_calls(call: Call) -> None:
        assert_truth(reference, call)

    over_calls()


@pytest.mark.parametrize("reference", STANDARD.values(), ids=STANDARD)
def test_standard_attention_is_the_truth(reference: Reference) -> None:
    @given(calls(block_masks=False))
    @bounded
    def over_calls(call: Call) -> None:
        assert_truth(reference, call)

    over_calls()


def assert_truth(reference: Reference, call: Call) -> None:
    """The truth, and rows that attend nothing exactly 0 and -inf."""
    out, lse = reference(*call.inputs, call.problem, call.tiling, extras=call.extras)
    want = attention_float64(*call.inputs, call.problem, extras=call.extras)
    assert_close((out, lse), want)
    blind = np.isneginf(want[1])
    assert not out[blind].any() and (lse[blind] == -np.inf).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@every_reference
def test_the_io_dtypes_keep_the_tolerance_rule(reference: Reference, dtype: str) -> None:
    """At most twice the error of a plain run in the same dtype, plus one unit at each rounding."""

    @given(calls(block_masks=False, dtype=dtype, io=dtype))
    @bounded
    def over_calls(call: Call) -> None:
        p, arrays = call.problem, (*call.inputs, call.problem)
        out, lse = reference(*arrays, call.tiling, extras=call.extras)
        assert out.dtype == io_dtype(dtype) and lse.dtype == np.float32
        want, want_lse = attention_float64(*arrays, extras=call.extras)
        plain, plain_lse = plain_attention(*arrays, call.extras, dtype)
        # O that is carried in the io dtype is rounded again at every K/V tile.
        visits = -(-p.seqlen_k // call.tiling.block_n) if reference is flash_kv_outer_io else 1
        unit = EPS[dtype] * np.abs(call.inputs[2].astype("f8")).max(initial=1.0)
        unit *= visits / (1 - p.dropout_p)
        assert np.abs(out.astype("f8") - want).max(initial=0) <= (
            2 * np.abs(plain - want).max(initial=0) + unit
        )
        seen = np.isfinite(want_lse)
        assert np.array_equal(seen, np.isfinite(lse))
        want_lse, plain_lse, lse = want_lse[seen], plain_lse[seen], lse[seen].astype("f8")
        slack = 1e-6 + 2.0**-22 * np.abs(want_lse) + 2 * np.abs(plain_lse - want_lse)
        assert (np.abs(lse - want_lse) <= slack).all()

    over_calls()


# -- masked rows, and rows that only look masked --------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@every_reference
def test_a_row_whose_keys_are_all_masked_is_zero_and_minus_infinity(
    reference: Reference, dtype: str
) -> None:
    problem = AttentionProblem(1, 2, 12, 20, 8, masked=True, bias_dtype="float32")
    q, k, v = random_inputs(problem, dtype)
    mask, bias = np.ones((1, 2, 12, 20), bool), np.zeros((1, 2, 12, 20), np.float32)
    mask[:, :, 3], bias[:, :, 5] = False, -np.inf
    mask[:, :, 7, ::2], bias[:, :, 7, 1::2] = False, -np.inf  # by both together
    out, lse = reference(q, k, v, problem, ODD, extras=Extras(mask, bias))
    blind = np.isin(np.arange(12), (3, 5, 7))
    assert not out[:, :, blind].any() and (lse[:, :, blind] == -np.inf).all()
    assert np.isfinite(lse[:, :, ~blind]).all() and out[:, :, ~blind].astype("f8").any(-1).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@every_reference
def test_a_row_of_finfo_min_is_the_mean_of_v_and_not_masked(
    reference: Reference, dtype: str
) -> None:
    """What frameworks write for "masked" is a number; adding a score to it must not overflow."""
    problem = AttentionProblem(1, 2, 12, 160, 16, bias_dtype="float32")
    q, k, v = random_inputs(problem, dtype)
    bias = np.zeros((1, 2, 12, 160), np.float32)
    bias[:, :, :, :128] = bias[:, :, 7] = np.finfo(np.float32).min
    out, lse = reference(q, k, v, problem, Tiling(4, 32), extras=Extras(bias=bias))
    assert np.isfinite(lse).all()
    unit = EPS.get(dtype, 1e-12)
    mean = v.astype("f8").mean(axis=2)
    np.testing.assert_allclose(out[:, :, 7].astype("f8"), mean, rtol=0, atol=2 * unit)
    # Elsewhere the keys with finfo.min weigh nothing.
    short = AttentionProblem(1, 2, 12, 32, 16)
    want, _ = attention_float64(q, k[:, :, 128:], v[:, :, 128:], short)
    others = np.arange(12) != 7
    np.testing.assert_allclose(
        out[:, :, others].astype("f8"), want[:, :, others], rtol=0, atol=8 * unit
    )


@every_reference
def test_finfo_min_of_16_bits_does_not_mask_either(reference: Reference) -> None:
    problem = AttentionProblem(1, 1, 6, 40, 8, bias_dtype="float16")
    q, k, v = random_inputs(problem, "float16")
    bias = np.full((1, 1, 6, 40), np.finfo(np.float16).min)
    out, lse = reference(q, k, v, problem, ODD, extras=Extras(bias=bias))
    plain, _ = plain_attention(q, k, v, problem, Extras(bias=bias), "float32")
    mean = v.astype("f8").mean(axis=2, keepdims=True)
    assert np.isfinite(lse).all()
    # 02 and 01 round S to fp16, where -65504 plus any score is -65504; the others keep the score.
    standard = reference in STANDARD.values()
    np.testing.assert_allclose(
        out, np.broadcast_to(mean, q.shape) if standard else plain, atol=0.02
    )


@every_reference
def test_nothing_overflows_where_the_scaled_scores_do_not(reference: Reference) -> None:
    """Raw fp16 products of 129600 exceed fp16's 65504; scaled they are 16200."""
    problem = AttentionProblem(1, 2, 24, 24, 64, "float16")
    q, k, v = random_inputs(problem, "float16")
    q, k = (np.sign(x) * x.dtype.type(45) for x in (q, k))
    out, lse = reference(q, k, v, problem, ODD)
    want, want_lse = attention_float64(q, k, v, problem)
    np.testing.assert_allclose(out.astype("f8"), want, rtol=0, atol=4e-3)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-3)


# -- single options -------------------------------------------------------------------------


@every_reference
def test_dropout_leaves_lse_and_the_mean_output_alone(reference: Reference) -> None:
    problem = AttentionProblem(1, 1, 8, 30, 8)
    q, k, v = random_inputs(problem)
    want, want_lse = reference(q, k, v, problem, ODD)
    outs = []
    for seed in range(200 if reference is not standard_naive else 60):
        out, lse = reference(q, k, v, replace(problem, dropout_p=0.5, seed=seed), ODD)
        np.testing.assert_array_equal(lse, want_lse)
        outs.append(out)
    error = np.abs(np.mean(outs, axis=0) - want)
    assert (error < 5 * np.std(outs, axis=0) / math.sqrt(len(outs)) + 1e-12).all()
    assert np.std(outs, axis=0).min() > 0.01


@every_reference
def test_no_dropout_costs_nothing_and_changes_nothing(reference: Reference) -> None:
    problem = AttentionProblem(1, 2, 23, 31, 8)
    inputs = random_inputs(problem)
    plain = reference(*inputs, problem, ODD)
    off = reference(*inputs, replace(problem, dropout_p=0.0, seed=3), ODD)
    for x, y in zip(plain, off, strict=True):
        assert x.tobytes() == y.tobytes()


@every_reference
@pytest.mark.parametrize("kv", [1, 2, 3, 6])
def test_a_query_head_uses_the_kv_head_of_its_group(reference: Reference, kv: int) -> None:
    """Heads 0 ... group - 1 share k/v head 0, and so on: repeated, not tiled."""
    problem = AttentionProblem(1, 6, 9, 11, 8, nheads_kv=kv)
    q, k, v = random_inputs(problem)
    v[:] = np.arange(kv)[None, :, None, None]
    out, _ = reference(q, k, v, problem, ODD)
    np.testing.assert_allclose(out[0, :, 0, 0], [head // (6 // kv) for head in range(6)])


@every_reference
def test_packed_sequences_are_calls_of_their_own(reference: Reference) -> None:
    """Also empty ones, on either side; dropout counts sequences as batches."""
    packed = Packed((0, 9, 9, 14, 20), (0, 5, 11, 11, 31))
    problem = AttentionProblem(
        4, 4, 9, 20, 8, nheads_kv=2, causal="bottom_right", window=(15, 2), masked=True,
        dropout_p=0.3, seed=11, packed=packed,
    )  # fmt: skip
    (q, k, v), extras = random_inputs(problem), random_extras(problem)
    out, lse = reference(q, k, v, problem, ODD, extras=extras)
    padded = np.zeros((4, 4, 9, 8)), np.full((4, 4, 9), -np.inf)
    for n, (rows, keys, one) in enumerate(problem.sequences()):
        own = replace(extras.part(slice(n, n + 1), slice(0, 4), slice(0, one.seqlen_q),
                                  slice(0, one.seqlen_k)))  # fmt: skip
        alone = reference(q[:, :, rows], k[:, :, keys], v[:, :, keys], one, ODD, extras=own)
        assert out[:, :, rows].tobytes() == alone[0].tobytes()
        assert lse[:, :, rows].tobytes() == alone[1].tobytes()
        padded[0][n, :, : one.seqlen_q], padded[1][n, :, : one.seqlen_q] = alone[0][0], alone[1][0]
    assert not padded[0][2].any() and np.isneginf(padded[1][2]).all(), "five rows without a key"
    assert padded[0][3].any()


@every_reference
@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (0, 0)])
def test_no_rows_and_no_keys(reference: Reference, sizes: tuple[int, int]) -> None:
    problem = AttentionProblem(2, 2, *sizes, 8, window=(1, 1))
    out, lse = reference(*random_inputs(problem), problem, ODD, extras=NO_EXTRAS)
    assert out.shape == (2, 2, sizes[0], 8) and not out.any()
    assert lse.shape == (2, 2, sizes[0]) and (lse == -np.inf).all()
