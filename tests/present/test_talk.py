"""The talk itself: its minutes, its numbers, its formulas."""

from __future__ import annotations

import re

import pytest

from fa_kernels.present.facts import Facts
from fa_kernels.present.prose import mathml
from fa_kernels.present.slide import TALK, WORDS_PER_MINUTE, Slide, of_deck, read_slides

#: Deck -> least and most minutes, pauses included; what is left is for questions.
MINUTES = {"20": (17, 20), "45": (38, 45)}
#: A number with a unit, outside of a placeholder.
TYPED = re.compile(
    r"\d[\d.,]*\s?(?:ms|µs|[KMGT]i?B|TFLOP|GFLOP|FLOP|%|×|times|percent)", re.IGNORECASE
)
#: The settings of a question are no results.
SETTINGS = {"explorer-sram": "128 KiB"}
FORMULA = re.compile(r"\$\$\n(.*?)\n\$\$|\$([^$\n]+)\$", re.DOTALL)


@pytest.mark.parametrize("deck", MINUTES)
def test_a_deck_keeps_its_minutes(talk: tuple[Slide, ...], deck: str) -> None:
    slides = of_deck(talk, deck)
    words = sum(len(slide.spoken(deck).split()) for slide in slides)
    minutes = sum(slide.seconds(slide.spoken(deck)) for slide in slides) / 60
    least, most = MINUTES[deck]
    print(f"{deck}: {words} words, {words / WORDS_PER_MINUTE:.1f} min of speech, {minutes:.1f}")
    assert least <= minutes <= most


def test_every_slide_of_a_deck_has_notes(talk: tuple[Slide, ...]) -> None:
    assert not [slide.name for slide in talk if not slide.notes]


def test_no_result_is_typed_in() -> None:
    for slide in read_slides():
        text = " ".join((slide.title, slide.ask, slide.body, slide.notes, slide.more))
        found = TYPED.findall(re.sub(r"\{[a-z]+:[^{}]+\}", "", text))
        assert found == [s for s in [SETTINGS.get(slide.name)] if s], slide.name


def test_nothing_is_left_to_fill_in(talk: tuple[Slide, ...]) -> None:
    for slide in talk:
        text = " ".join((slide.title, slide.ask, slide.body, slide.notes, slide.more))
        assert "{sentence:" not in text and "{fact:" not in text


def test_every_claim_shown_is_one(talk: tuple[Slide, ...], facts: Facts) -> None:
    shown = {claim for slide in talk for claim in slide.claims}
    assert shown and shown <= facts.answers.keys()


def test_every_formula_becomes_mathml() -> None:
    formulas = [a or b for a, b in FORMULA.findall(TALK.read_text(encoding="utf-8"))]
    assert len(formulas) > 20
    for formula in formulas:
        made = re.sub(r'alttext="[^"]*"', "", mathml(formula))
        assert made.startswith("<math") and "\\" not in made and "$" not in made, formula
