"""A model writing text in four ways: tokens a second, and the time until so many tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fa_kernels.figures import theme
from fa_kernels.figures.recorded_generation import WAYS, Text

_HEIGHT = 360
_BARS, _LINES = (0.0, 0.42), (0.54, 1.0)
#: Way -> colour of bar and line, dash, marker: FlashAttention is green, the cache is hatched.
_LOOKS = {
    "neither": (theme.style_of("torch_eager").colour, "dashdot", "triangle-up"),
    "attention": (theme.style_of("flash_q_outer").colour, "dash", "circle"),
    "cache": (theme.style_of("torch_eager").colour, "solid", "square"),
    "both": (theme.style_of("flash_q_outer").colour, "solid", "diamond"),
}
_HATCHED = ("cache", "both")
#: How far apart names must stand, as part of the greatest time; what the axis leaves for them.
_NAME_GAP, _NAME_ROOM = 0.08, 1.42


def generation_spec(texts: Mapping[str, Text], text: Mapping[str, Any]) -> dict[str, Any]:
    """A plotly spec: four bars of tokens a second, and lines of seconds over new tokens.

    Without texts both panels are empty and say so.
    """
    layout = theme.base_layout(_HEIGHT)
    layout["margin"] = {"l": 66, "r": 14, "t": 64, "b": 62}
    keys = list(WAYS)
    rates = [texts[key].tokens_per_s if key in texts else 0.0 for key in keys]
    most = max([*rates, 1.0])
    layout["xaxis"] = theme.axis(
        domain=list(_BARS), range=[-0.6, len(keys) - 0.4], tickvals=list(range(len(keys))),
        ticktext=[text["short"][key] for key in keys], showgrid=False,
    )  # fmt: skip
    layout["yaxis"] = theme.axis(
        title=theme.axis_title(text["axis_rate"]), range=[0, 1.18 * most], anchor="x"
    )
    layout["xaxis2"] = theme.axis(
        domain=list(_LINES), title=theme.axis_title(text["axis_tokens"]), range=[0, 1], anchor="y2",
    )  # fmt: skip
    layout["yaxis2"] = theme.axis(
        title=theme.axis_title(text["axis_time"], "s"), rangemode="tozero", anchor="x2"
    )
    if not any(rates):  # no numbers where nothing was measured
        for name in ("yaxis", "xaxis2", "yaxis2"):
            layout[name]["showticklabels"] = layout[name]["showgrid"] = False
    notes = [
        _note(0, f"<b>{text['title']}</b>&nbsp;&nbsp; {text['legend']}", 40, -52),
        _note(_BARS[0], text["panel_rate"], 8, 0), _note(_LINES[0], text["panel_time"], 8, 0),
    ]  # fmt: skip
    if not any(rates):
        notes += [_empty(sum(domain) / 2, text["empty"]) for domain in (_BARS, _LINES)]
    layout["annotations"] = [*notes, *_numbers(rates)]
    timed = {key: texts[key] for key in keys if key in texts and texts[key].times}
    layout["annotations"] += _names(timed, text)
    if timed:
        end = max(max(one.times) for one in timed.values())
        layout["xaxis2"]["range"] = [-0.04 * end, _NAME_ROOM * end]
    return {
        "data": [_bars(keys, rates), *(_line(key, one) for key, one in timed.items())],
        "layout": layout,
    }


def _note(x: float, words: str, up: int, right: int) -> dict[str, Any]:
    return {
        "x": x, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "xshift": right, "yshift": up, "showarrow": False, "font": theme.font(), "text": words,
    }  # fmt: skip


def _empty(x: float, words: str) -> dict[str, Any]:
    return {
        "x": x, "y": 0.5, "xref": "paper", "yref": "paper", "showarrow": False,
        "font": theme.font(theme.FONT, theme.MUTED), "text": words,
    }  # fmt: skip


def _numbers(rates: list[float]) -> list[dict[str, Any]]:
    """Over the bars."""
    return [
        {
            "x": i, "y": rate, "xref": "x", "yref": "y", "yanchor": "bottom", "yshift": 2,
            "showarrow": False, "font": theme.font(), "text": f"{rate:,.0f}",
        }
        for i, rate in enumerate(rates)
        if rate
    ]  # fmt: skip


def _bars(keys: list[str], rates: list[float]) -> dict[str, Any]:
    return {
        "type": "bar", "name": "tokens a second", "x": list(range(len(keys))), "y": rates,
        "width": 0.7, "hoverinfo": "skip",
        "marker": {
            **theme.hatched(
                [_LOOKS[key][0] for key in keys],
                ["/" if key in _HATCHED else "" for key in keys],
                theme.PAPER, 7, 0.25,
            ),
            "line": {"color": theme.INK, "width": 1 if any(rates) else 0},
        },
    }  # fmt: skip


def _line(key: str, one: Text) -> dict[str, Any]:
    """From nothing to all new tokens."""
    colour, dash, marker = _LOOKS[key]
    marks = sorted(one.times)
    return {
        "type": "scatter", "mode": "lines+markers", "name": key, "xaxis": "x2", "yaxis": "y2",
        "x": [0, *marks], "y": [0.0, *(_seconds(one, mark) for mark in marks)],
        "line": {"color": colour, "width": 2, "dash": dash},
        "marker": {"color": colour, "size": 8, "symbol": marker},
        "hoverinfo": "skip", "cliponaxis": False,
    }  # fmt: skip


def _seconds(one: Text, mark: int) -> float:
    return (one.times[mark].median or 0.0) / 1e3


def _names(texts: Mapping[str, Text], text: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Right of the lines' ends, moved apart where those lie close together."""
    ends = {key: (max(one.times), _seconds(one, max(one.times))) for key, one in texts.items()}
    gap = _NAME_GAP * max((y for _, y in ends.values()), default=0.0)
    found, least = [], 0.0
    for key, (x, y) in sorted(ends.items(), key=lambda end: end[1][1]):
        at = max(y, least)
        least = at + gap
        found.append(
            {
                "x": x, "y": at, "xref": "x2", "yref": "y2", "xanchor": "left", "xshift": 10,
                "showarrow": False, "font": theme.font(), "text": text["ways_short"][key],
            }
        )  # fmt: skip
    return found
