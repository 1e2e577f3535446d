"""The live figure's kernel side: plotly.js on request, timings, one message per change."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fa_kernels.figures.theme import DARK
from fa_kernels.widgets import live_figure
from fa_kernels.widgets.live_figure import LiveFigure


def test_plotly_js_is_sent_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    figure, sent = LiveFigure(), []

    def send(content: Any, buffers: Any = None) -> None:
        sent.append((content, buffers))

    monkeypatch.setattr(figure, "send", send)
    live_figure._answer(figure, {"need": "plotly.js"}, [])
    ((content, buffers),) = sent
    assert content == {"have": "plotly.js"}
    assert b"plotly.js v" in buffers[0][:200]


def test_redraw_times_are_kept() -> None:
    figure = LiveFigure()
    live_figure._answer(figure, {"redraw_ms": 30.5, "input_ms": 44.0}, [])
    assert list(figure.timings) == [(30.5, 44.0)]
    assert (figure.redraw_ms, figure.input_ms) == (30.5, 44.0)
    live_figure._answer(figure, "noise", [])


def test_show_sets_everything() -> None:
    figure = LiveFigure()
    figure.show({"data": [], "layout": {"height": 10}}, "words", 3.0)
    assert (figure.spec["layout"]["height"], figure.alt, figure.input_stamp) == (10, "words", 3.0)
    assert figure.dark_colours == DARK


def test_scripts_are_there_and_ask_for_nothing_outside() -> None:
    for path in live_figure.STATIC.iterdir():
        text = path.read_text(encoding="utf-8")
        assert "http" not in text, path.name


def test_it_fits_beside_the_file_browser_of_a_small_window() -> None:
    """JupyterLab's cell has 848 px in a window of 1280 px, of which a scroll bar takes 15 or 17."""
    assert LiveFigure().least_width <= 848 - 17


@pytest.mark.parametrize("path", sorted(live_figure.STATIC.glob("*.css")), ids=lambda p: p.name)
def test_every_brace_of_a_style_sheet_is_closed(path: Path) -> None:
    """A rule left open swallows all that follow, without a word from the browser."""
    sheet = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    depth = 0
    for brace in re.findall("[{}]", sheet):
        depth += 1 if brace == "{" else -1
        assert 0 <= depth <= 2  # a rule in a query
    assert depth == 0
