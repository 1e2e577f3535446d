"""The widgets of 01 in a real browser: drawn, moved by keys and lists, honest, dark."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from fa_kernels.device import device
from fa_kernels.figures import theme
from fa_kernels.figures.point import device_words
from tests.browser.lab import FIGURE, LabPage, drawn_and_told, text_of, view

NOTEBOOK = "01_memory_hierarchy.ipynb"
#: The sentences of the widgets, from top to bottom.
MARKS = ("levels", "fits", "roofline")


@pytest.fixture
def memory(opened: Callable[[str], LabPage]) -> LabPage:
    return opened(NOTEBOOK)


def test_every_widget_draws_says_and_tells(memory: LabPage) -> None:
    for mark in MARKS:
        shown = drawn_and_told(memory, mark)
        expect(shown.locator("table")).to_be_attached()
    memory.show("[data-fa-table=ceilings]")


def test_a_device_is_chosen_and_n_is_turned(memory: LabPage) -> None:
    other = device_words(device("a100-40gb"))
    shown = view(memory, "levels")
    shown.locator('[data-fa-choice="device"] select').select_option(label=other)
    expect(shown.locator("[data-fa-levels]")).to_contain_text(f"On the {other} all SMs together")
    shown = view(memory, "fits")
    sentence = shown.locator("[data-fa-fits]")
    said = text_of(sentence)
    slider = shown.locator('[data-fa-knob="N"] input[type=range]')
    slider.focus()
    slider.press("ArrowRight")
    expect(sentence).not_to_have_text(said)
    slider.press("ArrowLeft")
    expect(sentence).to_have_text(said)
    shown.locator('[data-fa-choice="device"] select').select_option(label=other)
    expect(sentence).to_contain_text(other)
    assert not memory.page.locator(".jp-mod-editMode").count(), "Lab took a key for itself"


def test_no_words_of_a_figure_overlap(memory: LabPage) -> None:
    """Every word of the two figures has a place of its own, also at the least width."""
    for width in (1440, 1000):
        memory.page.set_viewport_size({"width": width, "height": 1000})
        for mark in ("levels", "fits"):
            shown = view(memory, mark)
            boxes = shown.locator(f"{FIGURE} svg text").evaluate_all(
                """texts => texts.map(text => [text.textContent, text.getBoundingClientRect()])
                    .filter(([words, box]) => words.trim() && box.width)
                    .map(([words, box]) => [words, box.left, box.top, box.right, box.bottom])"""
            )
            assert len(boxes) > 10
            for i, (words, left, top, right, bottom) in enumerate(boxes):
                for other, x0, y0, x1, y1 in boxes[i + 1 :]:
                    apart = right <= x0 + 2 or x1 <= left + 2 or bottom <= y0 + 3 or y1 <= top + 3
                    assert apart, f"{mark} at {width} px: {words!r} and {other!r} overlap"


def test_bars_keep_their_colours_in_the_dark(memory: LabPage) -> None:
    memory.set_theme("JupyterLab Dark")
    shown = view(memory, "levels")
    fills = shown.locator(".barlayer .point path").evaluate_all(
        "paths => paths.map((path) => getComputedStyle(path).fill)"
    )
    rgb = tuple(int(theme.LEVEL_COLOURS["shared"][i : i + 2], 16) for i in (1, 3, 5))
    assert f"rgb{rgb}" in fills
    memory.set_theme("JupyterLab Light")
