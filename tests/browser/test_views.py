"""One widget on many screens: two views of it, a reload, phones to 4K, Presentation Mode, motion.

One notebook of two cells and one page for the whole file: starting them is what takes the time.
"""

from __future__ import annotations

from collections.abc import Iterator

import nbformat
import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.browser.conftest import Pages
from tests.browser.lab import BAD_WORDS, FIGURE, PATIENCE_MS, LabPage, LabServer

STEPPER = "[data-fa-widget=stepper]"
LAPTOP = {"width": 1440, "height": 1000}
CELLS = ("import fa_kernels as fa", "fa.explorer()", "fa.stepper()")


@pytest.fixture(scope="module")
def lab(browser: Browser, lab_server: LabServer, pages: Pages) -> Iterator[LabPage]:
    pages.close()  # its kernel would be stopped with ours, and the next test told of it
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in CELLS],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    nbformat.write(notebook, lab_server.folder / "views.ipynb")
    context = browser.new_context(viewport=LAPTOP)  # type: ignore[arg-type]
    context.set_default_timeout(PATIENCE_MS)
    lab = LabPage(context.new_page(), lab_server)
    lab.open("views.ipynb")
    lab.run_all()
    assert not lab.errors_in_cells()
    # As everybody does on a phone and on stage: it would leave no room.
    lab.command("application:toggle-left-area")
    yield lab
    context.close()
    lab_server.stop_kernels()
    lab.check_clean()


def in_notebook(lab: LabPage, selector: str) -> Locator:
    return lab.page.locator(f".jp-Notebook {selector}")


def settled(lab: LabPage, size: dict[str, int]) -> Locator:
    """The figure, drawn for a window of `size`."""
    lab.page.set_viewport_size(size)  # type: ignore[arg-type]
    lab.show(FIGURE)
    figure = in_notebook(lab, FIGURE)
    expect(figure).not_to_have_attribute("data-fa-redraws", "0")
    lab.page.wait_for_function(
        """node => { const svg = node.querySelector(".main-svg");
        return svg && svg.clientWidth >= node.clientWidth; }""",
        arg=figure.element_handle(),
    )
    lab.page.wait_for_timeout(400)
    return figure


def new_view(lab: LabPage, selector: str) -> Locator:
    """The output that holds `selector`, once more in a panel of its own, beside the notebook."""
    cell = lab.page.locator(".jp-Notebook .jp-CodeCell", has=lab.page.locator(selector)).first
    lab.show(selector)
    cell.locator(".jp-InputPrompt").click()
    lab.command("notebook:create-output-view")
    view = lab.page.locator(f".jp-LinkedOutputView {selector}")
    expect(view).to_be_visible()
    return view


def test_two_views_of_the_stepper_agree(lab: LabPage) -> None:
    beside = new_view(lab, STEPPER)
    here = in_notebook(lab, STEPPER)
    here.locator("[data-fa-do=last]").click()
    expect(beside).to_have_attribute("data-fa-step", "21")
    beside.focus()
    lab.page.keyboard.press("ArrowLeft")
    expect(here).to_have_attribute("data-fa-step", "20")
    beside.locator("[data-fa-preset]").select_option("falling")
    for view in (here, beside):
        expect(view).to_have_attribute("data-fa-preset", "falling")
        expect(view).to_have_attribute("data-fa-step", "0")
    beside.locator("[data-fa-do=forward]").click()
    expect(here).to_have_attribute("data-fa-step", "1")
    lab.page.locator(".lm-TabBar-tab.lm-mod-current .lm-TabBar-tabCloseIcon").last.click()


def test_two_views_of_the_explorer_agree(lab: LabPage) -> None:
    beside = new_view(lab, ".falab-explorer")
    said = in_notebook(lab, "[data-fa-sentence]").first
    slider = beside.locator('[data-fa-knob="N"] input[type=range]')
    slider.focus()
    slider.press("ArrowRight")
    expect(said).to_contain_text("N = 8192")
    expect(beside.locator("[data-fa-sentence]")).to_contain_text("N = 8192")
    lab.show(FIGURE)
    alts = [view.get_attribute("aria-label") for view in lab.page.locator(FIGURE).all()]
    assert len(alts) == 2
    assert alts[0] == alts[1]
    lab.page.locator(".lm-TabBar-tab.lm-mod-current .lm-TabBar-tabCloseIcon").last.click()
    expect(lab.page.locator(".jp-LinkedOutputView")).to_have_count(0)


