"""TFLOP/s over N of the rungs on tensor cores and of their peers, timed in one process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fa_kernels.figures import theme
from fa_kernels.figures.recorded_speed import Curve
from fa_kernels.units import duration, significant

_HEIGHT = 420
#: Widths of a rung's line and of a peer's, and size of a marker, in px.
_OURS, _PEER, _MARKER = 3, 2, 10


def speed_spec(
    curves: Sequence[Curve], run_id: str, pass_: str, text: Mapping[str, Any]
) -> dict[str, Any]:
    """A plotly spec: a line per series, TFLOP/s from 0 on over N on a log axis."""
    layout = theme.base_layout(_HEIGHT)
    layout["margin"] = {"l": 62, "r": 14, "t": 62, "b": 56}
    known = [rate for curve in curves for rate in curve.rates]
    ns = sorted({rate.seqlen for rate in known})
    places = [math.log2(n) for n in ns] or [9.0, 14.0]
    top = max((rate.tflops for rate in known), default=1.0)
    layout["xaxis"] = theme.axis(
        title=theme.axis_title(text["axis_seqlen"], "tokens"), tickvals=places if ns else [],
        ticktext=[str(n) for n in ns], range=[places[0] - 0.3, places[-1] + 0.3],
    )  # fmt: skip
    layout["yaxis"] = theme.axis(
        title=theme.axis_title(text["axis_rate"], "TFLOP/s"), range=[0, 1.12 * top], nticks=7,
        showticklabels=bool(known),
    )  # fmt: skip
    layout["annotations"] = [_head(curves, run_id, text["titles"][pass_], text)]
    return {"data": [_line(curve) for curve in curves], "layout": layout}


def _line(curve: Curve) -> dict[str, Any]:
    style = theme.style_of(curve.series)
    return {
        "type": "scatter", "mode": "lines+markers", "name": curve.series,
        "x": [math.log2(rate.seqlen) for rate in curve.rates],
        "y": [rate.tflops for rate in curve.rates],
        "line": {
            "color": style.colour, "dash": style.dash, "width": _OURS if curve.is_ours else _PEER,
        },
        "marker": {"symbol": style.marker, "size": _MARKER, "color": style.colour},
        "hovertext": [
            f"{curve.name}, N = {rate.seqlen}: {significant(rate.tflops)} TFLOP/s, "
            f"{duration(rate.ms)}"
            for rate in curve.rates
        ],
        "hoverinfo": "text",
    }  # fmt: skip


def _head(
    curves: Sequence[Curve], run_id: str, title: str, text: Mapping[str, Any]
) -> dict[str, Any]:
    """Title with the source, and under it the legend, in the colours of words."""
    source = text["recorded"].format(run_id=run_id) if run_id else text["not_recorded"]
    words = []
    for curve in curves:
        style = theme.style_of(curve.series)
        named = style.named.replace(style.label, curve.name)
        words.append(f'<span style="color:{style.text_colour}">{named}</span>')
    return {
        "x": 0, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "xshift": -48, "yshift": 6, "showarrow": False, "align": "left", "font": theme.font(),
        "text": f"<b>{title}</b>, {source}<br>{'&nbsp;&nbsp; '.join(words) or '&nbsp;'}",
    }  # fmt: skip
