"""Recorded times under block masks, beside FlexAttention and dense cuDNN, of one device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fa_kernels.device import Device
from fa_kernels.figures.recorded import runs_on
from fa_kernels.measure.records import Row, Run, parse_mask
from fa_kernels.measure.sparse_run import OURS, PATTERN
from fa_kernels.problem import AttentionProblem

#: time(s) <= factor * s * time(dense) + overhead: the factor at densities from `GOAL_FROM` on and
#: below it, and the overhead in ms.
GOAL_FROM, GOAL_DENSE, GOAL_SPARSE, GOAL_MS = 1 / 4, 1.05, 1.10, 0.030
FLEX, CUDNN = "flex", "torch_cudnn"


@dataclass(frozen=True)
class Timed:
    """One timed call: density as recorded, and ms."""

    row: Row

    @property
    def density(self) -> float:
        """The kept fraction of the blocks, s."""
        return self.row.density

    @property
    def ms(self) -> float:
        """Median latency."""
        assert self.row.median is not None
        return self.row.median

    @property
    def mask_words(self) -> str:
        """ "butterfly", "local, causal"."""
        name = parse_mask(self.row.block_mask)[0] if self.row.block_mask else ""
        return name + (", causal" if self.row.causal != "none" else "")


@dataclass(frozen=True)
class SparseCurves:
    """What was timed at one pass, N and d; every mapping is from density to a timed call.

    `dense`, `cudnn`: without a mask. `others`: masks of other shapes, ours and FlexAttention's.
    `lists`: place ("host", "device") -> density -> microseconds. `series`: which variant of ours.
    """

    ours: dict[float, Timed]
    flex: dict[float, Timed]
    dense: Timed | None
    cudnn: Timed | None
    others: tuple[tuple[Timed, Timed | None], ...]
    lists: dict[str, dict[float, float]]
    series: str = OURS[0]

    def ideal_ms(self, density: float) -> float | None:
        """The dense time of the same kernel, times the density."""
        return None if self.dense is None else density * self.dense.ms

    def goal_ms(self, density: float) -> float | None:
        """The most that a call of this density should take."""
        ideal = self.ideal_ms(density)
        if ideal is None:
            return None
        return ideal * (GOAL_DENSE if density >= GOAL_FROM else GOAL_SPARSE) + GOAL_MS

    def against(self, peer: dict[float, Timed]) -> dict[float, float]:
        """Density -> time of a peer over ours: above 1 ours is faster."""
        both = (d for d in self.ours if d in peer)
        return {density: peer[density].ms / self.ours[density].ms for density in both}


class RecordedSparse:
    """The latencies of one run of kind "sparse"; `run` None: there is none."""

    def __init__(self, run: Run | None = None) -> None:
        self.run = run
        rows = run.rows if run else ()
        self._timed = [r for r in rows if (r.metric, r.status) == ("latency_ms", "ok")]
        self._lists = [r for r in rows if r.metric.endswith("_lists_us")]

    @classmethod
    def on(
        cls, device: Device, first: Run | None = None, root: Path | None = None
    ) -> RecordedSparse:
        """`first`, if it is such a run, else the newest of a device."""
        for run in runs_on(device, "sparse", root, first):
            found = cls(run)
            if found._timed:
                return found
        return cls(None)

    @property
    def run_id(self) -> str:
        """Of the run, or ""."""
        return self.run.run_id if self.run else ""

    def curves(self, problem: AttentionProblem, pass_: str) -> SparseCurves:
        """Everything at the batch, heads, N, d and dtype of a dense problem."""
        at: dict[str, Any] = {
            "batch": problem.batch, "nheads": problem.nheads, "seqlen_q": problem.seqlen_q,
            "head_dim": problem.head_dim, "dtype": problem.dtype, "pass_": pass_,
        }  # fmt: skip
        here = [Timed(row) for row in self._timed if _is_at(row, at)]
        usual = [t for t in here if t.mask_words == PATTERN]
        bare = {t.row.series: t for t in here if not t.row.block_mask and not t.mask_words}
        known = {t.row.series for t in here}
        ours = next((name for name in OURS if name in known), OURS[0])
        return SparseCurves(
            _by_density(usual, ours), _by_density(usual, FLEX), bare.get(ours), bare.get(CUDNN),
            _others(here, ours), self._lists_at(at), ours,
        )  # fmt: skip

    def _lists_at(self, at: dict[str, Any]) -> dict[str, dict[float, float]]:
        found: dict[str, dict[float, float]] = {}
        for row in self._lists:
            timed = Timed(row)
            if _is_at(row, at) and timed.mask_words == PATTERN:
                place = row.metric.removesuffix("_lists_us")
                found.setdefault(place, {})[row.density] = timed.ms
        return found


def _is_at(row: Row, at: dict[str, Any]) -> bool:
    return all(getattr(row, name) == value for name, value in at.items())


def _by_density(timed: list[Timed], series: str) -> dict[float, Timed]:
    found: dict[float, Timed] = {}
    for one in sorted(timed, key=lambda t: -t.density):
        if one.row.series == series:  # the tiles of a call come first
            found.setdefault(one.density, one)
    return found


def _others(here: list[Timed], ours: str) -> tuple[tuple[Timed, Timed | None], ...]:
    masked = [t for t in here if t.row.block_mask and t.mask_words != PATTERN]
    theirs = {t.mask_words: t for t in masked if t.row.series == FLEX}
    return tuple((t, theirs.get(t.mask_words)) for t in masked if t.row.series == ours)
