"""Where a softmax without the maximum works: bars of scores per dtype, errors beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fa_kernels.figures import theme
from fa_kernels.figures.story import enlarge
from fa_kernels.units import significant

#: px per dtype, and for what stands above and below the bars.
_ROW, _FRAME = 88, 148
_LEFT, _RIGHT = (0.0, 0.62), (0.67, 1.0)
#: No more than the narrowest figure holds side by side; plotly would turn them.
_TICKS = (-10000, -100, -10, 0, 10, 100, 10000)
_ERROR_TICKS = (-15, -10, -5, 0)
#: The bar of what works at every score ends here; float64's exp reaches about 710.
_EDGE = 20000.0
#: The axis goes on so far that the words beside float64's bar have room.
_AXIS_END = 10 * _EDGE
UNSAFE, SAFE, ONLINE = "unsafe", "safe", "online"
_COLOURS = {
    UNSAFE: theme.TENSOR_COLOURS["s"],
    SAFE: "#4A4A4A",
    ONLINE: theme.STYLES["flash_q_outer"].colour,
}
#: Words on the bars: dark in both themes, so no colour that the page swaps.
_ON_BARS = "#0A0A0A"
_MARKERS = {UNSAFE: "square-open", SAFE: "cross-thin", ONLINE: "circle"}


@dataclass(frozen=True)
class SoftmaxRange:
    """Where softmax without the maximum works in one dtype, and how wrong each way is.

    `zero_at` < `overflow_at`: largest score of the row at which the output is NaN, because every
    exp is 0, and because one is infinite. `errors`: way -> largest absolute error of the output
    against float64; for "unsafe" only between the two.
    """

    dtype: str
    zero_at: float
    overflow_at: float
    errors: dict[str, float]


def softmax_range_spec(ranges: Sequence[SoftmaxRange], text: dict[str, str]) -> dict[str, Any]:
    """A plotly spec: ranges of scores on the left, errors on the right, one row per dtype."""
    rows = list(range(len(ranges)))[::-1]
    layout = theme.base_layout(_FRAME + _ROW * len(ranges))
    layout["margin"] = {"l": 60, "r": 20, "t": 44, "b": 80}
    layout["barmode"] = "overlay"
    layout["xaxis"] = theme.axis(
        title=theme.axis_title(text["axis_score"]), domain=list(_LEFT),
        range=[_place(-_AXIS_END), _place(_AXIS_END)], tickvals=[_place(x) for x in _TICKS],
        ticktext=[str(x).replace("-", "−") for x in _TICKS], tickangle=0,
    )  # fmt: skip
    layout["xaxis2"] = theme.axis(
        title=theme.axis_title(text["axis_error"]), type="log", domain=list(_RIGHT), anchor="y2",
        tickvals=[10.0**e for e in _ERROR_TICKS], range=[-17.5, 0.6], tickangle=0,
        ticktext=[f"10<sup>{e}</sup>".replace("-", "−") if e else "1" for e in _ERROR_TICKS],
    )  # fmt: skip
    names = {"tickvals": rows, "ticktext": [f"<b>{r.dtype}</b>&nbsp;" for r in ranges]}
    layout["yaxis"] = theme.axis(range=[-0.6, len(rows) - 0.3], showgrid=False, **names)
    layout["yaxis2"] = theme.axis(
        range=[-0.6, len(rows) - 0.3], anchor="x2", showticklabels=False, tickvals=rows
    )
    layout["annotations"] = [
        _heading(_LEFT[0], text["title_range"]), _heading(_RIGHT[0], text["title_error"])
    ]  # fmt: skip
    data = [*_bars(ranges, rows, text), *(_dots(way, ranges, rows, text) for way in _COLOURS)]
    spec = {"data": data, "layout": layout}
    enlarge(spec, 1.2)
    return spec


def _place(score: float) -> float:
    """Where a score lies on the axis: linear near 0, logarithmic beyond."""
    return math.copysign(math.log10(1 + abs(score)), score)


def _heading(x: float, words: str) -> dict[str, Any]:
    return {
        "x": x, "y": 1.0, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "text": f"<b>{words}</b>", "showarrow": False, "font": theme.font(theme.TITLE), "yshift": 8,
    }  # fmt: skip


def _bars(
    ranges: Sequence[SoftmaxRange], rows: Sequence[int], text: dict[str, str]
) -> list[dict[str, Any]]:
    lows = [_place(r.zero_at) for r in ranges]
    highs = [_place(r.overflow_at) for r in ranges]
    above, below = ([row + shift for row in rows] for shift in (0.19, -0.19))
    whole = [_place(_EDGE)] * len(rows)
    return [
        _bar(UNSAFE, above, lows, highs, text["unsafe"]),
        _bar(ONLINE, below, [-x for x in whole], whole, text["any_score"]),
        _ends("left", lows, above, [f"{text['zero']} {_number(r.zero_at)} " for r in ranges]),
        _ends(
            "right", highs, above, [f" {_number(r.overflow_at)} {text['overflow']}" for r in ranges]
        ),
    ]


def _bar(
    way: str, ys: list[float], lows: list[float], highs: list[float], words: str
) -> dict[str, Any]:
    return {
        "type": "bar", "orientation": "h", "hoverinfo": "skip", "width": 0.3, "name": way,
        "y": ys, "base": lows, "x": [high - low for low, high in zip(lows, highs, strict=True)],
        "marker": {"color": _COLOURS[way], "line": {"color": theme.INK, "width": 1}},
        "text": [words] * len(ys), "textposition": "inside", "insidetextanchor": "middle",
        "textfont": theme.font(colour=_ON_BARS), "textangle": 0, "constraintext": "none",
    }  # fmt: skip


def _ends(side: str, xs: list[float], ys: list[float], words: list[str]) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "text", "hoverinfo": "skip", "name": side, "x": xs, "y": ys,
        "text": words, "textposition": f"middle {side}", "textfont": theme.font(),
        "cliponaxis": False,
    }  # fmt: skip


def _number(score: float) -> str:
    return significant(score, 3).replace("-", "−")


def _error(error: float) -> str:
    return f"{error:.0e}".replace("e-0", "e-").replace("-", "−") if error else "0"


def _dots(
    way: str, ranges: Sequence[SoftmaxRange], rows: Sequence[int], text: dict[str, str]
) -> dict[str, Any]:
    # A little apart, because the three are often equal.
    shift = {UNSAFE: 0.24, SAFE: 0.0, ONLINE: -0.24}[way]
    errors = [max(r.errors[way], 1e-17) for r in ranges]
    colour = _COLOURS[way]
    return {
        "type": "scatter", "mode": "markers+text", "name": way, "x": errors,
        "y": [row + shift for row in rows], "xaxis": "x2", "yaxis": "y2",
        "marker": {
            "color": colour, "symbol": _MARKERS[way], "size": 11,
            "line": {"color": colour, "width": 2.5},
        },
        "text": [f" {text[way]} {_error(r.errors[way])} " for r in ranges],
        "textposition": ["middle left" if e > 1e-8 else "middle right" for e in errors],
        "textfont": theme.font(theme.SMALL), "hoverinfo": "skip", "cliponaxis": False,
    }  # fmt: skip
