"""The online softmax: blocks in any order, merged in any way, give the softmax of what was seen."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fa_kernels.reference.online_softmax import OnlineSoftmax
from tests.reference.problems import bounded

FLOAT64 = np.dtype(np.float64)
ROWS, D = 3, 5


def softmax_of(s: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """softmax(s), softmax(s) v and lse, row by row, in the plainest way."""
    lse = np.logaddexp.reduce(s, axis=-1)
    p = np.exp(s - lse[..., None])
    return p, p @ v, lse


def scores(keys: int, seed: int = 0, spread: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return spread * rng.standard_normal((ROWS, keys)), rng.standard_normal((keys, D))


def state_of(blocks: Sequence[tuple[np.ndarray, np.ndarray]]) -> OnlineSoftmax:
    state = OnlineSoftmax.empty((), ROWS, D, FLOAT64)
    for s, v in blocks:
        state.update(s, v)
    return state


def cut(s: np.ndarray, v: np.ndarray, cuts: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Blocks of keys between the cuts; empty blocks are allowed."""
    edges = [0, *sorted(cuts), s.shape[-1]]
    return [(s[:, a:b], v[a:b]) for a, b in itertools.pairwise(edges)]


cut_points = st.lists(st.integers(0, 24), max_size=5)


@given(cut_points, st.integers(0, 10**6))
@bounded
def test_any_blocks_give_softmax_times_v(cuts: list[int], seed: int) -> None:
    s, v = scores(24, seed)
    state = state_of(cut(s, v, cuts))
    _, want, lse = softmax_of(s, v)
    np.testing.assert_allclose(state.output(), want, rtol=0, atol=1e-14)
    np.testing.assert_allclose(state.lse(), lse, rtol=0, atol=1e-13)


def test_after_every_block_the_state_is_the_softmax_of_the_prefix() -> None:
    s, v = scores(40)
    state = OnlineSoftmax.empty((), ROWS, D, FLOAT64)
    for end in range(8, 48, 8):
        state.update(s[:, end - 8 : end], v[end - 8 : end])
        _, want, lse = softmax_of(s[:, :end], v[:end])
        np.testing.assert_array_equal(state.m_i, s[:, :end].max(axis=1))
        np.testing.assert_allclose(state.acc / state.l_i[:, None], want, rtol=0, atol=1e-14)
        np.testing.assert_allclose(state.m_i + np.log(state.l_i), lse, rtol=0, atol=1e-14)


def test_with_the_identity_as_v_the_output_is_the_softmax_itself() -> None:
    s, _ = scores(D)
    state = state_of(cut(s, np.eye(D), [2, 3]))
    p, _, _ = softmax_of(s, np.eye(D))
    np.testing.assert_allclose(state.output(), p, rtol=0, atol=1e-15)


@given(cut_points, st.randoms(use_true_random=False))
@bounded
def test_states_merge_in_any_order(cuts: list[int], order: random.Random) -> None:
    s, v = scores(24, 7)
    parts = [state_of([block]) for block in cut(s, v, cuts)]
    order.shuffle(parts)
    while len(parts) > 1:  # any order and any bracketing: merge two neighbours at random
        i = order.randrange(len(parts) - 1)
        parts[i : i + 2] = [parts[i].merge(parts[i + 1])]
    _, want, lse = softmax_of(s, v)
    np.testing.assert_allclose(parts[0].output(), want, rtol=0, atol=1e-14)
    np.testing.assert_allclose(parts[0].lse(), lse, rtol=0, atol=1e-13)


def test_merging_is_commutative_bit_for_bit() -> None:
    s, v = scores(20, 3)
    a, b = (state_of([block]) for block in cut(s, v, [9]))
    one, other = a.merge(b), b.merge(a)
    np.testing.assert_array_equal(one.output(), other.output())
    np.testing.assert_array_equal(one.lse(), other.lse())


def test_nothing_is_the_neutral_element_and_merging_changes_neither_side() -> None:
    s, v = scores(6)
    seen, nothing = state_of([(s, v)]), state_of([])
    before = seen.acc.copy()
    for merged in (seen.merge(nothing), nothing.merge(seen)):
        np.testing.assert_array_equal(merged.output(), seen.output())
        np.testing.assert_array_equal(merged.lse(), seen.lse())
    seen.merge(state_of([(s + 5.0, v)]))
    np.testing.assert_array_equal(seen.acc, before)


def test_rows_without_a_kept_key_give_zero_and_minus_infinity() -> None:
    s, v = scores(12)
    s[1] = -np.inf
    s[2, :8] = -np.inf  # masked in the first block only
    state = state_of(cut(s, v, [4, 8]))
    assert not state.output()[1].any() and state.lse()[1] == -np.inf
    _, want, lse = softmax_of(s[2:, 8:], v[8:])
    np.testing.assert_allclose(state.output()[2:], want, rtol=0, atol=1e-14)
    np.testing.assert_allclose(state.lse()[2:], lse, rtol=0, atol=1e-14)
    untouched = state_of([])
    assert not untouched.output().any() and (untouched.lse() == -np.inf).all()


def test_a_very_negative_row_is_not_a_masked_row() -> None:
    s, v = scores(6)
    s[0] += np.finfo(np.float64).min / 4
    state = state_of(cut(s, v, [3]))
    assert np.isfinite(state.lse()).all()
    np.testing.assert_allclose(state.output()[0], v.mean(axis=0), atol=1e-14)


def test_large_scores_do_not_overflow() -> None:
    s, v = scores(32, spread=1e4)  # exp(1e4) is far beyond float64
    with np.errstate(over="raise", invalid="raise"):
        state = state_of(cut(s, v, [3, 10, 11]))
    np.testing.assert_allclose(state.output(), v[s.argmax(axis=1)], atol=1e-12)
    np.testing.assert_allclose(state.lse(), s.max(axis=1))


def test_adding_a_constant_to_all_scores_changes_lse_alone() -> None:
    s, v = scores(16)
    a, b = state_of([(s, v)]), state_of([(s + 700.0, v)])
    np.testing.assert_allclose(a.output(), b.output(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(b.lse() - a.lse(), 700.0, rtol=0, atol=1e-11)


def test_fp32_state_stays_fp32() -> None:
    state = OnlineSoftmax.empty((2, 1), ROWS, D, np.dtype(np.float32))
    state.update(np.zeros((2, 1, ROWS, 4), np.float32), np.ones((4, D), np.float32))
    merged = state.merge(state)
    for x in (state.acc, state.l_i, state.output(), state.lse(), merged.acc, merged.output()):
        assert x.dtype == np.float32
