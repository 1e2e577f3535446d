"""What attention works on, beside what each level of a GPU's memory holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fa_kernels.device import Device
from fa_kernels.figures import theme
from fa_kernels.figures.rungs import in_rung_order, number_of
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.units import capacity
from fa_kernels.variants import Variant

#: px of a row, and of what stands above and below them all.
_ROW, _FRAME = 40, 166
_BAR = 0.6
#: The axis, in decades of bytes; a bar that would be longer ends at its end.
_LOW, _HIGH = 3.0, 14.0


@dataclass(frozen=True)
class Item:
    """Something with a size: `key` of the labels, the tensor whose colour it has, its bytes."""

    key: str
    tensor: str
    nbytes: int


@dataclass(frozen=True)
class Place:
    """A memory that items may fit into: `key` of the labels, and what it holds."""

    key: str
    nbytes: int


def places_of(device: Device) -> tuple[Place, ...]:
    """Memories of a device from the smallest; registers are left out: they hold no shared tile."""
    return tuple(
        sorted(
            (
                Place("block", device.smem_per_block_bytes),
                Place("sms", device.sm_count * device.smem_per_sm_bytes),
                Place("l2", device.l2_bytes),
                Place("hbm", device.hbm_capacity_bytes),
            ),
            key=lambda place: place.nbytes,
        )
    )


def last_rung(dtype: str, device: Device) -> Variant:
    """The last rung of the ladder that takes a dtype on a device."""
    return [v for v in in_rung_order() if dtype in v.dtypes and v.runs_on(device.sm)][-1]


def shipped_tiling(problem: AttentionProblem, device: Device) -> Tiling:
    """The tiles that a call of that rung gets on the device."""
    variant = last_rung(problem.dtype, device)
    limit = device.smem_per_block_bytes
    return variant.default_tiling(problem.head_dim, problem.itemsize, limit)


def rung_of(problem: AttentionProblem, device: Device) -> str:
    """Its number: "05"."""
    return number_of(last_rung(problem.dtype, device))


def items_of(problem: AttentionProblem, device: Device) -> tuple[Item, ...]:
    """From a tile to the matrices of all heads, in bytes of the io dtype."""
    tiling, head = shipped_tiling(problem, device), 1 / problem.heads
    keys = min(tiling.block_n, problem.seqlen_k)
    tile = 2 * keys * problem.head_dim * problem.itemsize
    scores = problem.seqlen_q * problem.seqlen_k * problem.itemsize
    inputs = 2 * problem.q_bytes + 2 * problem.kv_bytes
    return (
        Item("tile", "k", tile),
        Item("kv", "k", round(2 * problem.kv_bytes * head)),
        Item("qkvo", "q", round(inputs * head)),
        Item("s", "s", scores),
        Item("qkvo_all", "q", inputs),
        Item("sp_all", "p", 2 * scores * problem.heads),
    )


def place_for(item: Item, places: Sequence[Place]) -> Place | None:
    """The smallest memory that holds an item; None: not even the largest does."""
    return next((place for place in places if item.nbytes <= place.nbytes), None)


def largest_seqlen(nbytes: int, itemsize: int) -> int:
    """The N up to which an N × N matrix fits into `nbytes`."""
    return math.isqrt(nbytes // itemsize)


def fits_spec(
    items: Sequence[Item], places: Sequence[Place], words: Mapping[str, str],
    text: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """A plotly spec on a log axis: a bar per item, a line per memory; `words` name the items."""
    heights = [float(len(items) - 1 - i) for i in range(len(items))]
    layout = theme.base_layout(_FRAME + _ROW * len(items))
    layout["margin"] = {"l": 236, "r": 212, "t": 106, "b": 54}
    layout["barmode"] = "overlay"
    ticks = [1024.0**k * m for k in range(1, 5) for m in (1, 32)]
    layout["xaxis"] = theme.axis(
        title=theme.axis_title(text["axis_size"]), type="log", range=[_LOW, _HIGH],
        tickvals=ticks, ticktext=[capacity(tick) if tick < 1024**4 else
                                  f"{tick / 1024**4:.0f} TiB" for tick in ticks],
    )  # fmt: skip
    layout["yaxis"] = theme.axis(
        range=[-0.6, len(items) - 0.4], tickvals=heights, showgrid=False,
        ticktext=[f"{words[item.key]}&nbsp;" for item in items],
    )  # fmt: skip
    layout["shapes"] = [_line(place) for place in places]
    layout["annotations"] = [
        _title(text), *_names(places, text), *_sizes(items, heights, places, text)
    ]  # fmt: skip
    return {"data": [_bars(items, heights, words)], "layout": layout}


def _title(text: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "x": 0, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "xshift": -220, "yshift": 78, "showarrow": False, "font": theme.font(),
        "text": f"<b>{text['title']}</b>&nbsp;&nbsp; {text['legend']}",
    }  # fmt: skip


def _line(place: Place) -> dict[str, Any]:
    return {
        "type": "line", "xref": "x", "yref": "paper", "x0": place.nbytes, "x1": place.nbytes,
        "y0": 0, "y1": 1, "layer": "above",
        "line": {"color": _COLOURS[place.key], "width": 2, "dash": _DASHES[place.key]},
    }  # fmt: skip


#: The same colours as in the figure of the levels; dashes tell them apart without.
_COLOURS = {
    "block": theme.LEVEL_COLOURS["shared"], "sms": theme.LEVEL_COLOURS["shared"],
    "l2": theme.LEVEL_COLOURS["l2"], "hbm": theme.INK,
}  # fmt: skip
_DASHES = {"block": "solid", "sms": "dash", "l2": "longdash", "hbm": "solid"}


def _names(places: Sequence[Place], text: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Above the lines, each on a row of its own: two of the memories are nearly of one size."""
    found = []
    for row, place in enumerate(places):
        right = place.key != "hbm"
        found.append(
            {
                "x": math.log10(place.nbytes), "y": 1, "xref": "x", "yref": "paper",
                "xanchor": "left" if right else "right", "yanchor": "bottom",
                "xshift": -2 if right else 2, "yshift": 2 + 18 * (len(places) - 1 - row),
                "showarrow": False, "font": theme.font(theme.SMALL),
                "text": f"▾ {text['places'][place.key].format(size=capacity(place.nbytes))}"
                if right
                else f"{text['places'][place.key].format(size=capacity(place.nbytes))} ▾",
            }
        )  # fmt: skip
    return found


