"""Placeholders in the slides' texts, filled in from figures and facts; an unknown one is refused.

`{sentence:05_ladder 1-2}` is what a figure of the suite says of itself, `{fact:ridge tensor}` a
number of `facts.Facts`. So no number of a slide or a note is typed in.
"""

from __future__ import annotations

import re
from dataclasses import replace

from fa_kernels.present.drawn import Gallery
from fa_kernels.present.facts import Facts
from fa_kernels.present.parts import PICTURES
from fa_kernels.present.prose import aloud, as_markdown, chosen
from fa_kernels.present.slide import STEPPER, Slide, SlideError

#: LaTeX has braces, too, but words in them have a space behind a colon: \text{floor: }.
_PLACE = re.compile(r"\{([a-z]+):(?=\S)([^{}]+)\}")


#: What is spoken in a deck; the handout prints it.
_SPOKEN = ("notes", "more")


def filled(slide: Slide, gallery: Gallery, facts: Facts, spoken: bool = True) -> Slide:
    """The slide with every placeholder of its texts filled in; in notes that are `spoken`, as one
    says it.

    Raises:
        SlideError: a placeholder, a figure, a sentence, a fact, a claim or a picture that is not
            there.
    """
    try:
        _check(slide, gallery, facts)
        texts = {
            name: _placed(getattr(slide, name), gallery, facts, spoken and name in _SPOKEN)
            for name in ("title", "ask", "body", *_SPOKEN)
        }
    except ValueError as error:
        raise SlideError(f"slide {slide.name}: {error}") from error
    return replace(slide, **texts)  # type: ignore[arg-type]


def _check(slide: Slide, gallery: Gallery, facts: Facts) -> None:
    """Refuse what a slide names and the suite does not have."""
    if unknown := [name for name in slide.claims if name not in facts.answers]:
        raise SlideError(f"claims: {', '.join(unknown)} is no id in data/paper/claims.csv.")
    if slide.picture and not (PICTURES / slide.picture).is_file():
        raise SlideError(f"picture: there is no {slide.picture} in {PICTURES}.")
    if slide.figure not in ("", STEPPER):
        drawn = gallery.draw(slide.figure, slide.vary)
        if slide.sentence:
            chosen(drawn.first.alt, slide.sentence)


def _placed(text: str, gallery: Gallery, facts: Facts, spoken: bool) -> str:
    def value(place: re.Match[str]) -> str:
        found = _value(place, gallery, facts)
        return as_markdown(aloud(found) if spoken else found)

    return _PLACE.sub(value, text)


def _value(place: re.Match[str], gallery: Gallery, facts: Facts) -> str:
    kind, (name, *words) = place[1], place[2].split()
    if kind == "fact":
        return facts.say(name, *words)
    if kind == "sentence":
        return chosen(gallery.sentence(name), " ".join(words) or "1")
    raise SlideError(f"{place[0]} is neither {{sentence:...}} nor {{fact:...}}.")
