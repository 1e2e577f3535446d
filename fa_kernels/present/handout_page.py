"""The handout: the same slides as a text to read, with formulas, answers, references, runs."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

from fa_kernels.measure.records import Run
from fa_kernels.present.drawn import Drawn, Gallery
from fa_kernels.present.facts import Facts
from fa_kernels.present.parts import (
    claims_table,
    colours_css,
    figure_data,
    json_script,
    picture,
    references,
    runs_of,
    source_line,
)
from fa_kernels.present.prose import as_markdown, chosen, inline_html, sentence_html, to_html
from fa_kernels.present.slide import HANDOUT, STEPPER, Slide
from fa_kernels.widgets.stepper import stepper
from fa_kernels.widgets.text import html_table, labels


def handout_page(title: str, slides: Sequence[Slide], gallery: Gallery, facts: Facts) -> str:
    """The page; `slides` are the handout's, with their placeholders filled in."""
    text = labels("present")
    figures: dict[str, Any] = {}
    parts = []
    for number, slide in enumerate(slides, 1):
        drawn = None
        if slide.figure and slide.figure != STEPPER:
            drawn = gallery.draw(slide.figure, slide.vary)
            # One stop, and nothing of the others: paper has no slider.
            figures[slide.name] = figure_data(Drawn((drawn.first,), 0, drawn.least_width), "")
        parts.append(_part(number, slide, drawn, facts))
    listed = "".join(f'<li><a href="#{s.name}">{inline_html(s.title)}</a></li>' for s in slides)
    heading = str(text["handout_title"]).format(title=title)
    body = "\n".join([*parts, _back(facts, sorted({*gallery.run_ids, *facts.run_ids}))])
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(heading)}</title>
<link rel="stylesheet" href="assets/handout.css">
<style>{colours_css()}</style>
</head>
<body data-jp-theme-light="true">
<main>
<h1>{html.escape(title)}</h1>
<p class="fa-intro">{html.escape(str(text["handout_intro"]))}</p>
<nav><h2>{text["contents"]}</h2><ol>{listed}</ol></nav>
{body}
</main>
{json_script("fa-data", {"figures": figures})}
<script src="assets/plotly.min.js"></script>
<script src="assets/handout.js"></script>
</body>
</html>
"""


def _part(number: int, slide: Slide, drawn: Drawn | None, facts: Facts) -> str:
    """A slide as a section: statement, figure, what stood on the slide, what is said."""
    statement = chosen(drawn.first.alt, slide.sentence) if drawn and slide.sentence else ""
    lead = [f"<h2>{number} {inline_html(slide.title)}</h2>"]
    if slide.ask:
        said = html.escape(str(labels("present")["predict"]))
        lead.append(f'<p class="fa-ask"><b>{said}</b> {inline_html(slide.ask)}</p>')
    if drawn is not None:
        lead.append(_figure(slide, drawn, statement, facts))
    if slide.figure == STEPPER:
        lead.append(_steps())
    if slide.picture:
        lead.append(picture(slide.picture))
    parts = [f'<div class="fa-lead">{"".join(lead)}</div>']
    if slide.claims:
        source = str(labels("present")["judged"]).format(gpu=facts.gpu())
        parts.append(claims_table(slide.claims, facts.answers, why=True))
        parts.append(f'<p class="fa-source">{html.escape(source)}</p>')
    if slide.layout == "questions":
        parts.append(_with_answers_last(to_html(slide.body)))  # hints are for a hall
    else:
        parts.append(to_html(slide.body))
        parts.append(to_html(_unsaid(slide.spoken(HANDOUT), as_markdown(statement), slide.body)))
    return f'<section id="{slide.name}">{"".join(parts)}</section>'


def _unsaid(spoken: str, *shown: str) -> str:
    """What is said, without paragraphs that stand above it already."""
    paragraphs = spoken.split("\n\n")
    return "\n\n".join(p for p in paragraphs if not any(p.strip() in text for text in shown))


def _with_answers_last(questions: str) -> str:
    """Questions as HTML; their answers follow in a list of their own."""
    answers = re.findall(r"<blockquote>\s*<p>(.*?)</p>\s*</blockquote>", questions, re.DOTALL)
    asked = re.sub(r"<blockquote>.*?</blockquote>", "", questions, flags=re.DOTALL)
    listed = "".join(f"<li>{answer}</li>" for answer in answers)
    heading = html.escape(str(labels("present")["answers"]))
    return f"{asked}<h3>{heading}</h3><ol>{listed}</ol>"


def _figure(slide: Slide, drawn: Drawn, statement: str, facts: Facts) -> str:
    text = labels("present")
    source = [source_line(drawn, facts.used)]
    if slide.vary:
        name, unit = text["arguments"][slide.vary.argument]
        value = f"{slide.vary.values[slide.vary.start]} {unit}".strip()
        source.append(str(text["at_stop"]).format(name=name, value=value))
    alt = html.escape(drawn.first.alt, quote=True)
    return (
        f'<p class="fa-sentence">{sentence_html(statement)}</p><figure><div class="fa-figure" '
        f'data-fa-figure="{slide.name}" role="img" aria-label="{alt}">'
        '<div class="fa-drawing"></div></div>'
        f'<figcaption class="fa-source">{html.escape(". ".join(source))}</figcaption></figure>'
    )


def _steps() -> str:
    """The stepper's row as a table, since paper does not step."""
    check = stepper("growing").check()
    head, *rows = check.cells()
    note = html.escape(str(labels("present")["stepper_note"]))
    return f"<p>{note}</p>{html_table('steps', check.caption(), head, rows, css='fa-steps')}"


def _back(facts: Facts, run_ids: Sequence[str]) -> str:
    """References, BibTeX and the runs behind the figures."""
    text = labels("present")
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in text["run_head"])
    rows = "".join(map(_run_row, runs_of(run_ids, facts.used)))
    return (
        f'<section id="references"><h2>{text["references"]}</h2>{references()}</section>'
        f'<section id="bibtex"><h2>{text["bibtex"]}</h2>{references(bibtex=True)}</section>'
        f'<section id="provenance"><h2>{text["provenance"]}</h2>'
        f'<table class="fa-runs"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        "</section>"
    )


def _run_row(run: Run) -> str:
    about = run.about
    date, commit = str(about.get("started", ""))[:10], str(about.get("commit", ""))[:7]
    cells = (
        run.run_id, run.device, date, commit, about.get("driver"), about.get("cuda"),
        about.get("torch"),
    )  # fmt: skip
    return "<tr>" + "".join(f"<td>{html.escape(str(c or ''))}</td>" for c in cells) + "</tr>"
