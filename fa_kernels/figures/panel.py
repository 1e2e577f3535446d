"""A panel as plain data, and how panels are joined into one figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fa_kernels.figures import theme

HEIGHT = 640
#: The page scrolls sideways rather than draw a figure narrower than this (live_figure.js), in px.
LEAST_WIDTH = 960
_MARGIN_TOP, _MARGIN_BOTTOM = 8, 46
INNER_PX = HEIGHT - _MARGIN_TOP - _MARGIN_BOTTOM


def _from_top(px: float) -> float:
    return 1 - px / INNER_PX


@dataclass(frozen=True)
class Frame:
    """Where a panel stands in the figure, in paper fractions; its title and caption sit on top."""

    x: tuple[float, float]
    y: tuple[float, float]
    title_y: float
    caption_y: float


def _frame(x: tuple[float, float], top_px: float, bottom_px: float) -> Frame:
    y = (_from_top(bottom_px), _from_top(top_px + 44))
    return Frame(x, y, _from_top(top_px), _from_top(top_px + 21))


_LEFT, _RIGHT = (0.0, 0.462), (0.538, 1.0)
#: The four panels: top left, top right, bottom left, bottom right.
TILES = _frame(_LEFT, 0, 240)
TRAFFIC = _frame(_RIGHT, 0, 240)
RUNTIME = _frame(_LEFT, 298, INNER_PX)
MEMORY = _frame(_RIGHT, 298, INNER_PX)


@dataclass(frozen=True)
class Words:
    """A piece of text; `at` is plotly's text position, `axes` None means paper fractions."""

    x: float
    y: float
    text: str
    axes: tuple[str, str] | None = None
    at: str = "middle right"
    size: int = theme.SMALL
    colour: str = theme.INK


@dataclass(frozen=True)
class Cursor:
    """The line at the chosen N, from bottom to top of the panel with these axes."""

    seqlen: int
    axes: tuple[str, str]


@dataclass
class Panel:
    """Traces, axes, words and shapes of one panel, ready to be joined into one figure."""

    data: list[dict[str, Any]] = field(default_factory=list)
    axes: dict[str, dict[str, Any]] = field(default_factory=dict)
    words: list[Words] = field(default_factory=list)
    cursors: list[Cursor] = field(default_factory=list)
    shapes: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)

    def head(self, frame: Frame, title: str, caption: str) -> None:
        """The title, and under it the caption that says where the numbers come from."""
        x, below = frame.x[0], "bottom right"
        bold = f"<b>{title}</b>"
        self.words += [
            Words(x, frame.title_y, bold, at=below, size=theme.TITLE),
            Words(x, frame.caption_y, caption, at=below, colour=theme.MUTED),
        ]

    def note(self, frame: Frame, text: str, log: bool) -> None:
        """Words over the curves that say why something is not there; "; " starts a new line.

        They stand where curves that rise leave room: at the bottom right on log axes, at the left
        on linear ones. The labels of lines and of what was not measured are above or beside.
        """
        side = "right" if log else "left"
        self.notes.append(
            {
                "x": frame.x[1] - 0.01 if log else frame.x[0] + 0.01,
                "y": frame.y[0] + (0.04 if log else 0.72) * (frame.y[1] - frame.y[0]),
                "xref": "paper",
                "yref": "paper",
                "xanchor": side,
                "yanchor": "bottom" if log else "top",
                "align": side,
                "text": text.replace("; ", ";<br>"),
                "showarrow": False,
                "bgcolor": theme.PAPER,
                "font": theme.font(),
            }
        )


#: Invisible axes over the whole figure, for words and for the line at the chosen N.
_OVERLAY = ("x9", "y9")


