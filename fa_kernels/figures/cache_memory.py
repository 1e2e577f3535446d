"""The KV caches of published models, beside what GPUs hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fa_kernels.device import Device
from fa_kernels.figures import theme
from fa_kernels.figures.point import device_words
from fa_kernels.model_shape import ModelShape
from fa_kernels.units import capacity, significant

#: px of a row, and of what stands above and below them all.
_ROW, _FRAME = 30, 190
_BAR = 0.62
_TIB = 1024**4


@dataclass(frozen=True)
class CachedModel:
    """A model with `batch` sequences of `tokens` in its cache, in `dtype`."""

    model: ModelShape
    tokens: int
    batch: int
    dtype: str

    @property
    def nbytes(self) -> int:
        """Of the cache."""
        return self.model.cache_bytes(self.tokens, self.batch, self.dtype)

    @property
    def mha_bytes(self) -> int:
        """Of the cache, if every query head had keys and values of its own."""
        return self.nbytes * self.model.group

    @property
    def mqa_bytes(self) -> int:
        """Of the cache, if all query heads shared one head of keys and values."""
        return self.nbytes // self.model.nheads_kv

    @property
    def token_bytes(self) -> int:
        """Of one more token in one sequence, while no window is full."""
        return self.model.cache_bytes(1, 1, self.dtype)

    @property
    def weight_bytes(self) -> int:
        """Of the weights, in 16 bits whatever the cache has."""
        return self.model.weight_bytes()

    @property
    def total_bytes(self) -> int:
        """Weights and cache, the least that serving takes."""
        return self.nbytes + self.weight_bytes

    @property
    def beyond_context(self) -> bool:
        """True of more tokens than the model's published context."""
        return self.tokens > self.model.context


def smallest_device(nbytes: int, devices: Sequence[Device]) -> Device | None:
    """The device with the least memory that holds `nbytes`; None: no single one does."""
    fitting = [device for device in devices if device.hbm_capacity_bytes >= nbytes]
    return min(fitting, key=lambda device: device.hbm_capacity_bytes, default=None)


def memory_spec(
    models: Sequence[CachedModel], chosen: str, devices: Sequence[Device], text: Mapping[str, Any]
) -> dict[str, Any]:
    """A plotly spec on a log axis: a bar for each model's cache, an outline for MHA, a line for
    each size of GPU memory; the `chosen` slug stands out."""
    heights = [float(len(models) - 1 - i) for i in range(len(models))]
    sizes = _sizes_of(devices)
    # Room for the bar of the smallest cache, and for the words at the line of the smallest memory.
    low = math.log10(min(1.2 * min(sizes), *(one.nbytes for one in models))) - 0.6
    high = math.log10(max(*(one.mha_bytes for one in models), *sizes)) + 0.15
    layout = theme.base_layout(_FRAME + _ROW * len(models))
    layout["margin"] = {"l": 150, "r": 196, "t": 46 + 18 * len(sizes), "b": 54}
    layout["barmode"] = "overlay"
    ticks = [tick for e in range(0, 66, 3) if low <= math.log10(tick := 2.0**e) <= high]
    layout["xaxis"] = theme.axis(
        title=theme.axis_title(text["axis_size"]), type="log", range=[low, high],
        tickvals=ticks, ticktext=[size_words(tick) for tick in ticks],
    )  # fmt: skip
    layout["yaxis"] = theme.axis(
        range=[-0.6, len(models) - 0.4], tickvals=heights, showgrid=False,
        ticktext=[_named(one, chosen) for one in models],
    )  # fmt: skip
    layout["shapes"] = [_line(size) for size in sizes]
    words = [*_device_names(sizes, text), *_numbers(models, heights, chosen)]
    layout["annotations"] = [_title(text, len(sizes)), *words]
    root = 10.0**low
    data = [_outlines(models, heights, root), _bars(models, heights, root, chosen)]
    return {"data": data, "layout": layout}


def size_words(nbytes: float) -> str:
    """A capacity, in TiB where it is beyond a single GPU's."""
    return f"{significant(nbytes / _TIB)} TiB" if nbytes >= _TIB * 0.9995 else capacity(nbytes)


