"""Two recorded runs beside each other: at every call that both hold, the first over the second."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fa_kernels.figures import theme
from fa_kernels.figures.recorded_pairs import Pair, call_words, middle
from fa_kernels.measure.baselines import BASELINES
from fa_kernels.units import capacity, duration, significant, traffic
from fa_kernels.variants import VARIANTS

_HEIGHT, _MARKER, _OPACITY = 370, 8, 0.7
#: Of the distance between an N and its double: what the band and what the marks take up.
_BAND, _DODGE = 0.86, 0.8
#: Letters in one line of the legend: what fits where the page is narrowest.
_LETTERS = 66
#: The axis of ratios shows at least this much to either side of 1.
_LEAST = 1.1
#: Ratios that may have a tick beside 1, from it outwards.
_ABOVE = (1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_BELOW = (0.98, 0.95, 0.9, 0.8, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01)
#: Two ticks are at least this share of the axis apart.
_APART = 0.06


def value_words(metric: str, value: float) -> str:
    """A number of a metric with its unit: "12.2 ms", "64 MiB", "8.73 GB"."""
    if metric.endswith("_ms"):
        return duration(value)
    if metric.endswith("_us"):
        return f"{significant(value)} µs"
    if metric.endswith("_pct"):
        return f"{significant(value)} %"
    if metric.endswith("_mem_bytes"):
        return capacity(value)
    if metric.endswith("_bytes"):
        return traffic(value)
    return significant(value)


def ratio_words(ratio: float) -> str:
    """A ratio of two runs as text: the third decimal counts where they hardly differ."""
    return f"{ratio:.3f}" if 0.95 < ratio < 1.05 else f"{ratio:.3g}"


def in_series(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """Pairs by whose they are: our variants in their order, then the peers in theirs."""
    found = {pair.first.series for pair in pairs}
    known = [name for name in (*VARIANTS, *BASELINES) if name in found]
    names = [*known, *sorted(found.difference(known))]
    return {name: [pair for pair in pairs if pair.first.series == name] for name in names}


def comparison_spec(
    pairs: Sequence[Pair], runs: tuple[str, str], metric: str, text: Mapping[str, Any]
) -> dict[str, Any]:
    """A plotly spec: a mark per call, its ratio on a log axis over N; no line joins any two.

    The band at an N is what the p20..p80 of both runs allow there, at the median of its calls.
    `runs` are the names of the first and the second, `metric` is the one compared.
    """
    drawn = [pair for pair in pairs if pair.ratio is not None]
    series, bands = in_series(drawn), _bands(drawn)
    lines = _head(list(series), bool(bands), runs, text)
    top = 18 * len(lines) + 16
    layout = theme.base_layout(_HEIGHT + top)
    layout["margin"] = {"l": 62, "r": 14, "t": top, "b": 56}
    layout["barmode"] = "overlay"
    layout["xaxis"] = _seqlen_axis(drawn, text)
    known = [pair.ratio or 1.0 for pair in drawn]
    known += [y for band in bands.values() for y in band]
    low, high = min(known, default=1.0), max(known, default=1.0)
    title = text["axis_ratio"].format(metric=text["metrics"].get(metric, metric))
    layout["yaxis"] = _ratio_axis(min(low, 1 / _LEAST), max(high, _LEAST), title)
    layout["shapes"] = [
        {
            "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1, "layer": "below",
            "line": {"color": theme.INK, "width": 1.5},
        }
    ]  # fmt: skip
    layout["annotations"] = [
        {
            "x": 0, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left",
            "yanchor": "bottom", "xshift": -48, "yshift": 6, "showarrow": False, "align": "left",
            "font": theme.font(), "text": "<br>".join(lines),
        }
    ]  # fmt: skip
    marks = [_marks(name, own, i, len(series)) for i, (name, own) in enumerate(series.items())]
    return {"data": [*([_band(bands, text)] if bands else []), *marks], "layout": layout}


def _places(pairs: Sequence[Pair], index: int, count: int) -> list[float]:
    """Where on the axis of log2 N the calls of a series stand: side by side, none upon another."""
    of_n = Counter(pair.seqlen for pair in pairs)
    seen: Counter[int] = Counter()
    found = []
    for pair in pairs:
        within = (seen[pair.seqlen] + 0.5) / of_n[pair.seqlen]
        seen[pair.seqlen] += 1
        # Nine tenths of a series' part of the place, so that two series stay apart.
        right = (index + 0.05 + 0.9 * within) / count - 0.5
        found.append(math.log2(pair.seqlen) + _DODGE * right)
    return found


def _seqlen_axis(pairs: Sequence[Pair], text: Mapping[str, Any]) -> dict[str, Any]:
    ticks: list[int] = []
    for n in sorted({pair.seqlen for pair in pairs}):
        if not ticks or math.log2(n / ticks[-1]) > 0.45:
            ticks.append(n)
    places = [math.log2(n) for n in ticks]
    ends = (places[0] - 0.6, places[-1] + 0.6) if places else (8.5, 14.5)
    return theme.axis(
        title=theme.axis_title(text["axis_seqlen"], "tokens"), tickvals=places,
        ticktext=[str(n) for n in ticks], range=list(ends), showgrid=False,
    )  # fmt: skip


def _ratio_axis(low: float, high: float, title: str) -> dict[str, Any]:
    ends = math.log10(low), math.log10(high)
    air = 0.05 * (ends[1] - ends[0])
    span = ends[0] - air, ends[1] + air
    ticks = [0.0]
    # From the outermost inwards, so that the ends of the axis have their ticks.
    for place in map(math.log10, (*reversed(_ABOVE), *reversed(_BELOW))):
        if span[0] <= place <= span[1] and _is_apart(place, ticks, span):
            ticks.append(place)
    ticks.sort()
    return theme.axis(
        title=theme.axis_title(title), type="log", range=list(span),
        tickvals=[10**tick for tick in ticks], ticktext=[f"{10**tick:.3g}" for tick in ticks],
    )  # fmt: skip


def _is_apart(place: float, others: Sequence[float], span: tuple[float, float]) -> bool:
    return all(abs(place - other) >= _APART * (span[1] - span[0]) for other in others)


def _bands(pairs: Sequence[Pair]) -> dict[int, tuple[float, float]]:
    """By N: what the runs' own spread allows at the median call; {} where nothing spreads."""
    found: dict[int, tuple[float, float]] = {}
    for n in sorted({pair.seqlen for pair in pairs}):
        spreads = [pair.own_spread for pair in pairs if pair.seqlen == n]
        low, high = (middle(sorted(spread[side] for spread in spreads)) for side in (0, 1))
        found[n] = (low, high)
    return found if any(low < high for low, high in found.values()) else {}


