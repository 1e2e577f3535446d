"""One standard for every notebook: header, rhythm, predictions, questions, words, links, time.

A checker returns complaints: test_notebook_mutations.py holds each against notebooks made wrong.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.test_notebooks import NOTEBOOKS as ALL
from tests.test_notebooks import ROOT, read

#: The lessons; notebooks/app is a page for a talk.
NOTEBOOKS = [path for path in ALL if path.parent.name == "notebooks"]
WORDS = tomllib.loads((ROOT / "tests" / "abbreviations.toml").read_text(encoding="utf-8"))
#: Widgets that are tables; every other one is a figure, and its section has the whole rhythm.
LISTS = {"claims", "paper_verdicts"}
TABLES = LISTS | {
    "session", "trace_table", "merge_check", "theta_law", "checkpointing", "step_times",
    "training_steps", "check_backward", "check_ceilings", "check_compiled", "check_decode",
    "check_dram", "check_traffic",
}  # fmt: skip
#: What stands in a section with a figure, in this order (the figure between the last two).
BEFORE = ("> **Claim.**", "$$", "**Predict first**")
AFTER = ("**What to notice.**", "### The check")
#: Words a minute with formulas between them, and minutes for a figure.
PER_MINUTE, PER_FIGURE, ROUNDING = 110, 2, 5
NAMES = [path.name for path in NOTEBOOKS]
every = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def markdown(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "markdown"]


def widget(cell: Any) -> str:
    """`name`, if a cell shows `fa.name(...)`; else ""."""
    body = ast.parse(cell.source).body if cell.cell_type == "code" else []
    shown = body[-1].value if body and isinstance(body[-1], ast.Expr) else None
    if isinstance(shown, ast.Name):  # row = fa.stepper(), and then row
        made = [n.value for n in body if isinstance(n, ast.Assign)]
        shown = made[-1] if made else None
    match shown:
        case ast.Call(ast.Attribute(ast.Name("fa"), name)):
            return name
    return ""


def sections(notebook: Any) -> Iterator[list[Any]]:
    """The cells under each heading of the second level."""
    found: list[Any] = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and re.match("## ", cell.source):
            yield found
            found = []
        found.append(cell)
    yield found


def header(notebook: Any, name: str) -> list[str]:
    title, place = notebook.cells[0].source, NAMES.index(name)
    wanted = [rf"# {name[:2]} \S", r"\*\*After this notebook you can explain\*\* "]
    wanted.append(r"\*\*Time\*\* about \d+ minutes\. \*\*You need\*\* ")
    for word, other in (("Previous", place - 1), ("Next", place + 1)):
        if 0 <= other < len(NAMES):
            link = rf"\[{NAMES[other][:2]} [^\]]*\]\({NAMES[other]}\)"
            wanted.append(rf"\*\*{word}\*\* {link}")
    return [f"the title cell lacks {one}" for one in wanted if not re.search(one, title)]


def keys(notebook: Any, name: str) -> list[str]:
    found = [cell.metadata.get("key") for cell in markdown(notebook)]
    return [f"key {key!r}" for key in found if not key or found.count(key) > 1]


def rhythm(notebook: Any, name: str) -> list[str]:
    complaints = []
    for cells in sections(notebook):
        shown = [widget(cell) for cell in cells]
        key = cells[0].metadata.get("key", "") if cells else ""
        figures = [i for i, one in enumerate(shown) if one and one not in TABLES]
        wanted = BEFORE if figures else BEFORE[:2] if {*shown} - LISTS - {"", "session"} else ()
        first = figures[0] if figures else len(cells)
        texts = [cell.source if cell.cell_type == "markdown" else "" for cell in cells]
        above, below = "\n".join(texts[:first]), "\n".join(texts[first:])
        places = [above.find(mark) for mark in wanted]
        if -1 in places or places != sorted(places):
            complaints.append(f"{key}: before the figure stand not {wanted}")
        checks = [i for i, text in enumerate(texts) if AFTER[1] in text]
        if any(cells[i + 1].cell_type != "code" for i in checks):
            complaints.append(f"{key}: no cell computes its check")
        if figures and not 0 <= below.find(AFTER[0]) < below.find(AFTER[1]):
            complaints.append(f"{key}: after the figure stand not {AFTER}")
        asked = [cell.metadata.get("key") for cell in cells if "**Predict first**" in cell.source]
        if figures and asked != [f"{key}-predict"]:
            complaints.append(f"{key}: its predictions are {asked}")
    return complaints


def predictions(notebook: Any, name: str) -> list[str]:
    form = r"\*\*Predict first\*\* \(skip it if you like\)\. .*\?\n\n"
    form += r"1\. .+\n2\. .+\n3\. .+\n4\. .+\n\n<details><summary>Answer</summary>\n\n"
    form += r"\*\*[1-4]\.\*\* .+\n\n</details>"
    asked = [cell for cell in markdown(notebook) if "redict first" in cell.source]
    return [f"{c.metadata.key}: not the form" for c in asked if not re.fullmatch(form, c.source)]


def questions(notebook: Any, name: str) -> list[str]:
    text = "\n".join(c.source for c in markdown(notebook) if c.source.startswith("## Check yours"))
    answer = r"(?m)^\*\*\d\.\*\* .+\n\n<details><summary>Answer</summary>\n\n.+\n</details>"
    found, asked = re.findall(answer, text), re.findall(r"(?m)^\*\*\d\.\*\*", text)
    enough = 3 <= len(found) == len(asked)
    return [] if enough else [f"{len(found)} self-check questions with an answer"]


def prose(cell: Any) -> str:
    """A cell's text without formulas, code and links to notebooks."""
    text = re.sub(r"\$\$.*?\$\$|\$[^$]*\$|`[^`]*`", " ", cell.source, flags=re.S)
    return re.sub(r"\[[^\]]*\]\([^)]*\)", " ", text)


