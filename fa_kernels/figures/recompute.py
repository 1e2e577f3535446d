"""Backward passes side by side: bytes by tensor on the left, recorded times on the right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fa_kernels.figures import theme
from fa_kernels.figures.backward_cost import Cost
from fa_kernels.figures.traffic_panel import scale_of
from fa_kernels.traffic.model import ALL_TENSORS
from fa_kernels.units import duration, flops, significant, traffic

#: px per way, and for what stands above and below.
_ROW, _FRAME = 84, 146
_LEFT, _RIGHT = (0.0, 0.54), (0.6, 1.0)
#: Width of the left panel in the narrowest figure, in px: what a tensor's label must fit into.
_LEFT_PX = 0.54 * 770
#: Share of a bar from which on a tensor is in the legend; the mouse finds them all.
_SEEN = 0.004
_FORWARD, _BACKWARD = 0.12, -0.14
#: Of the axis of times; with more of them only the powers of ten are kept.
_MOST_TICKS = 8


def recompute_spec(found: Sequence[Cost], text: Mapping[str, Any]) -> dict[str, Any]:
    """A plotly spec with a row per way: stacked bytes, and the times of both passes."""
    layout = theme.base_layout(_FRAME + _ROW * len(found))
    layout["margin"] = {"l": 14, "r": 14, "t": 92, "b": 54}
    layout["barmode"] = "overlay"
    most = max(cost.traffic.total_bytes for cost in found)
    size, unit = scale_of(most)
    heights = [len(found) - 1 - i for i in range(len(found))]
    rows = {"range": [-0.5, len(found) - 0.28], "showticklabels": False, "showgrid": False}
    layout["xaxis"] = theme.axis(
        title=theme.axis_title(text["axis_bytes"], unit), domain=list(_LEFT), nticks=6,
        range=[0, 1.03 * most / size], anchor="y",
    )  # fmt: skip
    layout["yaxis"] = theme.axis(anchor="x", **rows)
    low, high = _time_range(found)
    ticks = [m * 10.0**e for e in range(-5, 7) for m in (1, 2, 5) if low < m * 10.0**e < high]
    if len(ticks) > _MOST_TICKS:
        ticks = [tick for tick in ticks if f"{tick:e}".startswith("1.")]
    layout["xaxis2"] = theme.axis(
        title=theme.axis_title(text["axis_time"], "ms"), domain=list(_RIGHT), type="log",
        tickvals=ticks, ticktext=[significant(tick) for tick in ticks],
        range=[math.log10(low), math.log10(high)], anchor="y2",
    )  # fmt: skip
    layout["yaxis2"] = theme.axis(anchor="x2", **rows)
    layout["annotations"] = [
        _head(_LEFT[0], f"<b>{text['title_bytes']}</b><br>{_legend(found)}"),
        _head(_RIGHT[0], f"<b>{text['title_time']}</b><br>{_time_legend(found, text)}"),
    ]
    data = [_stacks(found, heights, size, most)]
    data += [_times(found, heights, pass_, low, text) for pass_ in ("forward", "backward")]
    data += [_bounds(found, heights, kind, text) for kind in ("bytes", "arithmetic")]
    data.append(_words(found, heights, text))
    data.append(_time_words(found, heights, low, text))
    return {"data": data, "layout": layout}


def _time_range(found: Sequence[Cost]) -> tuple[float, float]:
    """Ends of the axis of times, which differ by more than a linear one can show."""
    times = [x for c in found for x in (c.forward_ms, c.backward_ms, c.bytes_ms, c.arithmetic_ms)]
    known = [x for x in times if x]
    return 0.6 * min(known), 1.25 * max(known)


def _stacks(
    found: Sequence[Cost], heights: Sequence[int], size: float, most: float
) -> dict[str, Any]:
    """All bars of the left panel as one trace; gradients are hatched."""
    bases, lengths, ys, tensors, hovers, words = [], [], [], [], [], []
    for cost, y in zip(found, heights, strict=True):
        at = 0.0
        for tensor in ALL_TENSORS:
            nbytes, label = cost.traffic.of(tensor), theme.TENSOR_LABELS[tensor]
            if not nbytes:
                continue
            room = nbytes / most * _LEFT_PX - 4
            bases.append(at / size)
            lengths.append(nbytes / size)
            ys.append(y)
            tensors.append(tensor)
            hovers.append(f"{label}: {traffic(nbytes)}")
            words.append(label if 8 * len(label) <= room else "")
            at += nbytes
    shapes = ["/" if tensor in theme.GRADIENTS else "" for tensor in tensors]
    return {
        "type": "bar", "orientation": "h", "name": "bytes", "x": lengths, "base": bases, "y": ys,
        "width": 0.4,
        "marker": {
            **theme.hatched(
                [theme.TENSOR_COLOURS[tensor] for tensor in tensors], shapes, theme.INK, 7, 0.1
            ),
            "line": {"color": theme.INK, "width": 1},
        },
        "text": [f"<b>{word}</b>" if word else "" for word in words], "textposition": "inside",
        "insidetextanchor": "middle", "textangle": 0, "constraintext": "none",
        "textfont": {"size": theme.SMALL},
        "hovertext": hovers, "hoverinfo": "text",
    }  # fmt: skip


def _times(
    found: Sequence[Cost],
    heights: Sequence[int],
    pass_: str,
    low: float,
    text: Mapping[str, Any],
) -> dict[str, Any]:
    """Bars of one pass. On a log axis they have no natural root: they begin at its left end."""
    forward = pass_ == "forward"
    known = [
        (cost, y, ms)
        for cost, y in zip(found, heights, strict=True)
        if (ms := cost.forward_ms if forward else cost.backward_ms) is not None
    ]
    lane = _FORWARD if forward else _BACKWARD
    return {
        "type": "bar", "orientation": "h", "name": pass_, "xaxis": "x2", "yaxis": "y2",
        "base": [low] * len(known), "x": [ms - low for _, _, ms in known],
        "y": [y + lane for _, y, _ in known],
        "width": 0.14 if forward else 0.26,
        "marker": {
            "color": [theme.STYLES[cost.way.variant].colour for cost, _, _ in known],
            "opacity": 0.55 if forward else 1.0, "line": {"color": theme.INK, "width": 1},
        },
        "hovertext": [f"{text[pass_]}: {duration(ms)}" for _, _, ms in known],
        "hoverinfo": "text",
    }  # fmt: skip


def _bounds(
    found: Sequence[Cost], heights: Sequence[int], kind: str, text: Mapping[str, Any]
) -> dict[str, Any]:
    """What the backward needs at least for its arithmetic, and for all bytes without caches."""
    xs = [cost.bytes_ms if kind == "bytes" else cost.arithmetic_ms for cost in found]
    symbol = "diamond" if kind == "bytes" else "triangle-down"
    return {
        "type": "scatter", "mode": "markers", "name": kind, "xaxis": "x2", "yaxis": "y2",
        "x": xs, "y": [y + _BACKWARD for y in heights], "cliponaxis": False,
        "marker": {
            "symbol": symbol, "size": 11, "color": theme.PAPER,
            "line": {"color": theme.INK, "width": 2},
        },
        "hovertext": [f"{text[kind]}: {duration(x)}" for x in xs], "hoverinfo": "text",
    }  # fmt: skip


def _words(
    found: Sequence[Cost], heights: Sequence[int], text: Mapping[str, Any]
) -> dict[str, Any]:
    """Above each stack: who, bytes, products and FLOPs."""
    lines = [
        f"<b>{text['ways'][cost.way.key]}</b>: {traffic(cost.traffic.total_bytes)}, "
        f"{text['products'].format(count=cost.way.products)} = {flops(cost.flops)}"
        for cost in found
    ]
    return _texts("", [0.0] * len(found), [y + 0.36 for y in heights], lines, theme.INK)


def _time_words(
    found: Sequence[Cost], heights: Sequence[int], low: float, text: Mapping[str, Any]
) -> dict[str, Any]:
    lines = []
    for cost in found:
        forward, backward = (
            text["not_recorded"] if ms is None else f"{significant(ms)} ms"
            for ms in (cost.forward_ms, cost.backward_ms)
        )
        nothing = cost.forward_ms is None and cost.backward_ms is None
        said = text["times"].format(forward=forward, backward=backward)
        lines.append(text["not_recorded"] if nothing else said)
    return _texts("2", [low] * len(found), [y + 0.36 for y in heights], lines, theme.INK)


def _texts(
    at: str, xs: Sequence[float], ys: Sequence[float], lines: Sequence[str], colour: str
) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "text", "name": f"words{at}", "xaxis": f"x{at}",
        "yaxis": f"y{at}", "x": list(xs), "y": list(ys), "text": list(lines),
        "textposition": "middle right", "textfont": theme.font(theme.FONT, colour),
        "hoverinfo": "skip", "cliponaxis": False,
    }  # fmt: skip


def _legend(found: Sequence[Cost]) -> str:
    """The tensors that can be seen, in two lines."""
    moved = [cost.traffic for cost in found]
    seen = [t for t in ALL_TENSORS if any(m.of(t) > _SEEN * m.total_bytes for m in moved)]
    entries = [theme.swatch(theme.TENSOR_COLOURS[t], theme.TENSOR_LABELS[t]) for t in seen]
    half = -(-len(entries) // 2)
    return "<br>".join("&nbsp;&nbsp;".join(part) for part in (entries[:half], entries[half:]))


def _time_legend(found: Sequence[Cost], text: Mapping[str, Any]) -> str:
    recorded = any(cost.backward_ms is not None for cost in found)
    first = text["legend_bars" if recorded else "legend_no_bars"]
    return f"{first}<br>{text['legend_bounds']}"


def _head(x: float, lines: str) -> dict[str, Any]:
    return {
        "x": x, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "yshift": 8, "showarrow": False, "align": "left", "font": theme.font(), "text": lines,
    }  # fmt: skip
