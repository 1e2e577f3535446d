"""A deck as one HTML page: reveal.js, figures and stepper, all of it beside the page."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

from fa_kernels.figures.theme import DARK
from fa_kernels.present.drawn import Drawn, Gallery
from fa_kernels.present.facts import Facts
from fa_kernels.present.parts import (
    claims_table,
    colours_css,
    figure_data,
    json_script,
    picture,
    references,
    source_line,
)
from fa_kernels.present.prose import chosen, inline_html, message_html, to_html
from fa_kernels.present.slide import STEPPER, Slide
from fa_kernels.widgets.stepper import stepper
from fa_kernels.widgets.text import labels

_STYLES = ("reveal/reveal.css", "stepper.css", "deck.css")
_SCRIPTS = ("plotly.min.js", "stepper.js", "reveal/reveal.js", "reveal/notes.js", "deck.js")


def deck_page(slides: Sequence[Slide], deck: str, gallery: Gallery, facts: Facts) -> str:
    """The page of a deck; `slides` are its own, with their placeholders filled in."""
    text = labels("present")
    figures, sections, seconds = {}, [], 0
    for slide in slides:
        drawn = _drawn(slide, gallery)
        if drawn is not None:
            figures[slide.name] = figure_data(drawn, slide.sentence)
        sections.append(_section(slide, deck, drawn, facts, seconds))
        seconds += slide.seconds(slide.spoken(deck))
    data = {"figures": figures, "dark": DARK, "stepper": stepper_model()}
    title = html.escape(str(text["deck_title"]).format(title=slides[0].title, minutes=deck))
    styles = "\n".join(f'<link rel="stylesheet" href="assets/{name}">' for name in _STYLES)
    scripts = "\n".join(f'<script src="assets/{name}"></script>' for name in _SCRIPTS)
    body = "\n".join(sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
{styles}
<style>{colours_css()}</style>
</head>
<body data-jp-theme-light="true">
<div class="reveal"><div class="slides">
{body}
</div></div>
{json_script("fa-data", data)}
{scripts}
</body>
</html>
"""


def stepper_model() -> dict[str, Any]:
    """The traits of the notebook's stepper; the page steps without a kernel."""
    state: dict[str, Any] = stepper("growing").page_state()
    return state


def stepper_script(module: str) -> str:
    """The stepper's module as a classic script: a page from disk may not import modules."""
    body, exported = re.subn(r"export default (\{[^}]*\});?\s*$", r"return \1;", module)
    if exported != 1:
        raise ValueError("the stepper's module does not end with `export default { render }`.")
    return f"window.falabStepper = (() => {{\n{body}\n}})();\n"


def _drawn(slide: Slide, gallery: Gallery) -> Drawn | None:
    if not slide.figure or slide.figure == STEPPER:
        return None
    return gallery.draw(slide.figure, slide.vary)


def _section(slide: Slide, deck: str, drawn: Drawn | None, facts: Facts, begins: int) -> str:
    spoken = slide.spoken(deck)
    lasts = slide.seconds(spoken)
    heading = "h1" if slide.layout == "title" else "h2"
    parts = [f"<{heading}>{inline_html(slide.title)}</{heading}>"]
    if slide.ask:
        said = html.escape(str(labels("present")["predict"]))
        parts.append(f'<p class="fa-ask"><b>{said}</b> {inline_html(slide.ask)}</p>')
    parts.append(_main(slide, drawn, facts))
    source = source_line(drawn, facts.used)
    if slide.claims:
        source = str(labels("present")["judged"]).format(gpu=facts.gpu())
    if source:
        parts.append(f'<p class="fa-source">{html.escape(source)}</p>')
    notes = f'<p class="fa-clock">{_clock(begins, lasts)}</p>{to_html(spoken)}'
    return (
        f'<section id="{slide.name}" data-timing="{lasts}">'
        f'<div class="fa-slide fa-as-{slide.layout}">{"".join(parts)}</div>'
        f'<aside class="notes">{notes}</aside></section>'
    )


def _main(slide: Slide, drawn: Drawn | None, facts: Facts) -> str:
    """What stands under the title: words and, behind the question, the figure."""
    words = _words(slide, facts)
    shown = _figure(slide, drawn)
    if shown:
        # After the prediction: the next key shows the figure.
        hidden = " fragment" if slide.ask else ""
        shown = f'<div class="fa-shown{hidden}">{shown}</div>'
    inside = f'<div class="fa-words">{words}</div>' if words else ""
    return f'<div class="fa-main">{inside}{shown}</div>'


def _words(slide: Slide, facts: Facts) -> str:
    body = to_html(slide.body)
    if slide.layout == "questions":
        body = body.replace("<blockquote>", '<blockquote class="fragment">')
    if slide.claims:
        body = claims_table(slide.claims, facts.answers) + body
    if slide.picture:
        body = picture(slide.picture) + body
    if slide.layout == "references":
        body += references()
    return body


def _figure(slide: Slide, drawn: Drawn | None) -> str:
    if slide.figure == STEPPER:
        return '<div class="fa-stepper" data-fa-stepper data-prevent-swipe></div>'
    if drawn is None:
        return ""
    alt = html.escape(drawn.first.alt, quote=True)
    said = message_html(chosen(drawn.first.alt, slide.sentence)) if slide.sentence else ""
    return (
        f'<p class="fa-sentence" aria-live="polite">{said}</p>{_knob(slide)}'
        f'<div class="fa-figure" data-fa-figure="{slide.name}" role="img" aria-label="{alt}">'
        '<div class="fa-drawing"></div></div>'
    )


def _knob(slide: Slide) -> str:
    """The slider over the stops that were computed."""
    if slide.vary is None:
        return ""
    text, vary = labels("present"), slide.vary
    name, unit = text["arguments"][vary.argument]
    values = [f"{value} {unit}".strip() for value in vary.values]
    listed = html.escape("|".join(values), quote=True)
    return (
        f'<label class="fa-knob" data-prevent-swipe><span>{name} = <output>{values[vary.start]}'
        f'</output></span><input type="range" min="0" max="{len(values) - 1}" step="1" '
        f'value="{vary.start}" data-fa-knob="{slide.name}" data-fa-values="{listed}" '
        f'aria-label="{name}" aria-valuetext="{values[vary.start]}"></label>'
    )


def _clock(begins: int, lasts: int) -> str:
    text = labels("present")
    from_, to = (f"{s // 60}:{s % 60:02}" for s in (begins, begins + lasts))
    return html.escape(str(text["clock"]).format(begins=from_, ends=to))
