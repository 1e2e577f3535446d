"""The widgets of 05 in a real browser: source marked, figures drawn, moved by keys, dark."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from fa_kernels.figures import theme
from fa_kernels.figures.rungs import in_rung_order
from fa_kernels.widgets.text import labels
from tests.browser.lab import LabPage, drawn_and_told, output, text_of, view

NOTEBOOK = "05_kernel_ladder.ipynb"
#: The sentences of the widgets with a figure, from top to bottom.
MARKS = ("resources", "mix", "ladder", "speed", "peers", "roofline", "utilisation", "runs")


@pytest.fixture
def ladder(opened: Callable[[str], LabPage]) -> LabPage:
    return opened(NOTEBOOK)


def test_every_widget_draws_says_and_tells(ladder: LabPage) -> None:
    for mark in MARKS:
        shown = drawn_and_told(ladder, mark)
        if mark != "peers":  # folded away: its rows are put in when it is opened
            expect(shown.locator("table")).to_be_attached()
    ladder.show("[data-fa-table=compiled-check]")


def test_two_runs_are_compared_and_exchanged(ladder: LabPage) -> None:
    shown = view(ladder, "runs")
    sentence, note = shown.locator("[data-fa-runs]"), shown.locator(".falab-note").first
    first, second = (
        shown.locator(f'[data-fa-choice="{name}"] select') for name in ("first run", "second run")
    )
    one, other = (box.locator("option:checked").text_content() for box in (first, second))
    assert one and other and one != other
    older, newer = (words.split(" ")[0] for words in (one, other))
    expect(sentence).to_contain_text(f"Time of {older} over {newer}")
    expect(note).to_contain_text("20 to p80")
    first.select_option(label=other)
    expect(sentence).to_contain_text(f"Time of {newer} over {older}")
    shown.locator('[data-fa-choice="quantity"] select').select_option(label="counted bytes")
    expect(sentence).to_contain_text("median 1.000")
    assert not shown.locator("[data-fa-message]").count()
    shown.locator(".falab-fold summary").press("Enter")
    expect(shown.locator('[data-fa-table="runs-said"]')).to_contain_text("notes")
    assert not ladder.page.locator(".jp-mod-editMode").count(), "Lab took a key for itself"


def test_a_rung_is_chosen_and_read(ladder: LabPage) -> None:
    shown = output(ladder, "rung").first  # a section below has one of its own for 06
    sentence = shown.locator("[data-fa-rung]")
    for variant in in_rung_order():
        number = variant.kernel[:2]
        shown.locator('[data-fa-choice="rung"] select').select_option(
            label=f"{number} {variant.label}"
        )
        expect(sentence).to_contain_text(f"Rung {number}")
        expect(shown.locator(".falab-marked").first).to_be_visible()
    passes = labels("rung_reader")["passes"]
    shown.locator('[data-fa-choice="pass"] select').select_option(label=passes["bwd"])
    expect(sentence).to_contain_text("backward pass")
    shown.locator('[data-fa-choice="pass"] select').select_option(label=passes["fwd"])
    expect(sentence).not_to_contain_text("backward pass")
    shown.locator("summary").click()
    whole = shown.locator("details pre")
    expect(whole.locator(".falab-line").first).to_contain_text("1 // ")
    files = shown.locator('[data-fa-choice="file"] select')
    files.select_option(label="io.cuh")
    expect(whole).to_have_attribute("data-fa-source", "io.cuh")
    # Long lines scroll inside the box: the page itself must not become wider.
    box, page = whole.bounding_box(), shown.bounding_box()
    assert box and page and box["width"] <= page["width"]


def test_choices_and_keys_move_figure_and_sentence(ladder: LabPage) -> None:
    shown = view(ladder, "resources")
    table = shown.locator("table")
    before = text_of(table)
    shown.locator('[data-fa-choice="dtype"] select').select_option(label="fp32")
    expect(table).not_to_have_text(before)
    shown = view(ladder, "mix")
    sentence = shown.locator("[data-fa-mix]")
    said = text_of(sentence)
    parts = labels("instruction_mix")["parts"]
    shown.locator('[data-fa-choice="count"] select').select_option(label=parts["everything"])
    expect(sentence).not_to_have_text(said)
    shown = view(ladder, "speed")
    sentence, table = shown.locator("[data-fa-speed]"), shown.locator("table")
    said = text_of(sentence)
    masks = labels("speed")["masks"]
    shown.locator('[data-fa-choice="mask"] select').select_option(label=masks["causal"])
    expect(sentence).not_to_have_text(said)
    expect(table).to_contain_text(masks["causal"])
    passes = labels("speed")["passes"]
    shown.locator('[data-fa-choice="pass"] select').select_option(label=passes["bwd"])
    expect(sentence).to_contain_text("The backward pass of rung")
    shown = view(ladder, "peers")
    sentence, table = shown.locator("[data-fa-peers]"), shown.locator("table")
    expect(sentence).not_to_contain_text("Not timed")
    shown.locator('[data-fa-choice="dtype"] select').select_option(label="fp16")
    expect(sentence).to_contain_text("Not timed: fa3")
    fold = shown.locator("details.falab-fold").first
    expect(table).to_have_count(0)
    fold.locator("summary").first.click()
    expect(table).to_contain_text("refused")
    fold.locator("details summary").click()
    expect(fold.locator("code").first).to_be_visible()
    for long in (table, fold):
        box, page = long.bounding_box(), shown.bounding_box()
        assert box and page and box["x"] + box["width"] <= page["x"] + page["width"] + 1
        assert long.evaluate("node => node.scrollWidth <= node.clientWidth + 1"), "names cut off"
    for mark in ("ladder", "roofline", "utilisation"):
        shown = view(ladder, mark)
        sentence = shown.locator(f"[data-fa-{mark}]")
        said = text_of(sentence)
        slider = shown.locator('[data-fa-knob="N"] input[type=range]')
        slider.focus()
        slider.press("ArrowRight")
        expect(sentence).not_to_have_text(said)
        slider.press("ArrowLeft")
        expect(sentence).to_have_text(said)
    assert not ladder.page.locator(".jp-mod-editMode").count(), "Lab took a key for itself"


def test_bars_keep_their_colours_in_the_dark(ladder: LabPage) -> None:
    ladder.set_theme("JupyterLab Dark")
    shown = view(ladder, "mix")
    swatch = shown.get_by_text("■").nth(0)
    assert text_of(swatch)
    fills = shown.locator(".barlayer .point path").evaluate_all(
        "paths => paths.map((path) => getComputedStyle(path).fill)"
    )
    rgb = tuple(int(theme.INSTRUCTION_COLOURS["fp32"][i : i + 2], 16) for i in (1, 3, 5))
    assert f"rgb{rgb}" in fills
    words = shown.locator(".barlayer text").first
    ink = tuple(int(theme.ON_LIGHT[i : i + 2], 16) for i in (1, 3, 5))
    expect(words).to_have_css("fill", f"rgb{ink}")
    output(ladder, "rung")
    ladder.set_theme("JupyterLab Light")
