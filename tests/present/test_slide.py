"""The reader of slides: what it takes, and what it refuses in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_kernels.present.slide import DECKS, SlideError, Vary, of_deck, read_slides
from fa_kernels.widgets.suite import FIGURES

GOOD = """Words before the first slide are for editors.

---
## first | 20 45
title: One
figure: 05_ladder
vary: N 1 *2 4
ask: Which?

Shown, with $x$

notes:
Said in both.

more:
Said in one.
---
## second | handout
title: Two
layout: text
"""


def read(tmp_path: Path, text: str):  # type: ignore[no-untyped-def]
    path = tmp_path / "talk.md"
    path.write_text(text, encoding="utf-8")
    return read_slides(path)


def test_a_slide_is_read(tmp_path: Path) -> None:
    first, second = read(tmp_path, GOOD)
    assert (first.name, first.decks, first.figure) == ("first", ("20", "45"), "05_ladder")
    assert first.vary == Vary("N", (1, 2, 4), 1)
    assert (first.body, first.notes, first.more) == (
        "Shown, with $x$",
        "Said in both.",
        "Said in one.",
    )
    assert first.spoken("20") == "Said in both."
    assert first.spoken("45") == "Said in both.\n\nSaid in one."
    assert [slide.name for slide in of_deck((first, second), "handout")] == ["second"]


def test_time_is_words_and_pauses(tmp_path: Path) -> None:
    (slide, _) = read(tmp_path, GOOD.replace("ask: Which?", "ask: Which?\npause: 20"))
    assert slide.seconds("word " * 130) == 60 + 20 + 15


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("title: One\n", "", "first has no title"),
        ("title: One", "titel: One", "titel"),
        ("| 20 45", "| 20 60", "60"),
        ("## first", "## First", "no head of a slide"),
        ("layout: text", "layout: columns", "columns"),
        ("layout: text", "layout: text\npause: long", "'long' is no number of seconds"),
        ("N 1 *2 4", "N 1 2 4", "star"),
        ("## second", "## first", "first is there twice"),
        ("---\n## second | handout", "---\nsecond", "does not begin"),
    ],
)
def test_what_is_no_slide_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(SlideError, match=said):
        read(tmp_path, GOOD.replace(old, new))


def test_every_figure_of_the_talk_is_in_the_suite() -> None:
    known = {figure.name for figure in FIGURES} | {"", "stepper"}
    assert {slide.figure for slide in read_slides()} <= known


def test_the_longer_deck_has_every_slide_of_the_shorter() -> None:
    short, long = ([slide.name for slide in of_deck(read_slides(), deck)] for deck in DECKS)
    assert [name for name in long if name in short] == short
    assert 14 <= len(short) < len(long)
