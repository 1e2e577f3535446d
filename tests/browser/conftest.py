"""Fixtures: one Chromium, one JupyterLab, and one page at a time.

`opened("03_tiling_and_sram.ipynb")` is what most tests want: the notebook, run from top to bottom.
Tests that follow each other on the same notebook share its page and its kernel, and every one of
them gets all cells run anew, so its widgets are in the state they open in. That takes a second;
a page and a kernel of one's own take eight. A test that saves or reloads is marked `fresh_page`.
So all tests of a notebook, the `NOTEBOOK` of their module, run one after the other in one process.

`lab` is a fresh page of a fresh JupyterLab with nothing open: for what is about opening itself.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.lab import (
    CHROMIUM_FLAGS,
    PATIENCE_MS,
    ROOT,
    VIEWPORT,
    LabPage,
    LabServer,
    running_lab,
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    mine = [item for item in items if here in item.path.parents]
    for item in mine:
        item.add_marker(pytest.mark.browser)
    # In the places they had among the others: by notebook, those that leave no page behind last.
    places = [i for i, item in enumerate(items) if here in item.path.parents]
    for place, item in zip(places, sorted(mine, key=in_turn), strict=True):
        items[place] = item


def in_turn(item: pytest.Item) -> tuple[str, bool, bool]:
    """First what looks at a notebook as a page just opened shows it, last who saves it."""
    shared = "shared_notebook" in getattr(item, "fixturenames", ())
    return shares_with(item.nodeid), not shared, item.get_closest_marker("fresh_page") is not None


def shares_with(test: str) -> str:
    """The notebook whose page a test, given by its id, shares with others, or else its file.

    By its text: pytest-xdist gives tests out in a process that imports none of them.
    """
    file, _, name = test.partition("::")
    if file.endswith(OPENS_EVERY):
        return name.partition("[")[2].rstrip("]")
    return _notebook_of(Path(file).name) or file


#: The file whose tests open each notebook, named in brackets, before those that are on one of them.
OPENS_EVERY = "test_notebooks_in_lab.py"


@cache
def _notebook_of(name: str) -> str:
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    match = re.search(r'^NOTEBOOK = "(.+)"$', text, re.MULTILINE)
    return match[1] if match else ""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With --dist loadfile: what shares a page goes to one process, too, as what shares a file."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByNotebook(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return shares_with(nodeid)

    return ByNotebook(config, log)


def chromium_path() -> str | None:
    """$CHROMIUM, or what the system calls it; Playwright's own download is not used."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = [os.environ.get("CHROMIUM"), *map(shutil.which, names)]
    return next((path for path in found if path), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = chromium_path()
    if path is None:
        reason = "no Chromium: apt install chromium, or CHROMIUM=/path/to/chrome"
        # In CI a missing browser is a broken set-up, never a reason to pass.
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def lab_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """JupyterLab on a folder of its own: running and saving must not touch the checkout."""
    home = tmp_path_factory.mktemp("lab")
    (home / "notebooks").mkdir()
    with running_lab(home / "notebooks", home) as server:
        yield server


class Pages:
    """The one page that is open, who had it, and what it is open on.

    One at a time: a kernel belongs to a notebook's path, so two pages of one notebook would share
    it, and whatever a page does in the background is that page's test's doing.
    """

    def __init__(self, browser: Browser, server: LabServer) -> None:
        self.browser, self.server = browser, server
        self.current: LabPage | None = None
        self.notebook = ""
        self.user = ""

    def fresh(self, user: str) -> LabPage:
        """A fresh page on a fresh copy of notebooks/: one that a test saved holds stale widgets."""
        self.close()
        shutil.copytree(ROOT / "notebooks", self.server.folder, dirs_exist_ok=True)
        context = self.browser.new_context(viewport=VIEWPORT)
        context.set_default_timeout(PATIENCE_MS)
        self.current, self.notebook, self.user = LabPage(context.new_page(), self.server), "", user
        return self.current

    def opened(self, notebook: str, user: str, *, fresh: bool = False) -> LabPage:
        """A notebook that has been run: on the page it is open on, or else on a fresh one."""
        lab = None if fresh else self.current
        if lab is not None and lab.is_as_opened and self.notebook == notebook:
            lab.check_clean(f"after the end of {self.user}: ")
            self.user = user
            lab.start_over()
        else:
            lab = self.fresh(user)
            lab.open(notebook)
            self.notebook = notebook
        lab.run_all()
        assert not lab.errors_in_cells()
        return lab

    def close(self) -> None:
        """End the page and its kernel, whatever its last test left behind."""
        lab, self.current = self.current, None
        if lab is not None:
            lab.page.context.close()
            self.server.stop_kernels()
            lab.check_clean(f"after the end of {self.user}: ")


@pytest.fixture(scope="session")
def pages(browser: Browser, lab_server: LabServer) -> Iterator[Pages]:
    pages = Pages(browser, lab_server)
    yield pages
    pages.close()


@pytest.fixture
def lab(pages: Pages, request: pytest.FixtureRequest) -> Iterator[LabPage]:
    """A fresh page with nothing open.

    What goes wrong on the page fails the test, even where the test did not look.
    """
    lab = pages.fresh(request.node.nodeid)
    yield lab
    pages.close()


@pytest.fixture
def opened(pages: Pages, request: pytest.FixtureRequest) -> Iterator[Callable[[str], LabPage]]:
    """`opened("NN_subject.ipynb")`: that notebook, every cell run anew, no error in any of them.

    What goes wrong on the page fails the test, even where the test did not look. A test that
    failed, saved or reloaded leaves its page to nobody.
    """
    failed, who = request.session.testsfailed, request.node.nodeid
    fresh = request.node.get_closest_marker("fresh_page") is not None
    yield lambda notebook: pages.opened(notebook, who, fresh=fresh)
    lab = pages.current
    if lab is None:
        return
    if request.session.testsfailed > failed or not lab.is_as_opened:
        pages.close()
    else:
        lab.check_clean()
