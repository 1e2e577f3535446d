"""The export row: every figure has one; it writes what is shown, or says why not."""

from __future__ import annotations

import html
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fa_kernels as fa
from fa_kernels.figures.figure_files import VENUES
from fa_kernels.widgets import export
from fa_kernels.widgets.export import FOLDER, OFFERED, free_name, offer
from fa_kernels.widgets.live_figure import LiveFigure
from fa_kernels.widgets.speed import Speed
from fa_kernels.widgets.suite import live_figures
from fa_kernels.widgets.text import labels

PACKAGE = Path(fa.__file__).parent


@pytest.fixture(autouse=True)
def beside_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def speed() -> Any:
    return fa.speed(64, device="h200", session=fa.session("numpy"))


@pytest.fixture
def no_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "kaleido", None)


def exported(figure: LiveFigure, **traits: str) -> str:
    """What the row says after a press of its button."""
    for name, value in traits.items():
        setattr(figure, f"export_{name}", value)
    figure._handle_custom_msg({"export": True}, [])
    figure.export.join(60)
    assert not figure.export_busy
    return figure.export_said


def test_the_button_says_what_is_chosen_on_the_page(speed: Any) -> None:
    """A change of the venue may arrive after the button's message: it is in that, too."""
    figure = speed.figure
    figure._handle_custom_msg({"export": {"venue": "icml", "format": "html"}}, [])
    figure.export.join(60)
    assert "3.25 in wide" in figure.export_said and figure.export_venue == "icml"
    figure._handle_custom_msg({"export": {"venue": "nature", "format": "exe"}}, [])
    figure.export.join(60)
    assert (figure.export_venue, figure.export_format) == ("icml", "html")


def names() -> set[str]:
    return {path.name for path in FOLDER.iterdir()}


def about(name: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return said


def plotly_modules() -> Iterator[str]:
    """Modules of the widgets that put plotly on a page by any other way than the live figure."""
    for path in sorted((PACKAGE / "widgets").glob("*.py")):
        if re.search(r"FigureWidget|go\.Figure|plotly\.graph_objects|Plotly\.", path.read_text()):
            yield path.name


def test_no_figure_is_shown_but_by_the_live_figure_which_has_the_row() -> None:
    assert list(plotly_modules()) == []
    assert LiveFigure().export_offer == offer()
    script = str(LiveFigure()._esm)
    assert "function exportRow(" in script and "exportRow(model, whole)" in script


def test_it_offers_every_venue_with_its_inches_and_every_format() -> None:
    offered = offer()
    assert [venue for venue, _ in offered["venues"]] == list(VENUES)
    for venue, text in offered["venues"]:
        assert text.endswith(f", {VENUES[venue]:g} in")
    assert [suffix for suffix, _ in offered["formats"]] == [*OFFERED, "all"]
    assert set(labels("export")["venues"]) == set(VENUES)
    assert {"summary", "venue", "format", "button"} <= offered["words"].keys()


def test_html_of_the_setting_that_is_shown(speed: Speed) -> None:
    speed.head_dim.value = 128
    said = exported(speed.figure, venue="icml")
    assert said.startswith("Written, 3.25 in wide: figures/speed.html, figures/speed.json. Drawn ")
    assert f"made for {speed.figure.least_width} px" in said
    told = about("speed")
    assert told["parameters"]["d"] == 128 and told["venue"] == "icml"
    assert told["caption"] in html.unescape(re.sub("<[^>]+>", "", speed.sentence.value))
    assert told["alt"] == speed.figure.alt
    assert {"commit", "command", "device"} <= told["sources"][0].keys()


def test_another_format_joins_and_another_setting_stands_apart(
    speed: Speed, no_browser: None
) -> None:
    exported(speed.figure)
    assert "earlier export" not in exported(speed.figure, format="svg")
    assert names() == {"speed.html", "speed.json"}
    before = (FOLDER / "speed.html").read_bytes()
    speed.head_dim.value = 128
    exported(speed.figure)
    assert names() == {"speed.html", "speed.json", "speed-2.html", "speed-2.json"}
    assert (FOLDER / "speed.html").read_bytes() == before
    exported(speed.figure, venue="ieee")
    assert about("speed-3")["width_inches"] == 3.5


def test_what_somebody_else_wrote_is_left_alone(speed: Speed) -> None:
    FOLDER.mkdir()
    (FOLDER / "speed.pdf").write_text("mine")
    assert free_name("speed") == "speed-2" and free_name("other") == "other"
    exported(speed.figure)
    assert (FOLDER / "speed.pdf").read_text() == "mine" and "speed-2.html" in names()


def test_without_a_browser_it_says_so_and_writes_html(speed: Speed, no_browser: None) -> None:
    said = exported(speed.figure, format="pdf")
    assert said.startswith("PDF was not written: it needs a browser, and kaleido")
    assert said.endswith("Written, 5.5 in wide: figures/speed.html, figures/speed.json.")
    assert exported(speed.figure, format="all").startswith("PDF, SVG, PNG were not written")


def test_errors_are_said_in_place(speed: Speed, monkeypatch: pytest.MonkeyPatch) -> None:
    speed.figure.stale = True
    assert "earlier setting" in exported(speed.figure)
    speed.figure.stale = False
    FOLDER.write_text("")
    assert exported(speed.figure).startswith("Nothing was written: folder = 'figures'")
    FOLDER.unlink()

    def fail(*args: Any, **options: Any) -> None:
        raise KeyError("odd")

    monkeypatch.setattr(export, "save_figure", fail)
    assert "KeyError: 'odd'" in exported(speed.figure)
    assert not FOLDER.exists()


def test_a_second_press_waits_for_the_first(speed: Speed, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, calls = threading.Event(), []

    def slow(*args: Any, **options: Any) -> None:
        calls.append(args)
        go_on.wait(10)
        raise OSError("enough")

    monkeypatch.setattr(export, "save_figure", slow)
    speed.figure.export.start()
    assert speed.figure.export_busy and speed.figure.export_said == labels("export")["busy"]
    speed.figure.export.start()
    go_on.set()
    speed.figure.export.join(10)
    assert len(calls) == 1 and "enough" in speed.figure.export_said


def test_a_figure_without_an_owner_says_its_setting(no_browser: None) -> None:
    exported(live_figures(fa.story(N=2048, session=fa.session("numpy")))[0])
    assert about("story")["parameters"]["N"] == 2048
    exported(fa.o_drift(64).children[1])
    assert about("o_drift")["parameters"]["keys"] == 64
