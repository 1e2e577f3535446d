"""The checkers of the notebooks' standard complain of a notebook that breaks it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.test_notebook_standard import (
    abbreviations,
    header,
    keys,
    links,
    markdown,
    predictions,
    questions,
    rhythm,
    time,
)
from tests.test_notebooks import NOTEBOOKS, read

#: Checker, notebook, what is taken from it, and what stands there instead.
WRONG = [
    (header, 3, "**Next** [04", "**Next** [05"),
    (header, 3, "**You need**", "**It needs**"),
    (rhythm, 1, "> **Claim.** The scores", "> The scores"),
    (rhythm, 4, "**What to notice.** *Left*, the bytes", "*Left*, the bytes"),
    (rhythm, 6, "### The check\n\nBy hand", "By hand"),
    (rhythm, 8, "**Predict first** (skip it if you like). A server", "A server"),
    (predictions, 7, "\n4. Neither comes near.", ""),
    (predictions, 5, "<details><summary>Answer</summary>\n\n**3.**", "**3.**"),
    (questions, 9, "<details><summary>Answer</summary>\n\nThe other", "The other"),
    (abbreviations, 8, "grouped-query attention", "fewer heads"),
    (abbreviations, 2, "FlashAttention-2 turns", "FA2X turns"),
    (links, 6, "(02_online_softmax.ipynb)", "(02_softmax.ipynb)"),
    (links, 0, "(#Three-routes", "(#Four-routes"),
    (time, 5, "about 70 minutes", "about 40 minutes"),
]


@pytest.mark.parametrize(
    ("check", "number", "old", "new"), WRONG, ids=lambda one: getattr(one, "__name__", "")
)
def test_what_is_wrong_is_seen(check: Any, number: int, old: str, new: str) -> None:
    wrong = copy.deepcopy(read(NOTEBOOKS[number]))
    changed = [cell for cell in markdown(wrong) if old in cell.source]
    for cell in changed:
        cell.source = cell.source.replace(old, new)
    assert changed and check(wrong, NOTEBOOKS[number].name)


def test_a_key_twice_is_seen() -> None:
    notebook = copy.deepcopy(read(NOTEBOOKS[0]))
    markdown(notebook)[1].metadata["key"] = "title"
    assert keys(notebook, "")
