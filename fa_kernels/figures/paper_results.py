"""Printed numbers hollow, this GPU's filled: curves over N or density, or a row per number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fa_kernels.figures import theme
from fa_kernels.figures.rungs import name_of
from fa_kernels.measure.paper_bytes import BY_HARDWARE, LEVELS
from fa_kernels.measure.paper_numbers import SPARSE
from fa_kernels.measure.paper_results import Dot, Line, Result
from fa_kernels.units import significant
from fa_kernels.variants import VARIANTS

_HEIGHT, _ROW, _FRAME, _LEGEND_LINE = 460, 34, 118, 20
#: Of a row: marks there do not cover the numbers.
_BELOW = 0.32
_MARKER = 11
#: How bytes are known (`paper_bytes.LEVELS`) -> dash, marker and its glyph.
_LEVELS = {
    "launched": ("dot", "circle", "●"),
    "counted": ("solid", "cross-thin-open", "+"),
    "l2": ("dash", "square", "■"),
    "dram": ("dashdot", "triangle-down", "▼"),
}
#: Algorithms that no variant and no peer is called after.
_OTHERS = {
    SPARSE: theme.Style(SPARSE, theme.TENSOR_COLOURS["mask"], theme.INK, "dashdot", "bowtie"),
    "Megatron": theme.Style("Megatron", theme.MUTED, theme.MUTED, "dot", "star"),
}
_GLYPHS = {"bowtie": "⧓", "star": "☆"}


def style_of(algorithm: str, series: str) -> theme.Style:
    """Of a line or row: an algorithm without a style of its own looks like its stand-in."""
    return _OTHERS.get(algorithm) or theme.style_of(series or algorithm)


def name_of_series(series: str) -> str:
    """ "05 flash, tensor cores", "torch eager", or an algorithm's name as printed."""
    variant = VARIANTS.get(series)
    if variant is not None:
        return name_of(variant)
    return theme.STYLES[series].label if series in theme.STYLES else series


def line_name(line: Line) -> str:
    """Who computed a line of this GPU, and with a mask if it had one."""
    name = name_of_series(line.series)
    if line.level:
        return f"{name}, {LEVELS[line.level]}"
    return f"{name}, block mask" if line.algorithm == SPARSE else name


def paper_spec(result: Result, device: str, text: Mapping[str, Any]) -> dict[str, Any]:
    """A plotly spec of a table or figure; `device` names this GPU."""
    if result.dots:
        return _dots_spec(result, device, text)
    return _lines_spec(result, device, text)


def _lines_spec(result: Result, device: str, text: Mapping[str, Any]) -> dict[str, Any]:
    layout = theme.base_layout(_HEIGHT)
    layout["margin"] = {"l": 70, "r": 16, "t": 100, "b": 56}
    xs = sorted({x for line in result.lines for x, _ in line.points})
    ys = [y for line in result.lines for _, y in line.points]
    over_n = result.axis == "N"
    title = theme.axis_title(text["axis_seqlen"], "tokens") if over_n else None
    options: dict[str, Any] = {"title": title or theme.axis_title(text["axis_density"])}
    if over_n:
        low, high = (xs[0], xs[-1]) if xs else (128, 65536)
        options |= {
            "type": "log", "range": [math.log10(low / 1.3), math.log10(high * 1.3)],
            "tickvals": xs, "ticktext": [f"{x:.0f}" for x in xs],
        }  # fmt: skip
    else:
        options |= {"range": [0, 1.05], "tickvals": [0.2, 0.4, 0.6, 0.8, 1.0]}
    layout["xaxis"] = theme.axis(**options)
    span: dict[str, Any] = {"range": [-1, 2], "showticklabels": False}
    if ys and over_n:
        low, high = math.log10(min(ys) / 1.6), math.log10(max(ys) * 1.6)
        decades = [10.0**e for e in range(math.ceil(low), math.floor(high) + 1)]
        span = {"range": [low, high], "tickvals": decades}
        span["ticktext"] = [f"{tick:.15g}" for tick in decades]
    elif ys:
        span = {"range": [0, 1.12 * max(ys)], "nticks": 7}
    layout["yaxis"] = theme.axis(
        title=theme.axis_title(text["quantities"][result.quantity], result.unit),
        type="log" if over_n else "linear", exponentformat="none", **span,
    )  # fmt: skip
    layout["annotations"] = [_head(result, device, text)]
    if not result.lines:
        layout["annotations"].append(_nothing(text))
    return {"data": [_trace(line, result, device) for line in result.lines], "layout": layout}


