"""The widgets' texts, by language, from labels/<language>.toml, and tables of text."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

LABELS_DIR = Path(__file__).parent / "labels"


def html_table(
    name: str,
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    css: str = "falab-table falab-dense",
) -> str:
    """Cells as an HTML table, escaped; `name` is what tests find it by (data-fa-table).

    Columns of words stand on the left, those of numbers on the right. A number and its unit stay on
    one line, however narrow the page.
    """
    words = [_is_words([row[i] for row in rows if i < len(row)]) for i in range(len(head))]
    marks = [' class="falab-text"' if is_words else "" for is_words in words]
    heads = "".join(
        f'<th scope="col"{mark}>{escape(cell)}</th>' for mark, cell in zip(marks, head, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{mark}>{escape(cell) if mark else _number_html(cell)}</td>"
            for mark, cell in zip(marks, row, strict=False)
        )
        + "</tr>"
        for row in rows
    )
    style = f'class="{css}" ' if css else ""
    return (
        f'<table {style}data-fa-table="{name}"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    )


#: A number before its unit.
_UNIT = re.compile(r"(?<=\d) (?=(?:%|[KMGT]?i?B(?:/s)?|[kMGTP]?FLOP(?:/[sB])?|[mµ]?s)(?![\w]))")


def _number_html(cell: str) -> str:
    return _UNIT.sub("\N{NO-BREAK SPACE}", escape(cell))


_NUMBER = re.compile(r"[-−+±<≤≥≈~]?\s?[0-9.]")


def _is_words(cells: Sequence[str]) -> bool:
    """True of a column of sentences: most of what stands there is long and begins with no digit."""
    said = [cell for cell in cells if cell]
    words = [cell for cell in said if len(cell) > 16 and not _NUMBER.match(cell)]
    return len(words) * 2 > len(said)


def takeaway_html(mark: str, said: str) -> str:
    """What a figure says: its first sentence is the message, the others are smaller after it.

    A first one as short as a verdict ("Memory: reproduces.") takes the next along. `said` is HTML,
    and tests find it by data-fa-<mark>.
    """
    first, *more = _BETWEEN_SENTENCES.split(said)
    if len(first) < _VERDICT and more and len(more[0]) < _LONG:
        first = f"{first} {more.pop(0)}"
    rest = f' <span class="falab-more">{" ".join(more)}</span>' if more else ""
    return f'<div class="falab-sentence" data-fa-{mark}>{first}{rest}</div>'


#: Characters of a sentence that is a word of judgement and what it is about, and of one that is
#: too long to stand in large letters.
_VERDICT, _LONG = 60, 250
_BETWEEN_SENTENCES = re.compile(r"(?:(?<=[.?])|(?<=[.?]\)))\s+(?=[A-Z(]|[a-z]+:|&quot;)")


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
