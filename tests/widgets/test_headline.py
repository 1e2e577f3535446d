"""Numbers beside a pinned figure, in words."""

from __future__ import annotations

import pytest

from fa_kernels.widgets.headline import HELD, MOVED, TIME, WORK, differences, ratio_words


def test_each_unit_has_its_formatter_and_the_ratio_is_now_over_pinned() -> None:
    now = {"a": (4e9, MOVED), "b": (2048, HELD), "c": (2e9, WORK), "d": (0.05, TIME), "e": (3, "u")}
    pinned = {"a": (1e9, MOVED), "b": (1024, HELD), "c": (2e9, WORK), "d": (1, TIME), "e": (1, "u")}
    assert differences(now, pinned) == [
        ["a", "4 GB, pinned 1 GB, × 4.00"],
        ["b", "2 KiB, pinned 1 KiB, × 2.00"],
        ["c", "2 GFLOP, as pinned"],
        ["d", "50 µs, pinned 1 ms, × 0.05"],
        ["e", "3 u, pinned 1 u, × 3.00"],
    ]


def test_what_one_of_them_lacks_is_said_and_what_both_lack_is_not() -> None:
    assert differences({"a": (None, TIME), "b": (None, TIME)}, {"a": (2, TIME)}) == [
        ["a", "none, pinned 2 ms"]
    ]
    assert differences({}, {"gone": (2, TIME)}) == [["gone", "none, pinned 2 ms"]]
    assert differences({"a": (0, MOVED)}, {"a": (5, MOVED)}) == [["a", "0 B, pinned 5 B"]]


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (4, "4.00"), (0.25, "0.25"), (0.0123, "0.0123"), (12.345, "12.3"), (9.996, "10.0"),
        (128, "128"),
    ],
)  # fmt: skip
def test_ratios_have_three_digits(ratio: float, words: str) -> None:
    assert ratio_words(ratio) == f"× {words}"