def _trace(line: Line, result: Result, device: str) -> dict[str, Any]:
    style = style_of(line.algorithm, line.series)
    name = f"{line.algorithm}, printed" if line.published else line_name(line)
    where = result.gpu if line.published else device
    marker = {"symbol": style.marker, "size": _MARKER, "color": style.colour}
    if line.published:
        marker |= {"symbol": f"{style.marker}-open", "line": {"width": 2}}
    mark = "s" if result.axis == "s" else "N"
    trace: dict[str, Any] = {
        "type": "scatter", "mode": "markers" if line.published else "lines+markers",
        "name": name, "x": [x for x, _ in line.points], "y": [y for _, y in line.points],
        "marker": marker, "hoverinfo": "text",
        "hovertext": [
            f"{name}, {where}, {mark} = {x:g}: {significant(y)} {result.unit}"
            for x, y in line.points
        ],
    }  # fmt: skip
    if not line.published:
        trace["line"] = {"color": style.colour, "dash": style.dash, "width": 2}
    if line.level:
        trace["line"]["dash"], marker["symbol"], _ = _LEVELS[line.level]
    if line.level == "counted":  # around the model's, which it equals
        marker |= {"size": _MARKER + 6, "line": {"width": 2}}
    return trace


def _head(result: Result, device: str, text: Mapping[str, Any]) -> dict[str, Any]:
    """Title; what is hollow and what is filled; the series in their colours."""
    printed = any(one.published for one in result.lines) or any(d.printed for d in result.dots)
    recorded = [one for one in result.lines if not one.published and one.level != "launched"]
    ours = recorded or any(d.ours for d in result.dots)
    marks = [text["hollow"].format(gpu=result.gpu)] if printed else []
    marks += [text["filled"].format(device=device)] if ours else []
    lines = [f"<b>{result.title}</b>", "&nbsp;&nbsp; ".join(marks) or "&nbsp;"]
    words: dict[str, str] = {}
    for line in result.lines:
        style = style_of(line.algorithm, line.series)
        key = line.algorithm or line.series
        label = line.algorithm or name_of_series(line.series)
        stand_in = next(
            (o for o in result.lines if o.algorithm == line.algorithm and not o.published), None
        )
        if line.algorithm and stand_in:
            label += f" ({line_name(stand_in)})"
        words[key] = _word(style, label)
        if line.level:  # its marker says how bytes are known, its colour who moves them
            words[key] = f'<span style="color:{style.text_colour}">{label}</span>'
    found = list(words.values())
    lines += ["&nbsp;&nbsp; ".join(part) for part in (found[:3], found[3:]) if part]
    if levels := _level_words(result):
        lines.append(levels)
    return {
        "x": 0, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "xshift": -52, "yshift": 6, "showarrow": False, "align": "left", "font": theme.font(),
        "text": "<br>".join(lines),
    }  # fmt: skip


def _level_words(result: Result) -> str:
    """Which marker is which way of knowing bytes, of those that are drawn."""
    drawn = {line.level for line in result.lines}
    drawn |= {level for dot in result.dots for level, _ in dot.beside}
    words = [f"{_LEVELS[name][2]} {LEVELS[name]}" for name in LEVELS if name in drawn]
    if result.dots and words:
        words.insert(0, f"coloured: {LEVELS['counted']}")
    return "&nbsp;&nbsp; ".join(words)


def _word(style: theme.Style, label: str) -> str:
    if style.marker in _GLYPHS:
        glyph = f'<span style="color:{style.colour}">{_GLYPHS[style.marker]}</span>'
        return f'{glyph} <span style="color:{style.text_colour}">{label}</span>'
    named = style.named.replace(style.label, label)
    return f'<span style="color:{style.text_colour}">{named}</span>'


