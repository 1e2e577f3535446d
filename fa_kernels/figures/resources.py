"""What a block of each launch takes of an SM, how many fit, and which resource runs out first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fa_kernels.cuda.compiled import CompiledLaunch
from fa_kernels.cuda.occupancy import RESOURCES, Occupancy
from fa_kernels.figures import theme
from fa_kernels.figures.rungs import Rung, row_heights, row_labels

#: px of a row, and of what stands above and below them all.
_ROW, _FRAME = 54, 120
_BAR = 0.17
#: Where the outline of one block more is cut off, and where the axis ends: words stand between.
_MOST, _END = 1.4, 2.8


def resources_spec(
    rows: Sequence[tuple[Rung, CompiledLaunch]], arch: int, text: Mapping[str, Any]
) -> dict[str, Any]:
    """A plotly spec: per launch the share of an SM that its blocks take, resource by resource."""
    heights, found = row_heights(rows), [launch.occupancy(arch) for _, launch in rows]
    top = max(heights, default=0.0)
    layout = theme.base_layout(round(_FRAME + _ROW * (top + 1)))
    layout["margin"] = {"l": 176, "r": 14, "t": 62, "b": 54}
    layout["barmode"] = "overlay"
    layout["xaxis"] = theme.axis(
        title=theme.axis_title(text["axis_share"]), range=[0, _END],
        tickvals=[0, 0.25, 0.5, 0.75, 1], ticktext=["0", "25 %", "50 %", "75 %", "100 %"],
    )  # fmt: skip
    layout["yaxis"] = theme.axis(
        range=[-0.6, top + 0.6], tickvals=heights, ticktext=row_labels(rows), showgrid=False,
    )  # fmt: skip
    layout["shapes"] = [_full(top)]
    layout["annotations"] = [_legend(text)]
    data = [_bars(name, lane, rows, heights, found) for lane, name in enumerate(RESOURCES)]
    return {"data": [*data, _words(heights, found, text)], "layout": layout}


def _bars(
    name: str,
    lane: int,
    rows: Sequence[tuple[Rung, CompiledLaunch]],
    heights: Sequence[float],
    found: Sequence[Occupancy],
) -> dict[str, Any]:
    """One resource of all rows: what the resident blocks take, and in outline one block more."""
    xs, bases, ys, patterns, hovers, colours = [], [], [], [], [], []
    at = (1.5 - lane) * (_BAR + 0.03)
    for (rung, launch), height, occupancy in zip(rows, heights, found, strict=True):
        one = occupancy.shares.get(name, 0.0)
        used = occupancy.blocks * one
        hover = f"{rung.name}, {launch.entry}: {name} {100 * used:.0f} %"
        over = occupancy.limits.get(name) == occupancy.blocks
        for base, length, filled in ((0.0, used, True), (used, one, False)):
            bases.append(base)
            xs.append(max(0.0, min(length, _MOST - base)))
            ys.append(height + at)
            colours.append(theme.RESOURCE_COLOURS[name] if filled else "rgba(0,0,0,0)")
            patterns.append("/" if over and not filled else "")
            hovers.append(
                hover if filled else f"{hover}, with one block more {100 * (used + one):.0f} %"
            )
    return {
        "type": "bar", "orientation": "h", "name": name, "x": xs, "base": bases, "y": ys,
        "width": _BAR,
        "marker": {
            **theme.hatched(colours, patterns, theme.INK, 6, 0.2),
            "line": {"color": theme.INK, "width": 1},
        },
        "hovertext": hovers, "hoverinfo": "text",
    }  # fmt: skip


def _words(
    heights: Sequence[float], found: Sequence[Occupancy], text: Mapping[str, Any]
) -> dict[str, Any]:
    lines = [
        text["row"].format(
            limiter=one.limiter, blocks=one.blocks, warps=one.warps, most=one.max_warps,
            percent=f"{100 * one.fraction:.0f}",
        )
        for one in found
    ]  # fmt: skip
    return {
        "type": "scatter", "mode": "text", "name": "words", "x": [_MOST + 0.03] * len(lines),
        "y": list(heights), "text": lines, "textposition": "middle right",
        "textfont": theme.font(), "hoverinfo": "skip", "cliponaxis": False,
    }  # fmt: skip


def _full(top: float) -> dict[str, Any]:
    line = {"color": theme.INK, "width": 2, "dash": "dash"}
    ends = {"x0": 1, "x1": 1, "y0": -0.6, "y1": top + 0.6}
    return {"type": "line", "xref": "x", "yref": "y", **ends, "line": line}


def _legend(text: Mapping[str, Any]) -> dict[str, Any]:
    words = [theme.swatch(theme.RESOURCE_COLOURS[name], name) for name in RESOURCES]
    words.append(f"▯ {text['one_more']}")
    return {
        "x": 0, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "xshift": -160, "yshift": 8, "showarrow": False, "align": "left", "font": theme.font(),
        "text": f"<b>{text['title']}</b><br>{'&nbsp;&nbsp;&nbsp;'.join(words)}",
    }  # fmt: skip
