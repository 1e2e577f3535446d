"""Every notebook is thin, stored without outputs, and runs from top to bottom without a GPU."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted(
    path for path in (ROOT / "notebooks").rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts
)
MAX_CELL_LINES = 8
#: The promise is 20 s on a laptop; a loaded CI machine runs two notebooks at once.
MAX_SECONDS = float(os.environ.get("NOTEBOOK_MAX_SECONDS", "60"))
#: Which library computes is the package's business: a reader's cell never names one.
BACKENDS = {"cupy", "torch", "plotly", "ipywidgets", "anywidget"}
ABSOLUTE_PATH = re.compile(r"""["'](?:/[\w.-]+/|~/|[A-Za-z]:\\)""")

every_notebook = pytest.mark.parametrize(
    "path", NOTEBOOKS, ids=lambda path: path.relative_to(ROOT / "notebooks").as_posix()
)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def stored(path: Path) -> Any:
    """The notebook as git has it: Lab saves outputs into the file while a reader works."""
    where = f":{path.relative_to(ROOT).as_posix()}"
    done = subprocess.run(["git", "show", where], cwd=ROOT, capture_output=True, text=True)
    return nbformat.reads(done.stdout, as_version=4) if done.returncode == 0 else read(path)


def code_cells(path: Path) -> Iterator[tuple[int, str]]:
    for number, cell in enumerate(read(path).cells, 1):
        if cell.cell_type == "code":
            yield number, cell.source


def without_magics(source: str) -> str:
    """IPython's % and ! lines are no Python: blank them, so that line numbers stay."""
    return re.sub(r"(?m)^\s*[%!].*$", "", source)


def test_the_first_notebook_is_there() -> None:
    assert (ROOT / "notebooks" / "00_start_here.ipynb") in NOTEBOOKS


@every_notebook
def test_stored_without_outputs(path: Path) -> None:
    """A saved widget reopens as "model not found", and outputs make every diff unreadable."""
    notebook = stored(path)
    assert "widgets" not in notebook.metadata
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type == "code":
            assert not cell.outputs, f"cell {number} holds outputs: nbstripout {path.name}"
            assert cell.execution_count is None, f"cell {number}: nbstripout {path.name}"


@every_notebook
def test_says_which_kernel_and_validates(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"


@every_notebook
def test_cells_are_thin(path: Path) -> None:
    for number, source in code_cells(path):
        where = f"{path.name}, cell {number}"
        lines = [line for line in source.splitlines() if line.strip()]
        assert len(lines) <= MAX_CELL_LINES, f"{where} has {len(lines)} lines: move code to the lab"
        assert not ABSOLUTE_PATH.search(source), f"{where} names a path"
        for node in ast.walk(ast.parse(without_magics(source))):
            assert not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef), (
                f"{where} defines {node.name}: a reader calls, the package defines"
            )
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            used = BACKENDS.intersection(name.split(".")[0] for name in names)
            assert not used, f"{where} imports {used.pop()}"


def complaints(notebook: Any) -> list[str]:
    """What a reader would see of errors and warnings, cell by cell."""
    found = []
    for number, cell in enumerate(notebook.cells, 1):
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                found.append(f"cell {number}: {output.ename}: {output.evalue}")
            elif output.output_type == "stream" and output.name == "stderr":
                found.append(f"cell {number} wrote to stderr: {output.text}")
    return found


@pytest.mark.notebook
@every_notebook
def test_runs_from_top_to_bottom(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernel must take this checkout, whatever is installed.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = read(path)
    client = NotebookClient(
        notebook,
        timeout=MAX_SECONDS,
        kernel_name="python3",
        allow_errors=True,  # all complaints at once, instead of the first
        store_widget_state=False,
        resources={"metadata": {"path": str(path.parent)}},
    )
    started = time.perf_counter()
    client.execute()
    seconds = time.perf_counter() - started
    print(f"{path.name}: {seconds:.1f} s")
    assert not complaints(notebook)
    assert seconds < MAX_SECONDS


@pytest.mark.notebook
def test_complaints_are_seen() -> None:
    """The check above must not pass because it looks away."""
    cells = ["import sys; print('careful', file=sys.stderr)", "1 / 0", "print('fine')"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, allow_errors=True, kernel_name="python3").execute()
    assert complaints(notebook) == [
        "cell 1 wrote to stderr: careful\n",
        "cell 2: ZeroDivisionError: division by zero",
    ]
