"""The harness itself, on the smallest notebook that has a slider and an anywidget."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import expect

from tests.browser.lab import LabPage, LabServer

SOURCE = """
import anywidget, ipywidgets, traitlets
class Readout(anywidget.AnyWidget):
    _esm = '''export default { render({ model, el }) {
        const show = () => { el.textContent = "value " + model.get("value"); };
        el.className = "readout"; model.on("change:value", show); show();
    } };'''
    value = traitlets.Int(0).tag(sync=True)
slider = ipywidgets.IntSlider(value=3, max=9, description="N")
readout = Readout(value=3)
slider.observe(lambda change: setattr(readout, "value", change.new), "value")
ipywidgets.VBox([slider, readout])
"""
OUTSIDE = "import IPython.display as d; d.HTML('<img src=\"http://example.org/a.png\">')"
READOUT, HANDLE = ".readout", ".widget-slider .noUi-handle"


def write(folder: Path, name: str, *cells: str) -> str:
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in cells],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    nbformat.write(notebook, folder / name)
    return name


def test_a_reader_turns_a_knob_reloads_and_switches_theme(
    lab: LabPage, lab_server: LabServer
) -> None:
    lab.open(write(lab_server.folder, "harness.ipynb", SOURCE))
    lab.run_all()
    assert not lab.errors_in_cells()
    expect(lab.page.locator(READOUT)).to_have_text("value 3")

    lab.press(HANDLE, "ArrowUp", "ArrowUp", "ArrowDown", "ArrowUp")
    expect(lab.page.locator(READOUT)).to_have_text("value 5")

    lab.reload()
    expect(lab.page.locator(READOUT)).to_have_text("value 5")
    lab.press(HANDLE, "ArrowUp")
    expect(lab.page.locator(READOUT)).to_have_text("value 6")

    lab.set_theme("JupyterLab Dark")
    lab.screenshot("harness-dark")
    lab.set_theme("JupyterLab Light")
    lab.screenshot("harness-light")


def test_errors_and_outside_requests_are_seen(lab: LabPage, lab_server: LabServer) -> None:
    """A harness that looks away would let everything else pass."""
    lab.open(write(lab_server.folder, "broken.ipynb", "1 / 0"))
    lab.run_all()
    assert lab.errors_in_cells() == ["division by zero"]

    lab.open(write(lab_server.folder, "outside.ipynb", OUTSIDE))
    lab.run_all()
    lab.page.wait_for_timeout(500)
    assert lab.requests_to_elsewhere() == ["http://example.org/a.png"]
    with pytest.raises(AssertionError, match=r"example\.org"):
        lab.check_clean()
    lab.requests.clear()
    lab.console_errors.clear()
