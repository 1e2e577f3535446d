"""Forward and backward timed as one call, ours beside the peers, at the first paper's shape."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fa_kernels.device import Device
from fa_kernels.figures.recorded import runs_on
from fa_kernels.figures.recorded_speed import Curve, Rate
from fa_kernels.measure.baselines import BASELINES
from fa_kernels.measure.records import Row, Run
from fa_kernels.measure.speed_backward import FIG2_LEFT
from fa_kernels.variants import VARIANTS


@dataclass(frozen=True)
class StepTime:
    """One kernel: both passes in one call, and the backward alone where that was timed."""

    series: str
    both: Rate
    backward: Rate | None

    @property
    def name(self) -> str:
        """As figures call it."""
        return Curve(self.series, ()).name

    @property
    def is_ours(self) -> bool:
        """True of a rung."""
        return self.series in VARIANTS


class RecordedSteps:
    """Those of one run of kind "speed", rungs first; `run` None: there is none."""

    def __init__(self, run: Run | None = None) -> None:
        self.run, self.steps = run, _steps(run) if run else []

    @classmethod
    def on(
        cls, device: Device, first: Run | None = None, root: Path | None = None
    ) -> RecordedSteps:
        """`first`, if it holds a rung's, else the newest run of a device that does."""
        for run in runs_on(device, "speed", root, first):
            found = cls(run)
            if found.steps and found.steps[0].is_ours:
                return found
        return cls()


def _steps(run: Run) -> list[StepTime]:
    found: dict[str, dict[str, Row]] = {}
    for row in run.rows:
        timed = (row.metric, row.status) == ("latency_ms", "ok") and row.problem == FIG2_LEFT
        if timed and (row.series in VARIANTS or row.provider in BASELINES):
            found.setdefault(row.series, {}).setdefault(row.pass_, row)
    order = [name for name in (*VARIANTS, *BASELINES) if "both" in found.get(name, {})]
    return [
        StepTime(name, Rate(rows["both"]), Rate(rows["bwd"]) if "bwd" in rows else None)
        for name in order
        for rows in [found[name]]
    ]
