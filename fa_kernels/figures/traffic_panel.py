"""Panel (b): HBM bytes of one forward pass by tensor, with FLOPs and intensity beside them."""

from __future__ import annotations

from typing import Any

from fa_kernels.figures import theme
from fa_kernels.figures.panel import TRAFFIC, Frame, Panel, Words, if_it_fits, marks
from fa_kernels.figures.point import COMPARED, Point, ratio_text
from fa_kernels.figures.recorded import RecordedRun
from fa_kernels.traffic.model import TENSORS
from fa_kernels.units import TRAFFIC_STEPS, flops, significant, traffic
from fa_kernels.variants import VARIANTS


def scale_of(nbytes: float) -> tuple[float, str]:
    """Divisor and unit in which an axis up to `nbytes` reads well."""
    for size, unit in TRAFFIC_STEPS:
        if nbytes >= size:
            return size, unit
    return 1.0, "B"


def traffic_panel(
    point: Point,
    run: RecordedRun | None = None,
    frame: Frame = TRAFFIC,
    axes: tuple[str, str] = ("x2", "y2"),
) -> Panel:
    """Stacked bars per variant in the `launched` model; a diamond where a kernel counted them."""
    panel = Panel()
    moved = {name: point.traffic(variant) for name, variant in VARIANTS.items()}
    most = max(t.total_bytes for t in moved.values())
    size, unit = scale_of(most)
    _bars(panel, point, size, most, frame, axes)
    counted = _counted(panel, point, run, size, axes)
    slow, fast = (moved[name].total_bytes for name in COMPARED)
    ratio = ratio_text(slow / max(1, fast))
    first, last = (VARIANTS[name].label for name in COMPARED)
    source = f" · ◆ counted in kernel: recorded {counted}" if counted else ""
    panel.head(frame, f"HBM traffic: {first} / {last} = {ratio}", f"model (launched){source}")
    _legend(panel, frame)
    x_name, y_name = axes[0].replace("x", "xaxis"), axes[1].replace("y", "yaxis")
    panel.axes[x_name] = theme.axis(
        title=theme.axis_title("HBM bytes of one forward pass", unit), rangemode="tozero",
        range=[0, most / size * 1.04], nticks=6, domain=list(frame.x), anchor=axes[1],
    )  # fmt: skip
    panel.axes[y_name] = theme.axis(
        range=[-0.45, len(VARIANTS) - 0.2], showticklabels=False, showgrid=False,
        domain=list(frame.y), anchor=axes[0],
    )  # fmt: skip
    return panel


def _row(name: str) -> int:
    """Height of a variant's bar: the first variant on top."""
    return len(VARIANTS) - 1 - list(VARIANTS).index(name)


def _bars(
    panel: Panel, point: Point, size: float, most: int, frame: Frame, axes: tuple[str, str]
) -> None:
    xs, bases, ys, colours, texts, hovers = [], [], [], [], [], []
    for name, variant in VARIANTS.items():
        moved, at = point.traffic(variant), 0.0
        for tensor in TENSORS:
            nbytes = moved.of(tensor)
            if not nbytes:
                continue
            xs.append(nbytes / size)
            bases.append(at / size)
            ys.append(_row(name))
            colours.append(theme.TENSOR_COLOURS[tensor])
            label = theme.TENSOR_LABELS[tensor]
            texts.append(if_it_fits(label, nbytes / most / 1.04, frame.x))
            hovers.append(f"{variant.label}, {label}: {traffic(nbytes)}")
            at += nbytes
        intensity = significant(moved.intensity(point.flops), 3)
        words = (
            f"<b>{variant.label}</b>: {traffic(moved.total_bytes)}, {flops(point.flops)}, "
            f"{intensity} FLOP/B"
        )
        panel.words.append(Words(0, _row(name) + 0.36, words, axes))
    panel.data.append(_bar_trace(xs, bases, ys, colours, texts, hovers, axes))


def _bar_trace(
    xs: list[float],
    bases: list[float],
    ys: list[int],
    colours: list[str],
    texts: list[str],
    hovers: list[str],
    axes: tuple[str, str],
) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "x": xs,
        "base": bases,
        "y": ys,
        "width": 0.42,
        "xaxis": axes[0],
        "yaxis": axes[1],
        "marker": {"color": colours, "line": {"color": theme.INK, "width": 1}},
        "text": texts,
        "textposition": "inside",
        "constraintext": "none",
        "insidetextanchor": "middle",
        "textangle": 0,
        "textfont": {"size": theme.SMALL},
        "hovertext": hovers,
        "hoverinfo": "text",
        "name": "HBM traffic",
    }


def _counted(
    panel: Panel, point: Point, run: RecordedRun | None, size: float, axes: tuple[str, str]
) -> str | None:
    """Diamonds at what the kernels counted; the run's id, or None where nothing was counted."""
    if run is None:
        return None
    found = {name: run.row(name, point, "hbm_bytes") for name in VARIANTS}
    counted = {name: row.median for name, row in found.items() if row and row.median is not None}
    if not counted:
        return None
    line = {"color": theme.INK, "width": 2}
    marker = {"symbol": "diamond", "size": 11, "color": theme.PAPER, "line": line}
    xs, ys = [nbytes / size for nbytes in counted.values()], [_row(name) for name in counted]
    hovers = [f"counted in the kernel: {traffic(n)}" for n in counted.values()]
    panel.data.append(marks(xs, ys, axes, marker, hovers, "counted", cliponaxis=False))
    return run.run_id


def _legend(panel: Panel, frame: Frame) -> None:
    entries = (theme.swatch(theme.TENSOR_COLOURS[t], theme.TENSOR_LABELS[t]) for t in TENSORS)
    words = Words(frame.x[1], frame.title_y, "&nbsp;".join(entries), at="bottom left")
    panel.words.append(words)
