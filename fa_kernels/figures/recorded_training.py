"""Recorded training steps of a whole model: by whose attention, how long, in how much memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fa_kernels.device import Device
from fa_kernels.figures.recorded import runs_on
from fa_kernels.measure.records import Row, Run
from fa_kernels.variants import VARIANTS


@dataclass(frozen=True)
class TrainingStep:
    """One model, trained with the attention of each series: rows of its time and of its memory.

    `problem` is one of its calls of attention.
    """

    times: dict[str, Row]
    memory: dict[str, Row]

    @property
    def row(self) -> Row:
        """Any of them, for the shape."""
        return next(iter(self.times.values()))

    @property
    def ours(self) -> str:
        """The rung that was timed."""
        return next(series for series in self.times if series in VARIANTS)

    def ratio(self, peer: str) -> float:
        """Time with the peer's attention over time with ours: above 1 ours is faster."""
        of_peer, ours = self.times[peer].median, self.times[self.ours].median
        assert of_peer is not None and ours is not None
        return of_peer / ours


class RecordedTraining:
    """The steps of one run of kind "training", in its order; `run` None: there is none."""

    def __init__(self, run: Run | None = None) -> None:
        self.run, self.steps = run, _steps(run) if run else []

    @classmethod
    def on(cls, device: Device, root: Path | None = None) -> RecordedTraining:
        """The newest run of a device in which a rung was timed."""
        for run in runs_on(device, "training", root):
            found = cls(run)
            if found.steps:
                return found
        return cls()


def _steps(run: Run) -> list[TrainingStep]:
    found: dict[tuple[int, float], TrainingStep] = {}
    for row in run.rows:
        if row.status != "ok":
            continue
        step = found.setdefault((row.seqlen_q, row.dropout_p), TrainingStep({}, {}))
        if row.metric == "latency_ms":
            step.times[row.series] = row
        elif row.metric == "extra_mem_bytes":
            step.memory[row.series] = row
    return [step for step in found.values() if any(name in VARIANTS for name in step.times)]
