"""What lives from forward to backward, and the peak of both together, over N."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fa_kernels.device import Device
from fa_kernels.figures import theme
from fa_kernels.figures.point import device_words
from fa_kernels.figures.recorded_backward import KEEPS_P, REBUILDS_P, RecordedBackward, slope
from fa_kernels.problem import AttentionProblem
from fa_kernels.units import capacity
from fa_kernels.variants import VARIANTS

SHOWN = (KEEPS_P, REBUILDS_P)
#: The N of the recorded memory, and from where on a power is fitted: below it constants count.
SEQLENS = tuple(2**e for e in range(10, 17))
FITTED_FROM = 4096
SAVED, PEAK, RECORDED = "saved", "peak", "recorded"
_HEIGHT = 430
_PANELS = {SAVED: (0.0, 0.43), PEAK: (0.57, 1.0)}


@dataclass(frozen=True)
class SavedAt:
    """Bytes at one N, by variant: kept for the backward, the peak by the model, the recorded peak.

    `refused` says in words why there is no recorded peak, where the run says so.
    """

    problem: AttentionProblem
    saved: Mapping[str, int]
    peak: Mapping[str, int]
    recorded: Mapping[str, float | None]
    refused: Mapping[str, str | None]

    @classmethod
    def of(cls, problem: AttentionProblem, runs: RecordedBackward) -> SavedAt:
        """Both variants at one problem."""
        saved, peak = {}, {}
        for name in SHOWN:
            backward = VARIANTS[name].backward
            assert backward is not None
            saved[name] = backward.saved_bytes(problem)
            peak[name] = VARIANTS[name].step_bytes(problem)
        found = {n: runs.value(n, "both", "extra_mem_bytes", problem) for n in SHOWN}
        return cls(problem, saved, peak, found, {n: runs.refused(n, problem) for n in SHOWN})

    @property
    def seqlen(self) -> int:
        """N."""
        return self.problem.seqlen_q


def power(found: Sequence[SavedAt], kind: str, name: str) -> float | None:
    """By what power of N one of `SAVED`, `PEAK`, `RECORDED` grows from `FITTED_FROM` on."""
    points = [(at.seqlen, getattr(at, kind)[name]) for at in found if at.seqlen >= FITTED_FROM]
    return slope([(n, value) for n, value in points if value])


def power_words(exponent: float | None, html: bool = False) -> str:
    """ "N^2.00" for a line of text, or with the exponent raised in HTML; "" where there is none."""
    if exponent is None:
        return ""
    return f"N<sup>{exponent:.2f}</sup>" if html else f"N^{exponent:.2f}"


def saved_memory_spec(
    found: Sequence[SavedAt], device: Device, text: Mapping[str, Any]
) -> dict[str, Any]:
    """A plotly spec: on the left what is kept, on the right the peak, on equal log axes."""
    layout = theme.base_layout(_HEIGHT)
    layout["margin"] = {"l": 76, "r": 16, "t": 76, "b": 56}
    low, high = _span(found, device)
    rungs = range(math.ceil(math.log2(low) / 5), math.floor(math.log2(high) / 5) + 1)
    ticks = [2.0 ** (5 * e) for e in rungs]
    layout["annotations"], data = [], []
    for number, (kind, domain) in enumerate(_PANELS.items(), 1):
        at = "" if number == 1 else str(number)
        layout[f"xaxis{at}"] = theme.axis(
            title=theme.axis_title(text["axis_seqlen"], text["tokens"]), type="log",
            domain=list(domain), anchor=f"y{at}", tickvals=[at.seqlen for at in found][::2],
            ticktext=[str(at.seqlen) for at in found][::2],
            range=[math.log10(found[0].seqlen / 1.4), math.log10(found[-1].seqlen * 1.5)],
        )  # fmt: skip
        layout[f"yaxis{at}"] = theme.axis(
            title=theme.axis_title(text["axes"][kind]), type="log", anchor=f"x{at}",
            range=[math.log10(low), math.log10(high)], tickvals=ticks,
            ticktext=[capacity(tick) for tick in ticks],
        )  # fmt: skip
        layout["annotations"].append(_head(kind, domain[0], found, text))
        data += [_line(kind, name, found, at) for name in SHOWN]
    data += [_dots(name, found, text) for name in SHOWN]
    data += _limit(found, device, text)
    return {"data": data, "layout": layout}


def _span(found: Sequence[SavedAt], device: Device) -> tuple[float, float]:
    known = [n for at in found for kind in (at.saved, at.peak) for n in kind.values()]
    return min(known) / 2.5, 2.5 * max(*known, device.hbm_capacity_bytes)


def _line(kind: str, name: str, found: Sequence[SavedAt], at: str) -> dict[str, Any]:
    style, sizes = theme.STYLES[name], [getattr(one, kind)[name] for one in found]
    return {
        "type": "scatter", "mode": "lines", "name": f"{name}, {kind}",
        "xaxis": f"x{at}", "yaxis": f"y{at}", "x": [one.seqlen for one in found], "y": sizes,
        "line": {"color": style.colour, "dash": style.dash, "width": 3},
        "hovertext": [
            f"{style.label}, N = {one.seqlen}: {capacity(size)}"
            for one, size in zip(found, sizes, strict=True)
        ],
        "hoverinfo": "text",
    }  # fmt: skip


def _dots(name: str, found: Sequence[SavedAt], text: Mapping[str, Any]) -> dict[str, Any]:
    style = theme.STYLES[name]
    known = [(at.seqlen, size) for at in found if (size := at.recorded[name])]
    hovers = [f"{style.label}, {text['recorded']}, N = {n}: {capacity(b)}" for n, b in known]
    return {
        "type": "scatter", "mode": "markers", "name": f"{name}, recorded", "xaxis": "x2",
        "yaxis": "y2", "x": [n for n, _ in known], "y": [b for _, b in known],
        "marker": {
            "symbol": f"{style.marker}-open", "size": 12, "color": style.colour,
            "line": {"width": 2.5},
        },
        "hovertext": hovers, "hoverinfo": "text",
    }  # fmt: skip


def _limit(
    found: Sequence[SavedAt], device: Device, text: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The memory of the device, and crosses where a peak needs more or a run says it did."""
    capacity_bytes, ends = device.hbm_capacity_bytes, [found[0].seqlen, found[-1].seqlen]
    words = text["capacity"].format(
        device=device_words(device).split(" ")[0], size=capacity(capacity_bytes)
    )
    line = {
        "type": "scatter", "mode": "lines+text", "name": "capacity", "xaxis": "x2", "yaxis": "y2",
        "x": ends, "y": [capacity_bytes] * 2, "text": [words, ""], "textposition": "top right",
        "textfont": theme.font(theme.FONT, theme.MUTED), "hoverinfo": "skip",
        "line": {"color": theme.MUTED, "dash": "dash", "width": 2},
    }  # fmt: skip
    crosses = []
    for name in SHOWN:
        over = [at for at in found if at.peak[name] > capacity_bytes or at.refused[name]]
        marker = {"symbol": "x", "size": 11, "color": theme.STYLES[name].colour}
        said = [at.refused[name] or text["too_large"] for at in over]
        crosses.append({
            "type": "scatter", "mode": "markers", "name": f"{name}, not run", "xaxis": "x2",
            "yaxis": "y2", "x": [at.seqlen for at in over], "y": [at.peak[name] for at in over],
            "marker": marker, "hovertext": said, "hoverinfo": "text",
        })  # fmt: skip
    return [line, *crosses]


def _head(kind: str, x: float, found: Sequence[SavedAt], text: Mapping[str, Any]) -> dict[str, Any]:
    words = []
    for name in SHOWN:
        style = theme.STYLES[name]
        grows = power_words(power(found, kind, name), html=True)
        label = text[kind][name].format(label=style.named, power=grows)
        words.append(f'<span style="color:{style.text_colour}">{label}</span>')
    lines = f"<b>{text['titles'][kind]}</b><br>{'&nbsp;&nbsp; '.join(words)}"
    any_dot = any(size for at in found for size in at.recorded.values())
    if kind == PEAK:
        lines += f"<br>{text['legend_dots' if any_dot else 'legend_no_dots']}"
    else:
        lines += f"<br>{text['legend_model']}"
    return {
        "x": x, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "yshift": 6, "showarrow": False, "align": "left", "font": theme.font(), "text": lines,
    }  # fmt: skip
