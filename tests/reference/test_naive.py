"""Standard attention element by element: the formula, and what each element reads."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.naive import standard_naive
from fa_kernels.traffic.counter import CountingHbm
from tests.reference.problems import (
    MASKS,
    allowed_pairs,
    bounded,
    plain_attention,
    random_inputs,
)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 9), st.sampled_from(MASKS))
@bounded
def test_it_is_the_formula(nq: int, nk: int, head_dim: int, causal: str | None) -> None:
    problem = AttentionProblem(1, 2, nq, nk, head_dim, causal=causal)
    q, k, v = random_inputs(problem, seed=nq * 41 + nk)
    out, lse = standard_naive(q, k, v, problem)
    want, want_lse = plain_attention(q, k, v, problem)
    np.testing.assert_allclose(out, want, rtol=0, atol=1e-13)
    np.testing.assert_allclose(lse, want_lse, rtol=0, atol=1e-12)


def test_every_element_reads_its_own_operands() -> None:
    problem = AttentionProblem(1, 1, 5, 7, 3, causal="bottom_right")
    pairs = int(allowed_pairs(problem).sum())
    assert pairs == 3 + 4 + 5 + 6 + 7
    hbm = CountingHbm()
    standard_naive(*random_inputs(problem), problem, None, hbm)
    element = 8  # float64
    assert hbm.read_bytes == {
        "q": 3 * pairs * element,  # a row of Q and one of K for every score
        "k": 3 * pairs * element,
        "s": 3 * pairs * element,  # maximum, sum, division
        "p": 3 * pairs * element,  # a row of P and a column of V for every output
        "v": 3 * pairs * element,
    }
    assert hbm.written_bytes == {
        "s": pairs * element, "p": pairs * element, "out": 5 * 3 * element, "lse": 5 * element,
    }  # fmt: skip


def test_scores_are_rounded_to_the_io_dtype() -> None:
    """S is in HBM between the launches, in the io dtype, as in 02."""
    problem = AttentionProblem(1, 1, 64, 64, 64, "float16")
    q, k, v = random_inputs(problem, "float16")
    _, lse = standard_naive(q, k, v, problem)
    s = (problem.scale * (q.astype("f4") @ k.astype("f4").swapaxes(-1, -2))).astype("f2")
    rounded = np.logaddexp.reduce(s.astype("f8"), axis=-1)
    _, exact = plain_attention(q, k, v, problem)
    # A score half-way between two fp16 numbers may fall either way: fp32 sums have an order.
    assert abs(lse - rounded).max() < 1e-4 < abs(lse - exact).max()
