"""Errors against float64 over N in each dtype, beside what rounding the exact result once costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fa_kernels.device import Device
from fa_kernels.figures import theme
from fa_kernels.figures.recorded import read_run
from fa_kernels.measure.check import EPS
from fa_kernels.measure.numerics import DTYPES, EXACT
from fa_kernels.measure.records import OURS, Row, Run, list_runs
from fa_kernels.problem import SHORT_DTYPE

#: Whose S and P go through memory in the dtype, whose stay on chip, and on tensor cores.
STANDARD, FLASH, FAST = "standard_tiled", "flash_q_outer", "flash_mma"
#: Lines of our own; peers come after them, under their own names.
SHOWN = (STANDARD, "flash_kv_outer_io", FLASH, FAST)
#: How a run of the references in NumPy calls its device.
CPU = "CPU"
_HEIGHT, _GAP = 420, 0.05


@dataclass(frozen=True)
class ErrorAt:
    """One recorded error at N keys; `rms` is the root mean square of the exact result."""

    keys: int
    row: Row
    rms: float

    @property
    def rmse(self) -> float:
        """Root mean square of the error."""
        return self.row.median or 0.0

    @property
    def units(self) -> float:
        """The same, relative to the exact result, in rounding units u of the dtype."""
        return self.rmse / self.rms / (EPS[self.row.dtype] / 2)


class RecordedErrors:
    """The errors of one run: of a GPU's kernels and peers, or of the references in NumPy."""

    def __init__(self, run: Run | None = None) -> None:
        self.run = run
        self._found: dict[tuple[str, str, int, str], list[ErrorAt]] = {}
        rows = run.select(status="ok") if run else []
        rms = {_where(row): row.median for row in rows if row.metric == "rms"}
        for row in rows:
            size = rms.get(_where(row))
            if row.metric == "rmse" and size:
                key = (row.series, row.dtype, row.head_dim, row.inputs)
                self._found.setdefault(key, []).append(ErrorAt(row.seqlen_k, row, size))

    @classmethod
    def on(cls, device: Device, root: Path | None = None) -> RecordedErrors:
        """The newest run of errors on `device`, else the newest that NumPy made on a CPU."""
        runs = [read_run(run_id, root) for run_id in list_runs(root, kind="numerics")]
        known = [run for run in runs if isinstance(run, Run)]
        ours = [run for run in known if device.is_called(run.device)]
        on_cpu = [run for run in known if run.device.startswith(CPU)]
        return cls(next(iter([*ours, *on_cpu]), None))

    @property
    def in_numpy(self) -> bool:
        """True if the references computed, and no kernel."""
        return self.run is not None and self.run.device.startswith(CPU)

    def line(self, series: str, dtype: str, head_dim: int, inputs: str) -> list[ErrorAt]:
        """The errors of one series over N, shortest first; [] where nothing was recorded."""
        found = self._found.get((series, dtype, head_dim, inputs), [])
        return sorted(found, key=lambda error: error.keys)

    def series(self) -> list[str]:
        """`SHOWN` and the peers of the run, those that have any error."""
        peers = {row.series for row in (self.run.rows if self.run else ())
                 if row.provider not in (OURS, EXACT)}  # fmt: skip
        found = {key[0] for key in self._found}
        return [name for name in (*SHOWN, *sorted(peers)) if name in found]

    def ratios(self, over: str, under: str, dtype: str, inputs: str) -> list[float]:
        """RMSE of one series over that of another, at every N and d that both have."""
        pairs = []
        for series, _, head_dim, _ in [k for k in self._found if k[1:2] + k[3:] == (dtype, inputs)]:
            if series == over:
                below = {e.keys: e.rmse for e in self.line(under, dtype, head_dim, inputs)}
                line = self.line(over, dtype, head_dim, inputs)
                pairs += [e.rmse / below[e.keys] for e in line if below.get(e.keys)]
        return pairs


def _where(row: Row) -> tuple[str, int, int, str]:
    return row.dtype, row.seqlen_k, row.head_dim, row.inputs


