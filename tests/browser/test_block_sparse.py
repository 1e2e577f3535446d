"""The widgets of 07 in a real browser: drawn in by mouse and keys, undone, copied, readable."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from fa_kernels.figures import theme
from fa_kernels.figures.recorded_sparse import RecordedSparse
from fa_kernels.measure.maps import list_maps
from fa_kernels.measure.records import list_runs, load_run
from tests.browser.lab import LabPage, drawn_and_told, output, text_of, view

NOTEBOOK = "07_block_sparse.ipynb"
SENTENCE = "[data-fa-mask-editor]"


@pytest.fixture
def sparse(opened: Callable[[str], LabPage]) -> LabPage:
    return opened(NOTEBOOK)


def editor(lab: LabPage) -> Locator:
    shown = output(lab, "mask-editor")
    expect(shown.locator(".falab-mask-grid i")).to_have_count(256)
    shown.locator(".falab-mask").scroll_into_view_if_needed()
    return shown


def cell(shown: Locator, row: int, key: int) -> Locator:
    return shown.locator(f'[data-fa-cell="{row},{key}"]')


def rows(shown: Locator) -> str:
    return shown.locator("[data-fa-widget=mask-grid]").get_attribute("data-fa-rows") or ""


def test_every_widget_draws_says_and_tells(sparse: LabPage) -> None:
    for mark in ("sparse", "sparse-quality", "paper"):
        drawn_and_told(sparse, mark)
    for table in ("mask-editor", "sparse-speed", "paper-verdicts"):
        sparse.show(f"[data-fa-table={table}]")


def test_a_block_is_kept_by_a_click_and_a_row_by_a_drag(sparse: LabPage) -> None:
    shown, page = editor(sparse), sparse.page
    sentence = shown.locator(SENTENCE)
    expect(sentence).to_contain_text("64 of 256 blocks are kept")
    cell(shown, 0, 12).click()
    expect(sentence).to_contain_text("65 of 256 blocks are kept")
    expect(shown.locator("select").first).to_have_value("drawn by hand")
    first, last = (cell(shown, 15, key).bounding_box() for key in (0, 11))
    assert first and last
    page.mouse.move(first["x"] + 5, first["y"] + 5)
    page.mouse.down()
    page.mouse.move(last["x"] + 5, last["y"] + 5, steps=24)
    page.mouse.up()
    # Of row 15 the window kept the last four.
    expect(sentence).to_contain_text("77 of 256 blocks are kept")
    assert rows(shown).split()[15] == "#" * 16
    undo = shown.get_by_role("button", name="Undo")
    undo.click()
    expect(sentence).to_contain_text("65 of 256")
    undo.click()
    expect(sentence).to_contain_text("64 of 256")
    expect(undo).to_be_disabled()
    shown.get_by_role("button", name="Redo").click()
    expect(sentence).to_contain_text("65 of 256")
    shown.get_by_role("button", name="Reset").click()
    expect(sentence).to_contain_text("64 of 256")
    expect(shown.locator("select").first).to_have_value("local window")


def test_the_keyboard_alone_draws(sparse: LabPage) -> None:
    shown, page = editor(sparse), sparse.page
    sentence, grid = shown.locator(SENTENCE), shown.locator(".falab-mask-grid")
    grid.focus()
    for key in ("ArrowRight",) * 8 + ("Space",):
        page.keyboard.press(key)
    expect(sentence).to_contain_text("65 of 256")
    expect(shown.locator("[aria-live]")).to_have_text("row 0, keys 8: kept")
    for _ in range(3):  # faster than the kernel answers
        page.keyboard.press("Shift+ArrowRight")
    expect(sentence).to_contain_text("68 of 256")
    page.keyboard.press("ControlOrMeta+z")
    expect(sentence).to_contain_text("67 of 256")
    page.keyboard.press("ControlOrMeta+y")
    expect(sentence).to_contain_text("68 of 256")
    choice = shown.locator('[data-fa-choice="pattern"] select')
    choice.focus()
    choice.select_option(label="butterfly")
    expect(sentence).to_contain_text("64 of 256")
    slider = shown.locator('[data-fa-knob="density"] input[type=range]')
    slider.focus()
    slider.press("ArrowRight")
    expect(sentence).to_contain_text("96 of 256")
    assert not page.locator(".jp-mod-editMode").count(), "Lab took a key for itself"


def test_the_call_is_copied(sparse: LabPage) -> None:
    sparse.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    shown = editor(sparse)
    shown.get_by_role("button", name="Copy call").click()
    expect(shown.locator("[data-fa-copied]")).to_have_text("copied")
    copied = sparse.page.evaluate("() => navigator.clipboard.readText()")
    assert copied.startswith('mask = fa.BlockMask.pattern("local", 8192, 8192, 512, 512, 0.25)')


def test_kept_blocks_are_yellow_in_light_and_dark(sparse: LabPage) -> None:
    yellow = tuple(int(theme.TENSOR_COLOURS["p"][i : i + 2], 16) for i in (1, 3, 5))
    for name in ("JupyterLab Light", "JupyterLab Dark"):
        sparse.set_theme(name)
        shown = editor(sparse)
        expect(cell(shown, 0, 0)).to_have_css("background-color", f"rgb{yellow}")
    sparse.set_theme("JupyterLab Light")


def test_the_editor_fits_a_narrow_page(sparse: LabPage) -> None:
    sparse.page.set_viewport_size({"width": 700, "height": 900})
    shown = editor(sparse)
    box, grid = shown.bounding_box(), shown.locator(".falab-mask").bounding_box()
    assert box and grid and grid["x"] + grid["width"] <= box["x"] + box["width"] + 1


@pytest.mark.skipif(not list_runs(kind="sparse"), reason="no sparse run is recorded yet")
def test_the_recorded_times_are_turned(sparse: LabPage) -> None:
    assert RecordedSparse(load_run(list_runs(kind="sparse")[0])).run_id
    shown = view(sparse, "sparse")
    sentence = shown.locator("[data-fa-sparse]")
    expect(sentence).to_contain_text("Forward: with 1/")
    expect(shown.locator("[data-fa-table=sparse-goals]")).to_contain_text("met at")
    said = text_of(sentence)
    choice = shown.locator('[data-fa-choice="d"] select')
    choice.focus()
    choice.press("ArrowUp")
    expect(sentence).not_to_have_text(said)


@pytest.mark.skipif(not list_maps(), reason="no maps are recorded yet")
def test_another_head_is_another_map(sparse: LabPage) -> None:
    shown = view(sparse, "sparse-quality")
    sentence = shown.locator("[data-fa-sparse-quality]")
    said = text_of(sentence)
    choice = shown.locator('[data-fa-choice="head"] select')
    choice.focus()
    choice.press("ArrowDown")
    expect(sentence).not_to_have_text(said)
