"""Kept probability and error over density for every pattern, and one map beside one mask."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fa_kernels.figures import theme
from fa_kernels.figures.map_quality import BEST, BLOCK, NAMES, Compared, Quality

_HEIGHT = 800
_LEFT, _RIGHT = (0.0, 0.45), (0.55, 1.0)
_TOP, _BOTTOM = (0.59, 1.0), (0.0, 0.44)
#: (colour, dash, marker) of the masks, in the order of `NAMES`; hues of Okabe and Ito.
_LOOKS = (
    (theme.INK, "solid", "star"), ("#0072B2", "solid", "circle"), ("#D55E00", "dash", "square"),
    (theme.MUTED, "dashdot", "triangle-up"), ("#CC79A7", "longdash", "diamond"),
    ("#56B4E9", "dash", "triangle-down"), ("#009E73", "longdashdot", "cross"),
    ("#E69F00", "solid", "pentagon"),
)  # fmt: skip
_GLYPHS = {
    "star": "★", "circle": "●", "square": "■", "triangle-up": "▲", "diamond": "◆",
    "triangle-down": "▼", "cross": "✚", "pentagon": "⬟",
}  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """One head under one mask: its shares by block, and what is kept, each (blocks, blocks)."""

    head: str
    mask: str
    share: np.ndarray
    keep: np.ndarray


def look_of(name: str) -> tuple[str, str, str]:
    """(colour, dash, marker) of a mask."""
    return _LOOKS[NAMES.index(name) % len(_LOOKS)]


def sparse_quality_spec(
    found: Mapping[str, Sequence[Compared]], picture: Picture | None, text: Mapping[str, Any]
) -> dict[str, Any]:
    """A plotly spec: two panels of curves above, map and mask below; without `picture` empty."""
    layout = theme.base_layout(_HEIGHT)
    layout["margin"] = {"l": 62, "r": 14, "t": 74, "b": 48}
    ticks = [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0]
    known = [one.own for compared in found.values() for one in compared]
    least = min((one.density for one in known), default=ticks[0])
    for at, domain, title in (("", _LEFT, "axis_mass"), ("2", _RIGHT, "axis_error")):
        layout[f"xaxis{at}"] = theme.axis(
            title=theme.axis_title(text["axis_density"]), domain=list(domain), anchor=f"y{at}",
            tickvals=[math.log2(t) for t in ticks], range=[math.log2(least) - 0.25, 0.2],
            ticktext=["1" if t == 1 else f"1/{1 / t:.0f}" for t in ticks],
        )  # fmt: skip
        layout[f"yaxis{at}"] = theme.axis(
            title=theme.axis_title(text[title]), domain=list(_TOP), anchor=f"x{at}"
        )
    layout["yaxis"] |= {"range": [0, 1.04], "tickformat": ".0%"}
    layout["yaxis2"] |= {"range": [0, 1.05 * max((one.error for one in known), default=1.0)]}
    data = [
        line
        for name, compared in found.items()
        for line in _lines(name, [one.own for one in compared], text)
    ]
    layout["annotations"] = [_head(text["title"], 0.0, 1.0, _legend(found, text))]
    if picture is not None:
        data += _maps(picture, layout, text)
    return {"data": data, "layout": layout}


def _lines(
    name: str, qualities: Sequence[Quality], text: Mapping[str, Any]
) -> list[dict[str, Any]]:
    colour, dash, marker = look_of(name)
    common: dict[str, Any] = {
        "type": "scatter", "mode": "lines+markers", "name": text["masks"][name],
        "x": [math.log2(one.density) for one in qualities],
        "line": {"color": colour, "dash": dash, "width": 3 if name == BEST else 2},
        "marker": {"symbol": marker, "size": 8, "color": colour},
        "hovertext": [
            text["hover"].format(
                name=text["masks"][name], density=f"{one.density:.3f}",
                mass=f"{100 * one.mass:.1f}", error=f"{one.error:.2g}",
            )
            for one in qualities
        ],
        "hoverinfo": "text",
    }  # fmt: skip
    errors = [one.error for one in qualities]
    return [
        {**common, "y": [one.mass for one in qualities], "xaxis": "x", "yaxis": "y"},
        {**common, "y": errors, "xaxis": "x2", "yaxis": "y2"},
    ]


def _legend(found: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    words = [
        f'<span style="color:{look_of(name)[0]}">{_GLYPHS[look_of(name)[2]]}</span> '
        f"{text['masks'][name]}"
        for name in found
    ]
    return "&nbsp;&nbsp; ".join(words) or "&nbsp;"


def _maps(
    picture: Picture, layout: dict[str, Any], text: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The map of shares, and the same with everything dropped that the mask drops."""
    n = len(picture.share)
    ticks = list(range(0, n, max(1, n // 4)))
    sides: dict[str, Any] = {
        "tickvals": ticks, "ticktext": [str(BLOCK * t) for t in ticks], "showgrid": False,
    }  # fmt: skip
    # Light shares would all look alike: their square roots are drawn.
    shade, data = np.sqrt(picture.share), []
    for at, domain, kept, title in (
        ("3", _LEFT, None, text["title_map"].format(head=picture.head)),
        ("4", _RIGHT, picture.keep, text["title_mask"].format(mask=picture.mask)),
    ):
        layout[f"xaxis{at}"] = theme.axis(
            title=theme.axis_title(text["axis_keys"]), domain=list(domain), anchor=f"y{at}",
            range=[-0.7, n - 0.3], **sides,
        )  # fmt: skip
        layout[f"yaxis{at}"] = theme.axis(
            title=theme.axis_title(text["axis_rows"]), domain=list(_BOTTOM), anchor=f"x{at}",
            range=[n - 0.3, -0.7], **sides,
        )  # fmt: skip
        data.append(_map(at, shade, kept, picture.share, text))
        layout["annotations"].append(_head(title, domain[0], _BOTTOM[1], ""))
    return data


def _map(
    at: str,
    shade: np.ndarray,
    kept: np.ndarray | None,
    share: np.ndarray,
    text: Mapping[str, Any],
) -> dict[str, Any]:
    """Shares from dark (none) to P's yellow (all); what is dropped is left clear."""
    seen = np.tri(len(shade), dtype=bool) & (True if kept is None else kept)
    z = [
        [float(value) if there else None for value, there in zip(*pair, strict=True)]
        for pair in zip(shade, seen, strict=True)
    ]
    told = [
        [text["hover_map"].format(share=f"{100 * value:.1f}") for value in row] for row in share
    ]
    return {
        "type": "heatmap", "xaxis": f"x{at}", "yaxis": f"y{at}", "z": z, "zmin": 0, "zmax": 1,
        "showscale": False, "xgap": 1, "ygap": 1, "text": told, "name": text["name_map"],
        "hovertemplate": "%{text}<extra></extra>", "hoverongaps": False,
        "colorscale": [[0, theme.DROPPED], [1, theme.TENSOR_COLOURS["p"]]],
    }  # fmt: skip


def _head(title: str, x: float, y: float, below: str) -> dict[str, Any]:
    return {
        "x": x, "y": y, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "xshift": -48 if below else 0, "yshift": 6, "showarrow": False, "align": "left",
        "font": theme.font(), "text": f"<b>{title}</b>" + (f"<br>{below}" if below else ""),
    }  # fmt: skip


def asked_words(asked: float) -> str:
    """ "1/4", "3/8"."""
    if asked == 1:
        return "1"
    parts = round(32 * asked)
    shared = math.gcd(parts, 32)
    return f"{parts // shared}/{32 // shared}"
