"""The table of claims in a real browser: filtered by keys, scrolled by keys, linked, readable."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from fa_kernels.measure.claim_tests.judged import FAILS, LIMITED
from fa_kernels.measure.claims import load_claims
from tests.browser.lab import PANEL, LabPage

NOTEBOOK = "00_start_here.ipynb"
#: WCAG 2 for text of normal size.
CONTRAST = 4.5
CONTRAST_OF = """
node => {
  const light = (rgb) => {
    const [r, g, b] = rgb.match(/[0-9.]+/g).map((x) => x / 255)
      .map((x) => (x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let behind = node;
  while (/rgba\\(0, 0, 0, 0\\)|transparent/.test(getComputedStyle(behind).backgroundColor)) {
    behind = behind.parentElement;
  }
  const of = [getComputedStyle(node).color, getComputedStyle(behind).backgroundColor].map(light);
  return (Math.max(...of) + 0.05) / (Math.min(...of) + 0.05);
}
"""


@pytest.fixture
def start(opened: Callable[[str], LabPage]) -> LabPage:
    lab = opened(NOTEBOOK)
    lab.show("[data-fa-claims]")
    return lab


def rows(lab: LabPage) -> Locator:
    return lab.page.locator("[data-fa-claim]")


def test_filters_by_keys(start: LabPage) -> None:
    expect(rows(start)).to_have_count(len(load_claims()))
    sentence = start.page.locator("[data-fa-claims]")
    expect(sentence).to_contain_text(f"{len(load_claims())} claims")
    verdict = start.page.locator('[data-fa-choice="verdict"] select')
    verdict.focus()
    for _ in range(3):
        verdict.press("ArrowDown")  # the list has all, holds, with a limit, not as stated
    expect(sentence).to_have_text(re.compile(r"^\d+ claims?: \d+ do(es)? not hold as stated\.$"))
    expect(rows(start)).to_have_count(int((sentence.text_content() or "").split()[0]))
    for one in rows(start).all():
        expect(one.locator("td").first).to_contain_text(FAILS)
    verdict.press("ArrowUp")
    expect(rows(start).first.locator("td").first).to_contain_text(LIMITED)
    assert not start.page.locator(".jp-mod-editMode").count(), "Lab took a key for itself"


def test_the_table_scrolls_by_keys_and_keeps_its_heads(start: LabPage) -> None:
    region = start.page.locator(".falab-claims")
    selected = start.page.locator(f"{PANEL} .jp-Cell.jp-mod-selected")
    region.focus()
    before = selected.count() and selected.first.get_attribute("data-windowed-list-index")
    for _ in range(5):
        region.press("PageDown")
    start.page.wait_for_function("document.querySelector('.falab-claims').scrollTop > 500")
    after = selected.count() and selected.first.get_attribute("data-windowed-list-index")
    assert before == after, "Lab took the keys for itself"
    box, head = region.bounding_box(), region.locator("thead th").first.bounding_box()
    assert box and head and abs(box["y"] - head["y"]) < 3
    assert region.evaluate("node => node.scrollWidth <= node.clientWidth"), "it scrolls sideways"


def test_a_link_opens_the_notebook(start: LabPage) -> None:
    link = rows(start).first.locator("a")
    with start.page.context.expect_page() as opened:
        link.click()
    page = opened.value
    page.wait_for_url(re.compile(r"/lab.*05_kernel_ladder\.ipynb"))
    page.locator(f'{PANEL}[id]:has-text("The kernel ladder")').first.wait_for()
    page.close()


def test_signs_and_words_can_be_read_in_both_themes(start: LabPage) -> None:
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        start.set_theme(theme)
        start.show("[data-fa-claims]")
        for css in ("holds", "limited", "fails", "untested"):
            sign = start.page.locator(f".falab-claims .falab-verdict-{css}").first
            assert sign.evaluate(CONTRAST_OF) >= CONTRAST, (theme, css)
        for place in (".falab-claim-said", "tbody td", "a", "thead th"):
            shown = start.page.locator(f".falab-claims {place}").first
            assert shown.evaluate(CONTRAST_OF) >= CONTRAST, (theme, place)
