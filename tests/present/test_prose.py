"""Markdown, formulas and sentences."""

from __future__ import annotations

import pytest

from fa_kernels.present.prose import (
    aloud,
    as_markdown,
    chosen,
    inline_html,
    message_html,
    sentence_html,
    sentences,
    to_html,
)


def test_formulas_stand_in_the_text() -> None:
    found = inline_html("For $x^2$ and *y*")
    assert found.startswith('For <math alttext="x^2"') and "<em>y</em>" in found
    assert '<div class="fa-formula"><math' in to_html("$$\na=b\n$$")


def test_html_in_a_text_is_no_markup() -> None:
    assert "<script>" not in to_html("a <script>alert(1)</script>")


def test_sentences_are_cut_where_another_begins() -> None:
    text = "It takes 1.5 ms. (Below 1: slower.) At N = 4096 less. recorded: 2 ms. Why? So."
    assert sentences(text) == [
        "It takes 1.5 ms.", "(Below 1: slower.)", "At N = 4096 less.", "recorded: 2 ms.", "Why?",
        "So.",
    ]  # fmt: skip
    assert chosen(text, "1 3") == "It takes 1.5 ms. At N = 4096 less."


@pytest.mark.parametrize("which", ["0", "7", "2-1", "x", "1-9"])
def test_a_sentence_that_is_not_there_is_refused(which: str) -> None:
    with pytest.raises(ValueError, match="sentence"):
        chosen("One. Two.", which)


def test_indices_and_units() -> None:
    assert sentence_html("B_r < N^1.99") == "B<sub>r</sub> &lt; N<sup>1.99</sup>"
    assert as_markdown("B_r and N^1.99") == "$B_r$ and $N^{1.99}$"
    assert sentence_html("4.8 TB/s") == "4.8\N{NO-BREAK SPACE}TB/s"


def test_the_first_sentence_is_the_message_and_the_others_stand_back() -> None:
    assert message_html("One of N^2. Two < three. Four.") == (
        'One of N^2. <span class="fa-more">Two &lt; three. Four.</span>'
    )
    assert message_html("One alone.") == "One alone." and message_html("") == ""


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("moves 3.2× the bytes, 28 GB (B = 4, N (all), d = 64).",
         "moves 3.2 times the bytes, 28 gigabytes."),
        ("N × N matrices at 4.57 TB/s, 97 % of it", "N by N matrices at 4.57 terabytes a second, "
         "97 percent of it"),
        ("64 KiB take 60 ms or 5 µs", "64 kibibytes take 60 milliseconds or 5 microseconds"),
    ],
)  # fmt: skip
def test_sentences_are_said_as_one_speaks(written: str, said: str) -> None:
    assert aloud(written) == said