def numerics_spec(
    errors: RecordedErrors, head_dim: int, inputs: str, text: Mapping[str, Any]
) -> dict[str, Any]:
    """A plotly spec: a panel per dtype, a line per series over N, rounding once, and the unit u."""
    layout = theme.base_layout(_HEIGHT)
    layout["margin"] = {"l": 66, "r": 14, "t": 112, "b": 56}
    lines = {
        (name, dtype): found
        for name in (EXACT, *errors.series())
        for dtype in DTYPES
        if (found := errors.line(name, dtype, head_dim, inputs))
    }
    known = [error for line in lines.values() for error in line]
    keys = sorted({error.keys for error in known}) or [128, 8192]
    values = [1.0, *(error.units for error in known)]
    span = math.log10(min(values)) - 0.2, math.log10(max(values)) + 0.2
    width = (1 - _GAP * (len(DTYPES) - 1)) / len(DTYPES)
    layout["annotations"], data = [_legend(errors, text)], []
    for i, dtype in enumerate(DTYPES):
        number, start = "" if i == 0 else str(i + 1), i * (width + _GAP)
        layout[f"xaxis{number}"] = theme.axis(
            title=theme.axis_title(text["axis_keys"]), domain=[start, start + width],
            tickvals=[math.log2(n) for n in keys][::2], ticktext=[str(n) for n in keys][::2],
            range=[math.log2(keys[0]) - 0.3, math.log2(keys[-1]) + 0.3], anchor=f"y{number}",
        )  # fmt: skip
        layout[f"yaxis{number}"] = theme.axis(
            title=theme.axis_title(text["axis_error"] if i == 0 else ""), type="log",
            range=list(span), anchor=f"x{number}", showticklabels=i == 0,
            **_ticks(span),
        )  # fmt: skip
        layout["annotations"].append(_head(start, dtype, text))
        data.append(_unit(keys, number))
        data += [
            _line(name, line, number, text) for (name, of), line in lines.items() if of == dtype
        ]
    return {"data": data, "layout": layout}


def _ticks(span: tuple[float, float]) -> dict[str, Any]:
    values = [m * 10.0**e for e in range(math.floor(span[0]), math.ceil(span[1]) + 1)
              for m in (1, 3)]  # fmt: skip
    shown = [value for value in values if span[0] <= math.log10(value) <= span[1]]
    if span[1] - span[0] > 2.5:
        shown = [value for value in shown if math.log10(value) % 1 == 0]
    return {"tickvals": shown, "ticktext": [f"{value:g} u" for value in shown]}


def _unit(keys: Sequence[int], number: str) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "name": "u", "hoverinfo": "skip",
        "x": [math.log2(keys[0]) - 0.3, math.log2(keys[-1]) + 0.3], "y": [1, 1],
        "xaxis": f"x{number}", "yaxis": f"y{number}",
        "line": {"color": theme.INK, "width": 1.5, "dash": "dot"},
    }  # fmt: skip


def _line(
    name: str, line: Sequence[ErrorAt], number: str, text: Mapping[str, Any]
) -> dict[str, Any]:
    exact, style = name == EXACT, theme.style_of(name)
    looks: dict[str, Any] = {
        "mode": "lines", "line": {"color": theme.MUTED, "width": 8}, "opacity": 0.45,
    } if exact else {
        "mode": "lines+markers",
        "line": {"color": style.colour, "width": 2, "dash": style.dash},
        "marker": {"symbol": style.marker, "size": 9, "color": style.colour},
    }  # fmt: skip
    label = text["exact"] if exact else style.label
    return {
        "type": "scatter", "name": name, "x": [math.log2(error.keys) for error in line],
        "y": [error.units for error in line], "xaxis": f"x{number}", "yaxis": f"y{number}",
        "hovertext": [
            f"{label}, N = {error.keys}: {error.units:.3g} u, RMSE {error.rmse:.2e}, "
            f"{text['largest']} {error.row.max_abs_err or 0.0:.2e}"
            for error in line
        ],
        "hoverinfo": "text", **looks,
    }  # fmt: skip


def _head(x: float, dtype: str, text: Mapping[str, Any]) -> dict[str, Any]:
    power = round(math.log2(EPS[dtype] / 2))
    words = text["panel"].format(dtype=SHORT_DTYPE[dtype], power=f"<sup>{power}</sup>")
    return {
        "x": x, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "yshift": 4, "showarrow": False, "align": "left", "font": theme.font(), "text": words,
    }  # fmt: skip


def _legend(errors: RecordedErrors, text: Mapping[str, Any]) -> dict[str, Any]:
    words = [f'<span style="color:{theme.MUTED}">▬ {text["exact"]}</span>', f"┈ {text['unit']}"]
    for name in errors.series():
        style = theme.style_of(name)
        words.append(f'<span style="color:{style.text_colour}">{style.named}</span>')
    half = 3 if len(words) > 4 else len(words)
    source = text["not_recorded"]
    if errors.run is not None:
        where = text["numpy" if errors.in_numpy else "gpu"].format(device=errors.run.device)
        source = text["recorded"].format(run=errors.run.run_id, where=where)
    lines = ["&nbsp;&nbsp; ".join(some) for some in (words[:half], words[half:]) if some]
    return {
        "x": 0, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "xshift": -52, "yshift": 34, "showarrow": False, "align": "left", "font": theme.font(),
        "text": f"<b>{text['title']}</b>, {source}<br>{'<br>'.join(lines)}",
    }  # fmt: skip
