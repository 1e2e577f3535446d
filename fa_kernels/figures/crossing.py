"""Which loop order moves more bytes, over the SRAM budget M, and which is faster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fa_kernels.figures import theme
from fa_kernels.figures.loop_order import KV_OUTER, ONE_BLOCK, Q_OUTER
from fa_kernels.figures.point import Point
from fa_kernels.figures.recorded_numbers import Found
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.model import Traffic
from fa_kernels.units import KIB, significant, traffic
from fa_kernels.variants import VARIANTS

ORDERS = (KV_OUTER, Q_OUTER)
#: Whose latencies are shown: beside the two, Q outside with the parallelism of K/V outside.
TIMED = (KV_OUTER, ONE_BLOCK, Q_OUTER)
MODELS = ("launched", "paper")
#: Budgets of the curves, in KiB; crossings are looked for up to the last but one power of two.
BUDGETS = (*range(4, 64, 2), *range(64, 257, 4))
FAR_KIB = 2048
_HEIGHT = 420
_LEFT, _RIGHT = (0.0, 0.45), (0.53, 1.0)


def tiling_at(problem: AttentionProblem, sram_kib: int) -> Tiling:
    """The paper's tiles for a budget, cut to the sequence."""
    tiling = Tiling.from_sram(sram_kib * KIB, problem.head_dim, problem.dtype)
    return tiling.clipped(problem.seqlen_q, problem.seqlen_k)


def moved_at(name: str, model: str, problem: AttentionProblem, sram_kib: int) -> int:
    """Bytes of one variant in one of the two models at a budget."""
    variant, tiling = VARIANTS[name], tiling_at(problem, sram_kib)
    of: Traffic = getattr(variant, model)(problem, tiling)
    return of.total_bytes


