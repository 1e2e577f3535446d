"""How busy each unit of the GPU is in every rung and peer, by hardware counters, on one axis each.

Beside each count stands what it should be at least, from the model and the data sheet: the share of
the time for which a pipe must multiply, and the bytes that have to pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fa_kernels.device import Device
from fa_kernels.figures import theme
from fa_kernels.figures.point import Point
from fa_kernels.figures.recorded import runs_on
from fa_kernels.figures.roofline import least_bytes
from fa_kernels.figures.rungs import in_rung_order, name_of, number_of
from fa_kernels.masks import matmul_flops
from fa_kernels.measure.baselines import BASELINES, GRID_PEERS
from fa_kernels.measure.records import Row, Run
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.units import significant
from fa_kernels.variants import VARIANTS, Variant

#: The panels from left to right.
TENSOR, FMA, ISSUE, L2, DRAM = "tensor", "fma", "issue", "l2", "dram"
PANELS = (TENSOR, FMA, ISSUE, L2, DRAM)
#: Those that are a share of something, in %; of the L2's bandwidth no data sheet speaks.
SHARES = (TENSOR, FMA, ISSUE, DRAM)
_PERCENT = {TENSOR: "tensor_pct", FMA: "fma_pct", ISSUE: "sm_pct"}
#: px of a row, and of what stands above and below them all.
_ROW, _FRAME = 44, 150
_BAR, _GAP = 0.56, 0.025


@dataclass(frozen=True, eq=False)
class Used:
    """One series at one problem: the counters of its fastest tiles; none where it has no rows.

    `rows` are by metric, all of one run.
    """

    series: str
    problem: AttentionProblem
    device: Device
    rows: Mapping[str, Row]
    run_id: str

    @property
    def variant(self) -> Variant | None:
        """The algorithm, or None for a peer."""
        return VARIANTS.get(self.series)

    @property
    def name(self) -> str:
        """ "04 flash", or the peer's own name."""
        return name_of(self.variant) if self.variant else theme.style_of(self.series).label

    @property
    def said(self) -> str:
        """What running text calls it: "rung 04", or the peer's name."""
        return f"rung {number_of(self.variant)}" if self.variant else self.name

    @property
    def tiling(self) -> Tiling | None:
        """The tiles of the counted call; None for peers and kernels without tiles."""
        row = next(iter(self.rows.values()), None)
        if row is None or row.block_m is None or row.block_n is None:
            return None
        return Tiling(row.block_m, row.block_n)

    @property
    def ms(self) -> float | None:
        """Its time under the profiler, launches one by one."""
        return self._of("ncu_latency_ms")

    @property
    def tensor_cores(self) -> bool:
        """True if they multiply: of peers, wherever operands have 16 bits."""
        if self.variant is not None:
            return self.variant.tensor_cores
        return self.problem.dtype != "float32"

    def _of(self, metric: str) -> float | None:
        row = self.rows.get(metric)
        return row.median if row else None

    def value(self, panel: str) -> float | None:
        """What was counted: % of the unit, of DRAM % of the data sheet's rate; of the L2 GB/s."""
        if panel in _PERCENT:
            return self._of(_PERCENT[panel])
        moved, ms = self._of(f"{panel}_bytes"), self.ms
        if moved is None or not ms:
            return None
        return self._rate(panel, moved, ms)

    def predicted(self, panel: str) -> float | None:
        """What the model says for the time it took, in the unit of `value`; None: nothing.

        Of the pipe that multiplies: its products at the data sheet's peak, which the tensor cores
        can exceed where the GPU's clock is above the one that the sheet assumes. Of the L2: the
        bytes that the launched model asks for, of which the SMs' own caches may answer some. Of
        DRAM: what no cache can save (`Point.compulsory_bytes`), of a peer every tensor once.
        """
        if not self.ms:
            return None
        if panel in (TENSOR, FMA):
            if (panel == TENSOR) != self.tensor_cores:
                return None
            peak = self.device.peak_tflops(self.problem.dtype, self.tensor_cores)
            return 100 * matmul_flops(self.problem) / (self.ms * 1e9 * peak)
        if panel == DRAM:
            return self._rate(DRAM, self._compulsory_bytes, self.ms)
        if panel == L2 and self.variant is not None:
            tiling = self.tiling or Tiling(1, 1)
            asked = self.variant.launched(self.problem, tiling).total_bytes
            return self._rate(L2, asked, self.ms)
        return None

    @property
    def _compulsory_bytes(self) -> int:
        if self.variant is None:
            return least_bytes(self.problem)
        # Of a budget M only the tiles matter here.
        point = Point(self.problem, 0, self.tiling or Tiling(1, 1), self.device)
        return point.compulsory_bytes(self.variant)

    def _rate(self, panel: str, nbytes: float, ms: float) -> float:
        gb_s = nbytes / ms / 1e6
        return 100 * gb_s / self.device.hbm_bandwidth_gb_s if panel == DRAM else gb_s

    @property
    def busiest(self) -> tuple[str, float] | None:
        """(panel, %) of the unit with the largest share of its own peak.

        None where a run was stopped before it came to the busy units: DRAM alone says nothing.
        """
        if self.value(ISSUE) is None:
            return None
        shares = [(value, panel) for panel in SHARES if (value := self.value(panel)) is not None]
        value, panel = max(shares, default=(0.0, ""))
        return (panel, value) if shares else None


