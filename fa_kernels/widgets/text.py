"""The widgets' texts, by language, from labels/<language>.toml."""

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
