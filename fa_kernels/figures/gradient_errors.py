"""Errors of dq, dk and dv on one log axis: in float64, in fp16, and wrong on purpose."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fa_kernels.figures import theme

NAMES = ("dq", "dk", "dv")
_HEIGHT = 300
#: Below this an error is drawn at the left edge: a log axis has no 0.
_LEAST = 1e-17
_SYMBOLS = {"fp64": "circle", "fp16": "square", "wrong": "x-open"}
_GLYPHS = {"fp64": "●", "fp16": "■", "wrong": "✕"}
_COLOURS = {"fp64": theme.STYLES["flash_q_outer"].colour, "fp16": theme.MUTED, "wrong": theme.INK}


@dataclass(frozen=True)
class Errors:
    """Largest absolute errors of one gradient, its largest entry, and the limit for float64.

    `fp64`, `wrong`: against central differences; `fp16`: against the float64 backward.
    """

    largest: float
    fp64: float
    fp16: float
    wrong: float
    limit: float

    @property
    def ok(self) -> bool:
        """True if the float64 backward is within the limit; NaN is not."""
        return self.fp64 <= self.limit

    @property
    def catches(self) -> bool:
        """True if the limit tells the wrong pass from a right one."""
        return not self.wrong <= self.limit


def gradient_errors_spec(found: Mapping[str, Errors], text: Mapping[str, Any]) -> dict[str, Any]:
    """A plotly spec: a row per gradient, a mark per kind of error, the limit as a line."""
    layout = theme.base_layout(_HEIGHT)
    layout["margin"] = {"l": 54, "r": 20, "t": 52, "b": 54}
    rows = {name: len(found) - 1 - i for i, name in enumerate(found)}
    known = [x for e in found.values() for x in (e.fp64, e.fp16, e.wrong, e.limit)]
    known = [max(x, _LEAST) for x in known if math.isfinite(x)]
    low, high = math.floor(math.log10(min(known))) - 0.3, math.ceil(math.log10(max(known))) + 0.3
    ticks = list(range(math.ceil(low), math.floor(high) + 1))
    ticks = ticks[:: 1 + len(ticks) // 9]
    layout["xaxis"] = theme.axis(
        title=theme.axis_title(text["axis_error"]), type="log", range=[low, high],
        tickvals=[10.0**e for e in ticks], ticktext=[f"10<sup>{e}</sup>" for e in ticks],
    )  # fmt: skip
    layout["yaxis"] = theme.axis(
        range=[-0.6, len(found) - 0.4], tickvals=list(rows.values()), showgrid=False,
        ticktext=[f"<b>{text['tensors'][name]}</b>&nbsp;" for name in rows],
        tickfont=theme.font(theme.TITLE),
    )  # fmt: skip
    layout["annotations"] = [_legend(text)]
    data = [_limits(found, rows)]
    data += [_marks(kind, found, rows, text) for kind in _SYMBOLS]
    return {"data": data, "layout": layout}


def _marks(
    kind: str, found: Mapping[str, Errors], rows: Mapping[str, int], text: Mapping[str, Any]
) -> dict[str, Any]:
    errors = {n: x for n, e in found.items() if math.isfinite(x := getattr(e, kind))}
    return {
        "type": "scatter", "mode": "markers", "name": kind,
        "x": [max(x, _LEAST) for x in errors.values()], "y": [rows[n] for n in errors],
        "marker": {
            "symbol": _SYMBOLS[kind], "size": 18 if kind == "wrong" else 13,
            "color": _COLOURS[kind], "line": {"width": 2 if kind == "wrong" else 0},
        },
        "hovertext": [
            f"{text['tensors'][n]}, {text['legend'][kind]}: {x:.1e}" for n, x in errors.items()
        ],
        "hoverinfo": "text",
    }  # fmt: skip


def _limits(found: Mapping[str, Errors], rows: Mapping[str, int]) -> dict[str, Any]:
    """A short vertical line per row at what passes."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    for name, errors in found.items():
        xs += [errors.limit, errors.limit, None]
        ys += [rows[name] - 0.38, rows[name] + 0.38, None]
    return {
        "type": "scatter", "mode": "lines", "name": "limit", "x": xs, "y": ys,
        "line": {"color": theme.MUTED, "width": 3, "dash": "dash"}, "hoverinfo": "skip",
    }  # fmt: skip


def _legend(text: Mapping[str, Any]) -> dict[str, Any]:
    words = [f"{_GLYPHS[kind]} {text['legend'][kind]}" for kind in _SYMBOLS]
    words.append(f"┆ {text['legend']['limit']}")
    return {
        "x": 0, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "xshift": -44, "yshift": 12, "showarrow": False, "align": "left", "font": theme.font(),
        "text": "&nbsp;&nbsp;&nbsp;".join(words),
    }  # fmt: skip
