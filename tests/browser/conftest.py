"""Fixtures: one Chromium and one JupyterLab for all browser tests, a fresh page for each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.lab import CHROMIUM_FLAGS, ROOT, LabPage, LabServer, running_lab

#: The browser in which a projector or a laptop would show a notebook.
VIEWPORT = {"width": 1440, "height": 1000}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


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


@pytest.fixture
def lab(browser: Browser, lab_server: LabServer) -> Iterator[LabPage]:
    """A fresh page on a fresh copy of notebooks/: one that a test saved holds stale widgets.

    What goes wrong on the page fails the test, even where the test did not look.
    """
    shutil.copytree(ROOT / "notebooks", lab_server.folder, dirs_exist_ok=True)
    context = browser.new_context(viewport=VIEWPORT)  # type: ignore[arg-type]
    context.set_default_timeout(30_000)
    lab = LabPage(context.new_page(), lab_server)
    yield lab
    context.close()
    lab_server.stop_kernels()
    lab.check_clean()
