"""The explorer in a real browser: keyboard, figure, sentence, reload, dark theme, speed."""

from __future__ import annotations

import statistics
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Locator, expect

from tests.browser.lab import LabPage, LabServer

FIGURE = ".fa-live-figure"
SENTENCE = "[data-fa-sentence]"
MESSAGE = "[data-fa-message]"
#: The goal is 50 ms on a laptop; a CI machine with two busy cores gets room.
MAX_REDRAW_MS = 250


def slider(knob: str) -> str:
    return f'[data-fa-knob="{knob}"] input[type=range]'


def box(knob: str) -> str:
    return f'[data-fa-knob="{knob}"] input[type=text]'


def drawn(lab: LabPage) -> Locator:
    """The figure once plotly has drawn it."""
    figure = lab.page.locator(FIGURE).first
    expect(figure).not_to_have_attribute("data-fa-redraws", "0")
    return figure


@pytest.fixture
def explorer(lab: LabPage, lab_server: LabServer, tmp_path: Path) -> LabPage:
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell("import fa_kernels as fa\nfa.explorer()")],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    nbformat.write(notebook, lab_server.folder / f"{tmp_path.name}.ipynb")
    lab.open(f"{tmp_path.name}.ipynb")
    lab.run_all()
    assert not lab.errors_in_cells()
    drawn(lab)
    return lab


@pytest.mark.parametrize("knob", ["N", "d", "M"])
def test_the_keyboard_moves_figure_and_sentence(explorer: LabPage, knob: str) -> None:
    figure = drawn(explorer)
    before = explorer.page.locator(SENTENCE).inner_text()
    redraws, alt = figure.get_attribute("data-fa-redraws"), figure.get_attribute("aria-label")
    explorer.press(slider(knob), "ArrowLeft", "ArrowLeft")
    expect(figure).not_to_have_attribute("data-fa-redraws", redraws or "")
    expect(figure).not_to_have_attribute("aria-label", alt or "")
    expect(explorer.page.locator(SENTENCE)).not_to_have_text(before)


def test_reload_keeps_the_state(explorer: LabPage) -> None:
    explorer.press(slider("N"), "ArrowRight")
    knob = explorer.page.locator('[data-fa-knob="N"]')
    expect(knob).to_have_attribute("data-fa-value", "8192")
    expect(explorer.page.locator(SENTENCE)).to_contain_text("8192")
    said = explorer.page.locator(SENTENCE).inner_text()

    explorer.reload()

    expect(knob).to_have_attribute("data-fa-value", "8192")
    expect(explorer.page.locator(SENTENCE)).to_have_text(said)
    figure = drawn(explorer)
    redraws = figure.get_attribute("data-fa-redraws") or ""
    explorer.press(slider("N"), "ArrowRight")
    expect(explorer.page.locator(SENTENCE)).to_contain_text("16384")
    expect(figure).not_to_have_attribute("data-fa-redraws", redraws)


@pytest.mark.parametrize("typed", ["0", "-5", "1e9", "many", "NaN", ""])
def test_a_refused_value_is_explained_and_loses_nothing(explorer: LabPage, typed: str) -> None:
    before = explorer.page.locator(SENTENCE).inner_text()
    field = explorer.page.locator(box("N"))
    field.fill(typed)
    field.press("Enter")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(explorer.page.locator('[data-fa-knob="N"] [role=alert]')).not_to_be_empty()
    expect(explorer.page.locator(SENTENCE)).to_have_text(before)
    # The next good value clears it.
    field.fill("2048")
    field.press("Enter")
    expect(field).to_have_attribute("aria-invalid", "false")
    expect(explorer.page.locator(SENTENCE)).to_contain_text("2048")


def test_the_figure_follows_the_theme(explorer: LabPage) -> None:
    background = f"{FIGURE} .main-svg"
    colour = "node => getComputedStyle(node).backgroundColor"
    drawn(explorer)
    explorer.screenshot("explorer-light")
    light = explorer.page.locator(background).first.evaluate(colour)
    explorer.set_theme("JupyterLab Dark")
    expect(explorer.page.locator(background).first).not_to_have_css("background-color", light)
    explorer.screenshot("explorer-dark")
    explorer.set_theme("JupyterLab Light")
    expect(explorer.page.locator(background).first).to_have_css("background-color", light)


def test_redraws_are_quick(explorer: LabPage) -> None:
    """Median of the time from a key to the finished redraw of all panels."""
    figure = drawn(explorer)
    times = []
    for key in ["ArrowLeft"] * 6 + ["ArrowRight"] * 6:
        redraws = figure.get_attribute("data-fa-redraws") or ""
        explorer.press(slider("N"), key)
        expect(figure).not_to_have_attribute("data-fa-redraws", redraws)
        times.append(float(figure.get_attribute("data-fa-input-ms") or "inf"))
    median = statistics.median(times)
    print(f"key to redraw: median {median:.0f} ms, longest {max(times):.0f} ms")
    assert median < MAX_REDRAW_MS