def _band(bands: Mapping[int, tuple[float, float]], text: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "bar", "name": "band", "width": _BAND, "x": [math.log2(n) for n in bands],
        "base": [low for low, _ in bands.values()],
        "y": [high - low for low, high in bands.values()],
        "marker": {"color": theme.GRID, "line": {"width": 0}},
        "hovertext": [
            text["hover_band"].format(N=n, low=ratio_words(low), high=ratio_words(high))
            for n, (low, high) in bands.items()
        ],
        "hoverinfo": "text",
    }  # fmt: skip


def _marks(name: str, pairs: Sequence[Pair], index: int, count: int) -> dict[str, Any]:
    style = theme.style_of(name)
    return {
        "type": "scatter", "mode": "markers", "name": name,
        "x": _places(pairs, index, count),
        "y": [pair.ratio for pair in pairs],
        "marker": {
            "symbol": style.marker, "size": _MARKER, "color": style.colour, "opacity": _OPACITY,
        },
        "hovertext": [_hover(style.label, pair) for pair in pairs], "hoverinfo": "text",
    }  # fmt: skip


def _hover(label: str, pair: Pair) -> str:
    first, second = (value_words(pair.first.metric, value) for value in pair.values)
    ratio = ratio_words(pair.ratio or 1.0)
    return f"{label}: {first} / {second} = {ratio}<br>{call_words(pair.first)}"


def _head(
    series: Sequence[str], has_band: bool, runs: tuple[str, str], text: Mapping[str, Any]
) -> list[str]:
    """Lines above the axes: what is divided by what, whose marks are whose, what the band is."""
    title = text["title"].format(first=runs[0], second=runs[1])
    lines = [f"<b>{title}</b>"] if all(runs) else []
    lines += _legend(series)
    lines += [] if series else [text["nothing_drawn"]]
    return [*lines, text["band"]] if has_band else lines


def _legend(series: Sequence[str]) -> list[str]:
    """Names in the colours of words, as many to a line as fit."""
    lines: list[str] = []
    room = 0
    for name in series:
        style = theme.style_of(name)
        words = f'<span style="color:{style.text_colour}">{style.named}</span>'
        if len(style.named) > room:
            lines.append(words)
            room = _LETTERS - len(style.named)
        else:
            lines[-1] += f"&nbsp;&nbsp; {words}"
            room -= len(style.named) + 3
    return lines
