"""attention_float64 is the truth of the whole suite, so it is held against two independent ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.standard import (
    ROW_CACHE_BYTES,
    attention_float64,
    scale_in_log2,
    softmax_reads,
    standard_tiled,
)
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.counter import CountingHbm
from tests.reference.problems import (
    HEAD_DIMS,
    LONG,
    MASKS,
    SHAPES,
    allowed_pairs,
    plain_attention,
    random_inputs,
)


@pytest.mark.parametrize("causal", MASKS)
@pytest.mark.parametrize("shape", (*SHAPES, LONG))
def test_the_truth_is_the_textbook_formula(shape: tuple[int, int], causal: str | None) -> None:
    problem = AttentionProblem(1, 2, *shape, 20, causal=causal)
    q, k, v = random_inputs(problem)
    out, lse = attention_float64(q, k, v, problem)
    want, want_lse = plain_attention(q, k, v, problem)
    assert out.dtype == lse.dtype == np.float64
    np.testing.assert_allclose(out, want, rtol=0, atol=1e-13)
    np.testing.assert_allclose(lse, want_lse, rtol=0, atol=1e-12)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("causal", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_truth_is_torchs_sdpa(
    shape: tuple[int, int], causal: str | None, head_dim: int
) -> None:
    torch = pytest.importorskip("torch")
    problem = AttentionProblem(2, 2, *shape, head_dim, causal=causal)
    q, k, v = random_inputs(problem)
    options = {"is_causal": True} if causal == "top_left" else {}  # torch's is_causal is top_left
    if causal == "bottom_right":
        options["attn_mask"] = torch.from_numpy(allowed_pairs(problem))
    tensors = [torch.from_numpy(x) for x in (q, k, v)]
    want = torch.nn.functional.scaled_dot_product_attention(*tensors, **options).numpy()
    out, _ = attention_float64(q, k, v, problem)
    seen = allowed_pairs(problem).any(axis=1)
    np.testing.assert_allclose(out[:, :, seen], want[:, :, seen], rtol=0, atol=1e-12)
    # torch's answer for rows without a key has changed between versions; ours is 0.
    assert not out[:, :, ~seen].any()


def test_softmax_scale_is_used_and_defaults_to_one_over_sqrt_d() -> None:
    sizes = (1, 1, 5, 7, 16)
    q, k, v = random_inputs(AttentionProblem(*sizes))
    default, _ = attention_float64(q, k, v, AttentionProblem(*sizes))
    same, _ = attention_float64(q, k, v, AttentionProblem(*sizes, softmax_scale=0.25))
    uniform, lse = attention_float64(q, k, v, AttentionProblem(*sizes, softmax_scale=0.0))
    np.testing.assert_array_equal(default, same)
    np.testing.assert_allclose(uniform, np.broadcast_to(v.mean(2, keepdims=True), q.shape))
    np.testing.assert_allclose(lse, math.log(7))


def test_a_row_of_scores_is_read_twice_once_it_leaves_the_chip() -> None:
    longest = ROW_CACHE_BYTES // 4
    assert (softmax_reads(longest), softmax_reads(longest + 1)) == (1, 2)


def test_rows_that_leave_the_chip_are_really_read_twice() -> None:
    nk = ROW_CACHE_BYTES // 4 + 1
    problem = AttentionProblem(1, 1, 2, nk, 1, "float32")
    hbm = CountingHbm()
    q, k, v = random_inputs(problem, "float32")
    standard_tiled(q, k, v, problem, Tiling(2, 4096), hbm)
    assert hbm.traffic().read_bytes["s"] == 2 * hbm.traffic().written_bytes["s"] == 2 * 2 * nk * 4


def test_scores_are_rounded_to_the_io_dtype_between_the_launches() -> None:
    """What a framework's fp16 softmax sees, too: the price of S in HBM."""
    problem = AttentionProblem(1, 1, 64, 64, 64, "float16")
    q, k, v = random_inputs(problem, "float16")
    _, lse = standard_tiled(q, k, v, problem, Tiling(16, 16))
    s = (problem.scale * (q.astype("f4") @ k.astype("f4").swapaxes(-1, -2))).astype("f2")
    rounded = np.logaddexp.reduce(s.astype("f8"), axis=-1)
    _, exact = plain_attention(q, k, v, problem)
    assert abs(lse - rounded).max() < 1e-5 < abs(lse - exact).max()


def test_scale_in_log2() -> None:
    problem = AttentionProblem(1, 1, 1, 1, 64, softmax_scale=0.5)
    assert 2.0 ** (3.0 * scale_in_log2(problem)) == pytest.approx(math.exp(3.0 * 0.5), rel=1e-14)
