"""Where a point of an earlier figure lies on the axes of the one that is shown now."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from fa_kernels.units import TRAFFIC_STEPS

Axis = Mapping[str, Any]
#: Now's place of an earlier value; None where now has no such place.
Place = Callable[[Any], Any]

_STEPS = {unit: size for size, unit in TRAFFIC_STEPS}
_UNIT = re.compile(r"\((\w+)\)$")
_BOLD, _TAG = re.compile(r"<b>(.*?)</b>"), re.compile(r"<[^>]*>|&nbsp;")


def place_on(before: Axis, now: Axis, rows_before: Sequence[str], rows_now: Sequence[str]) -> Place:
    """How values of axis `before` are placed on axis `now`.

    A scale keeps its values, in the other's unit where both are bytes ("GB", "MB"); rows are found
    by name. `rows_before` and `rows_now` are what `row_names` says of them.

    Raises:
        ValueError: the axes show different quantities.
    """
    factor = _factor(_title(before), _title(now))
    if rows_before and rows_now:
        return _by_row(before["tickvals"], rows_before, now["tickvals"], rows_now)
    if rows_before or rows_now:
        raise ValueError("One axis has rows, the other a scale.")
    if factor == 1:
        return lambda value: value
    return lambda value: value * factor if isinstance(value, int | float) else value


def row_names(layout: Mapping[str, Any], name: str) -> list[str]:
    """Names of the rows of an axis whose whole numbers are rows, by tick; [] for a scale.

    Where a name stands twice ("output" under several rungs), each is told with the bold one before
    it. An axis without words takes those of one with the same ticks: the panel beside it.
    """
    axis = layout[name]
    ticks = axis.get("tickvals")
    if not _has_rows(axis):
        return []
    words = axis.get("ticktext") or ()
    if not any(words):
        alike = (
            other.get("ticktext") or ()
            for key, other in layout.items()
            if key[:1] == name[0] and key[1:5] == "axis" and other.get("tickvals") == ticks
        )
        words = next((one for one in alike if any(one)), [str(i) for i in range(len(ticks))])
    plain = [_TAG.sub("", text) for text in words]
    if len(set(plain)) == len(plain):
        return plain
    named, bold = [], ""
    for text, name in zip(words, plain, strict=True):
        found = _BOLD.search(text)
        bold = found[1] if found else bold
        named.append(f"{bold}: {name}")
    return named


def hold_both(now: dict[str, Any], before: Axis, place: Place) -> None:
    """Widen `now` until it holds what `before` holds; the wider of both says the ticks."""
    if "range" not in now or "range" not in before or _has_rows(now):
        return
    log = now.get("type") == "log"
    ends = [_end(end, before.get("type") == "log", log, place) for end in before["range"]]
    shown, other = now["range"], [end for end in ends if end is not None]
    low, high = min(*shown, *other), max(*shown, *other)
    if not other or (low, high) == (min(shown), max(shown)):
        return
    now["range"] = [low, high] if shown[0] < shown[1] else [high, low]
    ticks = _both_ticks(now, before, (low, high) == (min(other), max(other)))
    if ticks is not None and (before.get("type") == "log") == log:
        now["tickvals"], now["ticktext"] = ticks


def _both_ticks(now: Axis, before: Axis, before_holds: bool) -> tuple[list[Any], list[str]] | None:
    """Ticks of the wider axis, of both where neither holds the other; None: leave them.

    Words such as "N d" mean another place there, and only now's would be true.
    """
    own, other = _ticks(now), _ticks(before)
    shared = own.keys() & other.keys()
    if not own or not other or any(own[at] != other[at] for at in shared):
        return None
    if not all(re.search(r"\d", text) for text in (*own.values(), *other.values())):
        return None
    both = other if before_holds else {**other, **own}
    at = sorted(both)
    return at, [both[value] for value in at]


def _ticks(axis: Axis) -> dict[Any, str]:
    return dict(zip(axis.get("tickvals") or (), axis.get("ticktext") or (), strict=False))


def _end(end: float, was_log: bool, log: bool, place: Place) -> float | None:
    value = place(10**end if was_log else end)
    if not log:
        return float(value)
    return math.log10(value) if value > 0 else None


def _title(axis: Axis) -> str:
    title = axis.get("title")
    return str((title.get("text") if isinstance(title, Mapping) else title) or "")


def _factor(before: str, now: str) -> float:
    if before == now:
        return 1
    units = [_UNIT.search(title) for title in (before, now)]
    sizes = [_STEPS.get(unit[1]) if unit else None for unit in units]
    if _UNIT.sub("", before) != _UNIT.sub("", now) or sizes[0] is None or sizes[1] is None:
        raise ValueError(f"{before!r} is not {now!r}.")
    return sizes[0] / sizes[1]


def _has_rows(axis: Axis) -> bool:
    """True if whole numbers from 0 on are rows with some air around them, not a scale."""
    ticks, ends = axis.get("tickvals"), axis.get("range")
    if not ticks or not ends or axis.get("type") == "log" or min(ticks) != 0:
        return False
    return -0.8 <= min(ends) <= -0.4 and 0.2 <= max(ends) - max(ticks) <= 1.2


def _by_row(
    before: Sequence[float], names: Sequence[str], now: Sequence[float], names_now: Sequence[str]
) -> Place:
    """By the name of the nearest row; rows that stand where they stood keep their place."""
    if list(before) == list(now) and len(set(names) & set(names_now)) * 2 >= len(names):
        return lambda value: value
    at = dict(zip(names_now, now, strict=False))
    rows = sorted(zip(before, names, strict=False))
    edges = [(low[0] + high[0]) / 2 for low, high in pairwise(rows)]

    def place(value: Any) -> Any:
        if not isinstance(value, int | float):
            return value
        row, name = rows[sum(value > edge for edge in edges)]
        return at[name] + value - row if name in at else None

    return place
