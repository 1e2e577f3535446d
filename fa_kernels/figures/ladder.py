"""Recorded times of every rung and peer at one point, each against the rung before."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fa_kernels.device import Device
from fa_kernels.figures import theme
from fa_kernels.figures.point import ratio_text
from fa_kernels.figures.recorded import runs_on
from fa_kernels.figures.rungs import in_rung_order, name_of, number_of
from fa_kernels.masks import matmul_flops
from fa_kernels.measure.baselines import BASELINES, GRID_PEERS
from fa_kernels.measure.records import OURS, Row, Run
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.units import duration, significant
from fa_kernels.variants import VARIANTS, Variant

#: px of a row, and of what stands above and below them all.
_ROW, _FRAME = 44, 124
_BAR = 0.62
#: Kinds of runs that time forward passes side by side; between a variant's name and its switch.
_TIMED, _WITHOUT = ("grid", "speed"), "_without_"


@dataclass(frozen=True)
class Step:
    """One series at one problem: its fastest recorded row, or why there is none.

    `before` is the rung below, for peers None. `without` names a switch of a rung that is turned
    off, as the kernel's macro is called; `before` is then the rung itself.
    """

    series: str
    problem: AttentionProblem
    row: Row | None
    run_id: str
    why: str = ""
    before: Step | None = None
    without: str = ""

    @property
    def variant(self) -> Variant | None:
        """The algorithm, or None for a peer."""
        return VARIANTS.get(self.series.partition(_WITHOUT)[0])

    @property
    def is_rung(self) -> bool:
        """True of a rung as it is shipped: no peer, no switch turned off."""
        return self.variant is not None and not self.without

    @property
    def name(self) -> str:
        """ "04 flash", "05 without SWIZZLE", or the peer's own name."""
        if self.variant is None:
            return theme.style_of(self.series).label
        if self.without:
            return f"{number_of(self.variant)} without {self.without}"
        return name_of(self.variant)

    @property
    def colour(self) -> str:
        """Of its variant or peer."""
        return theme.style_of(self.variant.name if self.variant else self.series).colour

    @property
    def ms(self) -> float | None:
        """Median latency."""
        return self.row.median if self.row else None

    @property
    def tflops(self) -> float | None:
        """Its matrix products over its time."""
        return matmul_flops(self.problem) / self.ms / 1e9 if self.ms else None

    @property
    def tiling(self) -> Tiling | None:
        """The tiles of the fastest row; None for peers and kernels without tiles."""
        if self.row is None or self.row.block_m is None or self.row.block_n is None:
            return None
        return Tiling(self.row.block_m, self.row.block_n)

    @property
    def gain(self) -> float | None:
        """How many times faster than the rung before; below 1: slower."""
        before = self.before.ms if self.before else None
        return before / self.ms if before and self.ms else None

    @property
    def across_runs(self) -> bool:
        """True if the two times of `gain` were not recorded in one run."""
        return self.before is not None and self.before.run_id != self.run_id


