"""Gradients of every algorithm, under every option: the chain rule, its laws, and rounding."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.extras import NO_EXTRAS, Extras
from fa_kernels.measure.check_backward import BackwardTruth
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.backward_flash import flash_kv_outer_backward, flash_q_outer_backward
from fa_kernels.reference.backward_standard import (
    attention_backward_float64,
    standard_tiled_backward,
)
from fa_kernels.reference.flash import flash_q_outer
from fa_kernels.reference.recompute import LARGE_LSE
from fa_kernels.reference.standard import attention_float64
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.counter import CountingHbm
from tests.chain_rule import plain_gradients
from tests.reference.calls import ODD, Call, calls, random_extras
from tests.reference.problems import (
    MASKS,
    SHAPES,
    Arrays,
    allowed_pairs,
    bounded,
    plain_attention,
    random_inputs,
    random_mask,
)

Backward = Callable[..., Arrays]
FLASH: dict[str, Backward] = {
    "kv_outer": flash_kv_outer_backward,
    "q_outer": flash_q_outer_backward,
    "q_outer, deterministic": functools.partial(flash_q_outer_backward, deterministic=True),
}
ALL: dict[str, Backward] = FLASH | {"standard": standard_tiled_backward}
each_backward = pytest.mark.parametrize("backward", ALL.values(), ids=ALL)
each_flash = pytest.mark.parametrize("backward", FLASH.values(), ids=FLASH)


def gradient_of(out: np.ndarray, seed: int = 99) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(out.shape).astype(out.dtype)


def gradients(
    backward: Backward,
    inputs: Arrays,
    problem: AttentionProblem,
    tiling: Tiling = ODD,
    extras: Extras = NO_EXTRAS,
    d_out: np.ndarray | None = None,
) -> Arrays:
    """What `backward` makes of what the forward of 04 leaves it."""
    out, lse = flash_q_outer(*inputs, problem, tiling, extras=extras)
    d_out = gradient_of(out) if d_out is None else d_out
    return backward(d_out, *inputs, out, lse, problem, tiling, extras=extras)


def assert_close(got: Arrays, want: Arrays, atol: float = 1e-9) -> None:
    """Within fp64 rounding; 1e-9 beside biases as large as fp16's lowest number."""
    for x, y in zip(got, want, strict=True):
        assert x.shape == y.shape
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=atol)


# -- the truth ------------------------------------------------------------------------------


@given(calls())
@bounded
def test_the_truth_is_the_chain_rule(call: Call) -> None:
    d_out = gradient_of(call.inputs[0])
    truth = attention_backward_float64(d_out, *call.inputs, call.problem, call.extras)
    assert_close(truth, plain_gradients(d_out, *call.inputs, call.problem, call.extras))


def without_huge_biases(call: Call) -> bool:
    """float64 loses a step of 1e-5 beside a bias of -3.4e38, and an element costs two forwards."""
    return call.problem.bias_dtype is None and max(x.size for x in call.inputs) <= 120


@given(calls().filter(without_huge_biases))
@bounded
def test_the_truth_is_the_numeric_derivative(call: Call) -> None:
    """Of sum(out d_out) with respect to every element of q, k and v."""
    d_out = gradient_of(call.inputs[0])
    truth = attention_backward_float64(d_out, *call.inputs, call.problem, call.extras)
    step = 1e-5
    for number, gradient in enumerate(truth):
        for at in np.ndindex(gradient.shape):
            ends = []
            for sign in (1, -1):
                q, k, v = moved = tuple(x.copy() for x in call.inputs)
                moved[number][at] += sign * step
                out, _ = attention_float64(q, k, v, call.problem, extras=call.extras)
                ends.append((out * d_out).sum())
            slope = (ends[0] - ends[1]) / (2 * step)
            assert gradient[at] == pytest.approx(slope, rel=1e-5, abs=1e-7)


# -- every algorithm is the truth -----------------------------------------------------------


@each_flash
def test_flash_is_the_truth_under_any_options(backward: Backward) -> None:
    """Any sizes and tiles: causal, window, mask, bias, dropout, GQA, packed, block mask."""

    @given(calls())
    @bounded
    def over_calls(call: Call) -> None:
        assert_truth(backward, call)

    over_calls()


