"""Run, Cancel and progress under the mask editor: rung 05 on the drawn mask, where a GPU is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from typing import TYPE_CHECKING

import ipywidgets

from fa_kernels.problem import AttentionProblem
from fa_kernels.session import Session
from fa_kernels.widgets.background import Background, Listener
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


class MaskTimer(ipywidgets.VBox):
    """Times the mask on screen in the background; the latest request wins.

    `problem` is asked when Run is pressed; `on_timing` hears what was measured.
    """

    def __init__(
        self,
        session: Session,
        problem: Callable[[], AttentionProblem],
        on_timing: Callable[[MaskTiming], None],
        time: TimeMask = on_this_gpu,
    ) -> None:
        self._text, self._gpu = labels("run"), session.gpu
        self._problem, self._on_timing, self._time = problem, on_timing, time
        self._done = False
        self.background = Background(Listener(self.on_progress, self.on_result, self.on_end))
        self.run = ipywidgets.Button(description=self._text["run_cuda"], button_style="primary")
        self.run.add_class("falab-run")
        self.cancel = ipywidgets.Button(description=self._text["cancel"], disabled=True)
        self.progress = ipywidgets.FloatProgress(min=0.0, max=1.0)
        self.progress.layout.visibility = "hidden"
        self.note = ipywidgets.HTML()
        self._say(labels("mask_editor")["hint_run"].format(gpu=session.gpu))
        self.run.on_click(lambda button: self.start())
        self.cancel.on_click(lambda button: self.background.cancel())
        super().__init__([ipywidgets.HBox([self.run, self.cancel, self.progress]), self.note])

    def start(self) -> None:
        """Time the mask that is on screen now."""
        try:
            problem = self._problem()
        except ValueError as error:
            self._say(str(error), bad=True)
            return
        self._done, self.cancel.disabled = False, False
        self.progress.value, self.progress.layout.visibility = 0.0, "visible"
        self._say(self._text["starting"])
        self.background.start(lambda progress, stop: self._time(problem, progress, stop))

    # -- called from the background thread -----------------------------------------------------

    def on_progress(self, fraction: float, text: str) -> None:
        """Show how far it is."""
        self.progress.value = fraction
        self._say(text)

    def on_result(self, timing: MaskTiming) -> None:
        """Hand the times on."""
        self._done = True
        self._on_timing(timing)

    def on_end(self, error: BaseException | None, cancelled: bool) -> None:
        """Say how it ended."""
        self.cancel.disabled = True
        self.progress.layout.visibility = "hidden"
        if error is not None:
            refusal = isinstance(error, (ValueError, RuntimeError, ModuleNotFoundError))
            kind = type(error).__name__
            failed = self._text["failed"].format(kind=kind, text=error)
            self._say(str(error) if refusal else failed, bad=True)
        elif self._done:
            self._say(self._text["done_cuda"].format(gpu=self._gpu))
        else:
            self._say(self._text["cancelled_empty"])

    def _say(self, text: str, bad: bool = False) -> None:
        kind = 'class="falab-message" role="alert"' if bad else 'class="falab-note" role="status"'
        self.note.value = f"<div {kind} data-fa-mask-run>{escape(text)}</div>"
