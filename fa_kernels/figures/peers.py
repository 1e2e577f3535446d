"""TFLOP/s over N of our rung and any peers: lines of one run, open marks of further runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fa_kernels.figures import theme
from fa_kernels.figures.recorded_peers import kernels_in
from fa_kernels.figures.recorded_speed import Curve, Rate
from fa_kernels.units import duration, significant

_HEIGHT, _LINE = 440, 17
#: Widths of a rung's line and of a peer's; sizes of a filled and of an open marker, in px.
_OURS, _PEER, _FILLED, _OPEN = 3, 2, 9, 15
#: Names in a line of the legend: as many as fit the least width of the figure.
_NAMES = 4


def peers_spec(runs: Mapping[str, Sequence[Curve]], text: Mapping[str, Any]) -> dict[str, Any]:
    """A plotly spec, TFLOP/s from 0 on over N on a log axis; `runs`: run id -> curves.

    The first run's points of a series are joined. Those of further runs are open marks that
    nothing joins: each run is a process of its own.
    """
    heads = _head(runs, text)
    layout = theme.base_layout(_HEIGHT + _LINE * len(heads))
    layout["margin"] = {"l": 62, "r": 14, "t": 22 + _LINE * len(heads), "b": 56}
    known = [rate for curves in runs.values() for curve in curves for rate in curve.rates]
    ns = sorted({rate.seqlen for rate in known})
    places = [math.log2(n) for n in ns] or [11.0, 14.0]
    top = max((rate.tflops for rate in known), default=1.0)
    layout["xaxis"] = theme.axis(
        title=theme.axis_title(text["axis_seqlen"], "tokens"), tickvals=places if ns else [],
        ticktext=[str(n) for n in ns], range=[places[0] - 0.25, places[-1] + 0.25],
    )  # fmt: skip
    layout["yaxis"] = theme.axis(
        title=theme.axis_title(text["axis_rate"], "TFLOP/s"), range=[0, 1.1 * top], nticks=7,
        showticklabels=bool(known),
    )  # fmt: skip
    layout["annotations"] = [
        {
            "x": 0, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left",
            "yanchor": "bottom", "xshift": -48, "yshift": 6, "showarrow": False, "align": "left",
            "font": theme.font(), "text": "<br>".join(heads),
        }
    ]  # fmt: skip
    marks = [
        _marks(curve, run_id, place > 0)
        for place, (run_id, curves) in enumerate(runs.items())
        for curve in curves
    ]
    return {"data": marks, "layout": layout}


def _marks(curve: Curve, run_id: str, further: bool) -> dict[str, Any]:
    style = theme.style_of(curve.series)
    marker = {"symbol": style.marker, "size": _FILLED, "color": style.colour}
    if further:
        marker = {
            "symbol": f"{style.marker}-open", "size": _OPEN, "color": style.colour,
            "line": {"width": 2, "color": style.colour},
        }  # fmt: skip
    line = {
        "color": style.colour, "dash": style.dash, "width": _OURS if curve.is_ours else _PEER,
    }  # fmt: skip
    return {
        "type": "scatter", "mode": "markers" if further else "lines+markers",
        "name": curve.series, "x": [math.log2(rate.seqlen) for rate in curve.rates],
        "y": [rate.tflops for rate in curve.rates], "marker": marker,
        **({} if further else {"line": line}),
        "hovertext": [_hover(curve, rate, run_id) for rate in curve.rates], "hoverinfo": "text",
    }  # fmt: skip


def _hover(curve: Curve, rate: Rate, run_id: str) -> str:
    said = (
        f"{curve.name}, N = {rate.seqlen}: {significant(rate.tflops)} TFLOP/s, "
        f"{duration(rate.ms)}<br>{run_id}"
    )
    names = (name.replace("<", "&lt;").replace(">", "&gt;") for name in kernels_in(rate.row))
    return "<br>".join((said, *names))


def _head(runs: Mapping[str, Sequence[Curve]], text: Mapping[str, Any]) -> list[str]:
    """Title, and per run a legend in the colours of words: its id, then its series."""
    title = f"<b>{text['title']}</b>"
    if not runs:
        return [f"{title}, {text['not_recorded']}"]
    lines = [title]
    for place, (run_id, curves) in enumerate(runs.items()):
        lines.append(text["open" if place else "filled"].format(run_id=run_id))
        names = [_named(curve) for curve in curves]
        for first in range(0, len(names), _NAMES):
            lines.append("&nbsp;&nbsp; ".join(names[first : first + _NAMES]))
    return lines


def _named(curve: Curve) -> str:
    style = theme.style_of(curve.series)
    named = style.named.replace(style.label, curve.name)
    return f'<span style="color:{style.text_colour}">{named}</span>'
