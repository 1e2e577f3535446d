"""The row under a figure in a real browser, by keys alone: one notebook, one page, in order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Browser, Locator, expect

import fa_kernels as fa
from fa_kernels.widgets.text import labels
from tests.browser.conftest import VIEWPORT, Pages
from tests.browser.lab import FIGURE, PANEL, PATIENCE_MS, LabPage, LabServer

TEXT = labels("row")
SENTENCE = "[data-fa-ladder]"


@pytest.fixture(scope="module")
def opened(browser: Browser, lab_server: LabServer, pages: Pages) -> Iterator[LabPage]:
    """The ladder, and a figure without controls under it."""
    pages.close()  # its kernel would be stopped with ours, and the next test told of it
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell("import fa_kernels as fa\nladder = fa.ladder()\nladder"),
            nbformat.v4.new_code_cell("ladder"),
            nbformat.v4.new_code_cell("fa.story()"),
        ]
    )
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, Path(lab_server.folder) / "row.ipynb")
    context = browser.new_context(viewport=VIEWPORT)
    context.set_default_timeout(PATIENCE_MS)
    lab = LabPage(context.new_page(), lab_server)
    lab.open("row.ipynb")
    lab.run_all()
    assert not lab.errors_in_cells()
    yield lab
    context.close()
    lab_server.stop_kernels()
    lab.check_clean()


def whole(lab: LabPage, number: int = 0) -> Locator:
    """The figure with its row, in the given view of it."""
    cell = lab.page.locator(f'.jp-Notebook .jp-Cell[data-windowed-list-index="{number}"]')
    lab.page.evaluate(
        "i => window.jupyterapp.shell.currentWidget.content.scrollToItem(i, 'start')", number
    )
    shown = cell.locator(".falab-figure")
    expect(shown.locator(FIGURE)).not_to_have_attribute("data-fa-redraws", "0")
    return shown


def button(shown: Locator, name: str) -> Locator:
    return shown.locator(f"[data-fa-row={name}]")


def drawn_dotted(shown: Locator) -> int:
    """Outlines and lines of the ghost as plotly drew them."""
    script = """node => [...node.querySelectorAll(".js-line")]
        .filter(line => line.style.strokeDasharray.startsWith("3px")).length"""
    return int(shown.evaluate(script))


def slide(lab: LabPage, *keys: str) -> None:
    lab.press('[data-fa-knob="N"] input[type=range]', *keys)


def test_tab_goes_along_the_row_and_every_stop_can_be_seen(opened: LabPage) -> None:
    shown = whole(opened)
    names = [TEXT["reset"], TEXT["pin"], TEXT["copy"], labels("export")["summary"]]
    button(shown, "reset").focus()
    for name in names:
        focused = opened.page.locator(":focus")
        expect(focused).to_have_text(name)
        expect(focused).to_have_css("outline-style", "solid")
        expect(focused).to_have_attribute("data-lm-suppress-shortcuts", "true")
        opened.page.keyboard.press("Tab")


def test_a_figure_without_controls_shows_the_export_alone(opened: LabPage) -> None:
    shown = whole(opened, 2)
    for name in ("reset", "pin", "copy"):
        expect(button(shown, name)).to_be_hidden()
    expect(shown.locator(".falab-export summary")).to_be_visible()


def test_pin_compares_in_every_view_and_reload_keeps_it(opened: LabPage) -> None:
    shown = whole(opened)
    pin, line = button(shown, "pin"), shown.locator("[data-fa-pinned]")
    expect(line).to_be_hidden()
    expect(pin).to_have_attribute("aria-pressed", "false")
    pin.focus()
    opened.page.keyboard.press("Enter")
    expect(pin).to_have_attribute("aria-pressed", "true")
    expect(pin).to_be_focused()
    expect(line).to_contain_text(TEXT["pinned_same"])
    slide(opened, "ArrowRight")
    expect(line).to_contain_text("Pinned: N = 4096 (now 8192).")
    expect(line.locator("li").first).to_contain_text(re.compile(r"→.*×"))
    words = shown.locator(".main-svg .annotation-text", has_text="pinned at N = 4096")
    expect(words).to_have_count(1)
    assert drawn_dotted(shown) > 0
    expect(shown.locator(FIGURE)).to_have_attribute("aria-label", re.compile("Pinned: N = 4096"))
    other = whole(opened, 1)
    expect(other.locator("[data-fa-pinned]")).to_contain_text("now 8192")
    assert drawn_dotted(other) > 0

    opened.reload()
    shown = whole(opened)
    expect(shown.locator("[data-fa-pinned]")).to_contain_text("Pinned: N = 4096 (now 8192).")
    assert drawn_dotted(shown) > 0
    expect(button(shown, "pin")).to_have_attribute("aria-pressed", "true")


def test_reset_goes_back_and_keeps_the_focus(opened: LabPage) -> None:
    shown = whole(opened)
    opened.type_into('[data-fa-knob="d"] input[type=text]', "many")
    expect(opened.page.locator('[data-fa-knob="d"] [role=alert]').first).not_to_be_empty()
    reset = button(shown, "reset")
    reset.focus()
    opened.page.keyboard.press("Space")
    expect(opened.page.locator('[data-fa-knob="N"]').first).to_have_attribute(
        "data-fa-value", "4096"
    )
    expect(opened.page.locator('[data-fa-knob="d"] [role=alert]').first).to_be_empty()
    expect(reset).to_be_focused()
    expect(shown.locator("[data-fa-pinned]")).to_contain_text(TEXT["pinned_same"])
    button(shown, "pin").press("Enter")
    expect(shown.locator("[data-fa-pinned]")).to_be_hidden()


def test_copy_puts_the_call_on_the_clipboard_or_into_a_field(opened: LabPage) -> None:
    shown, page = whole(opened), opened.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    figure = shown.locator(FIGURE)
    before = figure.get_attribute("data-fa-redraws") or ""
    opened.page.locator('[data-fa-choice="preset"] select').first.select_option("Path-X 16K")
    said = shown.locator(".falab-row > [role=status]")
    expect(figure).not_to_have_attribute("data-fa-redraws", before)
    button(shown, "copy").press("Enter")
    expect(said).to_contain_text('Copied: fa.ladder(N=16384, d=64, dtype="fp16", device="h200")')
    call = page.evaluate("navigator.clipboard.readText()")
    again: Any = eval(call, {"fa": fa})
    assert (again.setting.N, again.setting.d) == (16384, 64)
    slide(opened, "ArrowLeft")
    expect(said).to_be_hidden()  # it spoke of another call

    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(Error('no')) }")
    button(shown, "copy").press("Enter")
    field = said.locator("input")
    expect(field).to_be_focused()
    expect(field).to_have_value(re.compile(r"^fa\.ladder\(N=8192, "))
    chosen = field.evaluate("node => node.value.slice(node.selectionStart, node.selectionEnd)")
    assert chosen == field.input_value()
    expect(said).to_contain_text(TEXT["by_hand"])
    before = figure.get_attribute("data-fa-redraws") or ""
    button(shown, "reset").press("Enter")
    expect(figure).not_to_have_attribute("data-fa-redraws", before)


def test_it_fits_a_phone_a_projector_and_the_dark(opened: LabPage) -> None:
    shown, page = whole(opened), opened.page
    button(shown, "pin").press("Enter")
    slide(opened, "ArrowLeft")
    expect(shown.locator("[data-fa-pinned]")).to_contain_text("now 2048")
    small = float(button(shown, "pin").evaluate("n => parseFloat(getComputedStyle(n).fontSize)"))
    main = "document.getElementById('main').classList"
    page.evaluate(f"{main}.add('jp-mod-presentationMode')")
    large = float(button(shown, "pin").evaluate("n => parseFloat(getComputedStyle(n).fontSize)"))
    assert large > small >= 12
    page.evaluate(f"{main}.remove('jp-mod-presentationMode')")
    opened.command("application:toggle-left-area")
    for width in (700, 360):
        page.set_viewport_size({"width": width, "height": 900})
        shown = whole(opened)
        for part in (".falab-row", "[data-fa-pinned]"):
            fits = "node => node.scrollWidth <= node.clientWidth + 1"
            assert shown.locator(part).evaluate(fits), f"{part} is cut off at {width} px"
    opened.set_theme("JupyterLab Dark")
    pressed = button(whole(opened), "pin")
    colours = "n => [getComputedStyle(n).color, getComputedStyle(n).backgroundColor]"
    words, ground = (sum(map(int, re.findall(r"\d+", c)[:3])) for c in pressed.evaluate(colours))
    assert ground - words > 300, "a pressed button is light in the dark"
    opened.screenshot("row")
    assert not page.locator(f"{PANEL} .jp-mod-editMode").count(), "Lab took a key for itself"
