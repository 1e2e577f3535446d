"""Every notebook in a real JupyterLab: runs, draws, and is quiet, in the light and in the dark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.lab import FIGURE, ROOT, LabPage

NOTEBOOKS = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))


def on_screen(figure: Locator) -> bool:
    """JupyterLab skips the layout of cells far below: a figure there has no width to be drawn in.

    (content-visibility: auto; no ResizeObserver is told of an element whose layout is skipped.)
    """
    box, size = figure.bounding_box(), figure.page.viewport_size
    assert size
    return box is not None and -box["height"] < box["y"] < size["height"]


@pytest.mark.parametrize("shared_notebook", NOTEBOOKS)
def test_runs_and_draws_in_both_themes(
    opened: Callable[[str], LabPage], shared_notebook: str
) -> None:
    lab = opened(shared_notebook)
    seen = 0
    for _ in lab.scroll_through():
        for figure in filter(on_screen, lab.page.locator(FIGURE).all()):
            expect(figure.locator(".main-svg").first).to_be_attached()
            expect(figure).to_have_attribute("role", "img")
            expect(figure).not_to_have_attribute("aria-label", "")
            seen += 1
    assert seen, "a notebook of this suite has at least one live figure"
    expect(lab.page.locator(f"{FIGURE}[data-fa-redraws='0']")).to_have_count(0)  # each was drawn
    lab.screenshot(f"{Path(shared_notebook).stem}-light")
    lab.set_theme("JupyterLab Dark")
    lab.screenshot(f"{Path(shared_notebook).stem}-dark")
    lab.set_theme("JupyterLab Light")
