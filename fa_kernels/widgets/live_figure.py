"""A live plotly figure: one synced spec, redrawn in place, light or dark, with alternative text."""

from __future__ import annotations

from collections import deque
from functools import cache
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from fa_kernels.figures.panel import LEAST_WIDTH
from fa_kernels.figures.theme import DARK
from fa_kernels.widgets import export
from fa_kernels.widgets.figure_row import FigureRow, row_words

STATIC = Path(__file__).parent / "static"
#: One module for the page: anywidget's has no file beside it to import.
SCRIPTS = ("export_row.js", "figure_row.js", "live_figure.js")


@cache
def plotly_js() -> bytes:
    """plotly.js from the installed plotly package, as UTF-8; nothing is fetched from a network."""
    from plotly.offline import get_plotlyjs

    return get_plotlyjs().encode()


class LiveFigure(anywidget.AnyWidget):
    """A plotly figure that follows its `spec`.

    `spec` is {"data": [...], "layout": {...}} with the colours of `figures.theme` for a white page;
    the page swaps them where it is dark. `alt` is read out by screen readers and shown until the
    figure is there. `stale` fades it: it belongs to an earlier setting. `redraw_ms` is the time of
    the last redraw, from the arrival of the spec to plotly's "afterplot"; `input_ms` from the
    movement of the knob that stamped `input_stamp`.

    Under it is a row (`row`) with Reset, Pin and Copy call, as far as `owner`, the widget that it
    is a part of, has controls, and folded away what exports it (`export`): `name` names the files;
    the export tells the owner's sentence, setting and runs; without an owner, `setting` (a
    dataclass or a dict) is what the figure shows. `call` opens the owner as it is; `pinned_said`
    is what the page says of a pinned figure: {"line", "numbers", "rest", "caption"}.
    """

    _esm = "\n".join((STATIC / name).read_text(encoding="utf-8") for name in SCRIPTS)
    _css = STATIC / "lab.css"
    spec = traitlets.Dict().tag(sync=True)
    alt = traitlets.Unicode("").tag(sync=True)
    dark_colours = traitlets.Dict(DARK).tag(sync=True)
    input_stamp = traitlets.Float(0.0).tag(sync=True)
    stale = traitlets.Bool(False).tag(sync=True)
    least_width = traitlets.Int(LEAST_WIDTH).tag(sync=True)
    export_offer = traitlets.Dict().tag(sync=True)
    export_venue = traitlets.Unicode("neurips").tag(sync=True)
    export_format = traitlets.Unicode(export.OFFERED[0]).tag(sync=True)
    export_busy = traitlets.Bool(False).tag(sync=True)
    export_said = traitlets.Unicode("").tag(sync=True)
    row_words = traitlets.Dict().tag(sync=True)
    actions = traitlets.List(traitlets.Unicode()).tag(sync=True)
    call = traitlets.Unicode("").tag(sync=True)
    pinned = traitlets.Bool(False).tag(sync=True)
    pinned_said = traitlets.Dict().tag(sync=True)
    row_said = traitlets.Unicode("").tag(sync=True)
    redraw_ms = traitlets.Float(0.0)
    input_ms = traitlets.Float(0.0)

    def __init__(
        self, name: str = "figure", owner: Any = None, setting: Any = None, **traits: Any
    ) -> None:
        super().__init__(export_offer=export.offer(), row_words=row_words(), **traits)
        self.name, self.owner, self.setting = name, owner, setting
        self.row = FigureRow(self, owner)
        self.export = export.Export(self)
        #: The last 200 (redraw_ms, input_ms), oldest first.
        self.timings: deque[tuple[float, float]] = deque(maxlen=200)
        self.on_msg(_answer)

    def show(self, spec: dict[str, Any], alt: str, input_stamp: float = 0.0) -> None:
        """Put figure and alternative text on the page in one message, what is pinned behind it."""
        shown = self.row.follow(spec, alt)
        with self.hold_sync():
            for name, value in shown.items():
                setattr(self, name, value)
            self.input_stamp = input_stamp


def _answer(widget: LiveFigure, content: Any, buffers: Any) -> None:
    """Answer a page: it asks for plotly.js once, and reports the time of each redraw."""
    if not isinstance(content, dict):
        return
    if content.get("need") == "plotly.js":
        widget.send({"have": "plotly.js"}, buffers=[plotly_js()])
    elif content.get("export"):
        widget.export.start(content["export"])
    elif content.get("row"):
        widget.row.answer(content["row"])
    elif "redraw_ms" in content:
        redraw, since_input = float(content["redraw_ms"]), float(content.get("input_ms", 0.0))
        widget.timings.append((redraw, since_input))
        widget.redraw_ms, widget.input_ms = redraw, since_input
