"""What swapping the loops does by itself, and what parallel Q tiles do by themselves, over N."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fa_kernels.figures import theme
from fa_kernels.figures.point import Point
from fa_kernels.figures.recorded_numbers import Found, RecordedNumbers
from fa_kernels.units import significant, traffic
from fa_kernels.variants import VARIANTS

#: Before the swap, after it at equal parallelism, and with a block for every Q tile.
KV_OUTER, ONE_BLOCK, Q_OUTER = "flash_kv_outer", "flash_q_outer_one_block", "flash_q_outer"
STEPS = (KV_OUTER, ONE_BLOCK, Q_OUTER)
#: Each effect compares two neighbours that differ in one thing.
SWAP, PARALLEL = (KV_OUTER, ONE_BLOCK), (ONE_BLOCK, Q_OUTER)
_HEIGHT = 446
_LEFT, _RIGHT = (0.0, 0.36), (0.45, 1.0)
_COLOURS = {SWAP: "#6E6E6E", PARALLEL: theme.STYLES[Q_OUTER].colour}
_NAMES = {SWAP: "swap", PARALLEL: "parallel"}


@dataclass(frozen=True)
class OrderAt:
    """The three variants at one N: recorded latency where there is one, bytes of the model."""

    point: Point
    latency: Mapping[str, Found | None]
    bytes: Mapping[str, int]

    @property
    def seqlen(self) -> int:
        """N."""
        return self.point.seqlen

    def gain(self, effect: tuple[str, str]) -> float | None:
        """Time before over time after: above 1 the second variant is faster."""
        before, after = (self.latency[name] for name in effect)
        return before.value / after.value if before and after else None

    @property
    def byte_gain(self) -> float:
        """Bytes before the swap over bytes after it: below 1 the swap moves more."""
        return self.bytes[KV_OUTER] / self.bytes[ONE_BLOCK]


def order_at(point: Point, numbers: RecordedNumbers) -> OrderAt:
    """The three variants at one point."""
    latency = {n: numbers.find(n, point.problem, point.tiling, "latency_ms") for n in STEPS}
    moved = {n: point.traffic(VARIANTS[n]).total_bytes for n in STEPS}
    return OrderAt(point, latency, moved)


def missing(orders: Sequence[OrderAt]) -> list[str]:
    """Labels of the variants that have no latency at any of these N."""
    return [VARIANTS[n].label for n in STEPS if not any(order.latency[n] for order in orders)]


def loop_order_spec(orders: Sequence[OrderAt], text: Mapping[str, Any]) -> dict[str, Any]:
    """A plotly spec: latency of the three over N on the left, the two effects on the right."""
    layout = theme.base_layout(_HEIGHT)
    layout["margin"] = {"l": 62, "r": 12, "t": 84, "b": 56}
    layout["barmode"] = "group"
    layout["bargap"] = 0.06
    ns = [order.seqlen for order in orders]
    places = [math.log2(n) for n in ns]
    for name, domain in (("xaxis", _LEFT), ("xaxis2", _RIGHT)):
        ticks = places if name == "xaxis2" else places[::3]
        layout[name] = theme.axis(
            title=theme.axis_title(text["axis_seqlen"]), domain=list(domain), tickvals=ticks,
            ticktext=[str(round(2**x)) for x in ticks], showgrid=False,
            range=[places[0] - 0.6, places[-1] + 0.6], anchor="y2" if name == "xaxis2" else "y",
        )  # fmt: skip
    layout["yaxis"] = _latency_axis(orders, text)
    layout["yaxis2"] = _gain_axis(orders, text)
    layout["annotations"] = [
        _head(_LEFT[0], text["title_latency"], _line_legend()),
        _head(_RIGHT[0], text["title_gain"], _bar_legend(text)),
    ]
    names = missing(orders)
    if len(names) == len(STEPS):
        layout["annotations"].append(_nothing(_LEFT, text["empty"]))
    if names:
        words = text["empty_gain"].format(names="<br>".join(names))
        layout["annotations"].append(_nothing(_RIGHT, words))
    data = [_latency(name, orders) for name in STEPS]
    data += [_bars(effect, orders, text) for effect in (SWAP, PARALLEL)]
    data += [_byte_marks(orders, text), _one(places)]
    return {"data": data, "layout": layout}


def _latency_axis(orders: Sequence[OrderAt], text: Mapping[str, Any]) -> dict[str, Any]:
    known = [found.value for order in orders for found in order.latency.values() if found]
    low, high = (min(known), max(known)) if known else (0.1, 100.0)
    ticks = [10.0**e for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    return theme.axis(
        title=theme.axis_title(text["axis_latency"], "ms"), type="log",
        range=[math.log10(low) - 0.15, math.log10(high) + 0.15],
        tickvals=ticks, ticktext=[significant(tick) for tick in ticks],
    )  # fmt: skip


def _gain_axis(orders: Sequence[OrderAt], text: Mapping[str, Any]) -> dict[str, Any]:
    gains = [g for o in orders for e in (SWAP, PARALLEL) if (g := o.gain(e)) is not None]
    gains += [order.byte_gain for order in orders]
    low = math.floor(math.log2(min(1.0, *gains)) - 0.3)
    high = math.ceil(math.log2(max(1.0, *gains)) + 0.5)
    ticks = list(range(low, high + 1))
    return theme.axis(
        title=theme.axis_title(text["axis_gain"]), range=[low, high], anchor="x2",
        tickvals=ticks, ticktext=[f"×{significant(2.0**e, 2)}" for e in ticks],
    )  # fmt: skip


def _latency(name: str, orders: Sequence[OrderAt]) -> dict[str, Any]:
    style = theme.STYLES[name]
    known = [(order, found) for order in orders if (found := order.latency[name])]
    hovers = [
        f"{style.label}, N = {o.seqlen}: {significant(f.value)} ms, {traffic(o.bytes[name])}"
        for o, f in known
    ]
    return {
        "type": "scatter", "mode": "lines+markers", "name": name,
        "x": [math.log2(o.seqlen) for o, _ in known], "y": [f.value for _, f in known],
        "line": {"color": style.colour, "dash": style.dash, "width": 2},
        "marker": {"symbol": style.marker, "size": 9, "color": style.colour},
        "hovertext": hovers, "hoverinfo": "text",
    }  # fmt: skip


def _bars(
    effect: tuple[str, str], orders: Sequence[OrderAt], text: Mapping[str, Any]
) -> dict[str, Any]:
    known = [(order, gain) for order in orders if (gain := order.gain(effect)) is not None]
    words = text[_NAMES[effect]]
    return {
        "type": "bar", "name": _NAMES[effect], "xaxis": "x2", "yaxis": "y2",
        "x": [math.log2(order.seqlen) for order, _ in known],
        "y": [math.log2(gain) for _, gain in known],
        "text": [significant(gain, 2) for _, gain in known], "textposition": "outside",
        "textfont": theme.font(theme.SMALL), "textangle": 0, "cliponaxis": False,
        "marker": {"color": _COLOURS[effect], "line": {"color": theme.INK, "width": 1}},
        "hovertext": [f"{words}, N = {order.seqlen}: ×{gain:.3g}" for order, gain in known],
        "hoverinfo": "text",
    }  # fmt: skip


def _byte_marks(orders: Sequence[OrderAt], text: Mapping[str, Any]) -> dict[str, Any]:
    """What the swap does to the bytes of the model, for every N: there is always a model."""
    return {
        "type": "scatter", "mode": "markers", "name": "bytes", "xaxis": "x2", "yaxis": "y2",
        "x": [math.log2(order.seqlen) for order in orders],
        "y": [math.log2(order.byte_gain) for order in orders],
        "marker": {
            "symbol": "diamond-tall", "size": 9, "color": theme.PAPER,
            "line": {"color": theme.INK, "width": 2},
        },
        "hovertext": [
            f"{text['bytes']}, N = {order.seqlen}: ×{order.byte_gain:.3g}" for order in orders
        ],
        "hoverinfo": "text",
    }  # fmt: skip


def _one(places: Sequence[float]) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "name": "no change", "xaxis": "x2", "yaxis": "y2",
        "x": [places[0] - 0.6, places[-1] + 0.6], "y": [0, 0], "hoverinfo": "skip",
        "line": {"color": theme.INK, "width": 1},
    }  # fmt: skip


def _head(x: float, title: str, legend: str) -> dict[str, Any]:
    return {
        "x": x, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "yshift": 6, "showarrow": False, "align": "left", "font": theme.font(),
        "text": f"<b>{title}</b><br>{legend}",
    }  # fmt: skip


def _line_legend() -> str:
    styles = [theme.STYLES[name] for name in STEPS]
    words = [f'<span style="color:{style.text_colour}">{style.named}</span>' for style in styles]
    return f"{words[0]}&nbsp; {words[2]}<br>{words[1]}"  # three do not fit in one line


def _bar_legend(text: Mapping[str, Any]) -> str:
    swap, parallel = (
        theme.swatch(_COLOURS[effect], text[_NAMES[effect]]) for effect in (SWAP, PARALLEL)
    )
    return f"{swap}&nbsp;&nbsp; {parallel}<br>◇ {text['bytes']}"


def _nothing(panel: tuple[float, float], words: str) -> dict[str, Any]:
    return {
        "x": sum(panel) / 2, "y": 0.22 if panel == _RIGHT else 0.5, "xref": "paper",
        "yref": "paper", "xanchor": "center", "showarrow": False, "text": words, "align": "center",
        "font": theme.font(theme.TITLE, theme.MUTED),
    }  # fmt: skip
