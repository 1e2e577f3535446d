"""The lower bound of 04 in a real browser: drawn, said, moved by keys, whole in the dark."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.lab import FIGURE, LabPage, check_whole

NOTEBOOK = "04_hbm_traffic.ipynb"
SENTENCE = "[data-fa-lower-bound]"


@pytest.fixture
def traffic(opened: Callable[[str], LabPage]) -> LabPage:
    return opened(NOTEBOOK)


def bound(lab: LabPage) -> Locator:
    lab.show(SENTENCE)
    shown = lab.page.locator(".jp-OutputArea-output", has=lab.page.locator(SENTENCE))
    expect(shown.locator(FIGURE)).not_to_have_attribute("data-fa-redraws", "0")
    return shown


def test_the_bound_is_drawn_and_follows_the_keys(traffic: LabPage) -> None:
    shown = bound(traffic)
    figure, sentence = shown.locator(FIGURE), shown.locator(SENTENCE)
    said = sentence.text_content() or ""
    assert "1.25 times the floor" in said
    assert (figure.get_attribute("aria-label") or "").startswith(said)
    check_whole(figure)
    slider = shown.locator('[data-fa-knob="N"] input[type=range]')
    slider.focus()
    slider.press("ArrowRight")
    expect(sentence).not_to_have_text(said)
    slider.press("ArrowLeft")
    expect(sentence).to_have_text(said)
    assert not traffic.page.locator(".jp-mod-editMode").count(), "Lab took a key for itself"


def test_the_laws_have_a_table_with_and_without_a_pattern(traffic: LabPage) -> None:
    traffic.show("[data-fa-table=theta]")
    tables = traffic.page.locator("[data-fa-table=theta]")
    expect(tables).to_have_count(2)
    expect(tables.nth(0)).to_contain_text("DRAM, by hardware counters")
    expect(tables.nth(1)).to_contain_text("local blocks")
