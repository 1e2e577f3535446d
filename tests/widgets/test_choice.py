"""The list box: page and Python follow each other, and what is not offered is refused."""

from __future__ import annotations

import pytest
import traitlets

from fa_kernels.widgets.choice import Choice

OPTIONS = [("1/2", 0.5), ("1/4", 0.25), ("1/8", 0.125)]


@pytest.fixture
def choice() -> Choice:
    return Choice("density", OPTIONS, 0.25)


def test_it_starts_at_its_value(choice: Choice) -> None:
    assert (choice.texts, choice.index, choice.value) == (["1/2", "1/4", "1/8"], 1, 0.25)
    assert choice.options == OPTIONS


def test_the_page_moves_the_value_once(choice: Choice) -> None:
    seen: list[float] = []
    choice.observe(lambda change: seen.append(change.new), "value")
    choice.index = 2
    assert seen == [0.125]
    choice.value = 0.5
    assert choice.index == 0
    assert seen == [0.125, 0.5]


def test_a_new_list_keeps_the_two_together(choice: Choice) -> None:
    choice.offer([("1/2", 0.5), ("0.3", 0.3)], 0.3)
    assert (choice.texts, choice.index, choice.value) == (["1/2", "0.3"], 1, 0.3)
    choice.offer(OPTIONS, 0.125)
    assert (choice.index, choice.value) == (2, 0.125)
    choice.offer([("1/8", 0.125)], 0.125)
    assert (choice.index, choice.value) == (0, 0.125)


def test_what_is_not_offered_is_refused(choice: Choice) -> None:
    with pytest.raises(traitlets.TraitError, match=r"density = 0\.3 is not offered: use one of"):
        choice.value = 0.3
    with pytest.raises(traitlets.TraitError, match="density: there is no option 7"):
        choice.index = 7
    assert (choice.index, choice.value) == (1, 0.25)
