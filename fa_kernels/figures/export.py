"""Figures to files: PNG, SVG or PDF through a browser, HTML without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SUFFIXES = (".png", ".svg", ".pdf", ".html")


def save(figure: Any, path: Path, width: int = 1200, scale: float = 1.5) -> Path:
    """Write a plotly figure to `path`; its suffix chooses the format.

    Args:
        figure: a `plotly.graph_objects.Figure`.
        path: the file, .png, .svg, .pdf or .html; folders are made.
        width: in px; the height is the figure's own.
        scale: pixels of a PNG per px of the figure.

    Raises:
        ValueError: another suffix.
        RuntimeError: no browser was found for a format that needs one.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path.name}: cannot write {path.suffix!r}; use {', '.join(SUFFIXES)}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".html":
        figure.write_html(path, include_plotlyjs=True)
        return path
    try:
        figure.write_image(path, width=width, height=figure.layout.height, scale=scale)
    except Exception as error:
        if type(error).__name__ not in ("ChromeNotFoundError", "BrowserDepsError", "RuntimeError"):
            raise
        raise RuntimeError(
            f"{path.name}: writing {path.suffix} needs Chromium or Chrome, and none was found. "
            "Install it (Debian: apt install chromium) or save as .html."
        ) from error
    return path
