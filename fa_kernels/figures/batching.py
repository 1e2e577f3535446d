"""A trace of requests served in two ways: who was inside when, and what the cache held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fa_kernels.figures import theme
from fa_kernels.serving import Served, Service

#: px of a request's row, of the panel of the cache, between panels, above and below.
_ROW, _CACHE, _GAP, _TOP, _BOTTOM = 6, 120, 62, 76, 48
#: The two columns.
_COLUMNS = ((0.0, 0.47), (0.53, 1.0))
_WAITING = theme.GRID
_PREFILL, _DECODE = theme.TENSOR_COLOURS["s"], theme.TENSOR_COLOURS["k"]
_BACK = "#D55E00"


def batching_spec(served: Sequence[Served], text: Mapping[str, Any]) -> dict[str, Any]:
    """A plotly spec: a column for each policy; on top a row for each request, below the cache."""
    count = len(served[0].services)
    gantt = max(180, _ROW * count)
    height = _TOP + gantt + _GAP + _CACHE + _BOTTOM
    layout = theme.base_layout(height)
    layout["margin"] = {"l": 62, "r": 14, "t": _TOP, "b": _BOTTOM}
    layout["barmode"] = "overlay"
    inner = gantt + _GAP + _CACHE
    upper, lower = ((_CACHE + _GAP) / inner, 1.0), (0.0, _CACHE / inner)
    end = max(one.makespan_ms for one in served) / 1e3
    data: list[dict[str, Any]] = []
    notes = [_note(0, 1, f"<b>{text['title']}</b>&nbsp;&nbsp; {_legend(text)}", 52, -48)]
    for i, (one, column) in enumerate(zip(served, _COLUMNS, strict=True)):
        top, bottom = 2 * i + 1, 2 * i + 2
        # Numbers on one axis are enough: both columns have the same range.
        layout[_key("xaxis", top)] = _time_axis(column, end, _key("y", top), "")
        layout[_key("xaxis", bottom)] = _time_axis(
            column, end, _key("y", bottom), text["axis_time"]
        )
        layout[_key("yaxis", top)] = theme.axis(
            domain=upper, range=[count - 0.5, -0.5], showgrid=False, showticklabels=False,
            anchor=_key("x", top),
            title=theme.axis_title(text["axis_requests"]) if not i else None,
        )  # fmt: skip
        layout[_key("yaxis", bottom)] = theme.axis(
            domain=lower, range=[0, 105], anchor=_key("x", bottom), tickvals=[0, 50, 100],
            title=theme.axis_title(text["axis_cache"], "%") if not i else None,
        )  # fmt: skip
        data += _rows(one, (_key("x", top), _key("y", top)))
        data += _cache(one, (_key("x", bottom), _key("y", bottom)))
        words = text["panels"][one.policy].format(rate=f"{one.tokens_per_s:.0f}")
        notes.append(_note(column[0], 1, words, 8, 0))
        notes.append(_note(column[0], lower[1], text["cache"], 6, 0))
    layout["annotations"] = notes
    return {"data": data, "layout": layout}


def _key(axis: str, number: int) -> str:
    return axis if number == 1 else f"{axis}{number}"


def _time_axis(column: tuple[float, float], end: float, anchor: str, title: str) -> dict[str, Any]:
    named = {"title": theme.axis_title(title, "s")} if title else {}
    return theme.axis(domain=list(column), range=[-0.025 * end, 1.02 * end], anchor=anchor, **named)


def _note(x: float, y: float, words: str, up: int, right: int) -> dict[str, Any]:
    return {
        "x": x, "y": y, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "xshift": right, "yshift": up, "showarrow": False, "font": theme.font(), "text": words,
    }  # fmt: skip


def _legend(text: Mapping[str, Any]) -> str:
    colours = {"waiting": _WAITING, "prefill": _PREFILL, "decode": _DECODE, "back": _BACK}
    return " ".join(theme.swatch(colour, text[name]) for name, colour in colours.items())


def waits(service: Service) -> list[tuple[float, float]]:
    """(from, to) in ms: from its arrival, or from being sent back, to being let in."""
    begins = [service.request.arrival_ms, *(end for _, end in service.spans[:-1])]
    return list(zip(begins, (start for start, _ in service.spans), strict=True))


def _rows(one: Served, axes: tuple[str, str]) -> list[dict[str, Any]]:
    """Bars in seconds: waiting, until the first token, until the last, and once sent back."""
    waiting, before, after, again = (list[tuple[int, float, float]]() for _ in range(4))
    for row, service in enumerate(one.services):
        for i, wait in enumerate(waits(service)):
            (again if i else waiting).append((row, *wait))
        for start, end in service.spans:
            middle = min(max(start, service.first_token_ms), end)
            before.append((row, start, middle))
            after.append((row, middle, end))
    return [
        _bars("waiting", waiting, _WAITING, axes), _bars("prefill", before, _PREFILL, axes),
        _bars("decode", after, _DECODE, axes), _bars("sent back", again, _BACK, axes),
    ]  # fmt: skip


def _bars(
    name: str, found: Sequence[tuple[int, float, float]], colour: str, axes: tuple[str, str]
) -> dict[str, Any]:
    return {
        "type": "bar", "orientation": "h", "name": name, "xaxis": axes[0], "yaxis": axes[1],
        "width": 0.8, "y": [row for row, *_ in found],
        "base": [start / 1e3 for _, start, _ in found],
        "x": [(end - start) / 1e3 for _, start, end in found],
        "marker": {"color": colour, "line": {"width": 0}}, "hoverinfo": "skip",
    }  # fmt: skip


def _cache(one: Served, axes: tuple[str, str]) -> list[dict[str, Any]]:
    """Slots that are taken, and those that hold a token, in percent of all, over time."""
    times = [step.start_ms / 1e3 for step in one.steps]
    parts = {
        "taken": ([step.taken for step in one.steps], theme.MUTED, "dash"),
        "tokens": ([step.tokens for step in one.steps], theme.TENSOR_COLOURS["q"], "solid"),
    }
    return [
        {
            "type": "scatter", "mode": "lines", "name": f"{one.policy} {name}", "xaxis": axes[0],
            "yaxis": axes[1], "x": [*times, one.makespan_ms / 1e3],
            "y": [*(100 * slots / one.slots for slots in values), 0], "hoverinfo": "skip",
            "line": {"color": colour, "width": 2, "dash": dash, "shape": "hv"},
        }
        for name, (values, colour, dash) in parts.items()
    ]  # fmt: skip
