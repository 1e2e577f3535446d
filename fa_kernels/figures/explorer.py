"""The explorer's figure: four linked panels at one point of N, d, M, dtype and device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fa_kernels.figures.ghost import widen
from fa_kernels.figures.memory_panel import memory_panel
from fa_kernels.figures.panel import MEMORY, RUNTIME, fit_words, join
from fa_kernels.figures.point import Point
from fa_kernels.figures.recorded import RecordedRun
from fa_kernels.figures.runtime_panel import runtime_panel
from fa_kernels.figures.tile_panel import tile_panel
from fa_kernels.figures.traffic_panel import traffic_panel
from fa_kernels.measure.records import Row

#: px right of the panels, as in `theme.base_layout`.
_MARGIN_RIGHT = 14


#: Panels, by their x axes, that a page draws as a plot of their own: a move of N leaves runtime and
#: memory as they are, and changes the traffic and the words and lines over all panels.
_BELOW = ("x3", "x4")


def explorer_spec(
    point: Point,
    run: RecordedRun | None = None,
    live: Sequence[Row] = (),
    live_on: str = "",
    log: bool = True,
    hold: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The figure as plain data: what is sent to the page while a knob is dragged.

    Args:
        point: the setting of the knobs.
        run: the run recorded on `point.device`, or None.
        live: rows measured just now at this d, dtype and M; `live_on` is the GPU's name.
        log: log-log axes for runtime and memory; otherwise linear.
        hold: an earlier figure of this kind that the axes shall hold, too.

    Returns:
        {"data": [...], "layout": {...}}, valid for `plotly.graph_objects.Figure`.
    """
    runtime = runtime_panel(point, run, live, live_on, log)
    memory = memory_panel(point, run, log)
    tiles, traffic = tile_panel(point), traffic_panel(point, run)
    if hold is not None:
        # Before words and cursors are placed, which are shares of the figure.
        for panel in (tiles, traffic, runtime, memory):
            widen(panel.axes, hold["layout"])
    fit_words(runtime, RUNTIME, "x3", spare_px=0)
    fit_words(memory, MEMORY, "x4", spare_px=_MARGIN_RIGHT - 2)
    spec = join([tiles, traffic, runtime, memory])
    spec["layout"]["meta"] = {"below": _BELOW}
    return spec


def explorer_figure(
    point: Point,
    run: RecordedRun | None = None,
    live: Sequence[Row] = (),
    live_on: str = "",
    log: bool = True,
) -> Any:
    """`explorer_spec` as a `plotly.graph_objects.Figure`, checked by plotly."""
    import plotly.graph_objects as go

    return go.Figure(explorer_spec(point, run, live, live_on, log))