def test_a_reload_of_the_page_keeps_setting_and_step(lab: LabPage) -> None:
    lab.show(STEPPER)
    in_notebook(lab, STEPPER).locator("[data-fa-do=last]").click()
    lab.page.wait_for_timeout(600)  # the step is sent when the reader rests
    lab.reload()
    lab.show(STEPPER)
    expect(in_notebook(lab, STEPPER)).to_have_attribute("data-fa-step", "21")
    expect(in_notebook(lab, STEPPER)).to_have_attribute("data-fa-preset", "falling")
    lab.show(FIGURE)
    expect(in_notebook(lab, "[data-fa-sentence]").first).to_contain_text("N = 8192")


@pytest.mark.parametrize("width", [360, 768, 1280, 3840])
def test_from_phones_to_4k_nothing_is_out_of_reach(lab: LabPage, width: int) -> None:
    """What is wider than the window scrolls in itself; the page never does."""
    high = 2160 if width > 3000 else 900
    figure = settled(lab, {"width": width, "height": high})
    inner, whole = figure.evaluate("node => [node.clientWidth, node.scrollWidth]")
    assert inner > 0.6 * width
    assert figure.get_attribute("tabindex") == ("0" if whole > inner else None)
    if whole == inner:
        assert figure.evaluate(BAD_WORDS) == []
    for selector in (".falab-explorer", STEPPER):
        lab.show(selector)
        out_of_reach = in_notebook(lab, selector).evaluate(
            """node => {
                const edge = node.closest(".jp-OutputArea").getBoundingClientRect().right + 1;
                return [...node.querySelectorAll("button, select, input, label")]
                    .filter(n => n.getBoundingClientRect().right > edge && n.offsetParent
                        && !n.closest(".fs-picture")).map(n => n.outerHTML.slice(0, 80)); }"""
        )
        assert out_of_reach == [], selector
    lab.page.set_viewport_size(LAPTOP)  # type: ignore[arg-type]


def test_presentation_mode_enlarges_all_there_is(lab: LabPage) -> None:
    """Labels, boxes, tables and the figure's own words; nothing of it is cut off."""
    size = {"width": 1920, "height": 1080}
    figure = settled(lab, size)
    letters = "node => parseFloat(getComputedStyle(node).fontSize)"
    words = figure.locator(".main-svg text").first
    watched = [".falab-knob", ".falab-choice select", ".falab-note", ".falab-sentence", "button"]
    found = [in_notebook(lab, f".falab-explorer {name}").first for name in watched]
    before = [one.evaluate(letters) for one in [*found, words]]
    mode = "() => window.jupyterapp.commands.execute('application:toggle-presentation-mode')"
    lab.page.evaluate(mode)
    try:
        lab.page.wait_for_timeout(600)
        after = [one.evaluate(letters) for one in [*found, words]]
        for name, old, new in zip([*watched, "words"], before, after, strict=True):
            assert new >= 1.25 * old, name
        for theme in ("Dark", "Light"):
            lab.set_theme(f"JupyterLab {theme}")
            lab.page.wait_for_timeout(400)
            assert figure.evaluate(BAD_WORDS) == []
            inner, whole = figure.evaluate("node => [node.clientWidth, node.scrollWidth]")
            assert inner == whole
    finally:
        lab.page.evaluate(mode)
        lab.page.set_viewport_size(LAPTOP)  # type: ignore[arg-type]


def test_who_wants_less_motion_gets_none(lab: LabPage) -> None:
    lab.show(STEPPER)
    moving = """node => [...node.querySelectorAll("*")].filter(n => {
        const style = getComputedStyle(n);
        return parseFloat(style.transitionDuration) > 0 || style.animationName !== "none";
    }).length"""
    stepper = in_notebook(lab, STEPPER)
    assert stepper.evaluate(moving) > 0, "else this test sees nothing"
    lab.page.emulate_media(reduced_motion="reduce")
    assert stepper.evaluate(moving) == 0
    lab.page.emulate_media(reduced_motion="no-preference")
