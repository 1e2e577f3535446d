"""The keep mask of one small attention matrix, as forward and backward used it, tile by tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fa_kernels.figures import theme
from fa_kernels.tiling import Tiling

_HEIGHT = 452
FORWARD, BACKWARD = "forward", "backward"
_PANELS = {FORWARD: (0.0, 0.47), BACKWARD: (0.53, 1.0)}


@dataclass(frozen=True)
class Drawn:
    """What one pass kept, (N, N) bool read off its result, and the tiles it went through."""

    keep: np.ndarray
    tiling: Tiling

    @property
    def tiles(self) -> tuple[int, int]:
        """How many tiles cover the rows, and how many the keys."""
        n = len(self.keep)
        return -(-n // self.tiling.block_m), -(-n // self.tiling.block_n)


def dropout_mask_spec(drawn: Mapping[str, Drawn], text: Mapping[str, Any]) -> dict[str, Any]:
    """A plotly spec: the mask of the forward on the left, of the backward on the right."""
    layout = theme.base_layout(_HEIGHT)
    layout["margin"] = {"l": 56, "r": 14, "t": 62, "b": 50}
    layout["annotations"], data = [], []
    for number, (pass_, domain) in enumerate(_PANELS.items(), 1):
        at, one = "" if number == 1 else str(number), drawn[pass_]
        n = len(one.keep)
        ticks = list(range(0, n, max(1, n // 4)))
        sides: dict[str, Any] = {"tickvals": ticks, "ticktext": [str(t) for t in ticks]}
        sides |= {"showgrid": False}
        layout[f"xaxis{at}"] = theme.axis(
            title=theme.axis_title(text["axis_keys"]), domain=list(domain), anchor=f"y{at}",
            range=[-0.7, n - 0.3], **sides,
        )  # fmt: skip
        layout[f"yaxis{at}"] = theme.axis(
            title=theme.axis_title(text["axis_rows"]), anchor=f"x{at}", range=[n - 0.3, -0.7],
            **sides,
        )  # fmt: skip
        layout["annotations"].append(_head(pass_, domain[0], one, text))
        data += [_cells(pass_, one.keep, at, text), _borders(pass_, one, at)]
    return {"data": data, "layout": layout}


def _cells(pass_: str, keep: np.ndarray, at: str, text: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "heatmap", "name": pass_, "xaxis": f"x{at}", "yaxis": f"y{at}",
        "z": keep.astype(int).tolist(), "zmin": 0, "zmax": 1, "showscale": False,
        "colorscale": [[0, theme.DROPPED], [1, theme.TENSOR_COLOURS["p"]]], "xgap": 1, "ygap": 1,
        "text": [[text["kept" if cell else "dropped"] for cell in row] for row in keep],
        "hovertemplate": f"{text['hover']}<extra></extra>",
    }  # fmt: skip


def _borders(pass_: str, one: Drawn, at: str) -> dict[str, Any]:
    """Lines between tiles, and around all of them."""
    n, colour = len(one.keep), theme.STYLES["flash_q_outer"].colour
    xs: list[float | None] = []
    ys: list[float | None] = []
    for edge in (*range(0, n, one.tiling.block_m), n):
        xs += [-0.5, n - 0.5, None]
        ys += [edge - 0.5, edge - 0.5, None]
    for edge in (*range(0, n, one.tiling.block_n), n):
        xs += [edge - 0.5, edge - 0.5, None]
        ys += [-0.5, n - 0.5, None]
    return {
        "type": "scatter", "mode": "lines", "name": f"{pass_} tiles", "xaxis": f"x{at}",
        "yaxis": f"y{at}", "x": xs, "y": ys, "hoverinfo": "skip",
        "line": {"color": colour, "width": 3},
    }  # fmt: skip


def _head(pass_: str, x: float, one: Drawn, text: Mapping[str, Any]) -> dict[str, Any]:
    tiles = f"{one.tiling.block_m} × {one.tiling.block_n}"
    kept = theme.swatch(theme.TENSOR_COLOURS["p"], text["kept"])
    dropped = theme.swatch(theme.DROPPED, text["dropped"])
    line = text["tiles"].format(tiles=tiles, count=one.tiles[0] * one.tiles[1])
    return {
        "x": x, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "yshift": 6, "showarrow": False, "align": "left", "font": theme.font(),
        "text": f"<b>{text[pass_]}</b><br>{kept}&nbsp; {dropped}&nbsp;&nbsp; {line}",
    }  # fmt: skip
