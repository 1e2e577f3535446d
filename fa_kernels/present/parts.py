"""Parts of a page that deck and handout share: sources, tables of claims, pictures, references."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fa_kernels.figures import theme
from fa_kernels.figures.papers import PAPERS
from fa_kernels.figures.provenance import suite_bibtex
from fa_kernels.figures.recorded import read_run
from fa_kernels.measure.claim_tests.registry import Answer
from fa_kernels.measure.records import Run
from fa_kernels.present.drawn import Drawn
from fa_kernels.present.prose import chosen, message_html, sentence_html
from fa_kernels.session import Session
from fa_kernels.widgets.claims import SIGNS
from fa_kernels.widgets.text import labels

PICTURES = Path(__file__).parents[2] / "notebooks" / "images"
#: Colours of a picture's own words and paper -> what the page has for them.
_PAGE_COLOURS = {
    **dict.fromkeys(("#111", "#333", "#555"), "currentColor"),
    "#0072B2": "var(--fa-edge, #0072B2)",
}


def runs_of(run_ids: Iterable[str], used: Session) -> list[Run]:
    """The runs of these ids that can be read."""
    found = (read_run(run_id, used.root) for run_id in run_ids)
    return [run for run in found if isinstance(run, Run)]


def source_line(drawn: Drawn | None, used: Session) -> str:
    """Where a figure's numbers come from: GPU and run ids, or the model."""
    text = labels("present")
    if drawn is None:
        return ""
    runs = runs_of(drawn.run_ids, used)
    if not runs:
        return str(text["modelled"])
    gpus = ", ".join(dict.fromkeys(run.device for run in runs))
    return str(text["recorded"]).format(gpu=gpus, runs=", ".join(run.run_id for run in runs))


def claims_table(ids: Iterable[str], answers: Mapping[str, Answer], why: bool = False) -> str:
    """Claims and their verdicts as an HTML table; with `why`, the numbers behind them."""
    text, rows = labels("present"), []
    for one in (answers[name] for name in ids):
        word = one.judged.word
        cells = [html.escape(one.claim.claim), f"{SIGNS[word]} {html.escape(word)}"]
        cells += [sentence_html(one.judged.why)] * why
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    names = [text["claim"], text["verdict"], *([text["why"]] if why else [])]
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in names)
    body = "".join(rows)
    return f'<table class="fa-claims"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def picture(name: str) -> str:
    """A drawing of the notebooks as inline SVG that follows the page's colours."""
    svg = (PICTURES / name).read_text(encoding="utf-8")
    lines = [line for line in svg.splitlines() if 'fill="#fff"' not in line]
    text = "\n".join(lines)
    # The letter is in few fonts, and a PDF takes it from those as a drawing.
    text = text.replace("ᵀ", '<tspan dy="-0.4em" font-size="65%">T</tspan>')
    for colour, instead in _PAGE_COLOURS.items():
        text = text.replace(f'"{colour}"', f'"{instead}"')
    return f'<div class="fa-picture">{text}</div>'


def references(bibtex: bool = False) -> str:
    """The papers, each as one line; with `bibtex`, as entries to copy, and the suite's own."""
    if bibtex:
        entries = "\n\n".join([*PAPERS.values(), suite_bibtex()])
        return f'<pre class="fa-bibtex">{html.escape(entries)}</pre>'
    return f'<ol class="fa-references">{"".join(map(_reference, PAPERS.values()))}</ol>'


def _reference(entry: str) -> str:
    fields: dict[str, str] = {}
    for line in entry.replace("\n            ", " ").splitlines():
        name, equals, value = line.strip().rstrip(",").partition(" = ")
        if equals:
            fields[name] = value[1:-1]
    people = [" ".join(reversed(one.split(", "))) for one in fields["author"].split(" and ")]
    plain = {name: _without_latex(value) for name, value in fields.items()}
    by = html.escape(_without_latex(", ".join(people)))
    place = html.escape(plain.get("booktitle", ""))
    where = ", ".join(filter(None, (place, plain["year"], f"arXiv {plain['eprint']}")))
    return f"<li>{by}: <em>{html.escape(plain['title'])}</em>. {where}</li>"


def _without_latex(text: str) -> str:
    return text.replace("{\\'e}", "é").replace("{", "").replace("}", "")


def colours_css() -> str:
    """The theme's colours of page and words as CSS variables, for light and dark."""
    names = {"paper": theme.PAPER, "ink": theme.INK, "muted": theme.MUTED, "grid": theme.GRID}
    light = "".join(f"--fa-{name}:{value};" for name, value in names.items())
    dark = "".join(f"--fa-{name}:{theme.DARK[value]};" for name, value in names.items())
    font = f"--fa-font:{theme.FONT_FAMILY};"
    return f":root{{{light}{font}}}\nbody[data-jp-theme-light=false]{{{dark}}}"


def json_script(name: str, value: Any) -> str:
    """Data for the page's script; no "<" in it can end the element early, or hide its end."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


def figure_data(drawn: Drawn, which: str) -> dict[str, Any]:
    """What the page's script draws: specs and sentences at every stop of the slider."""
    stops = [
        {
            "spec": {"data": s.spec["data"], "layout": s.spec["layout"]},
            "alt": s.alt,
            "sentence": message_html(chosen(s.alt, which)) if which else "",
        }
        for s in drawn.stops
    ]
    return {"stops": stops, "start": drawn.start, "least": drawn.least_width}