def join(panels: Iterable[Panel], height: int = HEIGHT) -> dict[str, Any]:
    """One plotly spec, `{"data": [...], "layout": {...}}`, from several panels.

    Words and cursors of all panels become one trace each, in paper fractions: plotly takes about
    1 ms for every trace and 0.5 ms for every annotation, and a figure that is dragged has 50.
    """
    layout = theme.base_layout(height)
    layout["annotations"], layout["shapes"], data = [], [], []
    words: list[Words] = []
    cursors: list[Cursor] = []
    for panel in panels:
        data += panel.data
        layout.update(panel.axes)
        layout["annotations"] += panel.notes
        layout["shapes"] += panel.shapes
        words += panel.words
        cursors += panel.cursors
    if cursors:
        data.append(_cursor_trace(cursors, layout))
    data.append(_text_trace(words, layout))
    hidden = {"range": [0, 1], "domain": [0, 1], "visible": False, "fixedrange": True}
    layout["xaxis9"], layout["yaxis9"] = hidden | {"anchor": "y9"}, hidden | {"anchor": "x9"}
    return {"data": data, "layout": layout}


def if_it_fits(text: str, part: float, width: tuple[float, float]) -> str:
    """`text`, or its first word, or nothing: what a bar over `part` of a panel's `width` can hold.

    Plotly's own way (uniformtext) measures every label again in each redraw. Here the narrowest
    figure counts.
    """
    room = part * (width[1] - width[0]) * (LEAST_WIDTH - 72) - 4
    for words in (text, text.split(" ")[0]):
        if 7 * len(words) <= room:
            return words
    return ""


def position(value: float, log: bool) -> float:
    """A value in the coordinates of an axis range: log10 on a log axis."""
    return math.log10(value) if log else value


def paper(value: float, axis: str, layout: dict[str, Any]) -> float:
    """Where `value` on an axis ("x3") lies in the figure, as a fraction of it."""
    spec = layout[f"{axis[0]}axis{axis[1:]}"]
    (low, high), (start, end) = spec["range"], spec["domain"]
    at = position(value, spec.get("type") == "log")
    return float(start + (at - low) / (high - low) * (end - start))


def marks(
    xs: Sequence[float],
    ys: Sequence[float],
    axes: tuple[str, str],
    marker: dict[str, Any],
    hovers: Sequence[str],
    name: str,
    **options: Any,
) -> dict[str, Any]:
    """Markers, each with its own words under the mouse; `options` go on top."""
    return {
        "type": "scatter",
        "mode": "markers",
        "x": list(xs),
        "y": list(ys),
        "xaxis": axes[0],
        "yaxis": axes[1],
        "marker": marker,
        "hovertext": list(hovers),
        "hoverinfo": "text",
        "name": name,
        **options,
    }


def _text_trace(pieces: Sequence[Words], layout: dict[str, Any]) -> dict[str, Any]:
    places = [
        (paper(p.x, p.axes[0], layout), paper(p.y, p.axes[1], layout)) if p.axes else (p.x, p.y)
        for p in pieces
    ]
    return {
        "type": "scatter",
        "mode": "text",
        "x": [x for x, _ in places],
        "y": [y for _, y in places],
        "text": [piece.text for piece in pieces],
        "textposition": [piece.at for piece in pieces],
        "textfont": {
            "size": [piece.size for piece in pieces],
            "color": [piece.colour for piece in pieces],
        },
        "xaxis": _OVERLAY[0],
        "yaxis": _OVERLAY[1],
        "cliponaxis": False,
        "hoverinfo": "skip",
        "name": "words",
    }


def _cursor_trace(cursors: Sequence[Cursor], layout: dict[str, Any]) -> dict[str, Any]:
    """The vertical lines at the chosen N. A trace, because shapes go stale in partial updates."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    for cursor in cursors:
        x = paper(cursor.seqlen, cursor.axes[0], layout)
        start, end = layout[f"xaxis{cursor.axes[0][1:]}"]["domain"]
        if not start <= x <= end:
            continue  # N is shorter than the axis: a line elsewhere would lie
        xs += [x, x, None]
        ys += [*layout[f"yaxis{cursor.axes[1][1:]}"]["domain"], None]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": xs,
        "y": ys,
        "xaxis": _OVERLAY[0],
        "yaxis": _OVERLAY[1],
        "line": {"color": theme.INK, "width": 1, "dash": "dash"},
        "hoverinfo": "skip",
        "name": f"N = {cursors[0].seqlen}",
    }
