"""Run, Cancel, progress and a note around one background job."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from typing import Any

import ipywidgets

from fa_kernels.widgets.background import Background, Job, Listener
from fa_kernels.widgets.text import labels

#: Progress reaches the page at most this often.
_PROGRESS_SECONDS = 0.1
#: They come as a sentence with its remedy, not as a failure.
_REFUSALS = (ValueError, ModuleNotFoundError)


class RunRow(ipywidgets.VBox):
    """Runs one job at a time in the background and says how far it is and how it ended.

    A subclass says what runs (`start`), takes what comes of it (`on_result`) and says what a job
    that ended well has done (`ending`). The page finds the note by data-fa-<mark>.
    """

    mark = ""
    refusals: tuple[type[BaseException], ...] = _REFUSALS

    def __init__(self, on_cuda: bool, below: Sequence[ipywidgets.DOMWidget] = ()) -> None:
        """`below` stand under the note."""
        self._text = labels("run")
        self.background = Background(Listener(self.on_progress, self.on_result, self.on_end))
        self._last_progress = 0.0
        self.run = ipywidgets.Button(
            description=self._text["run_cuda" if on_cuda else "run_numpy"], button_style="primary"
        )
        self.run.add_class("falab-run")
        self.cancel = ipywidgets.Button(description=self._text["cancel"], disabled=True)
        self.progress = ipywidgets.FloatProgress(min=0.0, max=1.0)
        self.progress.layout.visibility = "hidden"
        self.note = ipywidgets.HTML()
        self.run.on_click(lambda button: self.start())
        self.cancel.on_click(lambda button: self.stop())
        buttons = ipywidgets.HBox([self.run, self.cancel, self.progress])
        super().__init__([buttons, self.note, *below])

    def start(self) -> None:
        """Run what is on screen; a run in progress is told to stop and gives way."""
        raise NotImplementedError

    def begin(self, job: Job) -> None:
        """Start `job` and show that it has begun."""
        self.cancel.disabled = False
        self.progress.value, self.progress.layout.visibility = 0.0, "visible"
        self.say(self._text["starting"])
        self.background.start(job)

    def stop(self) -> None:
        """Ask the run to stop; what is finished stays."""
        self.background.cancel()

    def say(self, text: str, bad: bool = False) -> None:
        """Put a note under the buttons; a bad one is read out at once."""
        kind = 'class="falab-message" role="alert"' if bad else 'class="falab-note" role="status"'
        self.note.value = f"<div {kind} data-fa-{self.mark}>{escape(text)}</div>"

    # -- called from the background thread -----------------------------------------------------

    def on_progress(self, fraction: float, text: str) -> None:
        """Show how far the run is."""
        now = time.monotonic()
        if now - self._last_progress < _PROGRESS_SECONDS:
            return
        self._last_progress = now
        self.progress.value = min(1.0, max(0.0, fraction))
        self.say(f"{text} ({fraction:.0%})")

    def on_result(self, result: Any) -> None:
        """Take what a job has finished."""
        raise NotImplementedError

    def ending(self, cancelled: bool) -> str:
        """What is said of a run that ended without an error."""
        raise NotImplementedError

    def on_end(self, error: BaseException | None, cancelled: bool) -> None:
        """Say how it ended."""
        self.cancel.disabled = True
        self.progress.layout.visibility = "hidden"
        if error is None:
            self.say(self.ending(cancelled))
        elif isinstance(error, self.refusals):
            self.say(str(error), bad=True)
        else:
            kind = type(error).__name__
            self.say(self._text["failed"].format(kind=kind, text=error), bad=True)
