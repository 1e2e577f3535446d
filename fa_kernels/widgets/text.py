"""The widgets' texts, by language, from labels/<language>.toml, and tables of text."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

LABELS_DIR = Path(__file__).parent / "labels"


def html_table(
    name: str, caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], css: str = ""
) -> str:
    """Cells as an HTML table, escaped; `name` is what tests find it by (data-fa-table)."""
    heads = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    style = f'class="{css}" ' if css else ""
    return (
        f'<table {style}data-fa-table="{name}"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    )


def text_table(caption: str, rows: Sequence[Sequence[str]]) -> str:
    """Cells as columns of text, for a terminal; the first row holds the heads."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join([caption, *(line.rstrip(" ") for line in lines)])


def scientific(difference: float) -> str:
    """A difference as text: "5.6e-17", or "0" where there is none at all."""
    return f"{difference:.1e}" if difference else "0"


@cache
def labels(section: str, language: str = "en") -> dict[str, Any]:
    """The texts of one widget.

    Raises:
        ValueError: no such language; the message lists those there are.
    """
    path = LABELS_DIR / f"{language}.toml"
    if not path.exists():
        known = ", ".join(sorted(file.stem for file in LABELS_DIR.glob("*.toml")))
        raise ValueError(f"language = {language!r} has no labels: use one of {known}.")
    return dict(tomllib.loads(path.read_text(encoding="utf-8"))[section])
