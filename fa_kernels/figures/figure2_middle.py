"""FlashAttention's figure 2 (middle) here: time and bytes over the block size, name by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fa_kernels.figures import theme
from fa_kernels.measure.paper_figures import ALGORITHM_1, BlockSize
from fa_kernels.measure.paper_numbers import Number
from fa_kernels.units import significant

_HEIGHT = 420
#: Quantities of the right panel -> dash and marker; models are dotted or plain lines.
BYTES: Mapping[str, tuple[str, str]] = {
    "paper": ("dot", "diamond-open"),
    "launched": ("solid", "circle"),
    "counted": ("solid", "circle-open"),
    "l2": ("dash", "square"),
    "dram": ("dashdot", "triangle-down"),
}
TIMES: Mapping[str, tuple[str, str]] = {
    "latency": ("solid", "circle"),
    "profiled": ("dash", "circle-open"),
}
_GLYPHS = {
    "diamond-open": "◇", "circle": "●", "circle-open": "○", "square": "■", "triangle-down": "▼",
}  # fmt: skip
_DOMAINS = ((0.0, 0.42), (0.56, 1.0))


def value_of(one: BlockSize, name: str) -> float | None:
    """A quantity of one block size: bytes, or milliseconds of "latency" and "profiled"."""
    if name in ("paper", "launched"):
        return float(getattr(one, f"{name}_bytes"))
    if name == "dram":
        return one.dram_bytes
    number: Number | None = getattr(one, name)
    return number.value if number else None


def figure2_middle_spec(sizes: Sequence[BlockSize], text: Mapping[str, Any]) -> dict[str, Any]:
    """A plotly spec: on the left time from 0 on, on the right bytes on a log axis, over B_c."""
    layout = theme.base_layout(_HEIGHT)
    layout["margin"] = {"l": 64, "r": 16, "t": 100, "b": 56}
    layout["meta"] = {"papers": ["FlashAttention"]}  # whose calls these are; no word here says so
    layout["annotations"], data = [], []
    panels = ((TIMES, "ms", 1.0), (BYTES, "GB", 1e-9))
    for number, ((looks, unit, factor), domain) in enumerate(zip(panels, _DOMAINS, strict=True), 1):
        at = "" if number == 1 else str(number)
        curves = {name: _curve(sizes, name, factor) for name in looks}
        shown = {name: curve for name, curve in curves.items() if curve}
        kind = "time" if unit == "ms" else "bytes"
        layout |= _axes(sizes, list(shown.values()), at, domain, text[f"axis_{kind}"], unit, text)
        data += [_line(name, curve, looks[name], at, unit, text) for name, curve in shown.items()]
        refused = [one.block_n for one in sizes if one.refused] if unit == "ms" else []
        layout["annotations"].append(_head(kind, shown, looks, domain[0], refused, text))
    return {"data": data, "layout": layout}


_Curve = list[tuple[int, float]]


def _curve(sizes: Sequence[BlockSize], name: str, factor: float) -> _Curve:
    known = ((one.block_n, value_of(one, name)) for one in sizes)
    return [(block_n, value * factor) for block_n, value in known if value is not None]


def _axes(
    sizes: Sequence[BlockSize],
    curves: Sequence[_Curve],
    at: str,
    domain: tuple[float, float],
    quantity: str,
    unit: str,
    text: Mapping[str, Any],
) -> dict[str, Any]:
    known = [value for curve in curves for _, value in curve]
    options: dict[str, Any] = {"range": [0, 1.15 * max(known, default=1.0)], "nticks": 6}
    if unit == "GB":
        low, high = math.log10(min(known) / 1.25), math.log10(max(known) * 1.25)
        ticks = [2.0**e for e in range(-10, 20) if low <= math.log10(2.0**e) <= high]
        options = {"type": "log", "range": [low, high], "tickvals": ticks}
        options["ticktext"] = [f"{tick:g}" for tick in ticks]
    return {
        f"xaxis{at}": theme.axis(
            title=theme.axis_title(text["axis_block"], "keys"), type="log", domain=list(domain),
            anchor=f"y{at}", tickvals=[one.block_n for one in sizes],
            ticktext=[str(one.block_n) for one in sizes],
            range=[math.log10(sizes[0].block_n / 1.2), math.log10(sizes[-1].block_n * 1.2)],
        ),
        f"yaxis{at}": theme.axis(
            title=theme.axis_title(quantity, unit), anchor=f"x{at}", showticklabels=bool(known),
            **options,
        ),
    }  # fmt: skip


def _line(
    name: str, curve: _Curve, look: tuple[str, str], at: str, unit: str, text: Mapping[str, Any]
) -> dict[str, Any]:
    dash, marker = look
    colour = _colour(name)
    return {
        "type": "scatter", "mode": "lines+markers", "name": text["names"][name],
        "xaxis": f"x{at}", "yaxis": f"y{at}", "x": [n for n, _ in curve],
        "y": [value for _, value in curve],
        "line": {"color": colour, "dash": dash, "width": 2},
        "marker": {
            "symbol": marker, "size": 14 if name == "counted" else 10, "color": colour,
            "line": {"width": 2},
        },
        "hovertext": [
            f"{text['names'][name]}, B_c = {n}: {significant(value)} {unit}" for n, value in curve
        ],
        "hoverinfo": "text",
    }  # fmt: skip


def _colour(name: str) -> str:
    """Of the kernel; of what hardware counters say, and of the profiler's time, a grey."""
    own = name in ("paper", "launched", "counted", "latency")
    return theme.STYLES[ALGORITHM_1].colour if own else theme.MUTED


def _head(
    kind: str,
    shown: Mapping[str, _Curve],
    looks: Mapping[str, tuple[str, str]],
    x: float,
    refused: Sequence[int],
    text: Mapping[str, Any],
) -> dict[str, Any]:
    style, words = theme.STYLES[ALGORITHM_1], []
    for name in shown:
        colour = style.text_colour if _colour(name) == style.colour else theme.MUTED
        label = f"{_GLYPHS[looks[name][1]]} {text['names'][name]}"
        words.append(f'<span style="color:{colour}">{label}</span>')
    lines = [f"<b>{text['titles'][kind]}</b>"]
    lines += ["&nbsp; ".join(part) for part in (words[:2], words[2:]) if part]
    lines += [] if words else [text["not_recorded"]]
    if refused:
        lines.append(text["refused"].format(sizes=", ".join(map(str, refused))))
    return {
        "x": x, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "xshift": -46, "yshift": 6, "showarrow": False, "align": "left", "font": theme.font(),
        "text": "<br>".join(lines),
    }  # fmt: skip
