"""The widgets of 06 in a real browser: drawn, moved by keys, honest, readable in the dark."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from fa_kernels.figures import theme
from fa_kernels.widgets.text import labels
from tests.browser.lab import LabPage, drawn_and_told, text_of, view

NOTEBOOK = "06_backward.ipynb"
#: The sentences of the widgets, from top to bottom.
MARKS = ("saved", "recompute", "gradients", "dropout", "speed")


@pytest.fixture
def backward(opened: Callable[[str], LabPage]) -> LabPage:
    return opened(NOTEBOOK)


def press(shown: Locator, knob: str, *keys: str) -> None:
    """Keys on the slider of a knob, found by its visible name."""
    slider = shown.locator(f'[data-fa-knob="{knob}"] input[type=range]')
    slider.focus()
    for key in keys:
        slider.press(key)


def test_every_widget_draws_says_and_tells(backward: LabPage) -> None:
    for mark in MARKS:
        drawn_and_told(backward, mark)
    for table in ("backward-check", "checkpointing", "step-times"):
        backward.show(f"[data-fa-table={table}]")


def test_the_keyboard_moves_memory_and_cost(backward: LabPage) -> None:
    for mark, knob in (("saved", "heads"), ("recompute", "N")):
        shown = view(backward, mark)
        sentence = shown.locator(f"[data-fa-{mark}]")
        said = text_of(sentence)
        press(shown, knob, "ArrowRight")
        expect(sentence).not_to_have_text(said)
        press(shown, knob, "ArrowLeft")
        expect(sentence).to_have_text(said)
    assert not backward.page.locator(".jp-mod-editMode").count(), "Lab took a key for itself"


def test_the_backward_at_full_speed_is_read_and_turned(backward: LabPage) -> None:
    backward.show("[data-fa-rung]")
    page = backward.page
    reader = page.locator(".jp-OutputArea-output", has=page.locator("[data-fa-rung]"))
    expect(reader.locator("[data-fa-rung]")).to_contain_text("Rung 05, backward pass")
    expect(reader.locator(".falab-marked").first).to_be_visible()
    size = page.viewport_size
    assert size
    page.set_viewport_size(
        {"width": 1000, "height": size["height"]}
    )  # code scrolls, the page does not
    box, inside = reader.bounding_box(), reader.locator(".falab-idea").first.bounding_box()
    assert box and inside and inside["width"] <= box["width"] + 1
    page.set_viewport_size(size)
    shown = view(backward, "speed")
    sentence, table = shown.locator("[data-fa-speed]"), shown.locator("table")
    expect(sentence).to_contain_text("With a deterministic dQ")
    choice = shown.locator('[data-fa-choice="pass"] select')
    choice.focus()
    choice.press("ArrowUp")  # the list has forward first
    expect(sentence).not_to_contain_text("With a deterministic dQ")
    expect(table).to_contain_text("4 N² d per head")
    choice.press("ArrowDown")
    expect(sentence).to_contain_text("With a deterministic dQ")
    assert not page.locator(".jp-mod-editMode").count(), "Lab took a key for itself"


def test_the_gradient_check_runs_on_enter_and_on_choice(backward: LabPage) -> None:
    shown = view(backward, "gradients")
    sentence, table = shown.locator("[data-fa-gradients]"), shown.locator("table")
    before = text_of(table)
    run = shown.get_by_role("button", name=labels("gradient_check")["run"])
    run.focus()
    run.press("Enter")
    expect(table).not_to_have_text(before)
    expect(sentence).to_contain_text("Passed")
    shown.locator("select").select_option(label="window (2, 1)")
    expect(table).to_contain_text("mask: window (2, 1)")
    box = shown.locator('[data-fa-knob="N"] input[type=text]')
    box.fill("9999")
    box.press("Enter")
    expect(shown.locator("[role=alert]").first).to_contain_text("9999")
    expect(sentence).to_contain_text("Passed")


def cells(shown: Locator) -> str:
    """The picture of the left mask as plotly drew it: one image, cell by cell."""
    image = shown.locator(".heatmaplayer image").first
    return str(image.evaluate("node => node.href.baseVal"))


def test_tiles_move_and_the_mask_stays_in_light_and_dark(backward: LabPage) -> None:
    shown = view(backward, "dropout")
    drawn, borders = cells(shown), shown.locator(".scatterlayer path.js-line")
    assert drawn.startswith("data:image")
    # 32 rows and keys: tiles of 8 × 16 have 5 + 3 borders, as have those of 16 × 8.
    expect(borders).to_have_count(16)
    press(shown, "B_r", "ArrowRight")  # tiles of 11 × 16, and of 16 × 11
    expect(borders).to_have_count(14)
    assert cells(shown) == drawn
    sentence = shown.locator("[data-fa-dropout]")
    said = text_of(sentence)
    press(shown, "seed", "ArrowRight")
    expect(sentence).not_to_have_text(said)
    backward.set_theme("JupyterLab Dark")
    swatch = view(backward, "dropout").get_by_text("■").nth(1)
    rgb = tuple(int(theme.DROPPED[i : i + 2], 16) for i in (1, 3, 5))
    expect(swatch).to_have_css("fill", f"rgb{rgb}")
    backward.set_theme("JupyterLab Light")
