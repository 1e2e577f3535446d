"""Run, Cancel and progress under the mask editor: times our fastest rung on the drawn mask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fa_kernels.problem import AttentionProblem
from fa_kernels.session import Session
from fa_kernels.widgets.run_row import RunRow
from fa_kernels.widgets.text import labels

if TYPE_CHECKING:
    from fa_kernels.measure.live import MaskTiming

#: `time_mask` of measure/live.py.
TimeMask = Callable[
    [AttentionProblem, Callable[[float, str], None], Callable[[], bool]], "Iterator[MaskTiming]"
]


def on_this_gpu(
    problem: AttentionProblem,
    on_progress: Callable[[float, str], None],
    cancelled: Callable[[], bool],
) -> Iterator[MaskTiming]:
    """`measure.live.time_mask`; what it needs is imported when it is called."""
    from fa_kernels.measure.live import time_mask

    yield from time_mask(problem, on_progress, cancelled)


class MaskTimer(RunRow):
    """Times the mask on screen in the background; the latest request wins.

    `problem` is asked when Run is pressed; `on_timing` hears what was measured.
    """

    mark = "mask-run"
    refusals = (ValueError, RuntimeError, ModuleNotFoundError)

    def __init__(
        self,
        session: Session,
        problem: Callable[[], AttentionProblem],
        on_timing: Callable[[MaskTiming], None],
        time: TimeMask = on_this_gpu,
    ) -> None:
        self._gpu = session.gpu
        self._problem, self._on_timing, self._time = problem, on_timing, time
        self._done = False
        super().__init__(on_cuda=True)
        self.say(labels("mask_editor")["hint_run"].format(gpu=session.gpu))

    def start(self) -> None:
        """Time the mask that is on screen now."""
        try:
            problem = self._problem()
        except ValueError as error:
            self.say(str(error), bad=True)
            return
        self._done = False
        self.begin(lambda progress, stop: self._time(problem, progress, stop))

    def on_result(self, timing: MaskTiming) -> None:
        """Hand the times on."""
        self._done = True
        self._on_timing(timing)

    def ending(self, cancelled: bool) -> str:
        """Where it was measured, or that nothing was."""
        if self._done:
            return str(self._text["done_cuda"].format(gpu=self._gpu))
        return str(self._text["cancelled_empty"])
