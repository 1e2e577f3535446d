"""Time against density on log axes: ours, FlexAttention, dense calls, and what density allows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fa_kernels.figures import theme
from fa_kernels.figures.recorded_sparse import CUDNN, FLEX, SparseCurves, Timed
from fa_kernels.measure.sparse_run import DENSITIES
from fa_kernels.units import duration, significant

_HEIGHT = 450
_MARKER = 10


@dataclass(frozen=True)
class Shown:
    """One panel: a pass, its curves, and the least time its tensors take at the rate of HBM."""

    pass_: str
    curves: SparseCurves
    floor_ms: float


def sparse_speed_spec(
    shown: Sequence[Shown], run_id: str, text: Mapping[str, Any]
) -> dict[str, Any]:
    """A plotly spec with a panel per pass; ms over the density s, both on log axes."""
    layout = theme.base_layout(_HEIGHT)
    layout["margin"] = {"l": 62, "r": 14, "t": 84, "b": 52}
    layout["annotations"], data = [], list[dict[str, Any]]()
    ticks = [math.log2(density) for density in DENSITIES]
    names = [_fraction(density) for density in DENSITIES]
    for number, one in enumerate(shown, 1):
        at = "" if number == 1 else str(number)
        domain = (0.0, 0.455) if number == 1 else (0.545, 1.0)
        lines = _lines(one, f"x{at}", f"y{at}", text)
        data += lines
        layout[f"xaxis{at}"] = theme.axis(
            title=theme.axis_title(text["axis_density"]), domain=list(domain), anchor=f"y{at}",
            tickvals=ticks, ticktext=names, range=[ticks[-1] - 0.3, ticks[0] + 0.3],
        )  # fmt: skip
        layout[f"yaxis{at}"] = theme.axis(
            title=theme.axis_title(text["axis_time"], "ms"), anchor=f"x{at}",
            **_time_axis([y for line in lines for y in line["y"]]),
        )  # fmt: skip
        layout["annotations"].append(_head(one, lines, domain[0], run_id, text))
    return {"data": data, "layout": layout}


def _fraction(density: float) -> str:
    return "1" if density == 1 else f"1/{1 / density:.0f}"


def _time_axis(logs: Sequence[float]) -> dict[str, Any]:
    """Ticks 1, 2, 5 of every decade; `logs` are base 10."""
    if not logs:
        return {"range": [-2, 1], "tickvals": [], "ticktext": []}
    low, high = min(logs) - 0.12, max(logs) + 0.12
    steps = [m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5)]
    inside = [s for s in steps if low <= math.log10(s) <= high]
    return {
        "range": [low, high], "tickvals": [math.log10(s) for s in inside],
        "ticktext": [significant(s, 1) for s in inside],
    }  # fmt: skip


def _lines(one: Shown, x: str, y: str, text: Mapping[str, Any]) -> list[dict[str, Any]]:
    curves, found = one.curves, list[dict[str, Any]]()
    axes = {"xaxis": x, "yaxis": y}
    if curves.dense is None:
        return found
    found.append(_flat(text["floors"][one.pass_], one.floor_ms, theme.MUTED, "dot", axes))
    ideal = [(density, density * curves.dense.ms) for density in DENSITIES]
    found.append(_plain(text["ideal"], ideal, theme.style_of(curves.series).colour, "dot", axes))
    if curves.cudnn is not None:
        style = theme.style_of(CUDNN)
        found.append(_flat(text["cudnn"], curves.cudnn.ms, style.colour, style.dash, axes))
    for series, timed in ((FLEX, curves.flex), (curves.series, curves.ours)):
        if timed:
            found.append(_curve(series, timed, axes))
    return found


def _curve(series: str, timed: Mapping[float, Timed], axes: Mapping[str, str]) -> dict[str, Any]:
    style, ours = theme.style_of(series), series != FLEX
    return {
        "type": "scatter", "mode": "lines+markers", "name": style.label, **axes,
        "x": [math.log2(density) for density in timed],
        "y": [math.log10(one.ms) for one in timed.values()],
        "line": {"color": style.colour, "dash": style.dash, "width": 3 if ours else 2},
        "marker": {"symbol": style.marker, "size": _MARKER, "color": style.colour},
        "hovertext": [
            f"{style.label}, s = {significant(density)}: {duration(one.ms)}"
            for density, one in timed.items()
        ],
        "hoverinfo": "text",
    }  # fmt: skip


def _plain(
    name: str,
    points: Sequence[tuple[float, float]],
    colour: str,
    dash: str,
    axes: Mapping[str, str],
) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "name": name, **axes,
        "x": [math.log2(density) for density, _ in points],
        "y": [math.log10(ms) for _, ms in points],
        "line": {"color": colour, "dash": dash, "width": 2},
        "hovertext": [f"{name}: {duration(ms)}" for _, ms in points], "hoverinfo": "text",
    }  # fmt: skip


def _flat(name: str, ms: float, colour: str, dash: str, axes: Mapping[str, str]) -> dict[str, Any]:
    ends = [(DENSITIES[0] * 2**0.3, ms), (DENSITIES[-1] / 2**0.3, ms)]
    return _plain(name, ends, colour, dash, axes)


def _head(
    one: Shown,
    lines: Sequence[Mapping[str, Any]],
    x: float,
    run_id: str,
    text: Mapping[str, Any],
) -> dict[str, Any]:
    """Title with the source, and two lines of legend in the colours of words."""
    source = text["recorded"].format(run_id=run_id) if lines else text["not_recorded"]
    drawn = {line["name"] for line in lines}
    ours, flex, cudnn = (theme.style_of(name) for name in (one.curves.series, FLEX, CUDNN))
    floor = text["floors"][one.pass_]
    words = [
        (ours.label, ours.text_colour, ours.named), (flex.label, flex.text_colour, flex.named),
        (text["cudnn"], cudnn.text_colour, f"╌ {text['cudnn']}"),
        (text["ideal"], ours.text_colour, f"┄ {text['ideal']}"),
        (floor, theme.MUTED, f"┄ {floor}"),
    ]  # fmt: skip
    told = [f'<span style="color:{c}">{w}</span>' for name, c, w in words if name in drawn]
    rows = ["&nbsp;&nbsp; ".join(told[:3]), "&nbsp;&nbsp; ".join(told[3:])]
    return {
        "x": x, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "xshift": -48, "yshift": 6, "showarrow": False, "align": "left", "font": theme.font(),
        "text": "<br>".join([f"<b>{text['titles'][one.pass_]}</b>, {source}", *rows]),
    }  # fmt: skip
