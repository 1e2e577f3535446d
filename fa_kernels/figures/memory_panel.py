"""Panel (d): memory on top of the inputs against N: predicted, recorded, and what does not fit."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from fa_kernels.figures import theme
from fa_kernels.figures.over_seqlen import (
    SEQLENS,
    Label,
    end_labels,
    left_of,
    line_trace,
    padded_span,
    seqlen_axis,
    seqlens_shown,
    value_axis,
)
from fa_kernels.figures.panel import MEMORY, Cursor, Panel, Words, marks
from fa_kernels.figures.point import COMPARED, Point
from fa_kernels.figures.recorded import RecordedRun
from fa_kernels.units import GIB, capacity
from fa_kernels.variants import ALGORITHMS, VARIANTS

_AXES = ("x4", "y4")


def memory_panel(point: Point, run: RecordedRun | None = None, log: bool = True) -> Panel:
    """Memory on top of the inputs over N: predicted lines, recorded markers, the capacity."""
    panel = Panel()
    ns = seqlens_shown(point.seqlen)
    labels: list[Label] = []
    shown: list[float] = []
    capacity_gib = point.device.hbm_capacity_bytes / GIB
    for name in ALGORITHMS:
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
    compared = [VARIANTS[name] for name in COMPARED]
    extra = [f"{v.label} {capacity(v.memory(point.problem).extra_bytes)}" for v in compared]
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
    ys, over = _predicted(name, point.at(ns[0]), tuple(ns))
    hover = "%{fullData.name}, predicted: N = %{x}, %{y:.4~g} GiB<extra></extra>"
    panel.data.append(line_trace(ns, ys, name, _AXES, mode="lines", hovertemplate=hover))
    shown += ys
    labels.append(Label(ys[-1], style.named, style.text_colour))
    if not over:
        return
    memory = [variant.memory(p.problem) for p in over]
    xs, tops = [p.seqlen for p in over], [m.extra_bytes / GIB for m in memory]
    texts = [f"does not fit (estimated {capacity(m.total_bytes)})" for m in memory]
    marker = {"symbol": "x-open", "size": 11, "color": style.colour, "line": {"width": 2}}
    panel.data.append(marks(xs, tops, _AXES, marker, texts, f"{style.label}: does not fit"))
    # The words stand left of the first cross, where the rising line leaves room; two algorithms
    # that need the same share them.
    place = (left_of(xs[0], ns[-1], log), tops[0], texts[0], _AXES, "top left")
    if all((words.x, words.y) != place[:2] for words in panel.words):
        panel.words.append(Words(*place, colour=style.text_colour))


@lru_cache(maxsize=256)
def _predicted(
    name: str, key: Point, ns: tuple[int, ...]
) -> tuple[tuple[float, ...], tuple[Point, ...]]:
    """(GiB at every N, the points that do not fit): the same wherever the knob of N stands.

    `key` is the point at the first N.
    """
    variant, points = VARIANTS[name], [key.at(n) for n in ns]
    ys = tuple(variant.memory(p.problem).extra_bytes / GIB for p in points)
    return ys, tuple(p for p in points if not p.fits(variant))


def _recorded_dots(panel: Panel, run: RecordedRun, point: Point) -> None:
    """All recorded points as one trace, in the marker and colour of their series."""
    panel.data.append(dict(_dots(run, point.at(SEQLENS[0]))))


@lru_cache(maxsize=64)
def _dots(run: RecordedRun, point: Point) -> dict[str, Any]:
    """The trace of a point whose N does not matter."""
    names = run.names(point, "extra_mem_bytes")
    curves = [(theme.style_of(name), run.curve(name, point, "extra_mem_bytes")) for name in names]
    dots = [(style, row) for style, rows in curves for row in rows if row.median is not None]
    gib = [(row.median or 0.0) / GIB for _, row in dots]
    hovers = [
        f"{style.label}, recorded: N = {row.seqlen_q}, {capacity(row.median or 0.0)}"
        for style, row in dots
    ]
    marker = {
        "symbol": [f"{style.marker}-open" for style, _ in dots],
        "size": 9,
        "color": [style.colour for style, _ in dots],
    }
    ns = [row.seqlen_q for _, row in dots]
    return marks(ns, gib, _AXES, marker, hovers, "recorded memory")


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
