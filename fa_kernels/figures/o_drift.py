"""The error of O over the number of passes, with O carried in fp32 and in 16 bits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fa_kernels.figures import theme
from fa_kernels.units import significant

WIDE, NARROW = "flash_kv_outer", "flash_kv_outer_io"
CARRIED = (WIDE, NARROW)
_HEIGHT = 420
_GAP = 0.09
_MARKERS = {WIDE: "diamond", NARROW: "star-square"}


@dataclass(frozen=True)
class Drift:
    """Largest errors against float64 in one dtype.

    `errors`: variant -> error for every entry of `passes`. `bound`: what the rounding of O may add
    at most after that many passes, on top of the first. `recorded`: variant -> (passes, error) of
    GPU runs at other sizes.
    """

    dtype: str
    passes: Sequence[int]
    errors: Mapping[str, Sequence[float]]
    bound: Sequence[float]
    recorded: Mapping[str, Sequence[tuple[float, float]]]

    @property
    def growth(self) -> float:
        """Error with a 16-bit O over the error with an fp32 one, at the most passes."""
        return self.errors[NARROW][-1] / self.errors[WIDE][-1]


def o_drift_spec(drifts: Sequence[Drift], text: Mapping[str, Any]) -> dict[str, Any]:
    """A plotly spec: one panel per dtype, one axis of errors for all."""
    layout = theme.base_layout(_HEIGHT)
    layout["margin"] = {"l": 70, "r": 14, "t": 68, "b": 56}
    width = (1 - _GAP * (len(drifts) - 1)) / len(drifts)
    low, high = _span(drifts)
    last = max(_last(drift) for drift in drifts)
    ticks = [4**e for e in range(8) if 4**e <= last]
    layout["annotations"], data = [], []
    for i, drift in enumerate(drifts):
        number = "" if i == 0 else str(i + 1)
        start = i * (width + _GAP)
        layout[f"xaxis{number}"] = theme.axis(
            title=theme.axis_title(text["axis_passes"]), type="log", domain=[start, start + width],
            range=[-0.1, math.log10(last) + 0.12], tickvals=ticks, anchor=f"y{number}",
            ticktext=[str(tick) for tick in ticks],
        )  # fmt: skip
        layout[f"yaxis{number}"] = theme.axis(
            title=theme.axis_title(text["axis_error"]), type="log", range=[low, high], dtick=1,
            exponentformat="power", anchor=f"x{number}",
        )  # fmt: skip
        layout["annotations"].append(_head(start, drift, text))
        data += _traces(drift, number, text)
    return {"data": data, "layout": layout}


def _last(drift: Drift) -> float:
    return max([*drift.passes, *(x for line in drift.recorded.values() for x, _ in line)])


def _span(drifts: Sequence[Drift]) -> tuple[float, float]:
    known = [error for drift in drifts for line in drift.errors.values() for error in line]
    known += [error for d in drifts for line in d.recorded.values() for _, error in line]
    known += [error for drift in drifts for error in drift.bound]
    known = [error for error in known if error > 0]
    return math.log10(min(known)) - 0.2, math.log10(max(known)) + 0.2


def _traces(drift: Drift, number: str, text: Mapping[str, Any]) -> list[dict[str, Any]]:
    axes = {"xaxis": f"x{number}", "yaxis": f"y{number}"}
    found: list[dict[str, Any]] = [
        {
            "type": "scatter", "mode": "lines", "name": "bound", **axes,
            "x": list(drift.passes), "y": list(drift.bound), "hoverinfo": "skip",
            "line": {"color": theme.MUTED, "width": 2, "dash": "dot"},
        }
    ]  # fmt: skip
    for name in CARRIED:
        style = theme.STYLES[name]
        hovers = [
            f"{style.label}, {n} {text['passes']}: {error:.2g}"
            for n, error in zip(drift.passes, drift.errors[name], strict=True)
        ]
        found.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": name, **axes,
                "x": list(drift.passes), "y": list(drift.errors[name]),
                "line": {"color": style.colour, "width": 3, "dash": style.dash},
                "marker": {"symbol": _MARKERS[name], "size": 10, "color": style.colour},
                "hovertext": hovers, "hoverinfo": "text",
            }
        )  # fmt: skip
        points = drift.recorded.get(name, ())
        found.append(
            {
                "type": "scatter", "mode": "markers", "name": f"{name}, recorded", **axes,
                "x": [x for x, _ in points], "y": [error for _, error in points],
                "marker": {
                    "symbol": f"{_MARKERS[name]}-open", "size": 9, "color": style.colour,
                    "line": {"width": 1.5},
                },
                "hovertext": [
                    f"{style.label}, GPU, {significant(x)} {text['passes']}: {error:.2g}"
                    for x, error in points
                ],
                "hoverinfo": "text",
            }
        )  # fmt: skip
    return found


def _head(x: float, drift: Drift, text: Mapping[str, Any]) -> dict[str, Any]:
    words = []
    for name in CARRIED:
        style = theme.STYLES[name]
        glyph, label = style.named.split()[0], text["carried"][name].format(dtype=drift.dtype)
        words.append(f'<span style="color:{style.text_colour}">{glyph} {label}</span>')
    words.append(text["legend_bound"])
    if any(drift.recorded.values()):
        words.append(text["legend_recorded"])
    title = text["title"].format(dtype=drift.dtype)
    return {
        "x": x, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "yshift": 6, "showarrow": False, "align": "left", "font": theme.font(),
        "text": f"<b>{title}</b><br>{'&nbsp; '.join(words)}",
    }  # fmt: skip
