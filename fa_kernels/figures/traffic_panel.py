"""Panel (b): HBM bytes of one forward pass by tensor, with FLOPs and intensity beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fa_kernels.figures import theme
from fa_kernels.figures.panel import TRAFFIC, Frame, Panel, Words, if_it_fits, marks
from fa_kernels.figures.point import COMPARED, Point, ratio_text
from fa_kernels.figures.recorded import RecordedRun
from fa_kernels.traffic.model import TENSORS, Traffic
from fa_kernels.units import TRAFFIC_STEPS, flops, significant, traffic
from fa_kernels.variants import ALGORITHMS, VARIANTS

#: A bar this many times as long as the next one is cut.
_CUT = 4.0
#: Share of a bar from which on a tensor is in the legend; the mouse finds them all.
_SEEN = 0.005
#: Length of the axis over that of the longest bar drawn to scale.
_ROOM = 1.04


def scale_of(nbytes: float) -> tuple[float, str]:
    """Divisor and unit in which an axis up to `nbytes` reads well."""
    for size, unit in TRAFFIC_STEPS:
        if nbytes >= size:
            return size, unit
    return 1.0, "B"


@dataclass(frozen=True)
class _Bars:
    """The variants shown, top to bottom, and the length of the axis in bytes.

    A bar that is much longer than all others would make them invisible: it is cut, hatched and
    labelled, and its parts are shares of the visible length instead of lengths on the axis.
    """

    moved: Mapping[str, Traffic]

    @cached_property
    def most(self) -> int:
        """Bytes of the longest bar that is drawn to scale."""
        return max(t.total_bytes for name, t in self.moved.items() if not self.cut(name))

    def cut(self, name: str) -> bool:
        """True if this bar is too long for the axis."""
        totals = sorted(t.total_bytes for t in self.moved.values())
        longest, second = totals[-1], totals[-2] if len(totals) > 1 else totals[-1]
        return longest > _CUT * second and self.moved[name].total_bytes == longest

    def factor(self, name: str) -> float:
        """By what a variant's bytes are multiplied to be drawn: 1, or less where its bar is cut."""
        return self.most * _ROOM / self.moved[name].total_bytes if self.cut(name) else 1.0

    def height(self, name: str) -> int:
        """Height of a variant's bar: the first variant on top."""
        return len(self.moved) - 1 - list(self.moved).index(name)


def traffic_panel(
    point: Point,
    run: RecordedRun | None = None,
    frame: Frame = TRAFFIC,
    axes: tuple[str, str] = ("x2", "y2"),
    names: Sequence[str] = tuple(ALGORITHMS),
) -> Panel:
    """Stacked bars per variant in the `launched` model; a diamond where a kernel counted them."""
    panel = Panel()
    bars = _Bars({name: point.traffic(VARIANTS[name]) for name in names})
    size, unit = scale_of(bars.most)
    _draw_bars(panel, point, bars, size, frame, axes)
    counted = _counted(panel, point, run, bars, size, axes)
    slow, fast = (point.traffic(VARIANTS[name]).total_bytes for name in COMPARED)
    ratio = ratio_text(slow / max(1, fast))
    first, last = (VARIANTS[name].label for name in COMPARED)
    source = f" · ◇ counted in kernel: recorded {counted}" if counted else ""
    panel.head(frame, f"HBM traffic: {first} / {last} = {ratio}", f"model (launched){source}")
    _legend(panel, bars, frame)
    x_name, y_name = axes[0].replace("x", "xaxis"), axes[1].replace("y", "yaxis")
    panel.axes[x_name] = theme.axis(
        title=theme.axis_title("HBM bytes of one forward pass", unit), rangemode="tozero",
        range=[0, bars.most / size * _ROOM], nticks=6, domain=list(frame.x), anchor=axes[1],
    )  # fmt: skip
    panel.axes[y_name] = theme.axis(
        range=[-0.45, len(names) - 0.2], showticklabels=False, showgrid=False,
        domain=list(frame.y), anchor=axes[0],
    )  # fmt: skip
    return panel


def _draw_bars(
    panel: Panel, point: Point, bars: _Bars, size: float, frame: Frame, axes: tuple[str, str]
) -> None:
    pieces: list[_Piece] = []
    for name, moved in bars.moved.items():
        variant, at, factor = VARIANTS[name], 0.0, bars.factor(name)
        for tensor in TENSORS:
            nbytes = moved.of(tensor)
            if not nbytes:
                continue
            long, label = nbytes * factor, theme.TENSOR_LABELS[tensor]
            pieces.append(
                _Piece(
                    at / size,
                    long / size,
                    bars.height(name),
                    theme.TENSOR_COLOURS[tensor],
                    if_it_fits(label, long / bars.most / _ROOM, frame.x),
                    f"{variant.label}, {label}: {traffic(nbytes)}",
                    bars.cut(name),
                )
            )
            at += long
        panel.words.append(Words(0, bars.height(name) + 0.36, _bar_words(point, bars, name), axes))
        if bars.cut(name):
            _break_mark(panel, bars.height(name), bars.most * _ROOM / size, axes)
    panel.data.append(_bar_trace(pieces, axes))