class LadderRuns:
    """The runs of timings of one device: the session's first, then from the newest on.

    A series is taken from the first run that holds it, and what is compared across two runs says
    so: a kernel that came later was recorded later.
    """

    def __init__(self, runs: Sequence[Run] = ()) -> None:
        self._runs = list(runs)

    @classmethod
    def on(cls, device: Device, first: Run | None = None, root: Path | None = None) -> LadderRuns:
        """Every run that can be read and was recorded on `device`."""
        known: dict[str, Run] = {}
        for run in runs_on(device, None, root, first):
            if run.kind in _TIMED:
                known.setdefault(run.run_id, run)
        return cls(list(known.values()))

    def seqlens(self, head_dim: int, dtype: str) -> list[int]:
        """The recorded N at this d and dtype."""
        wanted = {"metric": "latency_ms", "head_dim": head_dim, "dtype": dtype, "status": "ok"}
        return sorted({row.seqlen_q for run in self._runs for row in run.select(**wanted)})

    def head_dims(self, dtype: str) -> list[int]:
        """The recorded d in this dtype, at any N."""
        wanted = {"metric": "latency_ms", "dtype": dtype, "status": "ok"}
        return sorted({row.head_dim for run in self._runs for row in run.select(**wanted)})

    def fastest(
        self, series: str, problem: AttentionProblem, preferred: str = ""
    ) -> tuple[Row | None, str, str]:
        """(the fastest row of a series, its run, "") or (None, "", what a run says instead).

        The run called `preferred` is looked at first.
        """
        why = ""
        for run in sorted(self._runs, key=lambda run: run.run_id != preferred):
            rows = [row for row in run.rows if row.series == series and _is_at(row, problem)]
            timed = [row for row in rows if row.status == "ok" and row.median]
            if timed:
                return min(timed, key=lambda row: row.median or 0.0), run.run_id, ""
            why = why or next((row.detail or row.status for row in rows), "")
        return None, "", why

    def counted_bytes(self, step: Step) -> float | None:
        """HBM bytes counted in the kernel, of the run, tiles and problem that `step` shows."""
        if step.row is None:
            return None
        wanted = {"metric": "hbm_bytes", "dtype": step.row.dtype, "status": "ok"}
        sizes = {"block_m": step.row.block_m, "block_n": step.row.block_n}
        for run in self._runs:
            if run.run_id == step.run_id:
                for row in run.select(**wanted, **sizes):
                    if row.series == step.series and _same_problem(row, step.problem):
                        return row.median
        return None

    def steps(self, problem: AttentionProblem) -> list[Step]:
        """Every rung with the switches that were turned off here, then every peer.

        Peers are those of the run that holds the last rung, if it holds them: the same process.
        """
        found: list[Step] = []
        for variant in in_rung_order():
            if problem.dtype in variant.dtypes:
                before = next((step for step in reversed(found) if step.is_rung), None)
                row, run_id, why = self.fastest(variant.name, problem)
                found.append(Step(variant.name, problem, row, run_id, why, before))
                found += self._switches(found[-1])
        last = next((step.run_id for step in reversed(found) if step.ms), "")
        recorded = {r.series for run in self._runs for r in run.rows if r.provider != OURS}
        peers = [name for name in GRID_PEERS if problem.dtype in BASELINES[name].dtypes]
        others = [name for name in BASELINES if name in recorded and name not in GRID_PEERS]
        for name in (*peers, *others, *sorted(recorded.difference(BASELINES))):
            row, run_id, why = self.fastest(name, problem, last)
            if row is not None or name in peers:
                found.append(Step(name, problem, row, run_id, why))
        return found

    def _switches(self, rung: Step) -> list[Step]:
        """The rung with one of its switches turned off, for each that its own run timed here."""
        found = []
        rows = next((run.rows for run in self._runs if run.run_id == rung.run_id), ())
        for series in dict.fromkeys(
            r.series for r in rows if r.series.startswith(f"{rung.series}{_WITHOUT}")
        ):
            row, run_id, why = self.fastest(series, rung.problem, rung.run_id)
            if row is not None and run_id == rung.run_id:
                switch = series.partition(_WITHOUT)[2].upper()
                found.append(Step(series, rung.problem, row, run_id, why, rung, switch))
        return found


def _is_at(row: Row, problem: AttentionProblem) -> bool:
    """True if a row is a dense forward's latency at this problem."""
    asked = (row.metric, row.dtype) == ("latency_ms", problem.dtype)
    return asked and _same_problem(row, problem)


def _same_problem(row: Row, problem: AttentionProblem) -> bool:
    sizes = (row.batch, row.nheads, row.nheads_kv, row.seqlen_q, row.seqlen_k, row.head_dim)
    wanted = (
        problem.batch, problem.nheads, problem.nheads, problem.seqlen_q, problem.seqlen_k,
        problem.head_dim,
    )  # fmt: skip
    plain = row.causal == "none" and not row.dropout_p and not row.block_mask
    return row.pass_ == "fwd" and plain and sizes == wanted


