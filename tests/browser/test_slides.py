"""The decks as a speaker opens them: from a folder, without a kernel, a server or a network."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from fa_kernels.figures import theme
from fa_kernels.present.command import write_handout, write_slides
from fa_kernels.present.printing import print_pdfs
from fa_kernels.session import session
from tests.browser.conftest import chromium_path
from tests.browser.lab import PATIENCE_MS

#: A projector's; a slide is as large.
PROJECTOR = {"width": 1920, "height": 1080}
#: px of the figures' smallest words, and what a hall can read.
WORDS, LEGIBLE = 12, 18
DARK_PAPER = "rgb(17, 17, 17)"
#: What is wrong with the slide in sight, in words.
FAULTS = """() => {
    const slide = Reveal.getCurrentSlide(), found = [], seen = (e) => e.getBoundingClientRect();
    for (const e of slide.querySelectorAll(".fa-slide *")) {
        if (e.closest("svg, math, .fa-drawing")) continue;
        const box = seen(e);
        if (box.width && (box.right > 1921 || box.bottom > 1081 || box.left < -1 || box.top < -1))
            found.push(`${e.tagName}.${e.className} leaves the slide`);
    }
    const main = slide.querySelector(".fa-main");
    if (main.scrollHeight > main.clientHeight + 1) found.push("more than fits under the title");
    for (const e of slide.querySelectorAll(".fa-slide math"))
        if (seen(e).width < 5 || seen(e).height < 5) found.push("a formula is not drawn");
    for (const e of slide.querySelectorAll(".fa-figure")) {
        const box = seen(e), svg = e.querySelector(".main-svg");
        if (!svg || seen(svg).width < 800 || seen(svg).height < 400) found.push("no figure");
        for (const text of e.querySelectorAll("text")) {
            const b = seen(text);
            if (b.width && (b.left < box.left - 2 || b.right > box.right + 2
                || b.top < box.top - 2 || b.bottom > box.bottom + 2))
                found.push(`cut off: ${text.textContent}`);
        }
    }
    return found;
}"""


@dataclass
class Deck:
    """An open page, and what it asked for and complained about."""

    page: Page
    folder: Path
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.context.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error" or message.text.startswith("WARN:"):
            self.errors.append(message.text)

    def open(self, name: str = "slides/talk45.html", query: str = "") -> None:
        self.page.goto((self.folder / name).as_uri() + query)
        self.page.wait_for_function("window.Reveal?.isReady()")

    def show(self, slide: str, fragments: bool = True) -> None:
        """Go to a slide, and wait until its figure is drawn."""
        self.page.evaluate(
            """([id, last]) => {
                const at = Reveal.getIndices(document.getElementById(id));
                Reveal.slide(at.h, at.v, last ? 99 : -1);
            }""",
            [slide, fragments],
        )
        self.wait_drawn()

    def wait_drawn(self) -> None:
        self.page.wait_for_function(
            """() => [...Reveal.getCurrentSlide().querySelectorAll("[data-fa-figure]")]
                .every((el) => el.dataset.faDrawn)"""
        )

    def check_clean(self) -> None:
        left = [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))]
        assert not left, f"requests that leave the folder: {left}"
        assert not self.errors, f"errors in the console: {self.errors}"


@pytest.fixture(scope="session")
def present_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, used = tmp_path_factory.mktemp("present"), session("numpy")
    write_slides(folder / "slides", used)
    write_handout(folder / "handout", used)
    return folder


@pytest.fixture
def deck(browser: Browser, present_folder: Path) -> Iterator[Deck]:
    context = browser.new_context(viewport=PROJECTOR)  # type: ignore[arg-type]
    context.set_default_timeout(PATIENCE_MS)
    opened = Deck(context.new_page(), present_folder)
    yield opened
    context.close()
    opened.check_clean()


@pytest.mark.parametrize(("name", "theme"), [("talk20", "light"), ("talk45", "dark")])
def test_every_slide_is_whole(deck: Deck, name: str, theme: str) -> None:
    deck.open(f"slides/{name}.html", f"?theme={theme}")
    slides: list[str] = deck.page.evaluate("Reveal.getSlides().map((slide) => slide.id)")
    faults, kept = {}, os.environ.get("SCREENSHOT_DIR")
    for number, slide in enumerate(slides, 1):
        deck.show(slide)
        faults[slide] = deck.page.evaluate(FAULTS)
        for scale in figure_scales(deck):
            assert scale * WORDS >= LEGIBLE, f"{slide}: words of {scale * WORDS:.1f} px"
        if kept:
            Path(kept).mkdir(parents=True, exist_ok=True)
            deck.page.screenshot(path=f"{kept}/{name}-{theme}-{number:02}-{slide}.png")
    assert not {slide: found for slide, found in faults.items() if found}


def figure_scales(deck: Deck) -> list[float]:
    found: list[str] = deck.page.evaluate(
        """() => [...Reveal.getCurrentSlide().querySelectorAll("[data-fa-figure]")]
            .map((el) => el.dataset.faScale)"""
    )
    return [float(scale) for scale in found]


def test_a_question_comes_before_its_figure(deck: Deck) -> None:
    deck.open()
    deck.show("traffic", fragments=False)
    figure = deck.page.locator("#traffic .fa-figure")
    expect(deck.page.locator("#traffic .fa-ask")).to_be_visible()
    expect(figure).not_to_be_visible()
    deck.page.keyboard.press("ArrowRight")
    expect(figure).to_be_visible()
    assert current(deck) == "traffic"


def current(deck: Deck) -> str:
    return str(deck.page.evaluate("Reveal.getCurrentSlide().id"))


def test_hatched_bars_have_their_colour_behind_the_hatching(deck: Deck) -> None:
    """As plotly.js draws them: the spec alone does not say it."""
    deck.open()
    deck.show("generation")
    behind = deck.page.evaluate(
        """() => [...document.querySelectorAll("#generation pattern rect")].map((rect) => {
            const [r, g, b] = getComputedStyle(rect).fill.match(/\\d+/g).map(Number);
            return "#" + [r, g, b].map((x) => x.toString(16).padStart(2, "0")).join("");
        })"""
    )
    assert {colour.upper() for colour in behind} == {theme.style_of(name).colour for name in
            ("flash_q_outer", "torch_eager")}  # fmt: skip


@pytest.mark.parametrize("slide", ["what-fits", "explorer", "explorer-sram", "lower-bound"])
def test_a_slider_moves_figure_and_sentence(deck: Deck, slide: str) -> None:
    deck.open()
    deck.show(slide)
    said, drawn = words_and_figure(deck, slide)
    figure = deck.page.locator(f"#{slide} .fa-figure")
    before = figure.get_attribute("data-fa-drawn")
    deck.page.locator(f"#{slide} input[type=range]").focus()
    deck.page.keyboard.press("ArrowRight")
    expect(figure).not_to_have_attribute("data-fa-drawn", str(before))
    now = words_and_figure(deck, slide)
    assert current(deck) == slide
    assert now[0] != said and now[1] != drawn
    assert not deck.page.evaluate(FAULTS)


def words_and_figure(deck: Deck, slide: str) -> tuple[str, str]:
    shown = deck.page.locator(f"#{slide}")
    figure = shown.locator(".fa-figure .main-svg").first
    return shown.locator(".fa-sentence").inner_text(), str(figure.inner_html())


def test_keys_go_back_to_the_deck_beside_a_slider(deck: Deck) -> None:
    deck.open()
    deck.show("explorer")
    deck.page.locator("#explorer input[type=range]").focus()
    deck.page.locator("#explorer h2").click()
    deck.page.keyboard.press("ArrowLeft")
    assert current(deck) != "explorer"


def test_the_stepper_steps_without_a_kernel(deck: Deck) -> None:
    deck.open()
    deck.show("stepper")
    stepper = deck.page.locator("#stepper [data-fa-widget=stepper]")
    before = stepper.locator(".fs-state").inner_text()
    for _ in range(5):
        stepper.locator("[data-fa-do=forward]").click()
    assert stepper.locator(".fs-state").inner_text() != before
    assert stepper.get_attribute("data-fa-steps") == "5"
    expect(stepper).to_have_attribute("data-fa-step", "5")
    stepper.locator("[data-fa-preset]").select_option("falling")
    expect(stepper).to_have_attribute("data-fa-step", "0")
    assert stepper.get_attribute("data-fa-preset") == "falling"
    assert current(deck) == "stepper" and not deck.page.evaluate(FAULTS)


def test_d_turns_the_deck_dark_and_back(deck: Deck) -> None:
    deck.open()
    deck.show("speed")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = deck.page.evaluate(paper)
    figure = deck.page.locator("#speed .fa-figure")
    deck.page.keyboard.press("d")
    deck.page.wait_for_function(
        "document.querySelector('#speed .fa-figure').dataset.faDrawn.endsWith('true')"
    )
    assert deck.page.evaluate(paper) == DARK_PAPER != light
    assert "#ECECEC" in figure.inner_html() or "rgb(236, 236, 236)" in figure.inner_html()
    deck.page.keyboard.press("d")
    assert deck.page.evaluate(paper) == light


def test_figures_answer_the_mouse(deck: Deck) -> None:
    deck.open()
    deck.show("speed")
    mark = deck.page.locator("#speed .fa-figure .scatterlayer .points path").nth(3)
    box = mark.bounding_box()
    assert box is not None
    deck.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    hover = deck.page.locator("#speed .fa-figure .hovertext")
    hover.first.wait_for()
    at = hover.first.bounding_box()
    assert at is not None and abs(at["x"] - box["x"]) < 500  # beside the mark, although scaled


def test_the_speaker_view_opens_offline(deck: Deck) -> None:
    deck.open()
    deck.show("levels")
    with deck.page.expect_popup() as popup:
        deck.page.keyboard.press("s")
    notes = popup.value.locator(".speaker-controls-notes .value")
    popup.value.wait_for_function(
        "document.querySelector('.speaker-controls-notes .value')?.innerText.includes('SRAM')"
    )
    assert re.search(r"Time \d+:\d\d to \d+:\d\d", notes.inner_text())
    assert popup.value.locator("iframe").count() == 2


def test_a_deck_prints_a_page_for_each_slide(
    present_folder: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROWSER_PATH", str(chromium_path()))
    page = present_folder / "slides/talk20.html"
    (pdf,) = print_pdfs({page: "?print-pdf"}).values()
    written = pdf.read_bytes()
    slides = page.read_text(encoding="utf-8").count("<section ")
    assert len(re.findall(rb"/Type /Page\b(?!s)", written)) == slides
    boxes = {
        tuple(map(float, box.split())) for box in re.findall(rb"/MediaBox \[([^\]]+)", written)
    }
    ((_, _, width, height),) = boxes
    assert width / height == pytest.approx(16 / 9, abs=1e-3)
    assert b"LiberationSans" in written and b"/FontFile2" in written


def test_the_handout_is_drawn(deck: Deck) -> None:
    deck.page.goto((deck.folder / "handout/handout.html").as_uri())
    deck.page.wait_for_function("document.documentElement.dataset.faReady === 'true'")
    figures = deck.page.locator(".fa-figure")
    assert figures.count() > 15
    for at in range(figures.count()):
        box = figures.nth(at).bounding_box()
        svg = figures.nth(at).locator(".main-svg").first.bounding_box()
        assert (
            box
            and svg
            and box["height"] > 150
            and svg["width"] == pytest.approx(box["width"], 0.01)
        )
    lost = deck.page.evaluate(
        """() => [...document.querySelectorAll(".fa-figure text")]
            .filter((t) => t.textContent.trim() && !t.getBoundingClientRect().width)
            .map((t) => t.textContent)"""
    )
    assert not lost
    assert deck.page.locator("math").count() > 20
    # No wider than its column: a browser prints what is wider at a smaller size.
    deck.page.set_viewport_size({"width": 650, "height": 1000})
    assert deck.page.evaluate("document.documentElement.scrollWidth") <= 650
