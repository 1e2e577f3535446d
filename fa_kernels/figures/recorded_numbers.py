"""Single recorded numbers of one device: from one run of timings and those of its counters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fa_kernels.device import Device
from fa_kernels.figures.recorded import runs_on
from fa_kernels.measure.records import COUNTER_UNITS, OURS, Row, Run
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.variants import VARIANTS

_Where = tuple[str, int, int, int, int]
_Key = tuple[str, str, _Where, int | None, int | None]


@dataclass(frozen=True)
class Found:
    """A recorded number and where it comes from."""

    value: float
    run_id: str
    row: Row


class RecordedNumbers:
    """Dense forward rows of our variants by variant, metric, problem and tiles.

    Where several runs hold the same point, the run that comes first in `runs` answers, of hardware
    counters with all of them: a share is never of two runs. A variant without tiles is found
    whatever the tiles are: its kernel has none.
    """

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self.run_ids: list[str] = []
        self._found: dict[_Key, Found] = {}
        counted_by: dict[_Key, str] = {}
        for run in runs:
            self.run_ids.append(run.run_id)
            # Backwards: of two rows of one point in one run, the later was the one finished.
            for row in reversed(run.rows):
                if row.status != "ok" or row.median is None or not _ours_dense_forward(row):
                    continue
                key = _key_of(row)
                call = (key[0], "", *key[2:])
                if row.metric in COUNTER_UNITS and counted_by.setdefault(call, run.run_id) != (
                    run.run_id
                ):
                    continue
                self._found.setdefault(key, Found(row.median, run.run_id, row))

    @classmethod
    def on(cls, device: Device, first: Run | None, root: Path | None = None) -> RecordedNumbers:
        """One run of timings on one device, and every run of hardware counters, newest first.

        The timings are those of `first` (the session's run), else the newest. Never two runs of
        timings: a line, or a ratio, would join kernels of different commits. Counters are of a few
        shapes each, and shown point by point with the run that holds them.
        Runs of backward passes are left out (`recorded_backward` reads them): forwards in them are
        those of training, and the standard one keeps P.
        """
        chosen: dict[tuple[str, str], Run] = {}
        for run in runs_on(device, None, root, first):
            if run.kind in ("grid", "counters"):
                apart = run.run_id if run.kind == "counters" else ""
                chosen.setdefault((run.kind, apart), run)
        return cls(chosen.values())

    @classmethod
    def of_counters(cls, device: Device, root: Path | None = None) -> list[RecordedNumbers]:
        """Every run of hardware counters of a device by itself, newest first."""
        return [cls([run]) for run in runs_on(device, "counters", root)]

    def find(
        self, variant: str, problem: AttentionProblem, tiling: Tiling, metric: str
    ) -> Found | None:
        """The number at exactly this point, or None: nothing is interpolated."""
        tiles = (tiling.block_m, tiling.block_n) if VARIANTS[variant].tiled else (None, None)
        sizes = (problem.dtype, problem.batch, problem.nheads)
        where = (*sizes, problem.seqlen_q, problem.head_dim)
        square = problem.seqlen_q == problem.seqlen_k
        return self._found.get((variant, metric, where, *tiles)) if square else None

    def rows(self, metric: str, *variants: str) -> Iterator[Found]:
        """Every number of a metric, of some variants (all, if none is named)."""
        for key, found in self._found.items():
            if key[1] == metric and (not variants or key[0] in variants):
                yield found


def _ours_dense_forward(row: Row) -> bool:
    plain = row.causal.lower() in ("", "none", "false") and not row.dropout_p
    square = row.seqlen_q == row.seqlen_k and row.nheads == row.nheads_kv
    ours = row.provider == OURS and row.variant in VARIANTS
    return ours and row.pass_ == "fwd" and plain and square and row.density == 1.0


def _key_of(row: Row) -> _Key:
    tiled = VARIANTS[row.variant].tiled
    tiles = (row.block_m, row.block_n) if tiled else (None, None)
    where = (row.dtype, row.batch, row.nheads, row.seqlen_q, row.head_dim)
    return (row.variant, row.metric, where, *tiles)