def _named(one: CachedModel, chosen: str) -> str:
    name = one.model.name
    return f"<b>{name}</b>&nbsp;" if one.model.slug == chosen else f"{name}&nbsp;"


def _sizes_of(devices: Sequence[Device]) -> dict[int, list[str]]:
    """Bytes of memory -> the devices that have them, from the least."""
    found: dict[int, list[str]] = {}
    for device in sorted(devices, key=lambda device: device.hbm_capacity_bytes):
        found.setdefault(device.hbm_capacity_bytes, []).append(device_words(device))
    return found


def _title(text: Mapping[str, Any], rows: int) -> dict[str, Any]:
    return {
        "x": 0, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "xshift": -140, "yshift": 14 + 18 * rows, "showarrow": False, "font": theme.font(),
        "text": f"<b>{text['title']}</b>&nbsp;&nbsp; {text['legend']}",
    }  # fmt: skip


def _line(nbytes: int) -> dict[str, Any]:
    return {
        "type": "line", "xref": "x", "yref": "paper", "x0": nbytes, "x1": nbytes, "y0": 0, "y1": 1,
        "layer": "above", "line": {"color": theme.INK, "width": 1, "dash": "dash"},
    }  # fmt: skip


def _device_names(
    sizes: Mapping[int, Sequence[str]], text: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Left of the lines' upper ends, each on a row of its own: the lines lie close together."""
    return [
        {
            "x": math.log10(nbytes), "y": 1, "xref": "x", "yref": "paper", "xanchor": "right",
            "yanchor": "bottom", "xshift": 6, "yshift": 2 + 18 * row, "showarrow": False,
            "font": theme.font(theme.SMALL),
            "text": text["device"].format(names=", ".join(names), size=capacity(nbytes)) + " ▾",
        }
        for row, (nbytes, names) in enumerate(sizes.items())
    ]  # fmt: skip


def _outlines(
    models: Sequence[CachedModel], heights: Sequence[float], root: float
) -> dict[str, Any]:
    """What multi-head attention would take."""
    return {
        "type": "bar", "orientation": "h", "name": "MHA", "width": _BAR,
        "base": [root] * len(models), "x": [max(one.mha_bytes, root) - root for one in models],
        "y": list(heights), "hoverinfo": "skip",
        "marker": {
            "color": theme.PAPER, "line": {"color": theme.MUTED, "width": 1},
            "pattern": {"shape": "/", "fgcolor": theme.MUTED, "size": 5, "solidity": 0.12},
        },
    }  # fmt: skip


def _bars(
    models: Sequence[CachedModel], heights: Sequence[float], root: float, chosen: str
) -> dict[str, Any]:
    # On a log axis a bar has no natural root: they begin at the left edge.
    colours = theme.TENSOR_COLOURS
    widths = [2 if one.model.slug == chosen else 1 for one in models]
    return {
        "type": "bar", "orientation": "h", "name": "cache", "width": _BAR,
        "base": [root] * len(models), "x": [max(one.nbytes, root) - root for one in models],
        "y": list(heights),
        "marker": {
            "color": [colours["k" if one.model.slug == chosen else "v"] for one in models],
            "line": {"color": theme.INK, "width": widths},
        },
        "hovertext": [f"{one.model.name}: {size_words(one.nbytes)}" for one in models],
        "hoverinfo": "text",
    }  # fmt: skip


def _numbers(
    models: Sequence[CachedModel], heights: Sequence[float], chosen: str
) -> list[dict[str, Any]]:
    """In a column right of the axis: bytes, and how many heads share them."""
    found = []
    for one, height in zip(models, heights, strict=True):
        model = one.model
        heads = f"{model.kind}, {model.nheads_kv} of {model.nheads}"
        size = size_words(one.nbytes)
        size = f"<b>{size}</b>" if model.slug == chosen else size
        found.append(
            {
                "x": 1, "y": height, "xref": "paper", "yref": "y", "xanchor": "left", "xshift": 8,
                "yanchor": "middle", "showarrow": False, "font": theme.font(),
                "text": f"{size}{'*' if one.beyond_context else ''} ({heads})",
            }
        )  # fmt: skip
    return found