def _bars(
    items: Sequence[Item], heights: Sequence[float], words: Mapping[str, str]
) -> dict[str, Any]:
    # On a log axis a bar has no natural root: they begin at the left edge.
    root = 10.0**_LOW
    return {
        "type": "bar", "orientation": "h", "name": "sizes", "width": _BAR,
        "base": [root] * len(items),
        "x": [min(max(item.nbytes, root), 10.0**_HIGH) - root for item in items],
        "y": list(heights),
        "marker": {
            "color": [theme.TENSOR_COLOURS[item.tensor] for item in items],
            "line": {"color": theme.INK, "width": 1},
        },
        "hovertext": [f"{words[item.key]}: {capacity(item.nbytes)}" for item in items],
        "hoverinfo": "text",
    }  # fmt: skip


def _sizes(
    items: Sequence[Item], heights: Sequence[float], places: Sequence[Place],
    text: Mapping[str, Any],
) -> list[dict[str, Any]]:  # fmt: skip
    """In a column right of the axis, where no line crosses them."""
    found = []
    for item, height in zip(items, heights, strict=True):
        place = place_for(item, places)
        where = text["fits"][place.key] if place else text["fits_nowhere"]
        found.append(
            {
                "x": 1, "y": height, "xref": "paper", "yref": "y", "xanchor": "left", "xshift": 8,
                "yanchor": "middle", "showarrow": False, "align": "left", "font": theme.font(),
                "text": f"<b>{capacity(item.nbytes)}</b> {where}",
            }
        )  # fmt: skip
    return found