class RecordedCounters:
    """The runs of hardware counters of one device, newest first."""

    def __init__(self, device: Device, runs: Sequence[Run] = ()) -> None:
        self.device = device
        self._calls: list[tuple[str, dict[tuple[str, AttentionProblem, object], dict[str, Row]]]]
        self._calls = [(run.run_id, _calls_of(run)) for run in runs]

    @classmethod
    def on(cls, device: Device, root: Path | None = None) -> RecordedCounters:
        """Every run of counters that can be read and was recorded on `device`."""
        return cls(device, list(runs_on(device, "counters", root)))

    def sizes(self) -> list[AttentionProblem]:
        """The problems that have counters."""
        return sorted(
            {problem for _, calls in self._calls for _, problem, _ in calls},
            key=lambda p: (p.dtype, p.head_dim, p.seqlen_q, p.batch),
        )

    def used(self, problem: AttentionProblem) -> list[Used]:
        """Every rung that takes the dtype, then the peers: each of the newest run that has it.

        A run that was stopped before it came to the busy units is asked only if no other has them.
        """
        ours = [v.name for v in in_rung_order() if problem.dtype in v.dtypes]
        peers = [name for name in GRID_PEERS if problem.dtype in BASELINES[name].dtypes]
        return [self._one(name, problem) for name in (*ours, *peers)]

    def _one(self, series: str, problem: AttentionProblem) -> Used:
        stopped_early = Used(series, problem, self.device, {}, "")
        for run_id, calls in self._calls:
            found = [
                rows for (name, at, _), rows in calls.items() if (name, at) == (series, problem)
            ]
            timed = [rows for rows in found if "ncu_latency_ms" in rows]
            if timed:
                rows = min(timed, key=lambda rows: rows["ncu_latency_ms"].median or 0.0)
                used = Used(series, problem, self.device, rows, run_id)
                if _PERCENT[ISSUE] in rows:
                    return used
                stopped_early = stopped_early if stopped_early.rows else used
        return stopped_early


def _calls_of(run: Run) -> dict[tuple[str, AttentionProblem, object], dict[str, Row]]:
    calls: dict[tuple[str, AttentionProblem, object], dict[str, Row]] = {}
    for row in run.select(pass_="fwd", causal="none", block_mask="", status="ok"):
        tiles = (row.block_m, row.block_n)
        calls.setdefault((row.series, row.problem, tiles), {})[row.metric] = row
    return calls


def utilisation_spec(found: Sequence[Used], text: Mapping[str, Any]) -> dict[str, Any]:
    """A plotly spec: a panel per unit, in each a bar per series and a mark for the prediction."""
    layout = theme.base_layout(_FRAME + _ROW * len(found))
    layout["margin"] = {"l": 150, "r": 14, "t": 84, "b": 58}
    layout["barmode"] = "overlay"
    heights = [float(len(found) - 1 - i) for i in range(len(found))]
    names = [f"<b>{u.name}</b>&nbsp;" if u.variant else f"{u.name}&nbsp;" for u in found]
    width = (1 - _GAP * (len(PANELS) - 1)) / len(PANELS)
    layout["annotations"] = [_legend(text)]
    data: list[dict[str, Any]] = []
    for i, panel in enumerate(PANELS):
        number, start = "" if i == 0 else str(i + 1), i * (width + _GAP)
        end = _end(found, panel)
        layout[f"xaxis{number}"] = theme.axis(
            title=theme.axis_title(text["axes"][panel]), range=[0, end], anchor=f"y{number}",
            domain=[start, start + width],
            **({"tickvals": [0, 50, 100]} if panel in SHARES else {"nticks": 3}),
        )  # fmt: skip
        layout[f"yaxis{number}"] = theme.axis(
            range=[-0.6, len(found) - 0.4], tickvals=heights, showgrid=False,
            ticktext=names if i == 0 else [""] * len(names), anchor=f"x{number}",
        )  # fmt: skip
        layout["annotations"].append(_head(start, text["panels"][panel]))
        data += [_bars(found, heights, panel, number, text), _marks(found, heights, panel, number)]
        data.append(_words(found, heights, panel, number, text))
    return {"data": data, "layout": layout}


