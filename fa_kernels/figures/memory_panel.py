"""Panel (d): memory on top of the inputs against N: predicted, recorded, and what does not fit."""

from __future__ import annotations

from fa_kernels.figures import theme
from fa_kernels.figures.over_seqlen import (
    Label,
    end_labels,
    left_of,
    line_trace,
    padded_span,
    seqlen_axis,
    seqlens_shown,
    value_axis,
)
from fa_kernels.figures.panel import MEMORY, Cursor, Panel, Words
from fa_kernels.figures.point import Point
from fa_kernels.figures.recorded import RecordedRun
from fa_kernels.units import GIB, capacity
from fa_kernels.variants import VARIANTS

_AXES = ("x4", "y4")


def memory_panel(point: Point, run: RecordedRun | None = None, log: bool = True) -> Panel:
    """Memory on top of the inputs over N: predicted lines, recorded markers, the capacity."""
    panel = Panel()
    ns = seqlens_shown(point.seqlen)
    labels: list[Label] = []
    shown: list[float] = []
    capacity_gib = point.device.hbm_capacity_bytes / GIB
    for name in VARIANTS:
        _predicted_line(panel, name, point, ns, labels, shown, log)
    if run is not None:
        _recorded_dots(panel, run, point)
    # On a linear axis the capacity sets the span: beyond it nothing exists.
    span = padded_span([*shown, capacity_gib] if log else [capacity_gib * 1.2], log)
    labels = [label for label in labels if label.y < span[1]]
    panel.words = [words for words in panel.words if words.y < span[1]]
    _capacity_line(panel, point, ns[-1], capacity_gib, labels)
    panel.cursors.append(Cursor(point.seqlen, _AXES))
    panel.words += end_labels(labels, ns[-1], span, log, MEMORY, _AXES)
    panel.axes["xaxis4"] = seqlen_axis(ns[-1], log, MEMORY, "y4")
    panel.axes["yaxis4"] = value_axis("memory beyond q, k, v", "GiB", span, log, MEMORY, "x4")
    recorded = f" · markers: recorded {run.run_id}" if run else ""
    caption = f"lines: model{recorded} · ✕ does not fit"
    panel.head(MEMORY, _memory_title(point), caption)
    return panel


def _memory_title(point: Point) -> str:
    extra = [
        f"{variant.label} {capacity(variant.memory(point.problem).extra_bytes)}"
        for variant in VARIANTS.values()
    ]
    return f"Extra memory: {', '.join(extra)}"


def _predicted_line(
    panel: Panel,
    name: str,
    point: Point,
    ns: list[int],
    labels: list[Label],
    shown: list[float],
    log: bool,
) -> None:
    variant, style = VARIANTS[name], theme.style_of(name)
    points = [point.at(n) for n in ns]
    ys = [variant.memory(p.problem).extra_bytes / GIB for p in points]
    hover = "%{fullData.name}, predicted: N = %{x}, %{y:.4~g} GiB<extra></extra>"
    panel.data.append(line_trace(ns, ys, name, _AXES, mode="lines", hovertemplate=hover))
    shown += ys
    over = [p for p in points if not p.fits(variant)]
    labels.append(Label(ys[-1], style.named, style.text_colour))
    if not over:
        return
    totals = [variant.memory(p.problem).total_bytes for p in over]
    panel.data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "x": [p.seqlen for p in over],
            "y": [variant.memory(p.problem).extra_bytes / GIB for p in over],
            "xaxis": _AXES[0],
            "yaxis": _AXES[1],
            "marker": {"symbol": "x-open", "size": 11, "color": style.colour, "line": {"width": 2}},
            "hovertext": [f"does not fit (estimated {capacity(t)})" for t in totals],
            "hoverinfo": "text",
            "name": f"{style.label}: does not fit",
        }
    )
    # The words stand left of the first cross, where the rising line leaves room.
    text = f"does not fit (estimated {capacity(totals[0])})"
    x, y = over[0].seqlen, variant.memory(over[0].problem).extra_bytes / GIB
    panel.words.append(
        Words(left_of(x, ns[-1], log), y, text, _AXES, "top left", colour=style.text_colour)
    )


def _recorded_dots(panel: Panel, run: RecordedRun, point: Point) -> None:
    """All recorded points as one trace, in the marker and colour of their series."""
    names = run.names(point, "extra_mem_bytes")
    curves = [(theme.style_of(name), run.curve(name, point, "extra_mem_bytes")) for name in names]
    dots = [(style, row) for style, rows in curves for row in rows if row.median is not None]
    gib = [(row.median or 0.0) / GIB for _, row in dots]
    hovers = [
        f"{style.label}, recorded: N = {row.seqlen_q}, {capacity(row.median or 0.0)}"
        for style, row in dots
    ]
    panel.data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "x": [row.seqlen_q for _, row in dots],
            "y": gib,
            "xaxis": _AXES[0],
            "yaxis": _AXES[1],
            "marker": {
                "symbol": [f"{style.marker}-open" for style, _ in dots],
                "size": 9,
                "color": [style.colour for style, _ in dots],
            },
            "hovertext": hovers,
            "hoverinfo": "text",
            "name": "recorded memory",
        }
    )


def _capacity_line(
    panel: Panel, point: Point, last: int, capacity_gib: float, labels: list[Label]
) -> None:
    text = f"capacity {capacity(point.device.hbm_capacity_bytes)}"
    line = {"color": theme.MUTED, "width": 2, "dash": "dash"}
    panel.data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "x": [1, last],
            "y": [capacity_gib, capacity_gib],
            "xaxis": _AXES[0],
            "yaxis": _AXES[1],
            "line": line,
            "hoverinfo": "skip",
            "name": text,
        }
    )
    labels.append(Label(capacity_gib, text, theme.MUTED))
