"""An earlier figure behind the one that is shown now: faint, dotted, without words and hover."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from fa_kernels.figures import theme
from fa_kernels.figures.ghost_axes import Place, hold_both, place_on, row_names
from fa_kernels.figures.ghost_bars import beyond, is_cut, on_its_axis, outlines

#: Name of every trace of the ghost.
NAME = "pinned"
#: More bars than these are a picture, as of the slots of a cache: outlines would only cover it.
MOST_BARS = 60
_OPACITY, _WIDTH = 0.6, 1.75
#: px of the line that says what is faint.
_LINE_PX = 24

Spec = Mapping[str, Any]


def has_ghost(spec: Spec) -> bool:
    """True if a ghost of this figure says something: most of it are lines, points or a few bars."""
    pictures = sum(trace.get("type") == "heatmap" for trace in spec["data"])
    return sum(map(bool, _drawable(spec))) > pictures


def ghosted(
    spec: Spec, earlier: Spec, words: str, scales: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """`spec` with `earlier` behind it; `words` say below the panels what that is.

    Args:
        spec, earlier: {"data", "layout"} of one kind of figure; neither is changed.
        scales: axis name ("yaxis") -> factor of what is measured in the setting's own unit.

    Returns:
        A figure whose axes hold both. What has no place on now's axes is left out.
    """
    layout = {
        name: dict(part) if name[1:5] == "axis" else part for name, part in spec["layout"].items()
    }
    places = widen(layout, earlier["layout"], scales)
    data = [on_its_axis(trace, spec["layout"], layout) for trace in spec["data"]]
    behind = [one for one in _lines(earlier, places) if not _is_there(one, spec)]
    behind = [one for one in behind if _can_be_seen(one, layout)]
    grounded = [on_its_axis(trace, earlier["layout"], layout) for trace in _bars(earlier)]
    now = {"data": data, "layout": layout}
    over = outlines({"data": grounded, "layout": earlier["layout"]}, places, now)
    _say(layout, words)
    return {"data": [*behind, *(beyond(trace, over) for trace in data), *over], "layout": layout}


def widen(
    layout: dict[str, Any], before: Mapping[str, Any], scales: Mapping[str, float] | None = None
) -> dict[str, Place]:
    """Make the axes of `layout` hold those of `before`; axis -> where an earlier value lies now."""
    places = {}
    for name in [name for name in layout if name[1:5] == "axis" and name in before]:
        factor = (scales or {}).get(name, 1.0)
        if (place := _placed(before, layout, name, factor)) is not None:
            places[name] = place
            # The room beside labels on a log axis would be ten times the curves' on a linear one.
            if before[name].get("type") == layout[name].get("type"):
                hold_both(layout[name], before[name], place)
    return places


def _drawable(spec: Spec) -> list[bool]:
    return [_is_line(trace, spec) or trace in _bars(spec) for trace in spec["data"]]


def _bars(spec: Spec) -> list[dict[str, Any]]:
    bars = [trace for trace in spec["data"] if trace.get("type") == "bar"]
    count = sum(len(trace.get("x", trace.get("y", ()))) for trace in bars)
    return bars if count <= MOST_BARS else []


def _is_line(trace: Mapping[str, Any], spec: Spec) -> bool:
    if trace.get("type", "scatter") != "scatter" or trace.get("mode") == "text":
        return False
    seen = [spec["layout"].get(name, {}).get("visible", True) for name in axes_of(trace)]
    return any(seen) and len(trace.get("x", ())) > 0


def _is_there(ghost: Mapping[str, Any], spec: Spec) -> bool:
    """True if now's figure has the same points on the same axes: a ceiling, a floor."""
    own = [trace for trace in spec["data"] if axes_of(trace) == axes_of(ghost)]
    return any(
        list(trace.get("x", ())) == ghost["x"] and list(trace.get("y", ())) == ghost["y"]
        for trace in own
    )


def _can_be_seen(ghost: Mapping[str, Any], layout: Mapping[str, Any]) -> bool:
    """False if it lies beyond an axis, as marks at the top of one on another scale do."""
    for way, name in zip("xy", axes_of(ghost), strict=True):
        if "range" not in (axis := layout[name]):
            continue
        low, high = sorted(axis["range"])
        numbers = [v for v in ghost[way] if isinstance(v, int | float)]
        if axis.get("type") == "log":
            numbers = [math.log10(v) for v in numbers if v > 0]
        if numbers and (min(numbers) > high or max(numbers) < low):
            return False
    return True


def axes_of(trace: Mapping[str, Any]) -> tuple[str, str]:
    """Names of the axes in the layout: ("xaxis2", "yaxis2")."""
    return f"xaxis{trace.get('xaxis', 'x')[1:]}", f"yaxis{trace.get('yaxis', 'y')[1:]}"


def _placed(before: Spec, now: Spec, name: str, scale: float) -> Place | None:
    try:
        place = place_on(before[name], now[name], row_names(before, name), row_names(now, name))
    except ValueError:
        return None
    return place if scale == 1 else lambda value: None if value is None else place(value) * scale


def _lines(earlier: Spec, places: Mapping[str, Place]) -> list[dict[str, Any]]:
    found = []
    for trace in earlier["data"]:
        x, y = axes_of(trace)
        if not _is_line(trace, earlier) or x not in places or y not in places:
            continue
        ghost = {
            "type": "scatter", "name": NAME, "hoverinfo": "skip", "showlegend": False,
            "opacity": _OPACITY,
            "x": [None if is_cut(trace, i) else places[x](v) for i, v in enumerate(trace["x"])],
            "y": [places[y](value) for value in trace["y"]],
        }  # fmt: skip
        ghost |= {key: trace[key] for key in ("xaxis", "yaxis", "connectgaps") if key in trace}
        found.append(ghost | _look(trace))
    return found


def _look(trace: Mapping[str, Any]) -> dict[str, Any]:
    """Its own colour, thin and dotted; points that no line joins are small and hollow."""
    mode = trace.get("mode", "lines+markers")
    if "lines" in mode:
        own = trace.get("line", {})
        # What is dotted already is dotted more thinly: one of two models stays so behind, too.
        line = {**own, "dash": "1px,6px" if own.get("dash") == "dot" else "dot", "width": _WIDTH}
        line.setdefault("color", theme.MUTED)
        return {"mode": "lines", "line": line}
    marker = copy.deepcopy({k: v for k, v in trace.get("marker", {}).items() if k != "size"})
    symbol = marker.get("symbol", "circle")
    if isinstance(symbol, str):
        marker["symbol"] = symbol.removesuffix("-open") + "-open"
    return {"mode": "markers", "marker": {**marker, "size": 8}}


def _say(layout: dict[str, Any], words: str) -> None:
    """A line of its own at the lower end, so that a figure taken elsewhere says it, too."""
    margin = dict(layout.get("margin", {}))
    inside = layout["height"] - margin.get("t", 0) - margin.get("b", 0)
    layout["height"] += _LINE_PX
    margin["b"] = margin.get("b", 0) + _LINE_PX
    layout["margin"] = margin
    # As a share of the panels' height, which grows with the page's letters as the margin does.
    note = {
        "x": 0, "y": -(margin["b"] - 4) / inside, "xref": "paper", "yref": "paper",
        "xanchor": "left", "yanchor": "bottom", "showarrow": False, "align": "left",
        "text": words, "font": theme.font(theme.SMALL), "name": NAME,
    }  # fmt: skip
    layout["annotations"] = [*layout.get("annotations", ()), note]
