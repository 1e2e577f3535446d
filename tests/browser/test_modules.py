"""The widgets' modules by themselves, on an empty page: no JupyterLab, no kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from fa_kernels.widgets.live_figure import SCRIPTS, STATIC, LiveFigure

#: A page of a server that is reached by http under another name than localhost: what exists in
#: secure contexts only, as crypto.randomUUID, is not there.
PLAIN = "http://gpu-box.example/"
#: Each widget has a module of its own, loaded anew: here one function body for each.
RENDER = """
([source, traits]) => {
  const el = document.createElement("div");
  document.body.append(el);
  const module = new Function(source.replace("export default { render };", "return render;"));
  const model = { get: (name) => traits[name], set() {}, save_changes() {}, send() {}, on() {} };
  module()({ model, el });
}
"""
#: Every block takes its slice of the scores: a loop without end fails instead of hanging the test.
ENDS = """
  const [scores, values] = [[1, 2, 3], [[0, 0], [0, 0], [0, 0]]];
  let taken = 0;
  scores.slice = function (...ends) {
    if (++taken > 9) throw new Error("a loop without end");
    return Array.prototype.slice.apply(this, ends);
  };
"""
KNOB = {
    "label": "N",
    "description": "length",
    "unit": "",
    "values": [1, 2],
    "value": 1,
    "error": "",
}
_EMPTY = {"data": [], "layout": {"height": 300}}
LIVE = {  # all of it: a script that reads a trait which a list here lacks would only break the test
    name: value
    for name, value in LiveFigure(alt="what it shows", spec=_EMPTY).get_state().items()
    if not name.startswith("_") and name not in ("layout", "tabbable", "tooltip")
}
CHOICE = {"label": "dtype", "texts": ["fp16", "bf16"], "index": 0, "disabled": False}


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    context.set_default_timeout(10_000)
    page = context.new_page()
    page.route("**", lambda route: route.fulfill(body="<!doctype html>", content_type="text/html"))
    page.goto(PLAIN)
    yield page
    context.close()


def source(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def test_controls_work_without_a_secure_context(page: Page) -> None:
    assert page.evaluate("[isSecureContext, typeof crypto.randomUUID]") == [False, "undefined"]
    for name, traits in (("knob.js", KNOB), ("choice.js", CHOICE)) * 2:
        page.evaluate(RENDER, [source(name), traits])
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((node) => node.id)")
    assert len(ids) == len(set(ids)) == 6  # two of each kind; a knob has two
    for i, focusable in ((0, "input[type=range]"), (1, "select"), (2, "input[type=range]")):
        widget = page.locator("body > div").nth(i)
        widget.locator("label").click()
        expect(widget.locator(focusable)).to_be_focused()


@pytest.mark.parametrize("size", ["0", "-1", "NaN", "undefined", "0.5", "1"])
def test_a_block_of_no_keys_does_not_hang_the_page(page: Page, size: str) -> None:
    script = f"{source('stepper_steps.js')} {ENDS} return blocksOf(scores, values, {size});"
    blocks = page.evaluate("(body) => new Function(body)()", script)
    assert [(block["from"], block["to"]) for block in blocks] == [(0, 1), (1, 2), (2, 3)]


#: A figure whose kernel answers when the test calls `answer`; `asked` counts its questions.
LATE = """
([source, traits]) => {
  const el = document.createElement("div");
  el.style.width = "900px";
  document.body.append(el);
  const module = new Function(source.replace("export default { render };", "return render;"));
  let listener = null;
  window.asked = 0;
  const model = { get: (name) => traits[name], set() {}, save_changes() {}, off() {},
    send() { window.asked += 1; },
    on(name, call) { if (name === "msg:custom") listener = call; } };
  const drawing = `window.Plotly = { purge() {}, react: async (place) => {
    place.innerHTML = "<svg class='main-svg'></svg>"; } };`;
  window.answer = () => listener({ have: "plotly.js" }, [new TextEncoder().encode(drawing)]);
  module()({ model, el });
}
"""


def test_a_figure_waits_for_a_busy_kernel_and_asks_again(page: Page) -> None:
    page.clock.install()
    page.evaluate(LATE, ["\n".join(source(name) for name in SCRIPTS), LIVE])
    figure = page.locator("[data-fa-widget=live-figure]").last
    expect(figure).to_have_text("what it shows")
    assert page.evaluate("window.asked") == 1
    page.clock.run_for(70_000)
    expect(figure).to_contain_text("Not drawn yet: the kernel has not answered.")
    assert page.evaluate("window.asked") == 3
    page.evaluate("window.answer()")
    expect(figure.locator(".main-svg")).to_have_count(1)
    expect(figure).not_to_contain_text("Not drawn yet")
    page.clock.run_for(70_000)
    assert page.evaluate("window.asked") == 3, "who has it asks no more"
