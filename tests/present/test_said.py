"""Placeholders: filled from figures and facts, refused where they name nothing."""

from __future__ import annotations

from typing import Any

import pytest

from fa_kernels.device import device
from fa_kernels.present.drawn import Gallery
from fa_kernels.present.facts import Facts
from fa_kernels.present.prose import aloud, sentences
from fa_kernels.present.said import filled
from fa_kernels.present.slide import Slide, SlideError, Vary


def say(text: str, gallery: Gallery, facts: Facts) -> str:
    return filled(Slide("one", ("20",), "One", notes=text), gallery, facts).notes


def test_a_sentence_is_the_figures_own(gallery: Gallery, facts: Facts) -> None:
    expected = sentences(gallery.draw("05_ladder").first.alt)
    assert say("So: {sentence:05_ladder 2}", gallery, facts) == f"So: {aloud(expected[1])}"
    both = aloud(" ".join(expected[:2]))
    assert say("{sentence:05_ladder 1-2}", gallery, facts) == both
    printed = filled(
        Slide("one", ("handout",), "One", notes="{sentence:05_ladder 1-2}"), gallery, facts, False
    )
    assert printed.notes == " ".join(expected[:2]) != both


def test_a_fact_is_computed(gallery: Gallery, facts: Facts) -> None:
    ridge = device("h200").ridge_flop_per_byte("float16", True)
    assert say("{fact:ridge tensor}", gallery, facts) == f"{ridge:.0f}"


def test_latex_is_left_alone(gallery: Gallery, facts: Facts) -> None:
    text = r"$\frac{1}{2}\text{floor: }\ x_{\text{new}}$"
    assert say(text, gallery, facts) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{sentence:05_lader}", "05_lader"),
        ("{sentence:05_ladder 99}", "there are only"),
        ("{sentence:05_ladder last}", "not like"),
        ("{fact:ridges tensor}", "ridges"),
        ("{fact:ridge}", "ridge"),
        ("{fact:why no-such-claim}", "no-such-claim"),
        ("{fact:say gpu}", "say"),
        ("{number:05_ladder}", "neither"),
    ],
)
def test_what_names_nothing_is_refused(
    gallery: Gallery, facts: Facts, text: str, said: str
) -> None:
    with pytest.raises(SlideError, match=f"slide one: .*{said}"):
        say(text, gallery, facts)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"claims": ("no-such-claim",)}, "no-such-claim"),
        ({"picture": "none.svg"}, "none.svg"),
        ({"figure": "05_lader"}, "05_lader"),
        ({"figure": "05_ladder", "sentence": "99"}, "there are only"),
        ({"figure": "05_ladder", "vary": Vary("M_kub", (1, 2), 0)}, "05_ladder with M_kub"),
        ({"figure": "05_ladder", "vary": Vary("N", (0, 1), 1)}, "N = 0"),
    ],
)
def test_a_slide_that_names_what_is_not_there_is_refused(
    gallery: Gallery, facts: Facts, names: dict[str, Any], said: str
) -> None:
    with pytest.raises(SlideError, match=f"slide one: .*{said}"):
        filled(Slide("one", ("20",), "One", **names), gallery, facts)
