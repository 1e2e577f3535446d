"""The export row in a real browser: folded away, by keys alone, and the file lies beside."""

from __future__ import annotations

import json
import re

from playwright.sync_api import expect

from fa_kernels.widgets.text import labels
from tests.browser.lab import PANEL, LabPage

ROW = ".falab-export"


def test_a_figure_is_written_beside_the_notebook_by_keys_alone(lab: LabPage) -> None:
    lab.open("00_start_here.ipynb")
    lab.run_all()
    lab.show(ROW)
    row, text = lab.page.locator(ROW).first, labels("export")
    expect(row.locator("summary")).to_have_text(text["summary"])
    assert not row.locator("select").count(), "closed, it holds nothing"
    selected = f"{PANEL} .jp-Cell.jp-mod-selected"
    row.locator("summary").focus()  # the cell around it becomes the selected one
    before = lab.page.locator(selected).first.get_attribute("data-windowed-list-index")
    lab.page.keyboard.press("Enter")
    venue, format_ = (row.locator(f"select[data-fa-export={name}]") for name in ("venue", "format"))
    expect(venue).to_have_value("neurips")
    expect(format_).to_have_value("html")
    lab.page.keyboard.press("Tab")
    expect(venue).to_be_focused()
    for _ in range(2):
        lab.page.keyboard.press("ArrowDown")  # the list has NeurIPS, ICLR, ICML
    expect(venue).to_have_value("icml")
    lab.page.keyboard.press("Tab")
    lab.page.keyboard.press("Tab")
    button = row.get_by_role("button", name=text["button"])
    expect(button).to_be_focused()
    lab.page.keyboard.press("Enter")
    said = row.locator("[role=status]")
    expect(said).to_contain_text(
        "Written, 3.25 in wide: figures/story.html, figures/story.json. Drawn "
    )
    expect(button).to_have_attribute("aria-disabled", "false")
    after = lab.page.locator(selected).first.get_attribute("data-windowed-list-index")
    assert after == before, "Lab took a key for itself"

    folder = lab.server.folder / "figures"
    page = (folder / "story.html").read_text(encoding="utf-8")
    assert "width: 3.25in" in page and "Plotly.newPlot" in page
    told = json.loads((folder / "story.json").read_text(encoding="utf-8"))
    assert told["caption"] and re.fullmatch(r"\d{8}-.*", told["sources"][0]["run_id"])
    lab.screenshot("export")

    lab.reload()
    lab.show(ROW)
    row = lab.page.locator(ROW).first
    row.locator("summary").click()
    expect(row.locator("select[data-fa-export=venue]")).to_have_value("icml")
    expect(row.locator("[role=status]")).to_contain_text("figures/story.html")


def test_the_row_fits_a_phone_and_can_be_read_in_the_dark(lab: LabPage) -> None:
    lab.open("00_start_here.ipynb")
    lab.run_all()
    lab.set_theme("JupyterLab Dark")
    lab.page.set_viewport_size({"width": 700, "height": 900})
    lab.show(ROW)
    row = lab.page.locator(ROW).first
    row.locator("summary").click()
    expect(row.locator("select").first).to_be_visible()
    row.scroll_into_view_if_needed()
    assert row.evaluate("node => node.scrollWidth <= node.clientWidth + 1"), "it is cut off"
    lab.screenshot("export-dark")