def _end(found: Sequence[Used], panel: str) -> float:
    """Where the axis ends; room for the number of the longest bar."""
    if panel in SHARES:
        return 138.0
    known = [x for u in found for x in (u.value(panel), u.predicted(panel)) if x is not None]
    return 1.5e-3 * max(known, default=1e3)


def _scaled(panel: str, value: float) -> float:
    """As drawn: the L2 in TB/s."""
    return value if panel in SHARES else 1e-3 * value


def _bars(
    found: Sequence[Used],
    heights: Sequence[float],
    panel: str,
    number: str,
    text: Mapping[str, Any],
) -> dict[str, Any]:
    known = [(u, y, x) for u, y in zip(found, heights, strict=True)
             if (x := u.value(panel)) is not None]  # fmt: skip
    return {
        "type": "bar", "orientation": "h", "name": panel, "width": _BAR,
        "xaxis": f"x{number}", "yaxis": f"y{number}",
        "x": [_scaled(panel, x) for _, _, x in known], "y": [y for _, y, _ in known],
        "marker": {
            "color": [theme.style_of(u.series).colour for u, _, _ in known],
            "line": {"color": theme.INK, "width": 1},
        },
        "hovertext": [
            f"{u.name}, {text['panels'][panel]}: {value_words(u, panel)}" for u, _, _ in known
        ],
        "hoverinfo": "text",
    }  # fmt: skip


def _marks(
    found: Sequence[Used], heights: Sequence[float], panel: str, number: str
) -> dict[str, Any]:
    """What is predicted, as a short line across the bar."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    for one, y in zip(found, heights, strict=True):
        predicted = one.predicted(panel)
        if predicted is not None:
            xs += [_scaled(panel, predicted)] * 2 + [None]
            ys += [y - 0.42, y + 0.42, None]
    return {
        "type": "scatter", "mode": "lines", "name": f"{panel}, predicted", "x": xs, "y": ys,
        "xaxis": f"x{number}", "yaxis": f"y{number}", "hoverinfo": "skip", "cliponaxis": False,
        "line": {"color": theme.INK, "width": 3},
    }  # fmt: skip


def value_words(one: Used, panel: str) -> str:
    """ "54 %" or "0.345 TB/s", "" where nothing was counted."""
    return _with_unit(panel, one.value(panel))


def predicted_words(one: Used, panel: str) -> str:
    """The same of the prediction."""
    return _with_unit(panel, one.predicted(panel))


def _with_unit(panel: str, value: float | None) -> str:
    if value is None:
        return ""
    if panel in SHARES:
        return f"{significant(value, 1 if value < 1 else 2)} %"
    return f"{significant(1e-3 * value, 2)} TB/s"


def _words(
    found: Sequence[Used],
    heights: Sequence[float],
    panel: str,
    number: str,
    text: Mapping[str, Any],
) -> dict[str, Any]:
    """Numbers behind the bars and marks; at the first panel also what was not counted at all."""
    xs, ys, words, ink = [], [], [], []
    for one, y in zip(found, heights, strict=True):
        value, predicted = one.value(panel), one.predicted(panel)
        if value is None and one.rows:
            xs.append(_scaled(panel, predicted or 0.0))
            words.append(f"&nbsp;{text['no_value']}")
        elif value is None:
            if panel != TENSOR:
                continue
            xs.append(0.0)
            words.append(f"&nbsp;{text['not_counted']}")
        else:
            xs.append(_scaled(panel, max(value, predicted or 0.0)))
            words.append(f"&nbsp;<b>{value_words(one, panel)}</b>")
        ys.append(y)
        ink.append(theme.MUTED if value is None else theme.INK)
    return {
        "type": "scatter", "mode": "text", "name": f"{panel}, words", "x": xs, "y": ys,
        "text": words, "textposition": "middle right",
        "textfont": {"size": theme.FONT, "color": ink}, "hoverinfo": "skip",
        "xaxis": f"x{number}", "yaxis": f"y{number}", "cliponaxis": False,
    }  # fmt: skip


def _head(x: float, words: str) -> dict[str, Any]:
    return {
        "x": x, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "yshift": 4, "showarrow": False, "align": "left", "font": theme.font(),
        "text": f"<b>{words}</b>",
    }  # fmt: skip


def _legend(text: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "x": 0, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "xshift": -136, "yshift": 34, "showarrow": False, "align": "left", "font": theme.font(),
        "text": f"<b>{text['title']}</b>&nbsp;&nbsp; {text['legend']}",
    }  # fmt: skip
