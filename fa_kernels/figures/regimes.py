"""Prefill and decode of one model under the roofline of one GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fa_kernels.decode_problem import DecodeProblem
from fa_kernels.device import Device
from fa_kernels.figures import theme
from fa_kernels.figures.recorded_decode import DecodePoint
from fa_kernels.figures.recorded_speed import Curve
from fa_kernels.figures.roofline import Ceilings, least_bytes, roofline_spec
from fa_kernels.figures.what_fits import last_rung, shipped_tiling
from fa_kernels.masks import matmul_flops
from fa_kernels.model_shape import ModelShape
from fa_kernels.problem import AttentionProblem
from fa_kernels.traffic.decode_model import launched_decode
from fa_kernels.units import significant

#: Of q, caches and outputs.
DTYPE = "bfloat16"
_PREFILL = theme.style_of("flash_q_outer")
_DECODE_COLOUR = theme.TENSOR_COLOURS["q"]


@dataclass(frozen=True)
class Regime:
    """The attention of one layer in one regime: FLOP, bytes moved at least, and bytes asked for.

    `least_bytes` moves every tensor once; `asked_bytes` are the launched model's, re-reads of K
    and V by further tiles of Q included, which the L2 may answer.
    """

    name: str
    flops: int
    least_bytes: int
    asked_bytes: int

    @property
    def intensity(self) -> float:
        """FLOP per byte, if no byte is moved twice."""
        return self.flops / self.least_bytes

    def arithmetic_ms(self, ceilings: Ceilings) -> float:
        """At the peak of the tensor cores."""
        return self.flops / ceilings.peak(True) / 1e9

    def bytes_ms(self, ceilings: Ceilings) -> float:
        """At the bandwidth."""
        return self.least_bytes / ceilings.bandwidth_gb_s / 1e6

    def binds(self, ceilings: Ceilings) -> str:
        """ "arithmetic" or "bytes"."""
        longer = self.arithmetic_ms(ceilings) > self.bytes_ms(ceilings)
        return "arithmetic" if longer else "bytes"


def prefill_of(model: ModelShape, tokens: int, batch: int, device: Device) -> Regime:
    """All tokens of `batch` prompts at once, causal, by the last rung that the device runs."""
    problem = AttentionProblem(
        batch, model.nheads, tokens, tokens, model.head_dim, DTYPE, "bottom_right",
        nheads_kv=model.nheads_kv,
    )  # fmt: skip
    tiling = shipped_tiling(problem, device)
    asked = last_rung(DTYPE, device).launched(problem, tiling).total_bytes
    least = least_bytes(problem) + problem.lse_bytes
    return Regime("prefill", matmul_flops(problem), least, asked)


def decode_of(model: ModelShape, tokens: int, batch: int) -> Regime:
    """One new token for each of `batch` sequences of `tokens`, the keys in one part."""
    step = DecodeProblem(
        batch, model.nheads, model.nheads_kv, 1, 0, tokens, model.head_dim, DTYPE
    )  # fmt: skip
    totals = [tokens] * batch
    asked = launched_decode(step, totals, 1, step.rows).total_bytes
    least = step.read_bytes(totals) + 2 * step.q_bytes + step.lse_bytes
    flops = 4 * batch * model.nheads * tokens * model.head_dim
    return Regime("decode", flops, least, asked)


def regimes_spec(
    regimes: Sequence[Regime], ceilings: Ceilings, measured: Ceilings | None,
    steps: Sequence[DecodePoint], forward: Curve, text: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """A plotly spec on log axes: a dotted line at each regime up to the roof, recorded points.

    `steps` are recorded decode steps, `forward` the recorded calls of a rung, each at the FLOP per
    byte of moving its tensors once.
    """
    wide = [one.intensity for one in regimes]
    # Room left of both, where the words at the slope stand.
    spec = roofline_spec((), ceilings, text, measured, [*wide, min(wide) / 12])
    layout = spec["layout"]
    _words_apart(spec, ceilings, max(wide))
    reached = [point.tflops for point in steps]
    bottom, top = layout["yaxis"]["range"]
    layout["yaxis"]["range"] = [min(bottom, *(math.log10(y) - 0.2 for y in reached), 0.0), top]
    data = [_drop(one, ceilings, 10.0 ** layout["yaxis"]["range"][0]) for one in regimes]
    layout["annotations"] += [_name(one, text) for one in regimes]
    return {"data": [*spec["data"], *data, *_recorded(steps, forward, text)], "layout": layout}


#: The words at a lower ceiling need so many times the FLOP per byte at which it begins.
_WORDS_NEED = 15


def _words_apart(spec: dict[str, Any], ceilings: Ceilings, prefill: float) -> None:
    """The words at the top ceiling end where it begins: the diamond of prefill stands upon it.

    Those of the fp32 units end at the dotted line of prefill, where they have room left of it.
    """
    words = next(trace for trace in spec["data"] if trace["name"] == "ceiling words")
    if ceilings.tensor_tflops:
        words["x"][-1] = ceilings.peak(True) * 1e3 / ceilings.bandwidth_gb_s
    begins = ceilings.peak(False) * 1e3 / ceilings.bandwidth_gb_s
    if len(words["x"]) > 2 and _WORDS_NEED * begins < prefill < words["x"][1]:
        words["x"][1] = prefill / 1.05


def _colour(one: Regime) -> str:
    return _PREFILL.colour if one.name == "prefill" else _DECODE_COLOUR


def _drop(one: Regime, ceilings: Ceilings, bottom: float) -> dict[str, Any]:
    """From the axis to the roof, where the bound lies: an open diamond, for a model."""
    roof = ceilings.roof(one.intensity, True)
    return {
        "type": "scatter", "mode": "lines+markers", "name": one.name,
        "x": [one.intensity, one.intensity], "y": [bottom, roof], "hoverinfo": "skip",
        "line": {"color": _colour(one), "width": 2, "dash": "dot"},
        "marker": {
            "color": _colour(one), "size": [0, 13], "symbol": "diamond-open", "line": {"width": 2},
        },
    }  # fmt: skip


def _name(one: Regime, text: Mapping[str, Any]) -> dict[str, Any]:
    """At the foot of the line, where nothing else stands."""
    left = one.name == "prefill"
    return {
        "x": math.log10(one.intensity), "y": 0, "xref": "x", "yref": "paper",
        "xanchor": "right" if left else "left", "yanchor": "bottom",
        "xshift": -4 if left else 4, "yshift": 4, "showarrow": False, "font": theme.font(),
        "text": text["regimes"][one.name].format(intensity=significant(one.intensity)),
    }  # fmt: skip


def _recorded(
    steps: Sequence[DecodePoint], forward: Curve, text: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Filled markers; their names stand in the legend above the figure."""
    points = [
        (text["recorded_decode"], [p.flops / p.least_bytes for p in steps],
         [p.tflops for p in steps], _DECODE_COLOUR, "diamond"),
        (text["recorded_prefill"],
         [matmul_flops(r.row.problem) / least_bytes(r.row.problem) for r in forward.rates],
         [r.tflops for r in forward.rates], _PREFILL.colour, "circle"),
    ]  # fmt: skip
    return [
        {
            "type": "scatter", "mode": "markers", "name": name, "x": xs, "y": ys,
            "marker": {
                "color": colour, "size": 10, "symbol": symbol,
                "line": {"color": theme.INK, "width": 1},
            },
            "hoverinfo": "skip",
        }
        for name, xs, ys, colour, symbol in points
    ]  # fmt: skip
