"""Numbers beside a pinned figure, in words."""

from __future__ import annotations

import pytest

from fa_kernels.widgets.headline import HELD, MOVED, TIME, WORK, differences, ratio_words


def test_each_unit_has_its_formatter_and_the_ratio_is_now_over_pinned() -> None:
    now = {"a": (4e9, MOVED), "b": (2048, HELD), "c": (2e9, WORK), "d": (0.05, TIME), "e": (3, "u")}
    pinned = {"a": (1e9, MOVED), "b": (1024, HELD), "c": (2e9, WORK), "d": (1, TIME), "e": (1, "u")}
    assert plain(differences(now, pinned)) == [
        ["a", "1 GB → 4 GB, × 4.00"],
        ["b", "1 KiB → 2 KiB, × 2.00"],
        ["d", "1 ms → 50 µs, × 0.05"],
        ["e", "1 u → 3 u, × 3.00"],
        ["As pinned:", "c"],
    ]


def test_what_one_of_them_lacks_is_said_together_and_what_both_lack_is_not() -> None:
    now = {"a": (None, TIME), "b": (None, TIME), "new": (1, TIME)}
    assert plain(differences(now, {"a": (2, TIME), "gone": (2, TIME)})) == [
        ["No number now:", "a; gone"], ["No number pinned:", "new"],
    ]  # fmt: skip
    assert plain(differences({"a": (0, MOVED)}, {"a": (5, MOVED)})) == [["a", "5 B → 0 B"]]


def test_what_reads_alike_is_not_called_a_change() -> None:
    assert plain(differences({"a": (1e9 + 1, MOVED)}, {"a": (1e9, MOVED)})) == [["As pinned:", "a"]]


def plain(found: tuple[list[list[str]], list[list[str]]]) -> list[list[str]]:
    both = [*found[0], *found[1]]
    return [[text.replace("\N{NO-BREAK SPACE}", " ") for text in pair] for pair in both]


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (4, "4.00"), (0.25, "0.25"), (0.0123, "0.0123"), (12.345, "12.3"), (9.996, "10.0"),
        (128, "128"),
    ],
)  # fmt: skip
def test_ratios_have_three_digits(ratio: float, words: str) -> None:
    assert ratio_words(ratio) == f"×\N{NO-BREAK SPACE}{words}"