def test_standard_is_the_truth_under_any_options() -> None:
    @given(calls(block_masks=False))
    @bounded
    def over_calls(call: Call) -> None:
        assert_truth(standard_tiled_backward, call)

    over_calls()


def assert_truth(backward: Backward, call: Call) -> None:
    d_out = gradient_of(call.inputs[0])
    got = gradients(backward, call.inputs, call.problem, call.tiling, call.extras, d_out)
    assert all(x.dtype == np.float64 for x in got), "float64 stays float64"
    want = attention_backward_float64(d_out, *call.inputs, call.problem, call.extras)
    assert_close(got, want)


@pytest.mark.parametrize("causal", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
@each_backward
def test_awkward_shapes(backward: Backward, shape: tuple[int, int], causal: str | None) -> None:
    """BLOCK_M below and above BLOCK_N, tiles that divide nothing."""
    problem = AttentionProblem(1, 2, *shape, 20, causal=causal)
    inputs = random_inputs(problem)
    d_out = gradient_of(inputs[0])
    want = attention_backward_float64(d_out, *inputs, problem)
    for tiling in (Tiling(16, 64), Tiling(33, 17), Tiling(64, 64)):
        assert_close(gradients(backward, inputs, problem, tiling, d_out=d_out), want, atol=1e-12)


@each_backward
def test_the_inputs_are_left_as_they_are(backward: Backward) -> None:
    problem = AttentionProblem(1, 2, 33, 47, 20, "float32", "top_left")
    inputs = random_inputs(problem, "float32")
    out, lse = flash_q_outer(*inputs, problem, ODD)
    for x in (*inputs, out, lse):
        x.setflags(write=False)  # a write would raise
    backward(gradient_of(out), *inputs, out, lse, problem, ODD)


# -- rounding -------------------------------------------------------------------------------


def assert_rule(
    backward: Backward,
    problem: AttentionProblem,
    tiling: Tiling,
    extras: Extras = NO_EXTRAS,
    inputs: Arrays | None = None,
) -> None:
    """At most three times the error of a plain run in the same dtype, plus a rounding unit."""
    inputs = random_inputs(problem, problem.dtype) if inputs is None else inputs
    d_out = gradient_of(inputs[0])
    got = gradients(backward, inputs, problem, tiling, extras, d_out)
    for x, like in zip(got, inputs, strict=True):
        assert (x.shape, x.dtype) == (like.shape, io_dtype(problem.dtype))
    check = BackwardTruth(inputs, d_out, problem, extras, np).check(*got)
    assert check.ok, check


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@each_flash
def test_flash_keeps_the_tolerance_rule_under_any_options(backward: Backward, dtype: str) -> None:
    """Rows of finfo.min biases included."""

    @given(calls(dtype=dtype, io=dtype))
    @bounded
    def over_calls(call: Call) -> None:
        assume(0 not in (call.problem.q_rows, call.problem.kv_rows))
        assert_rule(backward, call.problem, call.tiling, call.extras, call.inputs)

    over_calls()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_standard_keeps_the_tolerance_rule_under_any_options(dtype: str) -> None:
    """Without a bias: S and P in 16 bits cannot tell scores apart beside a bias of -65504."""

    @given(calls(dtype=dtype, io=dtype, block_masks=False))
    @bounded
    def over_calls(call: Call) -> None:
        problem = replace(call.problem, bias_dtype=None)
        assume(0 not in (problem.q_rows, problem.kv_rows))
        extras = replace(call.extras, bias=None)
        assert_rule(standard_tiled_backward, problem, call.tiling, extras, call.inputs)

    over_calls()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("causal", MASKS)
@each_backward
def test_the_io_dtypes_keep_the_tolerance_rule(
    backward: Backward, causal: str | None, dtype: str
) -> None:
    for shape, head_dim in (((113, 203), 64), ((203, 113), 128), ((239, 1), 20)):
        problem = AttentionProblem(1, 4, *shape, head_dim, dtype, causal, nheads_kv=2)
        assert_rule(backward, problem, Tiling(64, 32))


# -- laws -----------------------------------------------------------------------------------


@each_backward
def test_heads_that_share_k_and_v_add_up(backward: Backward) -> None:
    """Grouped heads = every head with its own copy of k and v, and dk, dv summed over copies."""
    grouped = AttentionProblem(2, 6, 40, 50, 12, causal="bottom_right", nheads_kv=2)
    own = replace(grouped, nheads_kv=6)
    q, k, v = random_inputs(grouped)
    copies = (q, k.repeat(3, axis=1), v.repeat(3, axis=1))
    dq, dk, dv = gradients(backward, (q, k, v), grouped)
    want_dq, dk_each, dv_each = gradients(backward, copies, own)
    sums = [x.reshape(2, 2, 3, 50, 12).sum(axis=2) for x in (dk_each, dv_each)]
    assert_close((dq, dk, dv), (want_dq, sums[0], sums[1]), atol=1e-12)


@pytest.mark.parametrize("given_mask", [False, True])
@each_backward
def test_dropout_is_the_forwards(backward: Backward, given_mask: bool) -> None:
    """out is linear in v: sum(dv v) = sum(d_out out), if both dropped the same probabilities."""
    problem = AttentionProblem(2, 4, 40, 50, 12, dropout_p=0.4, seed=11, nheads_kv=2)
    extras = NO_EXTRAS
    if given_mask:
        problem = replace(problem, keep_given=True, seed=None)
        extras = random_extras(problem, seed=5)
    inputs = random_inputs(problem)
    out, _ = flash_q_outer(*inputs, problem, Tiling(16, 24), extras=extras)
    d_out = gradient_of(out)
    _, _, dv = gradients(backward, inputs, problem, Tiling(9, 31), extras, d_out)
    assert (dv * inputs[2]).sum() == pytest.approx((d_out * out).sum(), rel=1e-12)
    undropped = replace(problem, dropout_p=0.0, keep_given=False)
    _, _, other = gradients(backward, inputs, undropped, d_out=d_out)
    assert not np.allclose(dv, other), "dropout did nothing"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@each_backward
def test_fully_masked_rows_have_and_add_exactly_nothing(backward: Backward, dtype: str) -> None:
    problem = AttentionProblem(1, 2, 70, 40, 20, "float16", "bottom_right", masked=True)
    mask = np.ones((1, 2, 70, 40), bool)
    mask[:, 1, 50:53] = False
    extras, (q, k, v) = Extras(mask=mask), random_inputs(problem, dtype)
    d_out = gradient_of(q)
    dq, dk, dv = gradients(backward, (q, k, v), problem, extras=extras, d_out=d_out)
    blind = np.zeros(dq.shape[:3], bool)
    blind[:, :, :30] = blind[:, 1, 50:53] = True
    assert not dq[blind].any()
    blind[:, :, 30] = True  # one key has P = 1 whatever q says
    assert dq[~blind].any(axis=-1).all()
    blind[:, :, 30] = False
    # Whatever stands in those rows of q and d_out moves no bit of dk and dv.
    q, d_out = q.copy(), d_out.copy()
    q[blind], d_out[blind] = 7.0, -3.0
    again = gradients(backward, (q, k, v), problem, extras=extras, d_out=d_out)
    assert again[1].tobytes() == dk.tobytes() and again[2].tobytes() == dv.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@each_backward
def test_keys_that_nobody_attends_have_gradient_zero(backward: Backward, dtype: str) -> None:
    problem = AttentionProblem(1, 2, 30, 90, 12, causal="top_left", window=(None, None))
    _, dk, dv = gradients(backward, random_inputs(problem, dtype), problem)
    assert not dk[:, :, 30:].any() and not dv[:, :, 30:].any()
    assert dk[:, :, :30].any(axis=-1).all() and dv[:, :, :30].any(axis=-1).all()


@pytest.mark.parametrize("causal", ["bottom_right", "top_left"])
@each_backward
def test_the_past_has_no_gradient_in_the_future(backward: Backward, causal: str) -> None:
    problem = AttentionProblem(1, 1, 40, 50, 20, causal=causal)
    inputs = random_inputs(problem)
    d_out = np.zeros_like(inputs[0])
    d_out[:, :, 17] = gradient_of(d_out)[:, :, 17]
    dq, dk, dv = gradients(backward, inputs, problem, d_out=d_out)
    attended = allowed_pairs(problem)[17]
    assert not dk[0, 0][~attended].any() and not dv[0, 0][~attended].any()
    assert dv[0, 0][attended].any(axis=-1).all()
    assert not np.delete(dq, 17, axis=2).any() and dq[:, :, 17].any()


@pytest.mark.parametrize("lead", [(1, 1), (2, 1), (1, 4), (2, 4)])
@each_flash
def test_a_block_mask_is_an_element_mask_in_blocks(
    backward: Backward, lead: tuple[int, int]
) -> None:
    """The dense kernel under an equal element mask: other tiles are visited, nothing else."""
    mask = random_mask(60, 75, 16, 10, lead)
    sparse = AttentionProblem(2, 4, 60, 75, 8, causal="bottom_right", block_mask=mask, nheads_kv=2)
    dense = replace(sparse, block_mask=None, masked=True)
    elements = np.broadcast_to(allowed_pairs(sparse), (2, 4, 60, 75))
    inputs = random_inputs(sparse)
    for tiling in (Tiling(24, 32), Tiling(7, 50), Tiling(16, 10)):
        got = gradients(backward, inputs, sparse, tiling)
        want = gradients(backward, inputs, dense, tiling, Extras(mask=elements))
        assert_close(got, want, atol=1e-12)


@each_flash
def test_blocks_that_nobody_keeps_have_gradient_zero(backward: Backward) -> None:
    keep = np.ones((1, 2, 4, 5), bool)
    keep[0, 0, 2], keep[0, 0, :, 1] = False, False  # a block row and a block column of one head
    keep[0, 1] = False  # everything of the other
    problem = AttentionProblem(1, 2, 60, 75, 8, block_mask=BlockMask(keep, 16, 16))
    dq, dk, dv = gradients(backward, random_inputs(problem, "float32"), problem, Tiling(24, 32))
    assert not dq[0, 0, 32:48].any() and not dk[0, 0, 16:32].any() and not dv[0, 0, 16:32].any()
    assert not any(x[0, 1].any() for x in (dq, dk, dv))
    assert dq[0, 0, :32].all() and dk[0, 0, :16].all() and dv[0, 0, 32:].all()


def test_owned_gradients_do_not_depend_on_who_makes_dq() -> None:
    problem = AttentionProblem(1, 4, 50, 70, 12, "float16", dropout_p=0.2, seed=1, nheads_kv=2)
    inputs = random_inputs(problem, "float16")
    atomic, owned = (gradients(FLASH[name], inputs, problem) for name in list(FLASH)[1:])
    assert atomic[1].tobytes() == owned[1].tobytes() and atomic[2].tobytes() == owned[2].tobytes()


# -- what is kept from the forward ----------------------------------------------------------


def probabilities(call: Call) -> np.ndarray:
    """P before dropout, by its definition: what attention makes of v = 1 (the unit matrix)."""
    problem = replace(call.problem, dropout_p=0.0, keep_given=False)
    (q, k, _), extras = call.inputs, replace(call.extras, dropout_keep=None)
    found = np.zeros((problem.batch, problem.nheads, problem.seqlen_q, problem.seqlen_k))
    pieces = [(slice(None), slice(None), slice(None), problem)]
    if problem.packed is not None:
        pieces = [(slice(n, n + 1), *one) for n, one in enumerate(problem.sequences())]
    for batches, rows, keys, one in pieces:
        if 0 in (one.seqlen_q, one.seqlen_k):
            continue
        at = (batches, slice(None), slice(0, one.seqlen_q), slice(0, one.seqlen_k))
        units = np.broadcast_to(np.eye(one.seqlen_k), (*k.shape[:2], one.seqlen_k, one.seqlen_k))
        own = extras.part(batches, slice(None), *at[2:])
        found[at], _ = plain_attention(q[:, :, rows], k[:, :, keys], units, one, own)
    return found


@given(calls(block_masks=False))
@bounded
def test_a_p_that_was_kept_replaces_the_scores(call: Call) -> None:
    """Packed sequences included: one matrix each, as large as the longest's."""
    d_out, p = gradient_of(call.inputs[0]), probabilities(call)
    rest = (d_out, *call.inputs, None, None, call.problem, call.tiling)
    hbm = CountingHbm()
    got = standard_tiled_backward(*rest, hbm, extras=call.extras, p=p)
    assert_close(got, attention_backward_float64(d_out, *call.inputs, call.problem, call.extras))
    assert hbm.traffic().of("s") == 0 == hbm.written_bytes["p"]


@pytest.mark.parametrize(("dtype", "bias_dtype"), [
    ("float32", "float32"), ("float16", "float32"), ("float16", "float16"),
])  # fmt: skip
@each_flash
def test_rows_of_finfo_min_share_their_gradient_among_all_keys(
    backward: Backward, dtype: str, bias_dtype: str
) -> None:
    """fp32 cannot hold log(l) beside such an lse: exp(S - lse) alone would sum to 52, not to 1."""
    problem = AttentionProblem(1, 2, 40, 52, 16, dtype, bias_dtype=bias_dtype)
    bias = np.zeros((1, 2, 40, 52), bias_dtype)
    bias[..., :30] = bias[:, :, 7] = bias[:, 1, 33] = np.finfo(bias_dtype).min
    bias[:, :, 35] = -np.inf
    extras, inputs = Extras(bias=bias), random_inputs(problem, dtype)
    assert_rule(backward, problem, Tiling(16, 16), extras)
    d_out = gradient_of(inputs[0])
    _, _, dv = gradients(backward, inputs, problem, Tiling(16, 16), extras, d_out)
    # Keys before 30 get P = 1/52 of row 7 (and 33 in head 1), and nothing of other rows.
    share = d_out[0, 0, 7].astype("f8") / 52
    if bias_dtype == "float32":
        np.testing.assert_allclose(dv[0, 0, :30], np.broadcast_to(share, (30, 16)), atol=2e-3)
    dq, _, _ = gradients(backward, inputs, problem, Tiling(16, 16), extras, d_out)
    assert not dq[:, :, 35].any()


@each_flash
def test_ordinary_large_biases_keep_their_rows_to_one(backward: Backward) -> None:
    """-10000 and -65504 are what models add to mask: lse loses digits long before finfo.min."""
    for shift in (-900.0, -1100.0, -1e4, -65504.0):
        problem = AttentionProblem(1, 1, 8, 64, 4, "float32", bias_dtype="float32")
        q, k, v = random_inputs(problem, "float32")
        bias = np.full((1, 1, 8, 64), shift, np.float32)
        d_out = np.ones_like(q)
        _, _, dv = gradients(backward, (0 * q, k, v), problem, ODD, Extras(bias=bias), d_out)
        # Every key weighs 1/64 in each of 8 rows; lse itself rounds log(64) beside the shift.
        worst = np.spacing(np.float32(min(abs(shift), LARGE_LSE))) if abs(shift) < LARGE_LSE else 0
        np.testing.assert_allclose(dv, 8 / 64, rtol=float(worst) + 1e-6)


@given(st.integers(1, 40), st.integers(1, 40))
@bounded
def test_nothing_is_divided_by_zero_or_overflows(nq: int, nk: int) -> None:
    problem = AttentionProblem(1, 2, nq, nk, 8, "float16", "bottom_right", window=(3, None))
    inputs = random_inputs(problem, "float16")
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for backward in FLASH.values():
            out, lse = (x.astype(t) for x, t in zip(
                attention_float64(*inputs, problem), ("f2", "f4"), strict=True))  # fmt: skip
            got = backward(gradient_of(out), *inputs, out, lse, problem, ODD)
            assert all(np.isfinite(x).all() for x in got)
