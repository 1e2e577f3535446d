"""What the panels over N share: axes, lines, and labels at the ends of lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fa_kernels.figures import theme
from fa_kernels.figures.panel import INNER_PX, Frame, Words, position

#: The recorded grid of N, and so the span of every axis over N.
SEQLENS = tuple(2**e for e in range(7, 17))


def seqlen_axis(last: int, log: bool, frame: Frame, anchor: str) -> dict[str, Any]:
    """The axis over N, with room at its right end for the labels of the lines."""
    shown = SEQLENS[1::2] if log else tuple(2**e for e in range(14, 25))
    while not log and shown[0] * 5 < last:
        shown = shown[1:]
    low, high = (SEQLENS[0] * 0.8, last * 6.5) if log else (0, last * 1.32)
    ticks = [n for n in shown if n <= last] if log else [n for n in shown if n <= last][:6]
    return theme.axis(
        title=theme.axis_title("sequence length N", "tokens"),
        type="log" if log else "linear",
        range=[position(low, log), position(high, log)],
        tickvals=ticks,
        ticktext=[str(n) for n in ticks],
        domain=list(frame.x),
        anchor=anchor,
    )


def value_axis(
    quantity: str, unit: str, span: tuple[float, float], log: bool, frame: Frame, anchor: str
) -> dict[str, Any]:
    """The axis of a measured quantity over `span`, in `unit`."""
    options: dict[str, Any] = (
        {"type": "log", "dtick": 1} if log else {"type": "linear", "nticks": 6}
    )
    return theme.axis(
        title=theme.axis_title(quantity, unit),
        range=[position(span[0], log), position(span[1], log)],
        exponentformat="none",
        domain=list(frame.y),
        anchor=anchor,
        **options,
    )


def padded_span(values: Sequence[float], log: bool, headroom: float = 0.45) -> tuple[float, float]:
    """Least and greatest value of an axis that shows `values` with some air; `headroom` decades."""
    if not values:
        return (0.01, 100.0) if log else (0.0, 1.0)
    low, high = min(values), max(values)
    if not log:
        return 0.0, high * 1.15
    # Whole decades at the bottom keep the axis still while a knob moves.
    return 10 ** math.floor(math.log10(low)), 10 ** (math.log10(high) + headroom)


def seqlens_shown(seqlen: int) -> list[int]:
    """The N of every curve: the recorded grid, and on to the chosen N where it is longer."""
    ns = list(SEQLENS)
    while ns[-1] < seqlen:
        ns.append(min(2 * ns[-1], seqlen))
    return ns


def line_trace(
    xs: Sequence[float], ys: Sequence[float], name: str, axes: tuple[str, str], **options: Any
) -> dict[str, Any]:
    """A line over N in the style of variant or provider `name`; `options` go on top."""
    style = theme.style_of(name)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": list(xs),
        "y": list(ys),
        "xaxis": axes[0],
        "yaxis": axes[1],
        "name": style.label,
        "line": {"color": style.colour, "width": 2, "dash": style.dash},
        "marker": {"symbol": style.marker, "size": 8, "color": style.colour},
        **options,
    }


def left_of(x: float, last: float, log: bool) -> float:
    """A place a few pixels left of `x`, for words that end there."""
    return x / 1.14 if log else x - 0.02 * last


@dataclass(frozen=True)
class Label:
    """Words beside a line, at the height of its last point."""

    y: float
    text: str
    colour: str


def end_labels(
    labels: Sequence[Label],
    x: float,
    span: tuple[float, float],
    log: bool,
    frame: Frame,
    axes: tuple[str, str],
) -> list[Words]:
    """Words in one column at `x`, right of all lines, pushed apart where they would overlap.

    A line that ends earlier has its words there, too: beside its end they would lie on others.
    """
    height_px = (frame.y[1] - frame.y[0]) * INNER_PX
    low, high = position(span[0], log), position(span[1], log)
    gap = 15 / height_px * (high - low)
    ordered = sorted(labels, key=lambda label: label.y)
    places = [position(label.y, log) for label in ordered]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    for i in reversed(range(len(places))):
        ceiling = high - gap / 2 if i + 1 == len(places) else places[i + 1] - gap
        places[i] = min(places[i], ceiling)
    return [
        Words(
            x,
            10**y if log else y,
            f"&nbsp;&nbsp;&nbsp;{label.text}",
            axes,
            colour=label.colour,
        )
        for label, y in zip(ordered, places, strict=True)
    ]
