"""Forward and backward as one call: ours and the peers' at the first paper's figure 2 (left)."""

from __future__ import annotations

from dataclasses import dataclass

from fa_kernels.device import Device
from fa_kernels.device import device as find_device
from fa_kernels.figures.point import device_words
from fa_kernels.figures.recorded_speed import PRODUCTS
from fa_kernels.figures.recorded_steps import RecordedSteps, StepTime
from fa_kernels.figures.rungs import number_of
from fa_kernels.session import Session, in_use
from fa_kernels.units import duration, significant
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.explorer_point import default_device
from fa_kernels.widgets.text import html_table, labels, text_table


@dataclass(frozen=True)
class StepTimes:
    """One line per kernel, shown as a table."""

    recorded: RecordedSteps
    device: Device

    @property
    def _ours(self) -> StepTime | None:
        """The last rung."""
        return next((step for step in reversed(self.recorded.steps) if step.is_ours), None)

    @property
    def _rung(self) -> str:
        return number_of(VARIANTS[self._ours.series]) if self._ours else ""

    def cells(self) -> list[list[str]]:
        """The table as text: a row of heads, then one row per kernel."""
        text, ours = labels("step_times"), self._ours
        heads = ("kernel", "both", "rate", "backward", "ratio")
        rows = [[text[name].format(rung=self._rung) for name in heads]]
        for step in self.recorded.steps if ours else []:
            assert ours is not None
            backward = duration(step.backward.ms) if step.backward else ""
            ratio = f"{step.both.ms / ours.both.ms:.2f}"
            both = step.both
            rows.append([step.name, duration(both.ms), significant(both.tflops), backward, ratio])
        return rows

    def sentence(self) -> str:
        """Our time, and as a multiple of everybody else's."""
        text, ours = labels("step_times"), self._ours
        if ours is None:
            return str(text["nothing"]).format(device=device_words(self.device))
        parts = [
            text["said_ratio"].format(ratio=f"{ours.both.ms / step.both.ms:.2f}×", name=step.name)
            for step in self.recorded.steps
            if step is not ours
        ]
        time = duration(ours.both.ms)
        if not parts:
            return str(text["said_alone"]).format(rung=self._rung, time=time)
        last = parts.pop()
        if parts:
            last = f"{text['comma'].join(parts)}{text['and']}{last}"
        return str(text["said"]).format(rung=self._rung, time=time, parts=last)

    def caption(self) -> str:
        """The sentence, the point, and the run."""
        steps, run = self.recorded.steps, self.recorded.run
        if not steps or run is None:
            return self.sentence()
        return str(labels("step_times")["caption"]).format(
            said=self.sentence(), problem=steps[0].both.row.problem.describe(),
            device=self.device.name, run=run.run_id, products=PRODUCTS["both"],
        )  # fmt: skip

    def __str__(self) -> str:
        return text_table(self.caption(), self.cells())

    def _repr_html_(self) -> str:
        head, *body = self.cells()
        return html_table("step-times", self.caption(), head, body, "falab-table falab-dense")


def step_times(*, device: str | None = None, session: Session | None = None) -> StepTimes:
    """Recorded times of forward and backward in one call, of our last rung and the fastest peers.

    At the shape of FlashAttention's figure 2 (left): GPT-2 medium's attention, in fp16.

    Args:
        device: slug of the GPU whose runs are shown; default: the session's.
        session: what `fa.session` returned; default: the current one.

    Raises:
        ValueError: no such device; TypeError: `session` is not one.
    """
    used = in_use(session)
    sheet = find_device(default_device(used) if device is None else device)
    return StepTimes(RecordedSteps.on(sheet, used.run, used.root), sheet)
