"""Merging states in any order and grouping gives the softmax of the whole row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fa_kernels.reference.online_softmax import OnlineSoftmax
from fa_kernels.widgets.merge_check import fold, merge_check, state_of


@pytest.mark.parametrize(("keys", "parts"), [(2, 2), (64, 6), (113, 113), (1023, 7)])
def test_within_rounding_for_any_cut(keys: int, parts: int) -> None:
    for seed in range(5):
        check = merge_check(keys, parts, tries=20, seed=seed)
        assert check.ok, str(check)
        assert sum(check.sizes) == keys and len(check.sizes) == parts


def test_a_fully_masked_part_changes_nothing() -> None:
    s, v = np.array([0.5, 2.0]), np.array([[1.0], [2.0]])
    masked = state_of(np.full(3, -np.inf), np.ones((3, 1)))
    alone = state_of(s, v)
    for merged in (fold([masked, alone]), fold([alone, masked])):
        assert merged.output() == alone.output() and merged.lse() == alone.lse()
    assert fold([masked, masked]).output().tolist() == [[0.0]]


def test_a_wrong_merge_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def mean_of_outputs(self: OnlineSoftmax, other: OnlineSoftmax) -> OnlineSoftmax:
        m = np.maximum(self.m_i, other.m_i)
        return OnlineSoftmax(m, self.l_i + other.l_i, self.acc + other.acc)

    monkeypatch.setattr(OnlineSoftmax, "merge", mean_of_outputs)
    check = merge_check()
    assert not check.ok and "report it" in check.caption()


def test_the_table() -> None:
    check = merge_check()
    assert "in a random order" in str(check)
    assert 'data-fa-table="merge"' in check._repr_html_()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"keys": 1}, "keys = 1 is out of range: it must be between 2 and 4096"),
        ({"keys": 5000}, "keys = 5000"),
        ({"parts": 1}, "parts = 1 is out of range"),
        ({"keys": 8, "parts": 9}, "between 2 and 8. Every part needs a key"),
        ({"tries": 0}, "tries = 0"),
        ({"keys": "64"}, "keys = '64' is not a whole number"),
        ({"parts": 2.5}, "parts = 2.5 is not a whole number"),
        ({"seed": -1}, "seed = -1 is out of range: it must be between 0 and"),
    ],
)
def test_refusals(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        merge_check(**arguments)


def test_whole_floats_are_numbers() -> None:
    check = merge_check(keys=64.0, parts=6.0, tries=2.0, seed=0.0)  # type: ignore[arg-type]
    assert check.ok and check.keys == 64 and check.sizes == merge_check(tries=2).sizes
