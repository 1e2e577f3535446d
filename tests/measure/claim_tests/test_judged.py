"""The four words follow from counts alone."""

from __future__ import annotations

import pytest

from fa_kernels.measure.claim_tests.judged import (
    FAILS,
    HOLDS,
    LIMITED,
    MEANINGS,
    UNTESTED,
    judged,
    nothing_recorded,
    share,
    untested,
)
from fa_kernels.units import span


@pytest.mark.parametrize(
    ("checks", "word"),
    [
        ([True, True], HOLDS),
        ([True, False, False], LIMITED),
        ([False, False], FAILS),
        ([], UNTESTED),
    ],
)
def test_the_word_counts_comparisons(checks: list[bool], word: str) -> None:
    found = judged(checks, "Why.", "run")
    assert (found.word, found.met, found.made) == (word, sum(checks), len(checks))
    assert (found.why, found.source) == ("Why.", "run")


def test_every_word_has_a_meaning() -> None:
    assert tuple(MEANINGS) == (HOLDS, LIMITED, FAILS, UNTESTED)
    assert untested("Why.").word == nothing_recorded("times").word == UNTESTED
    assert nothing_recorded("times").why == "No recorded run of this GPU holds times."


def test_numbers_in_words() -> None:
    assert span([2.0, 10.5, 3.0]) == "2 to 10.5" and span([3.0]) == "3"
    assert span([1, 2], lambda x: f"<{x}>") == "<1> to <2>"
    assert share([True, False, True]) == "2 of 3"
