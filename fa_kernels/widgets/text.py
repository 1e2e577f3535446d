"""The widgets' texts, by language, from labels/<language>.toml."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

LABELS_DIR = Path(__file__).parent / "labels"


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
