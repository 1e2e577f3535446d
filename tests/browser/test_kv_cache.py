"""The widgets of 08 in a real browser: drawn, stepped, played, chosen from, in both themes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from fa_kernels.model_shape import model_shape
from tests.browser.lab import FIGURE, LabPage, drawn_and_told, view

NOTEBOOK = "08_kv_cache.ipynb"
#: The sentences of the widgets, from top to bottom.
MARKS = ("regimes", "generation", "cache_memory", "split_kv", "fragmentation", "batching")


@pytest.fixture
def notebook(opened: Callable[[str], LabPage]) -> LabPage:
    return opened(NOTEBOOK)


def test_every_widget_draws_says_and_tells(notebook: LabPage) -> None:
    for mark in MARKS:
        shown = drawn_and_told(notebook, mark)
        expect(shown.locator("table")).to_be_attached()
    notebook.show("[data-fa-table=decode-check]")


def test_the_memory_is_stepped_by_keys_and_played(notebook: LabPage) -> None:
    shown = view(notebook, "fragmentation")
    sentence = shown.locator("[data-fa-fragmentation]")
    expect(sentence).to_contain_text("Step 24:")
    slider = shown.locator('[data-fa-knob="step"] input[type=range]')
    slider.focus()
    slider.press("ArrowRight")
    expect(sentence).to_contain_text("Step 25:")
    slider.press("ArrowLeft")
    expect(sentence).to_contain_text("Step 24:")
    shown.locator('[data-fa-choice="slots of a page"] select').select_option(label="128")
    expect(sentence).to_contain_text("in pages of 128")
    # From the left: play, pause or stop, repeat.
    shown.locator(".jupyter-widgets.widget-play button").first.click()
    expect(sentence).to_contain_text("Step 26:", timeout=10_000)
    assert not notebook.page.locator(".jp-mod-editMode").count(), "Lab took a key for itself"


def test_a_model_is_chosen_and_parts_are_turned(notebook: LabPage) -> None:
    shown = view(notebook, "cache_memory")
    name = model_shape("falcon-7b").name
    shown.locator('[data-fa-choice="model"] select').select_option(label=name)
    expect(shown.locator("[data-fa-cache_memory]")).to_contain_text(f"{name} keeps 8 KiB")
    shown = view(notebook, "split_kv")
    slider = shown.locator('[data-fa-knob="num_splits"] input[type=range]')
    slider.focus()
    slider.press("ArrowRight")
    expect(shown.locator("[data-fa-split_kv]")).to_contain_text("120 keys in 5 parts")
    equation = shown.locator("math[data-fa-equation=split-kv]")
    box = equation.bounding_box()
    assert box and box["height"] > 20, "the equation is not drawn"


def test_no_words_of_a_figure_overlap(notebook: LabPage) -> None:
    """Every word has a place of its own, also where the page is narrow."""
    for width in (1440, 1000):
        notebook.page.set_viewport_size({"width": width, "height": 1000})
        for mark in ("cache_memory", "fragmentation", "batching", "split_kv"):
            shown = view(notebook, mark)
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
