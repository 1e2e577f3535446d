"""A panel as plain data, and how panels are joined into one figure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fa_kernels.figures import theme

HEIGHT = 656
#: The page scrolls sideways rather than draw a figure narrower than this (live_figure.js), in px.
#: A cell of JupyterLab in a window of 1280 px, beside the file browser, has 848 px, of which a
#: scroll bar may take up to 17.
LEAST_WIDTH = 828
#: About how wide a letter of size `theme.SMALL` is, in px.
LETTER = 5.8
#: As in `theme.base_layout`.
_MARGIN_TOP, _MARGIN_BOTTOM, _MARGIN_SIDES = 8, 46, 72
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


def _frame(x: tuple[float, float], top_px: float, bottom_px: float, lines: int = 1) -> Frame:
    y = (_from_top(bottom_px), _from_top(top_px + 29 + 15 * lines))
    return Frame(x, y, _from_top(top_px), _from_top(top_px + 21))


#: The four panels: top left, top right, bottom left, bottom right. The words over the bars of
#: traffic are the longest of the figure; the captions over N may take two lines.
TILES = _frame((0.0, 0.398), 0, 240)
TRAFFIC = _frame((0.428, 1.0), 0, 240)
RUNTIME = _frame((0.0, 0.476), 298, INNER_PX, lines=2)
MEMORY = _frame((0.55, 1.0), 298, INNER_PX, lines=2)


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
    """The line at the chosen N, from the bottom of the panel with these axes up to `top` of it."""

    seqlen: int
    axes: tuple[str, str]
    top: float = 1.0


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
            Words(x, frame.caption_y, wrapped(caption, frame), at=below, colour=theme.MUTED),
        ]

    def note(self, frame: Frame, text: str, log: bool) -> None:
        """Words over the curves that say why something is not there; "; " starts a new line.

        They stand where curves that rise leave room: at the bottom right on log axes, at the left
        on linear ones. The labels of lines and of what was not measured are above or beside.
        """
        side = "right" if log else "left"
        # On linear axes they stand beside the labels of the lines, on log ones under them.
        letters = int((width_px(frame) - (0 if log else 125)) / 6.3)
        lines = [line for part in text.split("; ") for line in textwrap.wrap(f"{part};", letters)]
        self.notes.append(
            {
                "x": frame.x[1] - 0.01 if log else frame.x[0] + 0.005,
                "y": frame.y[0] + (0.04 if log else 0.72) * (frame.y[1] - frame.y[0]),
                "xref": "paper",
                "yref": "paper",
                "xanchor": side,
                "yanchor": "bottom" if log else "top",
                "align": side,
                "text": "<br>".join(lines).removesuffix(";"),
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
    room = part * (width[1] - width[0]) * (LEAST_WIDTH - _MARGIN_SIDES) - 4
    for words in (text, text.split(" ")[0]):
        if 7 * len(words) <= room:
            return words
    return ""


def width_px(frame: Frame) -> float:
    """How wide a frame is in the narrowest figure, in px."""
    return (frame.x[1] - frame.x[0]) * (LEAST_WIDTH - _MARGIN_SIDES)


def wrapped(caption: str, frame: Frame) -> str:
    """`caption` in two lines where the narrowest figure's frame cannot hold it, cut at a " · "."""
    if LETTER * len(caption) <= width_px(frame):
        return caption
    first, *rest = caption.rsplit(" · ", 1)
    return "<br>".join([first, *rest])


def fit_words(panel: Panel, frame: Frame, axis: str, spare_px: float) -> None:
    """Keep a panel's words inside the narrowest figure, along the axis over N ("x3").

    The axis grows at its right end until the labels of the lines fit, `spare_px` beyond the frame
    included; what would begin left of the frame begins at its edge instead, under its place.
    """
    spec = panel.axes[f"{axis[0]}axis{axis[1:]}"]
    log, (low, high) = spec.get("type") == "log", spec["range"]
    own = [
        (i, piece) for i, piece in enumerate(panel.words) if piece.axes and piece.axes[0] == axis
    ]
    whole = width_px(frame)
    for _, piece in own:
        if piece.at.endswith("right"):
            need, at = _long(piece.text) - spare_px, position(piece.x, log)
            high = max(high, low + (at - low) * whole / (whole - need))
    spec["range"] = [low, high]
    y_spec = panel.axes[f"yaxis{axis[1:]}"]
    y_log, (bottom, top) = y_spec.get("type") == "log", y_spec["range"]
    for i, piece in own:
        at = (position(piece.x, log) - low) / (high - low) * whole
        if piece.at == "middle left" and at < _long(piece.text):
            below = 5 / ((frame.y[1] - frame.y[0]) * INNER_PX) * (top - bottom)
            y = position(piece.y, y_log) - below
            edge = (10**low if log else low, 10**y if y_log else y)
            panel.words[i] = replace(piece, x=edge[0], y=edge[1], at="bottom right")


def _long(text: str) -> float:
    """About how long a line of words is, in px: three of the spaces before it are one letter."""
    return LETTER * len(text.replace("&nbsp;", " ")) - 2.5 * text.count("&nbsp;")


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
        low, high = layout[f"yaxis{cursor.axes[1][1:]}"]["domain"]
        ys += [low, low + cursor.top * (high - low), None]
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