def abbreviations(notebook: Any, name: str) -> list[str]:
    """Each is written out in the cell that is the first to use it; the title cell may be short."""
    texts, complaints = [prose(cell) for cell in markdown(notebook)], []
    for short, long in WORDS["abbreviations"].items():
        uses = [text for text in texts[1:] if re.search(rf"\b{short}s?\b", text)]
        if uses and long.lower() not in uses[0].lower():
            complaints.append(f"{short} is used before it is written out as {long!r}")
    capitals = {
        w for text in texts for w in re.findall(r"\b[A-Z][A-Z0-9]*[A-Z][A-Z0-9]*s?\b", text)
    }
    known = {*WORDS["abbreviations"], *WORDS["names"]}
    unknown = {w for w in capitals if w not in known and w.removesuffix("s") not in known}
    return complaints + [f"{word} is not in tests/abbreviations.toml" for word in sorted(unknown)]


def links(notebook: Any, name: str) -> list[str]:
    complaints = []
    for target in re.findall(r"\]\(([^)\s]+)\)", "\n".join(c.source for c in markdown(notebook))):
        file, _, anchor = target.partition("#")
        path = ROOT / "notebooks" / (file or name)
        if not path.exists():
            complaints.append(f"no file {file}")
        elif anchor:
            text = "\n".join(cell.source for cell in markdown(read(path)))
            heads = [head.strip().replace(" ", "-") for head in re.findall(r"(?m)^#+ (.*)$", text)]
            complaints += [] if anchor in heads else [f"no heading {anchor} in {path.name}"]
    return complaints


def time(notebook: Any, name: str) -> list[str]:
    words = sum(len(cell.source.split()) for cell in markdown(notebook))
    figures = sum(bool(w := widget(cell)) and w not in TABLES for cell in notebook.cells)
    takes = words / PER_MINUTE + PER_FIGURE * figures
    said = int((re.findall(r"about (\d+) minutes", notebook.cells[0].source) or ["0"])[0])
    return [] if abs(said - takes) <= ROUNDING else [f"it takes {takes:.0f} minutes, not {said}"]


CHECKERS: tuple[Callable[[Any, str], list[str]], ...] = (
    header, keys, rhythm, predictions, questions, abbreviations, links, time,
)  # fmt: skip


@every
@pytest.mark.parametrize("check", CHECKERS, ids=lambda check: check.__name__)
def test_it_keeps_the_standard(path: Any, check: Callable[[Any, str], list[str]]) -> None:
    assert check(read(path), path.name) == []


def test_the_first_notebook_maps_the_three_routes() -> None:
    (routes,) = [c.source for c in markdown(read(NOTEBOOKS[0])) if c.metadata.key == "routes"]
    assert all(f"**{route}.**" in routes for route in ("Learn", "Present", "Profile"))
    assert all(f"]({name})" in routes for name in NAMES[1:])