def _bar_words(point: Point, bars: _Bars, name: str) -> str:
    """What stands above a bar: bytes, FLOPs and how many of them each byte pays for."""
    variant, moved = VARIANTS[name], bars.moved[name]
    work = point.flops(variant)
    words = (
        f"<b>{point.label(variant)}</b>: {traffic(moved.total_bytes)}, {flops(work)}, "
        f"{significant(moved.intensity(work), 3)} FLOP/B"
    )
    if bars.cut(name):
        words += f" (cut: {significant(1 / bars.factor(name), 2)} times this long)"
    return words


def _break_mark(panel: Panel, y: float, end: float, axes: tuple[str, str]) -> None:
    """Two slanted strokes through a bar that goes on beyond the axis."""
    for at in (0.955, 0.97):
        x = at * end
        panel.shapes.append(
            {
                "type": "path",
                "path": f"M{x - 0.006 * end},{y - 0.29}L{x + 0.006 * end},{y + 0.29}",
                "xref": axes[0],
                "yref": axes[1],
                "line": {"color": theme.INK, "width": 2},
            }
        )


@dataclass(frozen=True)
class _Piece:
    """One tensor's part of one bar, in the axis' unit."""

    base: float
    length: float
    y: int
    colour: str
    text: str
    hover: str
    cut: bool


def _bar_trace(pieces: Sequence[_Piece], axes: tuple[str, str]) -> dict[str, Any]:
    shapes = ["/" if p.cut else "" for p in pieces]
    return {
        "type": "bar",
        "orientation": "h",
        "x": [p.length for p in pieces],
        "base": [p.base for p in pieces],
        "y": [p.y for p in pieces],
        "width": 0.42,
        "xaxis": axes[0],
        "yaxis": axes[1],
        "marker": {
            **theme.hatched([p.colour for p in pieces], shapes, theme.INK, 6, 0.15),
            "line": {"color": theme.INK, "width": 1},
        },
        "text": [p.text for p in pieces],
        "textposition": "inside",
        "constraintext": "none",
        "insidetextanchor": "middle",
        "textangle": 0,
        "textfont": {"size": theme.SMALL},
        "hovertext": [p.hover for p in pieces],
        "hoverinfo": "text",
        "name": "HBM traffic",
        **_cut_meta([p.cut for p in pieces]),
    }


def _cut_meta(cut: Sequence[bool]) -> dict[str, Any]:
    """Which lengths are cut, where some are: they say nothing on another axis."""
    return {"meta": {"cut": list(cut)}} if any(cut) else {}


def _counted(
    panel: Panel,
    point: Point,
    run: RecordedRun | None,
    bars: _Bars,
    size: float,
    axes: tuple[str, str],
) -> str | None:
    """Diamonds at what the kernels counted; the run's id, or None where nothing was counted."""
    if run is None:
        return None
    found = {name: run.row(name, point, "hbm_bytes") for name in bars.moved}
    counted = {name: row.median for name, row in found.items() if row and row.median is not None}
    if not counted:
        return None
    line = {"color": theme.INK, "width": 2}
    marker = {"symbol": "diamond", "size": 11, "color": theme.PAPER, "line": line}
    # A hair inside: plotly leaves out what lies beyond the axis, and a cut bar ends where it does.
    end = 0.999 * bars.most * _ROOM
    xs = [min(nbytes * bars.factor(name), end) / size for name, nbytes in counted.items()]
    ys = [bars.height(name) for name in counted]
    hovers = [f"counted in the kernel: {traffic(n)}" for n in counted.values()]
    trace = marks(xs, ys, axes, marker, hovers, "counted", cliponaxis=False)
    panel.data.append(trace | _cut_meta([bars.cut(name) for name in counted]))
    return run.run_id


def _legend(panel: Panel, bars: _Bars, frame: Frame) -> None:
    # Not what is too thin to be seen: the legend shares its line with the title.
    moved = bars.moved.values()
    present = [t for t in TENSORS if any(m.of(t) > _SEEN * m.total_bytes for m in moved)]
    entries = (theme.swatch(theme.TENSOR_COLOURS[t], theme.TENSOR_LABELS[t]) for t in present)
    # Without the space after each square the narrowest figure holds title and legend.
    text = "&nbsp;".join(entries).replace("</span> ", "</span>")
    words = Words(frame.x[1], frame.title_y, text, at="bottom left")
    panel.words.append(words)
