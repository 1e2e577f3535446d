"""Recorded backward passes of one device: times, counted bytes and memory, by algorithm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fa_kernels.device import Device
from fa_kernels.figures.recorded import runs_on
from fa_kernels.measure.records import OURS, Row, Run
from fa_kernels.measure.verdict import fit_exponent
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.variants import ALGORITHMS, VARIANTS, Variant

#: Algorithms with a backward pass, each once; what runs on other units is on the kernel ladder.
TRAINED: dict[str, Variant] = {
    name: variant for name, variant in ALGORITHMS.items() if variant.backward is not None
}
#: Those of which one keeps P and the other rebuilds it, with equal tiles.
KEEPS_P, REBUILDS_P = "standard_tiled", "flash_q_outer"
_Where = tuple[str, int, int, int, int]


@dataclass(frozen=True)
class BackwardAt:
    """What a call of one algorithm's backward is at one problem: its tiles."""

    variant: Variant
    problem: AttentionProblem
    tiling: Tiling

    @classmethod
    def of(cls, name: str, problem: AttentionProblem, device: Device) -> BackwardAt:
        """With the tiles that the backward takes by itself on `device`, cut to N."""
        backward = VARIANTS[name].backward
        assert backward is not None
        tiling = backward.tiling_for(problem, device.smem_per_block_bytes)
        return cls(VARIANTS[name], problem, tiling)


class RecordedBackward:
    """Rows of one run of kind "backward": dense, square, of the algorithms in `TRAINED`.

    `run_id` is None where nothing was recorded.
    """

    def __init__(self, run: Run | None = None) -> None:
        self.run_id = run.run_id if run else None
        self._rows: dict[tuple[str, str, str, _Where], Row] = {}
        for row in run.rows if run else ():
            if row.provider == OURS and row.variant in TRAINED and _plain(row):
                # Of two rows of one point the later was the one finished.
                self._rows[(row.variant, row.pass_, row.metric, _where(row.problem))] = row

    @classmethod
    def on(cls, device: Device, root: Path | None = None) -> RecordedBackward:
        """The newest such run of a device; one that cannot be read is passed over."""
        return cls(next(runs_on(device, "backward", root), None))

    def row(self, name: str, pass_: str, metric: str, problem: AttentionProblem) -> Row | None:
        """The row at exactly this point, whatever its status; nothing is interpolated."""
        if problem != _dense(problem):
            return None  # nothing masked, dropped, grouped or packed was recorded
        return self._rows.get((name, pass_, metric, _where(problem)))

    def value(self, name: str, pass_: str, metric: str, problem: AttentionProblem) -> float | None:
        """Its median, or None where there is no number."""
        row = self.row(name, pass_, metric, problem)
        return row.median if row is not None and row.status == "ok" else None

    def value_at(self, at: BackwardAt, pass_: str, metric: str) -> float | None:
        """The same, only where it was recorded with these tiles."""
        row = self.row(at.variant.name, pass_, metric, at.problem)
        tiles = (at.tiling.block_m, at.tiling.block_n)
        if row is None or row.status != "ok" or (row.block_m, row.block_n) != tiles:
            return None
        return row.median

    def refused(self, name: str, problem: AttentionProblem) -> str | None:
        """Why an algorithm has no numbers at a point that was tried, in words, or None."""
        row = self.row(name, "bwd", "latency_ms", problem)
        return None if row is None or row.status == "ok" else (row.detail or row.status)

    def problems(self, name: str, metric: str) -> Iterator[AttentionProblem]:
        """Every problem at which a number of this metric was recorded, in the order of the run."""
        for (variant, _, found, _), row in self._rows.items():
            if (variant, found) == (name, metric) and row.status == "ok":
                yield row.problem


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """The power of x by which y grows: least squares through (log x, log y); None of one point."""
    if len({x for x, _ in points}) < 2:
        return None
    return fit_exponent(points)


def _plain(row: Row) -> bool:
    square = row.seqlen_q == row.seqlen_k and row.nheads == row.nheads_kv
    unmasked = row.causal == "none" and not row.dropout_p and not row.block_mask
    return square and unmasked and row.density == 1.0


def _dense(problem: AttentionProblem) -> AttentionProblem:
    """A problem of these sizes as runs hold it."""
    n = problem.seqlen_q
    return AttentionProblem(problem.batch, problem.nheads, n, n, problem.head_dim, problem.dtype)


def _where(problem: AttentionProblem) -> _Where:
    sizes = (problem.dtype, problem.batch, problem.nheads)
    return (*sizes, problem.seqlen_q, problem.head_dim)