def crossing_kib(problem: AttentionProblem, model: str) -> int | None:
    """The least M in KiB from which K/V outside moves fewer bytes than Q outside; None: none.

    None up to 2 MiB. Bisection: the bytes of K/V outside fall with M as N / B_c, those of Q outside
    stop falling at B_r = d.
    """

    def fewer(kib: int) -> bool:
        kv, q = (moved_at(name, model, problem, kib) for name in ORDERS)
        return kv < q

    low, high = 0, FAR_KIB
    if not fewer(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fewer(middle) else (middle, high)
    return high


def law_kib(problem: AttentionProblem, model: str) -> float:
    """The same for long sequences, in closed form: M = 4 d² elements times B_c / B_r at equality.

    A visit of K/V outside moves a row of Q in and of O in and out, a row of K or V of Q outside
    two. In the paper's model all have one size, so B_c = 1.5 B_r; the launched kernel carries O
    in fp32.
    """
    io = problem.itemsize
    o_itemsize = 4 if model == "launched" else io
    ratio = (io + 2 * o_itemsize) / (2 * io)
    return 4 * problem.head_dim**2 * ratio * io / KIB


@dataclass(frozen=True)
class Crossing:
    """Both orders at one N and d: where the models cross, and latencies by (variant, M in KiB)."""

    point: Point
    kib: Mapping[str, int | None]
    latency: Mapping[tuple[str, int], Found]


def crossing_spec(found: Crossing, text: Mapping[str, Any]) -> dict[str, Any]:
    """A plotly spec: model bytes over M on the left, recorded latency over M on the right."""
    layout = theme.base_layout(_HEIGHT)
    layout["margin"] = {"l": 70, "r": 14, "t": 68, "b": 56}
    curves = _curves(found.point.problem)
    largest = max(n for ys in curves.values() for n in ys)
    least = min(n for ys in curves.values() for n in ys)
    low, high = math.log10(least) - 0.12, math.log10(largest) + 0.1
    ticks = [m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= math.log10(tick) <= high]
    budgets = [8, 16, 32, 64, 128, 256]
    for name, domain in (("xaxis", _LEFT), ("xaxis2", _RIGHT)):
        layout[name] = theme.axis(
            title=theme.axis_title(text["axis_sram"], "KiB"), type="log", domain=list(domain),
            range=[math.log10(3.6), math.log10(290)], tickvals=budgets,
            ticktext=[str(kib) for kib in budgets], anchor="y2" if name == "xaxis2" else "y",
        )  # fmt: skip
    layout["yaxis"] = theme.axis(
        title=theme.axis_title(text["axis_bytes"]), type="log", range=[low, high],
        tickvals=ticks, ticktext=[traffic(tick) for tick in ticks],
    )  # fmt: skip
    layout["yaxis2"] = _time_axis(found, text)
    layout["annotations"] = [
        _head(_LEFT[0], text["title_bytes"], f"{_legend(ORDERS)}&nbsp;&nbsp; {text['legend']}"),
        _head(_RIGHT[0], f"{text['title_time']}, {_source(found, text)}", _legend(TIMED)),
    ]
    data = [_curve(name, model, curves[name, model]) for name in ORDERS for model in MODELS]
    data += [_marks(found, text), *(_times(name, found) for name in TIMED)]
    return {"data": data, "layout": layout}


def _legend(names: Sequence[str]) -> str:
    styles = [theme.STYLES[name] for name in names]
    words = [f'<span style="color:{style.text_colour}">{style.named}</span>' for style in styles]
    return "&nbsp;&nbsp; ".join(words)


def _curves(problem: AttentionProblem) -> dict[tuple[str, str], list[int]]:
    return {
        (name, model): [moved_at(name, model, problem, kib) for kib in BUDGETS]
        for name in ORDERS
        for model in MODELS
    }


def _curve(name: str, model: str, ys: Sequence[int]) -> dict[str, Any]:
    style, launched = theme.STYLES[name], model == "launched"
    hovers = [
        f"{style.label}, {model}, M = {kib} KiB: {traffic(n)}"
        for kib, n in zip(BUDGETS, ys, strict=True)
    ]
    line = {"color": style.colour, "width": 3 if launched else 1.5}
    return {
        "type": "scatter", "mode": "lines", "name": f"{name}, {model}", "x": list(BUDGETS),
        "y": list(ys), "line": line | ({} if launched else {"dash": "dot"}),
        "hovertext": hovers, "hoverinfo": "text",
    }  # fmt: skip


def _marks(found: Crossing, text: Mapping[str, Any]) -> dict[str, Any]:
    """Where the curves cross, within the figure."""
    problem = found.point.problem
    known = [(m, kib) for m in MODELS if (kib := found.kib[m]) and kib <= BUDGETS[-1]]
    words = [text["mark"].format(model=model, kib=kib) for model, kib in known]
    # The two lie near each other: one set of words above, one below.
    places = {"launched": "top right", "paper": "bottom left"}
    return {
        "type": "scatter", "mode": "markers+text", "name": "crossing",
        "x": [kib for _, kib in known],
        "y": [moved_at(Q_OUTER, model, problem, kib) for model, kib in known],
        "text": words, "textposition": [places[m] for m, _ in known], "textfont": theme.font(),
        "marker": {
            "symbol": "x-thin", "size": 12, "color": theme.INK,
            "line": {"color": theme.INK, "width": 3},
        },
        "hoverinfo": "skip",
    }  # fmt: skip


def _times(name: str, found: Crossing) -> dict[str, Any]:
    style = theme.STYLES[name]
    known = sorted((kib, one) for (n, kib), one in found.latency.items() if n == name)
    return {
        "type": "scatter", "mode": "lines+markers", "name": f"{name}, latency", "xaxis": "x2",
        "yaxis": "y2", "x": [kib for kib, _ in known], "y": [one.value for _, one in known],
        "line": {"color": style.colour, "dash": style.dash, "width": 2},
        "marker": {"symbol": style.marker, "size": 10, "color": style.colour},
        "hovertext": [
            f"{style.label}, M = {kib} KiB: {significant(one.value)} ms" for kib, one in known
        ],
        "hoverinfo": "text",
    }  # fmt: skip


def _time_axis(found: Crossing, text: Mapping[str, Any]) -> dict[str, Any]:
    known = [one.value for one in found.latency.values()]
    return theme.axis(
        title=theme.axis_title(text["axis_time"], "ms"), anchor="x2", nticks=6,
        range=[0, 1.15 * max(known)] if known else [0, 1], showticklabels=bool(known),
    )  # fmt: skip


def _source(found: Crossing, text: Mapping[str, Any]) -> str:
    runs = sorted({one.run_id for one in found.latency.values()})
    return text["recorded"].format(runs=", ".join(runs)) if runs else text["not_recorded"]


def _head(x: float, title: str, below: str) -> dict[str, Any]:
    return {
        "x": x, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "yshift": 6, "showarrow": False, "align": "left", "font": theme.font(),
        "text": f"<b>{title}</b><br>{below}",
    }  # fmt: skip
