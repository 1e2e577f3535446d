"""Laws that every reference keeps with all options on: what may move, and what must not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_kernels.dropout import dropout_keep
from fa_kernels.extras import Extras
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from tests.reference.calls import (
    FLASH,
    ODD,
    Reference,
    assert_close,
    every_reference,
    random_extras,
)
from tests.reference.problems import bounded, random_inputs

EVERYTHING = AttentionProblem(
    2, 6, 23, 31, 8, nheads_kv=2, causal="bottom_right", window=(12, None), masked=True,
    bias_dtype="float32", dropout_p=0.25, seed=7,
)  # fmt: skip


def everything(seed: int = 0) -> tuple[tuple[np.ndarray, ...], Extras]:
    return random_inputs(EVERYTHING, seed=seed), random_extras(EVERYTHING, seed)


@every_reference
def test_changing_the_future_does_not_move_the_past(reference: Reference) -> None:
    (q, k, v), extras = everything()
    problem = replace(EVERYTHING, window=None)
    before = reference(q, k, v, problem, ODD, extras=extras)
    shift = problem.seqlen_k - problem.seqlen_q
    _, other_k, other_v = random_inputs(problem, seed=1)
    for key in (9, 15, 30):
        past = key - shift  # rows before it attend keys before `key` alone
        future = [np.concatenate([x[:, :, :key], y[:, :, key:]], 2)
                  for x, y in ((k, other_k), (v, other_v))]  # fmt: skip
        after = reference(q, *future, problem, ODD, extras=extras)
        for x, y in zip(before, after, strict=True):
            assert x[:, :, :past].tobytes() == y[:, :, :past].tobytes()
            assert (x[:, :, past:] != y[:, :, past:]).any()


@every_reference
def test_what_leaves_the_window_is_forgotten(reference: Reference) -> None:
    problem = AttentionProblem(1, 2, 23, 31, 8, window=(4, 2))
    q, k, v = random_inputs(problem)
    before = reference(q, k, v, problem, ODD)
    k[:, :, 10], v[:, :, 10] = 5.0, 5.0
    after = reference(q, k, v, problem, ODD)
    # Rows i with i + 8 - 4 <= 10 <= i + 8 + 2 attend key 10; both ends included.
    touched = [bool((x != y).any()) for x, y in zip(before[0][0, 0], after[0][0, 0], strict=True)]
    assert touched == [0 <= row <= 6 for row in range(23)]


@every_reference
def test_the_output_is_linear_in_v(reference: Reference) -> None:
    (q, k, v), extras = everything()
    other = random_inputs(EVERYTHING, seed=5)[2]

    def out(values: np.ndarray) -> np.ndarray:
        return reference(q, k, values, EVERYTHING, ODD, extras=extras)[0]

    np.testing.assert_allclose(out(2 * v - 3 * other), 2 * out(v) - 3 * out(other), atol=1e-12)


@every_reference
def test_the_order_of_keys_means_nothing(reference: Reference) -> None:
    """Without causal and window; mask, bias and dropout mask move with the keys."""
    problem = AttentionProblem(
        2, 4, 19, 26, 8, nheads_kv=2, masked=True, bias_dtype="float32", dropout_p=0.5,
        keep_given=True,
    )  # fmt: skip
    (q, k, v), extras = random_inputs(problem), random_extras(problem)
    order = np.random.default_rng(0).permutation(26)
    moved = Extras(
        extras.mask[..., order], extras.bias[..., order], extras.dropout_keep[..., order]
    )
    assert_close(
        reference(q, k[:, :, order], v[:, :, order], problem, ODD, extras=moved),
        reference(q, k, v, problem, ODD, extras=extras),
    )


@every_reference
@pytest.mark.parametrize("cut", [1, 13, 30])
def test_halves_of_the_keys_merge_by_their_lse(reference: Reference, cut: int) -> None:
    """Split keys, attend each part, weigh by exp(lse): what ring and split-K attention do."""
    problem = AttentionProblem(2, 4, 23, 31, 8, masked=True, bias_dtype="float32", nheads_kv=2)
    (q, k, v), extras = random_inputs(problem), random_extras(problem)
    outs, stats = [], []
    for keys in (slice(0, cut), slice(cut, 31)):
        half = replace(problem, seqlen_k=keys.stop - keys.start)
        own = Extras(extras.mask[..., keys], extras.bias[..., keys])
        out, lse = reference(q, k[:, :, keys], v[:, :, keys], half, ODD, extras=own)
        outs.append(out)
        stats.append(lse)
    total = np.logaddexp(*stats)
    safe = np.where(np.isneginf(total), 0.0, total)
    # A half whose keys all have a bias of finfo.min weighs nothing beside one that has others;
    # rows of finfo.min alone cannot be told apart by lse, which rounds log(n) away.
    ordinary = (total > -1e30) | np.isneginf(total)
    merged = sum(np.exp(s - safe)[..., None] * o for s, o in zip(stats, outs, strict=True))
    want, want_lse = reference(q, k, v, problem, ODD, extras=extras)
    assert ordinary.mean() > 0.8
    assert_close((merged[ordinary], total), (want[ordinary], want_lse))


@every_reference
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_nan_in_one_query_row_stays_in_that_row(reference: Reference, poison: float) -> None:
    (q, k, v), extras = everything()
    before = reference(q, k, v, EVERYTHING, ODD, extras=extras)
    q = q.copy()
    q[0, 3, 11, 2] = poison
    with np.errstate(invalid="ignore"):
        after = reference(q, k, v, EVERYTHING, ODD, extras=extras)
    elsewhere = np.ones(after[1].shape, bool)
    elsewhere[0, 3, 11] = False
    assert np.isfinite(before[0][0, 3, 11]).all() and not np.isfinite(after[1][0, 3, 11])
    for x, y in zip(before, after, strict=True):
        assert x[elsewhere].tobytes() == y[elsewhere].tobytes()


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40))
@bounded
def test_dropout_does_not_depend_on_the_tiles(m0: int, n0: int, m1: int, n1: int) -> None:
    (q, k, v), extras = everything()
    results = [
        reference(q, k, v, EVERYTHING, tiling, extras=extras)
        for reference in FLASH.values()
        for tiling in (Tiling(m0, n0), Tiling(m1, n1))
    ]
    for result in results[1:]:
        assert_close(result, results[0])


@every_reference
def test_a_drawn_mask_is_that_mask_given(reference: Reference) -> None:
    """The explicit mask of what dropout would draw gives the same bits."""
    (q, k, v), extras = everything()
    drawn = reference(q, k, v, EVERYTHING, ODD, extras=extras)
    rows, cols = np.arange(23), np.arange(31)
    keep = dropout_keep(0.25, 7, np.arange(2), np.arange(6), rows, cols)
    given_problem = replace(EVERYTHING, seed=None, keep_given=True)
    given_extras = replace(extras, dropout_keep=keep)
    given = reference(q, k, v, given_problem, ODD, extras=given_extras)
    for x, y in zip(drawn, given, strict=True):
        assert x.tobytes() == y.tobytes()
