"""Bars of an earlier figure as dotted outlines over the bars that are shown now."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fa_kernels.figures import theme
from fa_kernels.figures.ghost_axes import Place

#: Where a bar begins and ends, and where it begins and ends across its length.
Rect = tuple[float, float, float, float]
Spec = Mapping[str, Any]
#: Within this factor of the low end of a log axis a bar begins there.
_NEAR = 1.001


def outlines(earlier: Spec, places: Mapping[str, Place], now: Spec) -> list[dict[str, Any]]:
    """One trace of outlines for each pair of axes; parts of one stacked bar share theirs.

    Args:
        earlier: the figure whose bars are outlined.
        places: axis name -> where a value lies now; bars without a place are left out.
        now: the figure that is shown; bars that stand there as they stood have no outline.
    """
    here = dict.fromkeys(now["layout"], _itself)
    shown = _bars_by_axes(now, here)
    return [
        _trace(*axes, left)
        for axes, rects in _bars_by_axes(earlier, places).items()
        if (left := [one for one in rects if not _is_among(one, shown.get(axes, []))])
    ]


def on_its_axis(
    trace: Mapping[str, Any], before: Mapping[str, Any], now: Mapping[str, Any]
) -> Mapping[str, Any]:
    """A bar that begins at the low end of a log axis, from the low end of the axis as it is now."""
    if trace.get("type") != "bar":
        return trace
    way = "x" if trace.get("orientation") == "h" else "y"
    name = f"{way}axis{trace.get(f'{way}axis', way)[1:]}"
    if name not in now or before.get(name, {}).get("type") != "log" or "range" not in now[name]:
        return trace
    was, low = (10 ** min(layout[name]["range"]) for layout in (before, now))
    bases = trace.get("base", 0)
    grounded = [
        low if _item(bases, i) <= was * _NEAR else _item(bases, i) for i in range(len(trace[way]))
    ]
    sizes = [
        size if size is None else size + _item(bases, i) - grounded[i]
        for i, size in enumerate(trace[way])
    ]
    return {**trace, "base": grounded, way: sizes}


def beyond(trace: Mapping[str, Any], over: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Words that stand right of lying bars, right of the longer one of bar and outline.

    `over` are traces of `outlines`: a line of theirs would go through the words.
    """
    if trace.get("mode") != "text" or trace.get("textposition") != "middle right":
        return trace
    axes = (trace.get("xaxis", "x"), trace.get("yaxis", "y"))
    lying = [
        one for one in over if (one["xaxis"], one["yaxis"]) == axes and one["meta"]["along"] == "h"
    ]
    corners = [(one["x"], one["y"], i) for one in lying for i in range(0, len(one["x"]), 6)]
    rects = [(xs[i], xs[i + 1], ys[i], ys[i + 2]) for xs, ys, i in corners]
    xs = [
        max([x, *(end for begin, end, low, high in rects if low < y < high and begin <= x < end)])
        for x, y in zip(trace["x"], trace["y"], strict=True)
    ]
    return {**trace, "x": xs} if xs != list(trace["x"]) else trace


def _itself(value: Any) -> Any:
    return value


def _is_among(rect: Rect, others: Sequence[Rect]) -> bool:
    return any(
        all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) for a, b in zip(rect, one, strict=True))
        for one in others
    )


def _bars_by_axes(
    spec: Spec, places: Mapping[str, Place]
) -> dict[tuple[str, str, str], list[Rect]]:
    """(orientation, x axis, y axis) -> the bars there, parts of one stacked bar as one."""
    found: dict[tuple[str, str, str], list[Rect]] = {}
    for bar in (trace for trace in spec["data"] if trace.get("type") == "bar"):
        x, y = bar.get("xaxis", "x"), bar.get("yaxis", "y")
        names = (f"xaxis{x[1:]}", f"yaxis{y[1:]}")
        if not all(name in places for name in names):
            continue
        along = "h" if bar.get("orientation") == "h" else "v"
        length, across = names if along == "h" else names[::-1]
        rects = found.setdefault((along, x, y), [])
        rects += _rects(bar, spec, places[length], places[across])
    return {axes: _joined(rects) for axes, rects in found.items()}


def _rects(bar: Mapping[str, Any], spec: Mapping[str, Any], length: Place, across: Place) -> Any:
    """The rectangles of one trace, where both ends have a place."""
    lengths, at = (bar["x"], bar["y"]) if bar.get("orientation") == "h" else (bar["y"], bar["x"])
    bases, shift, widths = bar.get("base", 0), *_across(bar, spec)
    for i, (size, place) in enumerate(zip(lengths, at, strict=True)):
        base, width = _item(bases, i) or 0, _item(widths, i)
        middle = across(place)
        if size is None or middle is None or is_cut(bar, i):
            continue
        begin, end = length(base), length(base + size)
        if begin is not None and end is not None and begin != end:
            yield begin, end, middle + shift - width / 2, middle + shift + width / 2


def _across(bar: Mapping[str, Any], spec: Mapping[str, Any]) -> tuple[float, Any]:
    """(shift of the middle, width): the trace's own, else its share of a group."""
    if "width" in bar:
        return 0.0, bar["width"]
    layout = spec["layout"]
    whole = 1 - layout.get("bargap", 0.2)
    if layout.get("barmode", "group") != "group":
        return 0.0, whole
    axes = (bar.get("xaxis"), bar.get("yaxis"))
    group = [
        one
        for one in spec["data"]
        if one.get("type") == "bar" and (one.get("xaxis"), one.get("yaxis")) == axes
    ]
    width = whole / len(group)
    return -whole / 2 + (group.index(bar) + 0.5) * width, width


def is_cut(trace: Mapping[str, Any], i: int) -> bool:
    """True if the trace's `meta` says that this bar, or the mark on it, is cut to fit its axis."""
    return bool(_item(trace.get("meta", {}).get("cut", False), i))


def _item(value: Any, i: int) -> Any:
    return value[i] if isinstance(value, list | tuple) else value


def _joined(rects: Sequence[Rect]) -> list[Rect]:
    """Parts that touch end to end as one, so that a stacked bar has one outline."""
    joined: list[Rect] = []
    for rect in sorted(rects, key=lambda r: (r[2], r[3], r[0])):
        last = joined[-1] if joined else None
        touches = last is not None and last[2:] == rect[2:] and rect[0] <= last[1] * (1 + 1e-9)
        if last is not None and touches:
            joined[-1] = (last[0], max(last[1], rect[1]), *rect[2:])
        else:
            joined.append(rect)
    return joined


def _trace(along: str, x: str, y: str, rects: Sequence[Rect]) -> dict[str, Any]:
    lengths: list[float | None] = []
    across: list[float | None] = []
    for begin, end, low, high in rects:
        lengths += [begin, end, end, begin, begin, None]
        across += [low, low, high, high, low, None]
    return {
        "type": "scatter", "name": "pinned", "mode": "lines", "xaxis": x, "yaxis": y,
        "x": lengths if along == "h" else across, "y": across if along == "h" else lengths,
        "hoverinfo": "skip", "showlegend": False, "meta": {"along": along},
        "line": {"color": theme.INK, "width": 1.75, "dash": "dot"},
    }  # fmt: skip
