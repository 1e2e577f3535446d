"""Verdicts on exactness turn when the recurrence is spoilt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fa_kernels.measure.claim_tests import exactness
from fa_kernels.measure.claim_tests.evidence import Evidence
from fa_kernels.measure.claim_tests.judged import FAILS, HOLDS, LIMITED
from fa_kernels.measure.records import Row
from fa_kernels.reference.online_softmax import OnlineSoftmax
from tests.measure.claim_tests.altered import altered, verdict

RIGHT = OnlineSoftmax.update


def forget_alpha(self: OnlineSoftmax, s: np.ndarray, v: np.ndarray, *rest: Any) -> np.ndarray:
    """A larger maximum comes, and what was added up before is not corrected."""
    before = self.m_i
    alpha = RIGHT(self, s, v, *rest)
    wrong = np.where(np.isfinite(before) & (alpha < 1), 1 / np.maximum(alpha, 1e-30), 1.0)
    self.l_i = self.l_i * wrong
    return alpha


@pytest.mark.parametrize("test", ["online_softmax", "tiles_exact", "gradients_from_statistics"])
def test_without_alpha_it_is_another_softmax(
    test: str, evidence: Evidence, nothing: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verdict(test, evidence).word == verdict(test, nothing).word == HOLDS
    monkeypatch.setattr(OnlineSoftmax, "update", forget_alpha)
    assert verdict(test, evidence).word != HOLDS
    assert "e-16" not in verdict(test, nothing).why


def test_the_rule_of_two_parts(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict("merge_rule", evidence).word == HOLDS

    def added(self: OnlineSoftmax, other: OnlineSoftmax) -> OnlineSoftmax:
        m_new = np.maximum(self.m_i, other.m_i)
        return OnlineSoftmax(m_new, self.l_i + other.l_i, self.acc + other.acc)

    monkeypatch.setattr(OnlineSoftmax, "merge", added)
    assert verdict("merge_rule", evidence).word == FAILS


def test_the_update_as_printed(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict("normalised_update", evidence).word == HOLDS
    right = exactness._published_step

    def unnormalised(s: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, ...]:
        m, l_row, o = right(s, v)
        return m, l_row, o * l_row[:, None]

    monkeypatch.setattr(exactness, "_published_step", unnormalised)
    assert verdict("normalised_update", evidence).word != HOLDS


def test_plain_softmax(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    for test in ("whole_row_needed", "stable_softmax"):
        assert verdict(test, evidence).word == HOLDS

    def without_sum(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.exp(s - s.max()), s.max(axis=-1)

    monkeypatch.setattr(exactness, "softmax_rows", without_sum)
    # The largest of these scores is not the last one, so nothing before it moves.
    assert verdict("whole_row_needed", evidence).word == FAILS
    assert verdict("stable_softmax", evidence).word == LIMITED


def test_errors_of_recorded_calls_count(evidence: Evidence) -> None:
    def worse(row: Row) -> Row:
        return replace(row, max_abs_err=10 * (row.max_abs_err or 0.0))

    bad = altered(evidence, worse, "flash_q_outer", metric="latency_ms")
    assert verdict("tiles_exact", bad).word == LIMITED
