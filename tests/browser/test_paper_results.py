"""The widgets of 09 in a real browser: drawn, chosen by keys, readable in the dark."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.lab import FIGURE, LabPage

NOTEBOOK = "09_paper_results.ipynb"


@pytest.fixture
def papers(opened: Callable[[str], LabPage]) -> LabPage:
    return opened(NOTEBOOK)


def view(lab: LabPage, mark: str, number: int = 0) -> Locator:
    """A widget whose sentence has this mark, once plotly has drawn its figure."""
    lab.show(f"[data-fa-{mark}]")
    found = lab.page.locator(".jp-OutputArea-output", has=lab.page.locator(f"[data-fa-{mark}]"))
    shown = found.nth(number)
    expect(shown.locator(FIGURE)).not_to_have_attribute("data-fa-redraws", "0")
    return shown


def test_the_figures_draw_and_are_not_cut_off(papers: LabPage) -> None:
    for mark in ("paper", "middle"):
        shown = view(papers, mark)
        figure, sentence = shown.locator(FIGURE), shown.locator(f"[data-fa-{mark}]")
        alt = figure.get_attribute("aria-label") or ""
        assert alt.startswith(sentence.text_content() or "nothing")
        box, inside = figure.bounding_box(), figure.locator(".main-svg").first.bounding_box()
        assert box and inside and inside["width"] <= box["width"] + 1
    papers.show("[data-fa-table=paper-verdicts]")
    first = papers.page.locator("[data-fa-table=paper-verdicts] td").first
    expect(first).to_have_css("text-align", "left")


def test_another_table_is_chosen_by_keys(papers: LabPage) -> None:
    shown = view(papers, "paper")
    table = shown.locator("[data-fa-table=paper-result]").first
    expect(table).to_contain_text("table 21")
    choice = shown.locator('[data-fa-choice="result"] select')
    choice.focus()
    choice.press("ArrowUp")
    expect(table).to_contain_text("table 20")
    expect(shown.locator("[data-fa-paper]")).to_contain_text("Latency")
    choice.press("ArrowDown")
    expect(shown.locator("[data-fa-paper]")).to_contain_text("equal 16 of 16 cells")
    assert not papers.page.locator(".jp-mod-editMode").count(), "Lab took a key for itself"


def test_printed_points_stay_hollow_in_the_dark(papers: LabPage) -> None:
    papers.set_theme("JupyterLab Dark")
    shown = view(papers, "paper")
    point = shown.locator(".scatterlayer .point").first
    expect(point).to_be_attached()
    assert point.evaluate("node => getComputedStyle(node).fillOpacity") in ("0", "1")
    fill = point.evaluate("node => getComputedStyle(node).fill")
    assert fill in ("none", "rgba(0, 0, 0, 0)"), f"a hollow marker is filled with {fill}"
    papers.set_theme("JupyterLab Light")
