"""Pure functions from data to plotly figures. Plotly itself loads only where a figure is made.

`fa.figures.save(fig, "name", venue="neurips")` is `fa.save_figure`.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "save":
        raise AttributeError(f"module 'fa_kernels.figures' has no attribute {name!r}")
    from fa_kernels.figures.figure_files import save_figure

    return save_figure
