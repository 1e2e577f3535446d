"""A JupyterLab server of our own, and one page of it as a reader uses it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from playwright.sync_api import (
    ConsoleMessage,
    Locator,
    Page,
    Request,
    ViewportSize,
    WebSocket,
    expect,
)

ROOT = Path(__file__).resolve().parents[2]

#: --no-sandbox: Chromium refuses its sandbox as root. The rest keeps the browser's own traffic
#: (updates, sync, QUIC) out of the test, and makes every host but this machine "not found", so
#: that a request to the outside fails instead of passing where there happens to be a network.
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
]

#: Console errors that are not ours, each with the reason why it may pass.
ALLOWED_CONSOLE_ERRORS: list[tuple[re.Pattern[str], str]] = []

SETTINGS = {
    # No pop-up about news over the page, and no request for it.
    "@jupyterlab/apputils-extension/notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
    },
    # Saving is part of what a test does, never something that happens meanwhile.
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
}

FIGURE = "[data-fa-widget=live-figure]"
#: Words of a figure that are cut off at its edge, or lie on others.
BAD_WORDS = """figure => {
  const edge = figure.getBoundingClientRect(), bad = [];
  const all = [...figure.querySelectorAll(".main-svg text")].flatMap(node => {
    const lines = [...node.querySelectorAll("tspan.line")];
    return (lines.length ? lines : [node]).map(n => [n.textContent, n.getBoundingClientRect()]);
  }).filter(([text, r]) => text.trim() && r.width);
  all.forEach(([text, a], i) => {
    if (a.left < edge.left || a.right > edge.right + 1) bad.push(`cut: ${text}`);
    for (const [other, b] of all.slice(i + 1)) {
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 1 && high > 4) bad.push(`${text} | ${other}`);
    }
  });
  return bad;
}"""
#: The notebook in front, and the part of it that scrolls.
PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"
SCROLLED = f"{PANEL} .jp-WindowedPanel-outer"

#: Waits, inside the page, until the notebook's height has been the same for a few frames.
SETTLED = """node => new Promise((resolve) => {
    const start = performance.now();
    let [height, frames] = [-1, 0];
    const look = () => {
        frames = node.scrollHeight === height ? frames + 1 : 0;
        height = node.scrollHeight;
        if (frames > 4 || performance.now() - start > 2000) resolve();
        else requestAnimationFrame(look);
    };
    look();
})"""

#: The window in which a projector or a laptop would show a notebook.
VIEWPORT: ViewportSize = {"width": 1440, "height": 1000}
#: How long a page may take to do what a test waits for, in ms. A machine with two busy cores is
#: many times slower than a laptop; who measures time says so itself.
PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS / 2)
LIGHT = "JupyterLab Light"

START_SECONDS = 60
#: A notebook may run 20 s on a laptop, and CI is slower than a laptop.
RUN_SECONDS = 120


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class LabServer:
    """Where a running JupyterLab serves `folder`."""

    url: str
    token: str
    folder: Path

    def stop_kernels(self) -> None:
        """End every kernel: they would outlive the page that started them and fill the memory."""
        for session in json.loads(self._api("GET", "sessions")):
            self._api("DELETE", f"sessions/{session['id']}")

    def _api(self, method: str, path: str) -> bytes:
        request = urllib.request.Request(
            f"{self.url}/api/{path}",
            method=method,
            headers={"Authorization": f"token {self.token}"},
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return bytes(answer.read())

    def page_url(self, notebook: str) -> str:
        return f"{self.url}/lab/tree/{quote(notebook)}?token={self.token}&reset"


@contextlib.contextmanager
def running_lab(folder: Path, private: Path) -> Iterator[LabServer]:
    """JupyterLab on a free port, serving `folder`, with its settings and log in `private`.

    Nothing of the user's own Jupyter configuration is read or written.
    """
    for plugin, values in SETTINGS.items():
        path = private / "settings" / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values), encoding="utf-8")
    token, port = secrets.token_hex(16), free_port()
    server = LabServer(f"http://127.0.0.1:{port}", token, folder)
    command = [
        *(sys.executable, "-m", "jupyter", "lab", "--no-browser", "--ip=127.0.0.1"),
        f"--port={port}",
        "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={folder}",
        f"--IdentityProvider.token={token}",
        f"--LabApp.user_settings_dir={private / 'settings'}",
        f"--LabApp.workspaces_dir={private / 'workspaces'}",
        # The command registry: `notebook:run-all-cells` is steadier than a path through menus.
        "--LabApp.expose_app_in_browser=True",
        *(["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),  # this checkout, whatever is installed
        "JUPYTER_CONFIG_DIR": str(private / "config"),
        "JUPYTER_DATA_DIR": str(private / "data"),
        "JUPYTER_RUNTIME_DIR": str(private / "runtime"),
        "IPYTHONDIR": str(private / "ipython"),
    }
    log = private / "jupyterlab.log"
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, cwd=folder
        )
        try:
            wait_until_up(server, process, log)
            yield server
        finally:
            process.terminate()  # JupyterLab ends its kernels on SIGTERM
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until_up(server: LabServer, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(f"{server.url}/api?token={server.token}", timeout=5).close()
            return
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text(encoding='utf-8')[-3000:]}")


@dataclass
class LabPage:
    """One browser page with a notebook in it, and everything that went wrong on it."""

    page: Page
    server: LabServer
    requests: list[str] = field(default_factory=list)
    console_errors: list[str] = field(default_factory=list)
    #: How often all cells have been run; one kernel holds the widgets of every time.
    runs: int = 0
    #: Neither saved nor reloaded: running all cells again brings back the state of the first time.
    is_as_opened: bool = True

    def __post_init__(self) -> None:
        self.page.on("request", self._on_request)
        self.page.on("websocket", self._on_websocket)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.console_errors.append(str(error)))

    # -- what the page did ---------------------------------------------------------------------

    def _on_request(self, request: Request) -> None:
        self.requests.append(request.url)

    def _on_websocket(self, socket: WebSocket) -> None:
        self.requests.append(socket.url)

    def _on_console(self, message: ConsoleMessage) -> None:
        # plotly.js says by console.trace what it was given and does not understand.
        if message.type == "error" or message.text.startswith("WARN:"):
            place = message.location.get("url", "")
            self.console_errors.append(f"{message.text} ({place})")

    def requests_to_elsewhere(self) -> list[str]:
        """Requests that would have left this machine, each once."""
        local = {"data", "blob", "about", "chrome-error"}
        parts = ((url, urlsplit(url)) for url in sorted(set(self.requests)))
        return [
            url for url, part in parts if part.scheme not in local and part.hostname != "127.0.0.1"
        ]

    def unexpected_console_errors(self) -> list[str]:
        allowed = [pattern for pattern, _ in ALLOWED_CONSOLE_ERRORS]
        return [
            text for text in self.console_errors if not any(known.search(text) for known in allowed)
        ]

    def check_clean(self, when: str = "") -> None:
        """No request left the machine and nothing unexpected stands in the console.

        What was seen is forgotten with that: the next check is of what came after this one.
        """
        elsewhere, errors = self.requests_to_elsewhere(), self.unexpected_console_errors()
        self.requests.clear()
        self.console_errors.clear()
        assert not elsewhere, f"{when}requests that leave the machine: {elsewhere}"
        assert not errors, f"{when}errors in the browser's console: {errors}"

    # -- what a reader does ----------------------------------------------------------------------

    def open(self, notebook: str) -> None:
        """Open a notebook (a path inside the served folder) and wait for its kernel."""
        self.page.goto(self.server.page_url(notebook))
        self.runs = 0
        self.wait_idle()

    def start_over(self) -> None:
        """Outputs, width, theme and permissions as on a page just opened; the kernel lives on."""
        self.page.context.clear_permissions()
        self.page.set_viewport_size(VIEWPORT)
        if self.page.locator(f'body[data-jp-theme-name="{LIGHT}"]').count() == 0:
            self.set_theme(LIGHT)
        self.wait_idle()
        self.command("notebook:enter-command-mode")
        self.command("notebook:clear-all-cell-outputs")
        self.page.locator(SCROLLED).evaluate("node => { node.scrollTop = 0 }")
        self.page.mouse.move(0, 0)

    def wait_idle(self) -> None:
        """The notebook is on screen and its kernel has nothing left to do.

        The indicator in the toolbar alone will not do: it reads "idle" before there is a kernel,
        and a cell run in that moment brings up the "Select Kernel" dialog.
        """
        self.page.wait_for_function(
            """() => {
                const panel = window.jupyterapp?.shell.currentWidget;
                const session = panel?.sessionContext;
                return panel?.content?.model && session?.isReady
                    && session.session?.kernel?.status === "idle";
            }""",
            timeout=RUN_SECONDS * 1000,
        )
        indicator = f"{PANEL} .jp-Notebook-ExecutionIndicator[data-status=idle]"
        self.page.locator(indicator).wait_for(state="attached", timeout=RUN_SECONDS * 1000)
        self.wait_for_splash()

    def wait_for_splash(self) -> None:
        """JupyterLab veils the page while it starts and while it changes theme."""
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")

    def command(self, name: str, **arguments: Any) -> None:
        """Run a JupyterLab command and wait until it is done.

        A command that opens a dialog never ends: say which, instead of hanging.
        """
        self.page.evaluate(
            """([name, args, seconds]) => Promise.race([
                window.jupyterapp.commands.execute(name, args).then(() => null),
                new Promise((_, reject) => setTimeout(() => reject(new Error(
                    `${name} took over ${seconds} s; dialog on screen: `
                    + (document.querySelector(".jp-Dialog")?.innerText ?? "none"))),
                    seconds * 1000)),
            ])""",
            [name, arguments, RUN_SECONDS],
        )

    def run_all(self) -> None:
        """Run all cells and wait until every code cell has run."""
        self.runs += 1
        self.command("notebook:run-all-cells")
        # Read from the model: JupyterLab takes cells that are out of sight out of the document.
        self.page.wait_for_function(
            """() => {
                const cells = window.jupyterapp.shell.currentWidget.content.model.cells;
                return [...cells].every(
                    cell => cell.type !== "code" || !cell.sharedModel.getSource().trim()
                        || cell.executionCount !== null);
            }""",
            timeout=RUN_SECONDS * 1000,
        )
        self.wait_idle()

    def errors_in_cells(self) -> list[str]:
        """Tracebacks and warnings in the outputs, wherever they have been scrolled to."""
        found: list[str] = self.page.evaluate(
            """() => [...window.jupyterapp.shell.currentWidget.content.model.cells]
                .filter(cell => cell.type === "code")
                .flatMap(cell => cell.outputs.toJSON())
                .filter(output => output.output_type === "error" || output.name === "stderr")
                .map(output => output.evalue ?? [output.text].flat().join(""))"""
        )
        return found

    def scroll_through(self) -> Iterator[None]:
        """From top to bottom, as a reader does; JupyterLab renders only what is near the eye."""
        panel = self.page.locator(SCROLLED)
        panel.evaluate("node => { node.scrollTop = 0 }")
        at_end = False
        while not at_end:
            panel.evaluate(SETTLED)  # outputs appear, and heights change with them
            yield
            at_end = panel.evaluate(
                """node => {
                    const before = node.scrollTop;
                    node.scrollTop += 0.7 * node.clientHeight;
                    return node.scrollTop === before;
                }"""
            )

    def show(self, selector: str) -> None:
        """Scroll until the first element that matches is on screen."""
        found = self.page.locator(selector).first
        # Once all cells have run, all of them are in the document.
        if found.count():
            found.scroll_into_view_if_needed()
            self.page.locator(SCROLLED).evaluate(SETTLED)
            return
        for _ in self.scroll_through():
            if found.count():
                found.scroll_into_view_if_needed()
                return
        raise AssertionError(f"nothing in this notebook matches {selector}")

    def press(self, selector: str, *keys: str) -> None:
        """Bring a control into sight, give it the focus and press keys on it."""
        control = self.page.locator(selector).first
        control.scroll_into_view_if_needed()
        control.focus()
        for key in keys:
            self.page.keyboard.press(key)

    def type_into(self, selector: str, text: str) -> None:
        """Replace a text field's content key by key, and press Enter.

        Not Playwright's fill: a value set by a script brings no "change" event on Enter.
        """
        self.press(selector, "ControlOrMeta+a", "Delete")
        self.page.keyboard.type(text)
        self.page.keyboard.press("Enter")

    def save(self) -> None:
        """Save the notebook, on a page whose cells ran once.

        A kernel with the widgets of many runs may take longer than the few seconds in which
        JupyterLab, after a reload, waits for them: then it says "widget model not found".
        """
        assert self.runs <= 1, "a test that saves or reloads needs @pytest.mark.fresh_page"
        self.is_as_opened = False
        self.command("docmanager:save")

    def reload(self) -> None:
        """Reload as a reader does (F5), after saving: the kernel lives on, the page is new."""
        self.save()
        self.page.reload()
        self.wait_idle()

    def set_theme(self, name: str) -> None:
        """ "JupyterLab Dark" or "JupyterLab Light", without a reload."""
        self.command("apputils:change-theme", theme=name)
        self.page.locator(f'body[data-jp-theme-name="{name}"]').wait_for(state="attached")
        self.wait_for_splash()

    def screenshot(self, name: str) -> None:
        """Keep pictures to look at, one per screenful, where SCREENSHOT_DIR names a folder."""
        if folder := os.environ.get("SCREENSHOT_DIR"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            for number, _ in enumerate(self.scroll_through(), 1):
                self.page.screenshot(path=str(Path(folder) / f"{name}-{number}.png"))


def output(lab: LabPage, mark: str) -> Locator:
    """The whole widget whose sentence has this mark."""
    lab.show(f"[data-fa-{mark}]")
    return lab.page.locator(".jp-OutputArea-output", has=lab.page.locator(f"[data-fa-{mark}]"))


def view(lab: LabPage, mark: str) -> Locator:
    """The same, once plotly has drawn its figure."""
    shown = output(lab, mark)
    expect(shown.locator(FIGURE)).not_to_have_attribute("data-fa-redraws", "0")
    return shown


def text_of(element: Locator) -> str:
    """What an element says, also where it is out of sight and the browser skips its layout."""
    said = element.text_content() or ""
    assert said
    return said


def check_whole(figure: Locator) -> None:
    """Nothing of a figure is cut off at its side."""
    box, inside = figure.bounding_box(), figure.locator(".main-svg").first.bounding_box()
    assert box and inside and inside["width"] <= box["width"] + 1, "the figure is cut off"


def drawn_and_told(lab: LabPage, mark: str) -> Locator:
    """As `view`, of a figure that is whole and read aloud with the sentence beside it."""
    shown = view(lab, mark)
    figure, sentence = shown.locator(FIGURE), shown.locator(f"[data-fa-{mark}]")
    alt = figure.get_attribute("aria-label") or ""
    assert alt.startswith(text_of(sentence))
    check_whole(figure)
    return shown
