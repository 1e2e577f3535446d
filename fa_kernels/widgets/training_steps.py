"""Training steps of a whole model, with our attention and with the peers'."""

from __future__ import annotations

from dataclasses import dataclass

from fa_kernels.device import Device
from fa_kernels.device import device as find_device
from fa_kernels.figures.point import device_words
from fa_kernels.figures.recorded_speed import Curve
from fa_kernels.figures.recorded_training import RecordedTraining, TrainingStep
from fa_kernels.figures.rungs import number_of
from fa_kernels.measure.records import Row
from fa_kernels.session import Session, in_use
from fa_kernels.units import capacity, significant
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.explorer_point import default_device
from fa_kernels.widgets.text import html_table, labels, text_table


@dataclass(frozen=True)
class TrainingSteps:
    """One line per model and kernel, shown as a table."""

    recorded: RecordedTraining
    device: Device

    def cells(self) -> list[list[str]]:
        """The table as text: a row of heads, then one row per model and kernel."""
        text = labels("training_steps")
        heads = ("seqlen", "dropout", "attention", "time", "spread", "ratio", "memory")
        rows = [[str(text[name]) for name in heads]]
        for step in self.recorded.steps:
            rows += [_cells(step, series, row) for series, row in step.times.items()]
        return rows

    def sentence(self) -> str:
        """In how many of the models ours is faster, by how much at least and at most."""
        text, steps = labels("training_steps"), self.recorded.steps
        if not steps:
            return str(text["nothing"]).format(device=device_words(self.device))
        parts = []
        for peer in (name for name in steps[0].times if name not in VARIANTS):
            ratios = [step.ratio(peer) for step in steps if peer in step.times]
            parts.append(
                text["said_peer"].format(
                    name=Curve(peer, ()).name, least=f"{min(ratios):.3f}",
                    most=f"{max(ratios):.3f}", faster=sum(ratio > 1 for ratio in ratios),
                    of=len(ratios),
                )
            )  # fmt: skip
        rung = number_of(VARIANTS[steps[0].ours])
        return str(text["said"]).format(rung=rung, parts=text["and"].join(parts))

    def caption(self) -> str:
        """The sentence, the model, and the run."""
        run = self.recorded.run
        if not self.recorded.steps or run is None:
            return self.sentence()
        row = self.recorded.steps[0].row
        return str(labels("training_steps")["caption"]).format(
            said=self.sentence(), tokens=f"{row.batch * row.seqlen_q:,}", nheads=row.nheads,
            head_dim=row.head_dim, device=self.device.name, run=run.run_id,
        )  # fmt: skip

    def __str__(self) -> str:
        return text_table(self.caption(), self.cells())

    def _repr_html_(self) -> str:
        head, *body = self.cells()
        return html_table("training-steps", self.caption(), head, body, "falab-table falab-dense")


def _cells(step: TrainingStep, series: str, row: Row) -> list[str]:
    memory = step.memory.get(series)
    held = capacity(memory.median) if memory is not None and memory.median is not None else ""
    of_all = "1.000" if series in VARIANTS else f"{1 / step.ratio(series):.3f}"
    low, middle, high = (f"{ms:.1f}" for ms in (row.p20 or 0.0, row.median or 0.0, row.p80 or 0.0))
    name = Curve(series, ()).name
    return [str(row.seqlen_q), significant(row.dropout_p), name, f"{middle}\N{NO-BREAK SPACE}ms",
            f"{low} to {high}", of_all, held]  # fmt: skip


def training_steps(*, device: str | None = None, session: Session | None = None) -> TrainingSteps:
    """Recorded training steps of GPT-2 small, with the attention of our last rung and of peers.

    Args:
        device: slug of the GPU whose run is shown; default: the session's.
        session: what `fa.session` returned; default: the current one.

    Raises:
        ValueError: no such device; TypeError: `session` is not one.
    """
    used = in_use(session)
    sheet = find_device(default_device(used) if device is None else device)
    return TrainingSteps(RecordedTraining.on(sheet, used.root), sheet)