def _nothing(text: Mapping[str, Any]) -> dict[str, Any]:
    """Words in the middle of axes that have nothing to show."""
    return {
        "x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper", "showarrow": False,
        "text": text["nothing"], "font": theme.font(theme.FONT, theme.MUTED),
    }  # fmt: skip


# -- a row per number ------------------------------------------------------------------------------


def dot_name(dot: Dot) -> str:
    """ "standard, version 2022-06", or who computed it here."""
    return ", ".join(part for part in (name_of_series(dot.name), dot.about) if part)


def _dots_spec(result: Result, device: str, text: Mapping[str, Any]) -> dict[str, Any]:
    dots = result.dots
    layout = theme.base_layout(_FRAME + _ROW * len(dots))
    layout["margin"] = {"l": 232, "r": 16, "t": 62, "b": 56}
    each = [(dot.printed, dot.ours, *(value for _, value in dot.beside)) for dot in dots]
    top = max(v for values in each for v in values if v is not None)
    heights = [len(dots) - 1 - i for i in range(len(dots))]
    layout["xaxis"] = theme.axis(
        title=theme.axis_title(text["quantities"][result.quantity], result.unit),
        range=[-0.08 * top, 1.15 * top], nticks=8,  # words stand left of the first dots
    )  # fmt: skip
    layout["yaxis"] = theme.axis(
        range=[-0.6, len(dots) - 0.4], tickvals=heights, tickfont=theme.font(),
        ticktext=[f"{dot_name(dot)}&nbsp;" for dot in dots],
    )  # fmt: skip
    layout["annotations"] = [{**_head(result, device, text), "xshift": -226}]
    if _level_words(result):
        layout["margin"]["t"] += _LEGEND_LINE
        layout["height"] += _LEGEND_LINE
    data = _dot_traces(dots, heights, result, device)
    return {"data": [*data, *_beside_traces(dots, heights, result, device)], "layout": layout}


def _beside_traces(
    dots: Sequence[Dot], heights: Sequence[int], result: Result, device: str
) -> list[dict[str, Any]]:
    """What hardware counters say of a row, in the grey that they have everywhere, under it."""
    data = []
    for level in BY_HARDWARE:
        known = [
            (dict(dot.beside)[level], y - _BELOW, dot)
            for dot, y in zip(dots, heights, strict=True)
            if level in dict(dot.beside)
        ]
        if known:
            data.append({
                "type": "scatter", "mode": "markers", "name": LEVELS[level],
                "x": [value for value, _, _ in known], "y": [y for _, y, _ in known],
                "marker": {"symbol": _LEVELS[level][1], "size": _MARKER - 2, "color": theme.MUTED},
                "hoverinfo": "text", "cliponaxis": False,
                "hovertext": [
                    f"{name_of_series(dot.series)}, {device}, {LEVELS[level]}: "
                    f"{significant(value)} {result.unit}"
                    for value, _, dot in known
                ],
            })  # fmt: skip
    return data


def _dot_traces(
    dots: Sequence[Dot], heights: Sequence[int], result: Result, device: str
) -> list[dict[str, Any]]:
    data = []
    for dot, y in zip(dots, heights, strict=True):
        style = style_of(dot.name, dot.series)
        for published, value in ((True, dot.printed), (False, dot.ours)):
            if value is None:
                continue
            where = result.gpu if published else device
            who = dot.name if published else dot.series or dot.name
            name = f"{name_of_series(who)}, {where}: {significant(value)} {result.unit}"
            other = dot.ours if published else dot.printed
            left = other is not None and value < other
            marker = {"symbol": style.marker, "size": _MARKER + 1, "color": style.colour}
            if published:
                marker |= {"symbol": f"{style.marker}-open", "line": {"width": 2}}
            data.append({
                "type": "scatter", "mode": "markers+text", "name": who, "x": [value], "y": [y],
                "marker": marker, "text": [f"&nbsp; {significant(value)} &nbsp;"],
                "textposition": "middle left" if left else "middle right",
                "textfont": theme.font(theme.SMALL), "hovertext": [name], "hoverinfo": "text",
                "cliponaxis": False,
            })  # fmt: skip
    return data
