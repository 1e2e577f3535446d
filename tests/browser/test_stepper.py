"""The stepper in a real browser: every way to step, editing, exactness, speed, the dark theme."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, expect

from fa_kernels.measure.ui import add_measured
from fa_kernels.widgets.stepper import (
    BLOCK_SIZES,
    LIMIT,
    PRESETS,
    VALUES,
    StepperCheck,
    check_steps,
)
from fa_kernels.widgets.text import labels
from tests.browser.lab import LabPage, check_whole

NOTEBOOK = "02_online_softmax.ipynb"
STEPPER = "[data-fa-widget=stepper]"
#: A frame at 60 Hz, for drawing one step: its layout is counted, its painting is not.
MAX_STEP_MS = 16
LAST = 21  # eight keys in blocks of two: start, four blocks of five operations, the division


@pytest.fixture
def stepper(opened: Callable[[str], LabPage]) -> LabPage:
    lab = opened(NOTEBOOK)
    lab.show(STEPPER)
    return lab


def root(lab: LabPage) -> Locator:
    return lab.page.locator(STEPPER)


def part(lab: LabPage, name: str) -> Locator:
    return lab.page.locator(f"{STEPPER} [data-fa-{name}]")


def at(lab: LabPage, step: int) -> None:
    expect(root(lab)).to_have_attribute("data-fa-step", str(step))


def score(lab: LabPage, number: int) -> str:
    return f'{STEPPER} [data-fa-score="{number}"]'


def choose(lab: LabPage, name: str, value: str) -> None:
    lab.page.locator(f"{STEPPER} select[data-fa-{name}]").select_option(value)


def test_keys_buttons_and_slider_step(stepper: LabPage) -> None:
    lab, press = stepper, stepper.page.keyboard.press
    root(lab).focus()
    at(lab, 0)
    for key, step in [
        ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", LAST), ("ArrowRight", LAST),
        ("Home", 0), ("ArrowLeft", 0), ("PageDown", 5), ("PageDown", 10), ("PageUp", 5),
    ]:  # fmt: skip
        press(key)
        at(lab, step)
    expect(root(lab)).to_have_css("outline-style", "solid")  # the focus can be seen
    for name, step in [("first", 0), ("forward", 1), ("forward", 2), ("back", 1), ("last", LAST)]:
        part(lab, f"do={name}").click()
        at(lab, step)
    lab.page.locator(f"{STEPPER} input[type=range]").focus()
    press("ArrowLeft")
    at(lab, LAST - 1)
    lab.page.locator(f"{STEPPER} input[type=range]").fill("7")
    at(lab, 7)
    assert not lab.page.locator(".jp-mod-editMode").count(), "Lab took a key for itself"


def test_space_plays_and_stops(stepper: LabPage) -> None:
    lab = stepper
    expect(root(lab)).to_have_attribute("data-fa-playing", "false")
    root(lab).focus()
    lab.page.keyboard.press(" ")
    expect(root(lab)).to_have_attribute("data-fa-playing", "true")
    at(lab, 1)
    at(lab, 2)
    lab.page.keyboard.press(" ")
    expect(root(lab)).to_have_attribute("data-fa-playing", "false")
    stopped = root(lab).get_attribute("data-fa-step")
    lab.page.wait_for_timeout(2000)
    assert root(lab).get_attribute("data-fa-step") == stopped
    # The button's own Space must not count twice.
    part(lab, "do=play").focus()
    lab.page.keyboard.press(" ")
    expect(root(lab)).to_have_attribute("data-fa-playing", "true")
    part(lab, "do=back").click()
    expect(root(lab)).to_have_attribute("data-fa-playing", "false")


def test_equation_code_sentence_and_table_move_together(stepper: LabPage) -> None:
    lab = stepper
    root(lab).focus()
    lines = {
        "max": "m_new", "alpha": "alpha", "p": "p ", "l": "l_i", "acc": "acc", "out": "out",
    }  # fmt: skip
    said = set()
    for step in range(1, LAST + 1):
        lab.page.keyboard.press("ArrowRight")
        at(lab, step)
        op = root(lab).get_attribute("data-fa-op") or ""
        current = lab.page.locator(f"{STEPPER} .fs-code .fs-now").first
        assert current.inner_text().strip().startswith(lines[op])
        equation = part(lab, "equation").locator("math")
        assert equation.count() >= 2 and equation.first.evaluate(
            "node => node instanceof MathMLElement && node.getBoundingClientRect().width > 40"
        )
        said.add(part(lab, "sentence").inner_text())
        cells = lab.page.locator(f"{STEPPER} .fs-state td.fs-now").count()
        assert cells == (0 if op == "p" else 1), op
    assert len(said) > 10


def numbers(lab: LabPage) -> dict[str, list[list[float]]]:
    """The state after each block, from the page, to the last bit."""
    rows: dict[str, list[str]] = root(lab).evaluate(
        """node => Object.fromEntries([...node.querySelectorAll("[data-fa-row]")].map(row =>
            [row.dataset.faRow, [...row.querySelectorAll("td")].slice(1)
                .map(cell => cell.dataset.value)]))"""
    )
    infinite = {"-Infinity": "-inf"}
    return {
        name: [[float(infinite.get(x, x)) for x in cell.split()] for cell in row]
        for name, row in rows.items()
    }


def test_the_page_computes_what_python_computes(stepper: LabPage) -> None:
    """Every preset, in float64: equal to `OnlineSoftmax` but for the last bits of exp."""
    lab = stepper
    for block_n, (name, scores) in itertools.product(BLOCK_SIZES, PRESETS.items()):
        choose(lab, "block", str(block_n))
        choose(lab, "preset", name)
        root(lab).focus()
        lab.page.keyboard.press("End")
        page = numbers(lab)
        want: StepperCheck = check_steps(np.array(scores), np.array(VALUES[:8]), block_n)
        assert np.array_equal(np.ravel(page["m"]), want.m), name
        for row, values in {
            "alpha": want.alpha, "l": want.l, "acc": want.acc, "out": want.out,
        }.items():  # fmt: skip
            got = np.array(page[row]).reshape(values.shape)
            assert got == pytest.approx(values, rel=1e-14, abs=1e-15), (name, row)


def test_every_step_of_every_preset_is_exact(stepper: LabPage) -> None:
    lab, worst = stepper, 0.0
    for name in PRESETS:
        choose(lab, "preset", name)
        root(lab).focus()
        at(lab, 0)
        for step in range(1, LAST + 1):
            lab.page.keyboard.press("ArrowRight")
            at(lab, step)
            seen: dict[str, Any] = dict(root(lab).evaluate("node => ({...node.dataset})"))
            if step < 5:
                assert "faDifference" not in seen
                continue
            difference = float(seen["faDifference"])
            worst = max(worst, difference)
            assert difference <= LIMIT and seen["faHolds"] == "true", (name, step)
            expect(part(lab, "check")).to_contain_text("limit 1e−14")
        finite = seen["faUnsafe"] != "NaN"
        assert finite == (name not in ("overflow", "masked_row")), name
        assert ("NaN" in part(lab, "fp16").inner_text()) != finite
    print(f"largest difference of acc / l from the softmax of the prefix: {worst:.1e}")


def test_steps_are_quick(stepper: LabPage) -> None:
    lab = stepper
    root(lab).focus()
    for _ in range(3):
        for key in ("Home", *["ArrowRight"] * LAST, *["ArrowLeft"] * LAST):
            lab.page.keyboard.press(key)
    seen = root(lab).evaluate("node => ({...node.dataset})")
    median, longest = float(seen["faStepMsMedian"]), float(seen["faStepMsMax"])
    print(f"step: median {median:.1f} ms, longest {longest:.1f} ms, of {seen['faSteps']}")
    add_measured(step_ms=median, step_ms_longest=longest)
    assert int(seen["faSteps"]) == 3 * (2 * LAST + 1)
    assert median < MAX_STEP_MS


def test_stepping_needs_no_kernel(stepper: LabPage) -> None:
    """While the kernel is busy every step is drawn, and nothing but the last place is sent."""
    lab, sent = stepper, []
    lab.page.evaluate(
        """() => { window.__sent = 0; const send = WebSocket.prototype.send;
        WebSocket.prototype.send = function (data) { window.__sent += 1;
            return send.call(this, data); }; }"""
    )
    lab.page.evaluate(
        """() => { const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session
        .kernel; kernel.requestExecute({ code: "import time; time.sleep(6)" }); }"""
    )
    busy = "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status"
    lab.page.wait_for_function(f"({busy})() === 'busy'")
    assert lab.page.evaluate(busy) == "busy"
    before = lab.page.evaluate("() => window.__sent")
    root(lab).focus()
    for step in range(1, LAST + 1):
        lab.page.keyboard.press("ArrowRight")
        at(lab, step)
        sent.append(lab.page.evaluate("() => window.__sent"))
    assert lab.page.evaluate(busy) == "busy"
    assert sent[-1] <= before + 1
    lab.wait_idle()


def test_edited_scores_are_drawn_and_reach_python(stepper: LabPage) -> None:
    lab = stepper
    root(lab).focus()
    lab.page.keyboard.press("End")
    before = part(lab, "row=out").inner_text()
    lab.type_into(score(lab, 3), "7.25")
    expect(part(lab, "row=out")).not_to_have_text(before)
    at(lab, LAST)
    lab.type_into(score(lab, 4), "-inf")
    expect(lab.page.locator(f"{STEPPER} .fs-masked")).to_have_count(1)
    expect(root(lab)).to_have_attribute("data-fa-cells", "0,0.5,7.25,-inf,2,2.5,3,3.5")
    expect(part(lab, "note")).to_contain_text("Your own scores")
    lab.press(score(lab, 1), "ArrowUp")
    expect(root(lab)).to_have_attribute("data-fa-cells", "0.5,0.5,7.25,-inf,2,2.5,3,3.5")
    lab.wait_idle()
    answer = lab.page.evaluate(
        """() => new Promise(resolve => {
            const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
            const future = kernel.requestExecute({
                code: "print(row.scores.tolist(), row.check().ok)" });
            future.onIOPub = message => {
                if (message.header.msg_type === "stream") resolve(message.content.text); };
        })"""
    )
    assert answer.strip() == "[0.5, 0.5, 7.25, -inf, 2.0, 2.5, 3.0, 3.5] True"
    part(lab, "do=reset").click()
    expect(root(lab)).to_have_attribute("data-fa-preset", "growing")


def test_a_bar_can_be_dragged(stepper: LabPage) -> None:
    lab = stepper
    bar = lab.page.locator(f"{STEPPER} .fs-scores .fs-bars > div").nth(1)
    bar.scroll_into_view_if_needed()
    box = bar.bounding_box()
    assert box is not None
    x, bottom = box["x"] + box["width"] / 2, box["y"] + box["height"]
    lab.page.mouse.move(x, bottom - 10)
    lab.page.mouse.down()
    lab.page.mouse.up()
    expect(root(lab)).to_have_attribute("data-fa-preset", "growing")  # a click changes nothing
    lab.page.mouse.down()
    lab.page.mouse.move(x, box["y"] + 30, steps=5)
    lab.page.mouse.up()
    expect(root(lab)).to_have_attribute("data-fa-preset", "")
    dragged = float((root(lab).get_attribute("data-fa-cells") or "").split(",")[1])
    assert 2.0 < dragged < 3.9
    expect(lab.page.locator(score(lab, 2))).to_have_value(f"{dragged:g}")


def test_a_bad_score_is_explained_and_loses_nothing(stepper: LabPage) -> None:
    lab, error = stepper, part(stepper, "error")
    cells = root(lab).get_attribute("data-fa-cells") or ""
    field = lab.page.locator(score(lab, 2))
    for typed, words in {
        "many": "is not a number", "": "is not a number", "inf": "is not a number",
        "NaN": "is not a number", "1,5": "is not a number", "1e9": "is out of range",
        "<b>": "<b>", "-1000.5": "is out of range",
    }.items():  # fmt: skip
        lab.type_into(score(lab, 2), typed)
        expect(field, typed).to_have_attribute("aria-invalid", "true")
        expect(error, typed).to_contain_text(words)
        expect(error).to_contain_text("-inf for a masked key")
        expect(root(lab)).to_have_attribute("data-fa-cells", cells)
    lab.press(score(lab, 2), "Escape")
    expect(field).to_have_value("0.5")
    expect(error).to_be_empty()
    lab.type_into(score(lab, 2), "1e1")
    expect(field).to_have_value("10")
    expect(field).to_have_attribute("aria-invalid", "false")


def test_presets_and_block_size_start_again(stepper: LabPage) -> None:
    lab = stepper
    root(lab).focus()
    lab.page.keyboard.press("End")
    choose(lab, "preset", "masked_block")
    at(lab, 0)
    expect(lab.page.locator(f"{STEPPER} .fs-masked")).to_have_count(5)
    for _ in range(2):
        part(lab, "do=forward").click()
    expect(part(lab, "sentence")).to_contain_text("nothing yet to rescale")
    choose(lab, "block", "4")
    expect(lab.page.locator(f"{STEPPER} input[type=range]")).to_have_attribute("max", "11")


@pytest.mark.fresh_page
def test_reload_keeps_the_scores(stepper: LabPage) -> None:
    lab = stepper
    lab.type_into(score(lab, 1), "6.5")
    cells = root(lab).get_attribute("data-fa-cells") or ""
    assert cells.startswith("6.5,")
    lab.wait_idle()
    lab.reload()
    lab.show(STEPPER)
    expect(root(lab)).to_have_attribute("data-fa-cells", cells)
    root(lab).focus()
    lab.page.keyboard.press("ArrowRight")
    at(lab, 1)


def contrast(colours: list[str]) -> float:
    """WCAG contrast of two "rgb(r, g, b)"."""
    lights = []
    for colour in colours:
        parts = [float(x) / 255 for x in re.findall(r"[\d.]+", colour)[:3]]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)
    return max(lights) / min(lights)


def test_words_can_be_read_in_both_themes(stepper: LabPage) -> None:
    lab = stepper
    choose(lab, "preset", "overflow")
    root(lab).focus()
    for key in ("End", "ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowLeft"):
        lab.page.keyboard.press(key)
    papers = set()
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        lab.set_theme(theme)
        paper = root(lab).evaluate("node => getComputedStyle(node).backgroundColor")
        papers.add(paper)
        for selector in (
            ".fs-sentence", ".fs-note", ".fs-at", ".fs-new span", ".fs-old span", ".fs-fp16",
            ".fs-check", ".fs-overflow span", ".fs-state td", ".fs-plane b",
        ):  # fmt: skip
            node = lab.page.locator(f"{STEPPER} {selector}").first
            colour = node.evaluate("node => getComputedStyle(node).color")
            assert contrast([colour, paper]) >= 4.5, (theme, selector, json.dumps([colour, paper]))
    assert len(papers) == 2


def test_nothing_is_cut_off_at_any_width(stepper: LabPage) -> None:
    """Inside the widget only the parts that scroll themselves are wider than it is."""
    lab = stepper
    for width, key in itertools.product((360, 800, 1440), ("Home", "PageDown", "End")):
        root(lab).evaluate("(node, width) => { node.style.width = `${width}px` }", width)
        root(lab).focus()
        lab.page.keyboard.press(key)
        over = root(lab).evaluate(
            """node => { const edge = node.getBoundingClientRect().right + 1;
            const scrolls = n => n !== node && (
                /auto|scroll/.test(getComputedStyle(n).overflowX) || scrolls(n.parentElement));
            return [...node.querySelectorAll("*")].filter(n =>
                n.getBoundingClientRect().width && n.getBoundingClientRect().right > edge
                && !scrolls(n)).map(n => n.className || n.tagName); }"""
        )
        assert not over, (width, key, over)


#: Parts that are wider inside than outside: what a reader must scroll to see.
SCROLLING = """node => [...node.querySelectorAll(".fs-equation, .fs-code, .fs-scroll")]
    .filter(n => n.scrollWidth > n.clientWidth + 1).map(n => n.className)"""


def overlap(lab: LabPage, first: str, second: str) -> list[str]:
    """Pairs of words that lie on each other."""
    found: list[str] = root(lab).evaluate(
        """(node, [first, second]) => {
            const words = s => [...node.querySelectorAll(s)].filter(n => n.textContent)
                .map(n => { const r = document.createRange(); r.selectNodeContents(n);
                    return [n, r.getBoundingClientRect()]; });
            return words(first).flatMap(([n, a]) => words(second)
                .filter(([m, b]) => m !== n
                    && Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
                    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2)
                .map(([m]) => `${n.textContent} | ${m.textContent}`)); }""",
        [first, second],
    )
    return found


@pytest.mark.parametrize("width", [1280, 1440])
def test_code_and_equations_are_whole_and_no_words_collide(stepper: LabPage, width: int) -> None:
    """With the file browser open, as JupyterLab opens it, in every step of every preset."""
    lab = stepper
    lab.page.set_viewport_size({"width": width, "height": 900})
    for name in PRESETS:
        choose(lab, "preset", name)
        root(lab).focus()
        for step in range(1, LAST + 1):
            lab.page.keyboard.press("ArrowRight")
            at(lab, step)
            where = (width, name, step)
            assert root(lab).evaluate(SCROLLING) == [], where
            alpha = ".fs-alpha"
            assert not overlap(lab, alpha, '[data-fa-title="terms"], .fs-terms b'), where
        lab.page.wait_for_timeout(400)  # bars grow, and their numbers with them
        assert not overlap(lab, ".fs-terms b", ".fs-terms b, .fs-sum"), name


def test_bars_too_low_to_be_seen_have_no_numbers(stepper: LabPage) -> None:
    choose(stepper, "preset", "overflow")
    root(stepper).focus()
    stepper.page.keyboard.press("End")
    numbers = stepper.page.locator(f"{STEPPER} .fs-terms b").all_inner_texts()
    assert numbers == ["", "", "", "", "0.14", "0.018", "1", "0.37"]


def test_errors_within_the_rounding_of_fp16_are_called_harmless(stepper: LabPage) -> None:
    """As soon as one of the two is larger than the last bit near 1, they are compared again."""
    lab, harmless = stepper, "Both are within fp16's rounding (its last bit is 1e−3 near 1)"
    for name in ("masked_block", "growing"):
        choose(lab, "preset", name)
        root(lab).focus()
        lab.page.keyboard.press("End")
        expect(part(lab, "fp16"), name).to_contain_text(harmless)
    for number in range(1, 9):  # where exp(s) is among fp16's smallest numbers
        lab.type_into(score(lab, number), f"{-13 - number / 10}")
    assert 2**-10 < float(root(lab).get_attribute("data-fa-unsafe") or "") < 1
    expect(part(lab, "fp16")).not_to_contain_text("rounding")
    choose(lab, "preset", "overflow")
    root(lab).focus()
    lab.page.keyboard.press("End")
    expect(part(lab, "fp16")).to_contain_text("NaN")


def test_errors_of_other_inputs_are_chosen_and_said(stepper: LabPage) -> None:
    """fa.numerics, at the end of the same notebook."""
    lab, mark = stepper, "[data-fa-numerics]"
    lab.show(mark)
    shown = lab.page.locator(".jp-OutputArea-output", has=lab.page.locator(mark))
    sentence, figure = shown.locator(mark), shown.locator("[data-fa-widget=live-figure]")
    expect(figure).not_to_have_attribute("data-fa-redraws", "0")
    kinds = labels("numerics")["kinds"]
    for name, words in (("outliers", "table 3"), ("rising", "rising scores")):
        shown.locator('[data-fa-choice="inputs"] select').select_option(label=kinds[name])
        expect(sentence).to_contain_text(words)
    check_whole(figure)
