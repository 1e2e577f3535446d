"""Recorded times of the rungs on tensor cores beside their peers, by problem, of one device."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fa_kernels.device import Device
from fa_kernels.figures import theme
from fa_kernels.figures.recorded import read_run
from fa_kernels.figures.rungs import in_rung_order, name_of
from fa_kernels.masks import matmul_flops
from fa_kernels.measure.baselines import BASELINES
from fa_kernels.measure.records import OURS, Row, Run, list_runs
from fa_kernels.problem import AttentionProblem
from fa_kernels.variants import VARIANTS

#: Ratios are averaged over N from here on: shorter sequences give the GPU little work per call.
LONG_FROM = 2048


#: Products of matrices of a call, by pass.
PRODUCTS = {"fwd": 2, "bwd": 5, "both": 7}


@dataclass(frozen=True)
class Rate:
    """One timed call: the TFLOP/s of its matrix products, two forward and five backward."""

    row: Row

    @property
    def seqlen(self) -> int:
        """N."""
        return self.row.seqlen_q

    @property
    def ms(self) -> float:
        """Median latency."""
        assert self.row.median is not None
        return self.row.median

    @property
    def tflops(self) -> float:
        """Of a causal call only the attended pairs count, N (N + 1) / 2 of N²."""
        return PRODUCTS[self.row.pass_] * matmul_flops(self.row.problem) / 2 / self.ms / 1e9


@dataclass(frozen=True)
class Curve:
    """One series over N, at one d, mask and dtype."""

    series: str
    rates: tuple[Rate, ...]

    @property
    def name(self) -> str:
        """ "05 flash, tensor cores", or the peer's own name."""
        variant = VARIANTS.get(self.series)
        return name_of(variant) if variant else theme.style_of(self.series).label

    @property
    def is_ours(self) -> bool:
        """True of a rung."""
        return self.series in VARIANTS

    def at(self, seqlen: int) -> Rate | None:
        """At exactly this N; nothing is interpolated."""
        return next((rate for rate in self.rates if rate.seqlen == seqlen), None)


class RecordedSpeed:
    """Latencies of one pass, "fwd" or "bwd", of one run of kind "speed"; `run` None: there is none.

    A run of kind "peers" is read likewise, where it is asked for by name.

    Of a rung the tiles count that a call takes by itself: a run times those first, others after.
    Rows with a switch turned off, and shapes beside the grid, are left out.
    """

    _LATENCIES = ("latency_ms", "deterministic_latency_ms")

    def __init__(self, run: Run | None = None, pass_: str = "fwd") -> None:
        self.run, self.pass_ = run, pass_
        found: dict[str, dict[str, dict[AttentionProblem, Row]]] = {m: {} for m in self._LATENCIES}
        for row in run.rows if run else ():
            known = row.series in VARIANTS or row.provider != OURS
            timed = (row.pass_, row.status) == (pass_, "ok") and row.metric in found
            if timed and known and _is_on_grid(row):
                found[row.metric].setdefault(row.series, {}).setdefault(row.problem, row)
        self._rows, self._repeatable = (found[metric] for metric in self._LATENCIES)

    @classmethod
    def on(
        cls,
        device: Device,
        first: Run | None = None,
        root: Path | None = None,
        pass_: str = "fwd",
    ) -> RecordedSpeed:
        """`first`, if it is such a run, else the newest of a device that has times of this pass."""
        others = (read_run(run_id, root) for run_id in list_runs(root, kind="speed"))
        for run in (first, *others):
            known = isinstance(run, Run) and run.kind in ("speed", "peers")
            if isinstance(run, Run) and known and device.is_called(run.device):
                found = cls(run, pass_)
                if found.ours:
                    return found
        return cls(None, pass_)

    @property
    def run_id(self) -> str:
        """Of the run, or ""."""
        return self.run.run_id if self.run else ""

    @property
    def ours(self) -> list[str]:
        """The rungs that were timed, in rung order."""
        return [variant.name for variant in in_rung_order() if variant.name in self._rows]

    @property
    def peers(self) -> list[str]:
        """The peers that were timed: ours to call first, then others."""
        theirs = [name for name in self._rows if name not in VARIANTS]
        return [*(n for n in BASELINES if n in theirs), *sorted(set(theirs).difference(BASELINES))]

    def curve(self, series: str, **at: Any) -> Curve:
        """One series over N, at problems with these attributes: head_dim, causal, dtype."""
        return _over_seqlen(series, self._rows.get(series, {}), at)

    def row(self, series: str, problem: AttentionProblem) -> Row | None:
        """The row at exactly this problem; nothing is interpolated."""
        return self._rows.get(series, {}).get(problem)

    def deterministic(self, series: str, **at: Any) -> Curve:
        """The same calls of a backward with a deterministic dq; empty where none was timed."""
        rows = self._repeatable.get(series, {})
        return _over_seqlen(series, rows, at)

    def ratios(
        self, ours: str, peer: str, least_seqlen: int = LONG_FROM, **at: Any
    ) -> dict[AttentionProblem, float]:
        """Problem -> time of `peer` over time of `ours`: above 1 ours is faster.

        Of every problem from N = `least_seqlen` on that both were timed at, with these attributes.
        """
        mine, theirs = self._rows.get(ours, {}), self._rows.get(peer, {})
        return {
            problem: (theirs[problem].median or 0.0) / (row.median or 1.0)
            for problem, row in mine.items()
            if problem in theirs and problem.seqlen_q >= least_seqlen and _is_at(problem, at)
        }


def _over_seqlen(series: str, known: dict[AttentionProblem, Row], at: dict[str, Any]) -> Curve:
    rows = [row for problem, row in known.items() if _is_at(problem, at)]
    return Curve(series, tuple(Rate(r) for r in sorted(rows, key=lambda r: r.seqlen_q)))


def _is_on_grid(row: Row) -> bool:
    sizes = AttentionProblem.of_tokens(row.seqlen_q, row.head_dim, row.dtype)
    return (row.batch, row.nheads) == (sizes.batch, sizes.nheads)


def _is_at(problem: AttentionProblem, at: dict[str, Any]) -> bool:
    return all(getattr(problem, name) == value for name, value in at.items())


def geometric_mean(ratios: Iterable[float]) -> float:
    """Of ratios, whose arithmetic mean would favour whoever is in the denominator."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs))
