"""Flash attention, Q outside: the tiles are an implementation detail that must not be seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.flash import flash_q_outer
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.counter import CountingHbm
from tests.reference.problems import MASKS, bounded, plain_attention, random_inputs


@given(
    st.integers(1, 40), st.integers(1, 40), st.integers(1, 45), st.integers(1, 45),
    st.integers(1, 9), st.sampled_from(MASKS),
)  # fmt: skip
@bounded
def test_any_tiling_gives_the_formula(
    nq: int, nk: int, block_m: int, block_n: int, head_dim: int, causal: str | None
) -> None:
    problem = AttentionProblem(1, 2, nq, nk, head_dim, causal=causal)
    q, k, v = random_inputs(problem, seed=nq * 41 + nk)
    out, lse = flash_q_outer(q, k, v, problem, Tiling(block_m, block_n))
    want, want_lse = plain_attention(q, k, v, problem)
    np.testing.assert_allclose(out, want, rtol=0, atol=1e-13)
    np.testing.assert_allclose(lse, want_lse, rtol=0, atol=1e-12)


def test_the_score_matrix_never_reaches_main_memory() -> None:
    """Loaded: Q once, K and V once per Q tile; stored: out and lse once; nothing else at all."""
    problem = AttentionProblem(1, 1, 33, 70, 8)
    hbm = CountingHbm()
    flash_q_outer(*random_inputs(problem), problem, Tiling(16, 32), hbm)
    row = 8 * 8  # bytes of a row of 8 float64 elements
    assert hbm.read_bytes == {"q": 33 * row, "k": 3 * 70 * row, "v": 3 * 70 * row}
    assert hbm.written_bytes == {"out": 33 * row, "lse": 33 * 8}


@pytest.mark.parametrize("io_dtype", ["float16", "float32"])
def test_lse_is_fp32_whatever_the_inputs(io_dtype: str) -> None:
    problem = AttentionProblem(1, 1, 4, 4, 8, io_dtype)
    out, lse = flash_q_outer(*random_inputs(problem, io_dtype), problem, Tiling(2, 2))
    assert out.dtype == io_dtype and lse.dtype == np.float32