def ladder_spec(found: Sequence[Step], text: Mapping[str, Any]) -> dict[str, Any]:
    """A plotly spec: a bar per rung and peer on a log axis of time, with the gain of each step."""
    layout = theme.base_layout(_FRAME + _ROW * len(found))
    layout["margin"] = {"l": 176, "r": 14, "t": 40, "b": 54}
    layout["barmode"] = "overlay"
    known = [step.ms for step in found if step.ms]
    low = math.floor(math.log10(min(known)) - 0.2) if known else -1
    high = math.log10(max(known)) if known else 1
    heights = [float(len(found) - 1 - i) for i in range(len(found))]
    ticks = [10.0**e for e in range(low, math.ceil(high) + 1)]
    layout["xaxis"] = theme.axis(
        title=theme.axis_title(text["axis_time"]), type="log", tickvals=ticks,
        ticktext=[duration(tick) for tick in ticks], range=[low, high + 0.8 * (high - low)],
    )  # fmt: skip
    layout["yaxis"] = theme.axis(
        range=[-0.6, len(found) - 0.4], tickvals=heights, showgrid=False,
        ticktext=[f"<b>{s.name}</b>&nbsp;" if s.is_rung else f"{s.name}&nbsp;" for s in found],
    )  # fmt: skip
    layout["annotations"] = [
        {
            "x": 0, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left",
            "yanchor": "bottom", "xshift": -160, "yshift": 6, "showarrow": False, "align": "left",
            "font": theme.font(), "text": f"<b>{text['title']}</b>",
        }
    ]  # fmt: skip
    return {"data": [_bars(found, heights, low), _words(found, heights, low, text)],
            "layout": layout}  # fmt: skip


def _bars(found: Sequence[Step], heights: Sequence[float], low: float) -> dict[str, Any]:
    known = [(s, y) for s, y in zip(found, heights, strict=True) if s.ms]
    # On a log axis a bar has no natural root: they begin at the left edge.
    return {
        "type": "bar", "orientation": "h", "name": "latency", "width": _BAR,
        "base": [10.0**low] * len(known), "x": [(s.ms or 0.0) - 10.0**low for s, _ in known],
        "y": [y for _, y in known],
        "marker": {
            "color": [s.colour for s, _ in known],
            "opacity": [0.55 if s.without else 1.0 for s, _ in known],
            "line": {"color": theme.INK, "width": 1},
        },
        "hovertext": [
            f"{s.name}: {duration(s.ms or 0.0)}, {significant(s.tflops or 0.0)} TFLOP/s"
            for s, _ in known
        ],
        "hoverinfo": "text",
    }  # fmt: skip


def _words(
    found: Sequence[Step], heights: Sequence[float], low: float, text: Mapping[str, Any]
) -> dict[str, Any]:
    xs, lines = [], []
    for step in found:
        xs.append(step.ms or 10.0**low)
        if not step.ms:
            lines.append(f"&nbsp;{text['not_recorded']}")
            continue
        words = f"&nbsp;<b>{duration(step.ms)}</b>"
        if step.gain:
            words += "&nbsp;&nbsp;" + gain_words(step, text)
        lines.append(words)
    return {
        "type": "scatter", "mode": "text", "name": "words", "x": xs, "y": list(heights),
        "text": lines, "textposition": "middle right", "textfont": theme.font(),
        "hoverinfo": "skip", "cliponaxis": False,
    }  # fmt: skip


def gain_words(step: Step, text: Mapping[str, Any]) -> str:
    """ "27× faster than 02", and whether the two were recorded in one run."""
    if step.gain is None or step.before is None or step.before.variant is None:
        return ""
    faster = step.gain >= 1
    if step.without:  # switches are worth little next to rungs: the second decimal counts
        ratio = f"{step.gain if faster else 1 / step.gain:.2f}×"
        return str(text["switch_faster" if faster else "switch_slower"]).format(ratio=ratio)
    ratio = ratio_text(step.gain if faster else 1 / step.gain)
    number = step.before.name.split(" ")[0]
    said = str(text["faster" if faster else "slower"]).format(ratio=ratio, before=number)
    return f"{said} {text['across']}" if step.across_runs else said
