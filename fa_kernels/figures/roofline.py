"""The roofline of one GPU, and where each rung and peer stands under it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fa_kernels.device import Device
from fa_kernels.figures import theme
from fa_kernels.figures.ladder import LadderRuns, Step
from fa_kernels.figures.recorded_ceilings import PRODUCTS, MeasuredCeilings
from fa_kernels.masks import matmul_flops
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.units import significant

_HEIGHT = 500
#: The axes of the narrowest figure, in px.
_INNER = (716, 404)
#: Room around the marks, in decades.
_LEFT, _RIGHT = 0.35, 0.5
#: Measured ceilings of device memory.
_BANDWIDTHS = ("hbm_read", "hbm_copy")


@dataclass(frozen=True)
class Ceilings:
    """Peaks in TFLOP/s and bandwidth in GB/s of a data sheet; None: no such rate at this dtype.

    `product` says of a measured peak of the tensor cores which matrix product reached it.
    """

    bandwidth_gb_s: float
    fp32_tflops: float
    tensor_tflops: float | None
    product: str = ""

    @classmethod
    def of(cls, device: Device, dtype: str) -> Ceilings:
        """Those of a device for operands of `dtype`."""
        # fp32 operands are not rounded to TF32 unless somebody asks: the fp32 units bind.
        tensor = None
        if dtype == "float16":
            tensor = device.fp16_tensor_tflops
        elif dtype == "bfloat16":
            tensor = device.bf16_tensor_tflops
        fp32 = device.peak_tflops(dtype, tensor_cores=False)
        return cls(device.hbm_bandwidth_gb_s, fp32, tensor)

    @classmethod
    def measured(cls, found: MeasuredCeilings, dtype: str) -> Ceilings | None:
        """Those that a run measured; None: it has no bandwidth, or none of the fp32 units.

        The bandwidth is that of reading alone or of copying, whichever is greater.
        """
        bandwidths = [rate for name in _BANDWIDTHS if (rate := found.rate(name))]
        fp32 = found.rate("fp32_fma")
        if not bandwidths or fp32 is None:
            return None
        name = PRODUCTS.get(dtype, "")
        return cls(max(bandwidths), fp32, found.rate(name), found.product(name))

    def roof(self, intensity: float, tensor_cores: bool) -> float:
        """The most TFLOP/s at this many FLOP per byte, were every byte to come from HBM."""
        return min(self.bandwidth_gb_s * intensity / 1e3, self.peak(tensor_cores))

    def peak(self, tensor_cores: bool) -> float:
        """The flat part."""
        return self.tensor_tflops if tensor_cores and self.tensor_tflops else self.fp32_tflops


@dataclass(frozen=True)
class Mark:
    """One rung or peer: FLOP per byte and TFLOP/s.

    Of a rung the bytes are the launched model's with the tiles that were timed;
    `counted_intensity` is by those counted in the kernel. Nobody counted a peer's: `at_most` says
    that its FLOP per byte are those of q, k, v and out moved once.
    """

    step: Step
    intensity: float
    tflops: float
    tensor_cores: bool
    at_most: bool
    counted_intensity: float | None = None


def marks_of(
    found: Sequence[Step], tensor_cores: Mapping[str, bool], runs: LadderRuns
) -> list[Mark]:
    """A mark for every series that was timed; `tensor_cores` says which variants use them."""
    marks = []
    for step in found:
        if not step.tflops or step.without:
            continue
        flops, variant = matmul_flops(step.problem), step.variant
        if variant is None:
            tensor, nbytes = step.problem.dtype != "float32", least_bytes(step.problem)
        else:
            tiling = step.tiling or Tiling(1, 1)
            nbytes = variant.launched(step.problem, tiling).total_bytes
            tensor = tensor_cores.get(variant.name, False)
        counted = runs.counted_bytes(step)
        intensity = flops / counted if counted else None
        marks.append(Mark(step, flops / nbytes, step.tflops, tensor, variant is None, intensity))
    return marks


def least_bytes(problem: AttentionProblem) -> int:
    """q, k, v and out once."""
    return 2 * problem.q_bytes + 2 * problem.kv_bytes


def roofline_spec(
    marks: Sequence[Mark],
    ceilings: Ceilings,
    text: Mapping[str, Any],
    measured: Ceilings | None = None,
    also: Sequence[float] = (),
) -> dict[str, Any]:
    """A plotly spec on log axes: ceilings as lines, a marker per rung and peer, open for peers.

    `measured` ceilings are dashed, beneath those of the data sheet; `also` are FLOP per byte that
    the figure must reach besides.
    """
    layout = theme.base_layout(_HEIGHT)
    layout["margin"] = {"l": 70, "r": 14, "t": 40, "b": 56}
    xs = [*(math.log10(mark.intensity) for mark in marks), *map(math.log10, also)] or [0.0, 3.0]
    ys = [math.log10(mark.tflops) for mark in marks] or [0.0]
    peak = math.log10(ceilings.tensor_tflops or ceilings.fp32_tflops)
    ridge = math.log10(ceilings.peak(True) * 1e3 / ceilings.bandwidth_gb_s)
    low, high = min(*xs, ridge) - _LEFT, max(*xs, ridge) + _RIGHT
    bottom, top = min(*ys, math.log10(ceilings.fp32_tflops)) - 0.4, peak + 0.35
    layout["xaxis"] = _log_axis(text["axis_intensity"], "FLOP/B", low, high)
    layout["yaxis"] = _log_axis(text["axis_rate"], "TFLOP/s", bottom, top)
    layout["annotations"] = [
        {
            "x": 0, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left",
            "yanchor": "bottom", "xshift": -52, "yshift": 6, "showarrow": False,
            "align": "left", "font": theme.font(),
            "text": f"<b>{text['title']}</b>&nbsp;&nbsp; {_legend(text, measured)}",
        }
    ]  # fmt: skip
    names = _names(marks, (high - low, top - bottom))
    data = [_roofs(ceilings, 10.0**low, 10.0**high)]
    if measured:
        data.append(_roofs(measured, 10.0**low, 10.0**high, _MEASURED))
    data.append(_roof_words(ceilings, bottom, low, high, text, measured))
    return {"data": [*data, *(_mark(mark) for mark in marks), names], "layout": layout}


def _log_axis(quantity: str, unit: str, low: float, high: float) -> dict[str, Any]:
    ticks = [m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in (1, 3)]
    ticks = [tick for tick in ticks if low <= math.log10(tick) <= high]
    return theme.axis(
        title=theme.axis_title(quantity, unit), type="log", range=[low, high], tickvals=ticks,
        ticktext=[significant(tick, 1) for tick in ticks],
    )  # fmt: skip


#: How the measured ceilings look.
_MEASURED = {"color": theme.MUTED, "width": 2, "dash": "dash"}


def _legend(text: Mapping[str, Any], measured: Ceilings | None) -> str:
    return f"{text['legend']}; {text['legend_measured']}" if measured else str(text["legend"])


def _roofs(
    ceilings: Ceilings, left: float, right: float, line: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The slope of the bandwidth, then each peak from where it meets it."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    slope, peaks = ceilings.bandwidth_gb_s / 1e3, [ceilings.fp32_tflops, ceilings.tensor_tflops]
    known = [peak for peak in peaks if peak]
    xs += [left, max(known) / slope, None]
    ys += [left * slope, max(known), None]
    for peak in known:
        xs += [peak / slope, right, None]
        ys += [peak, peak, None]
    return {
        "type": "scatter", "mode": "lines", "name": "measured ceilings" if line else "ceilings",
        "x": xs, "y": ys, "line": line or {"color": theme.INK, "width": 2}, "hoverinfo": "skip",
    }  # fmt: skip


def _roof_words(
    ceilings: Ceilings,
    bottom: float,
    low: float,
    high: float,
    text: Mapping[str, Any],
    measured: Ceilings | None,
) -> dict[str, Any]:
    slope = ceilings.bandwidth_gb_s / 1e3
    # Near the left edge, or where the slope enters the figure from below.
    start = max(low, bottom - math.log10(slope)) + 0.06 * (high - low)
    xs, ys = [10.0**start], [10.0**start * slope]
    words, places = [text["bandwidth"].format(rate=f"{slope:.3g}")], ["middle right"]
    # Both numbers stand beside the data sheet's line: the measured one runs close under it.
    beside = text["beside"]
    words[0] = "&nbsp;" * (8 if measured else 4) + words[0]
    if measured:
        words[0] += beside.format(rate=f"{measured.bandwidth_gb_s / 1e3:.3g}")
    reached = (measured.fp32_tflops, measured.tensor_tflops) if measured else (None, None)
    peaks = (("fp32", ceilings.fp32_tflops), ("tensor", ceilings.tensor_tflops))
    for (name, peak), rate in zip(peaks, reached, strict=True):
        if peak:
            xs.append(10.0**high)
            ys.append(peak)
            more = beside.format(rate=significant(rate)) if rate else ""
            if rate and measured and name == "tensor":  # the most of one product, not of the units
                more = text["beside_product"].format(
                    rate=significant(rate), product=measured.product
                )
            words.append(text[name].format(rate=significant(peak)) + more)
            places.append("top left")
    return {
        "type": "scatter", "mode": "text", "name": "ceiling words", "x": xs, "y": ys,
        "text": words, "textposition": places, "textfont": theme.font(), "hoverinfo": "skip",
    }  # fmt: skip


def _mark(mark: Mark) -> dict[str, Any]:
    style = theme.style_of(mark.step.series)
    symbol = f"{style.marker}-open" if mark.at_most else style.marker
    edge = (style.colour, 2) if mark.at_most else (theme.INK, 1)
    hover = (
        f"{mark.step.name}: {significant(mark.tflops)} TFLOP/s at "
        f"{'at most ' if mark.at_most else ''}{significant(mark.intensity)} FLOP per byte"
    )
    return {
        "type": "scatter", "mode": "markers", "name": mark.step.series, "x": [mark.intensity],
        "y": [mark.tflops],
        "marker": {
            "symbol": symbol, "size": 14, "color": style.colour,
            "line": {"color": edge[0], "width": edge[1]},
        },
        "hovertext": [hover], "hoverinfo": "text",
    }  # fmt: skip


def _names(marks: Sequence[Mark], spans: tuple[float, float]) -> dict[str, Any]:
    """Names beside the marks, where no other name and no mark stands; `spans` are in decades."""
    per_x, per_y = _INNER[0] / spans[0], _INNER[1] / spans[1]
    centres = [
        (math.log10(mark.intensity) * per_x, math.log10(mark.tflops) * per_y) for mark in marks
    ]
    taken = [(x - 9, y - 9, x + 9, y + 9) for x, y in centres]
    places, words, pad = [], [], "&nbsp;" * 3
    for mark, centre in zip(marks, centres, strict=True):
        name = mark.step.name
        free = [place for place in _PLACES if not _meets(_box(place, name, *centre), taken)]
        # A peer stands near the right edge.
        place = next(iter(reversed(free) if mark.at_most else free), _PLACES[0])
        taken.append(_box(place, name, *centre))
        places.append(place)
        left, right = place.endswith("left"), place.endswith("right")
        # A line of nothing keeps a name off the mark below or above it.
        over = f"{name}<br>&nbsp;" if place.startswith("top") else f"&nbsp;<br>{name}"
        words.append(f"{name}{pad}" if left else f"{pad}{name}" if right else over)
    return {
        "type": "scatter", "mode": "text", "name": "names",
        "x": [mark.intensity for mark in marks], "y": [mark.tflops for mark in marks],
        "text": words, "textposition": places,
        "textfont": {
            "size": theme.FONT,
            "color": [theme.style_of(mark.step.series).text_colour for mark in marks],
        },
        "hoverinfo": "skip", "cliponaxis": False,
    }  # fmt: skip


_Box = tuple[float, float, float, float]
_PLACES = ("middle right", "top center", "bottom center", "middle left")


def _box(place: str, name: str, x: float, y: float) -> _Box:
    """Where a name would stand, in px: left, bottom, right, top."""
    wide, high = 7.2 * len(name), 16.0
    if place.endswith("center"):
        middle = y + 18 if place.startswith("top") else y - 18
        return x - wide / 2, middle - high / 2, x + wide / 2, middle + high / 2
    left = x + 10 if place.endswith("right") else x - 10 - wide
    return left, y - high / 2, left + wide, y + high / 2


def _meets(box: _Box, others: Sequence[_Box]) -> bool:
    return any(box[0] < o[2] and o[0] < box[2] and box[1] < o[3] and o[1] < box[3] for o in others)
