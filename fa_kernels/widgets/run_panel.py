"""Run, Cancel, progress and the table of results, in one box under the explorer's figure."""

from __future__ import annotations

import time
from collections.abc import Callable
from html import escape
from typing import Any

import ipywidgets

from fa_kernels.figures.point import Point
from fa_kernels.measure.records import Row
from fa_kernels.session import Session
from fa_kernels.widgets.backends import NUMPY_SEQLEN, Backend, backend_of
from fa_kernels.widgets.background import Background, Listener
from fa_kernels.widgets.run_table import table
from fa_kernels.widgets.text import labels

#: Progress reaches the page at most this often.
_PROGRESS_SECONDS = 0.1


class RunPanel(ipywidgets.VBox):
    """Runs one point in the background and shows what comes of it.

    `point` is called when Run is pressed and gives the point to run; `on_rows` hears every row.
    """

    def __init__(
        self,
        session: Session,
        point: Callable[[], Point],
        on_rows: Callable[[list[Row]], None] = lambda rows: None,
        backend: Backend | None = None,
    ) -> None:
        self._text = labels("run")
        self._session, self._point, self._on_rows = session, point, on_rows
        self._backend = backend or backend_of(session)
        self.rows: list[Row] = []
        self.background = Background(Listener(self.on_progress, self.on_result, self.on_end))
        self._last_progress = 0.0
        cuda = session.backend == "cuda"
        self.run = ipywidgets.Button(
            description=self._text["run_cuda" if cuda else "run_numpy"], button_style="primary"
        )
        self.run.add_class("falab-run")
        self.cancel = ipywidgets.Button(description=self._text["cancel"], disabled=True)
        self.cancel.add_class("falab-cancel")
        self.progress = ipywidgets.FloatProgress(min=0.0, max=1.0)
        self.progress.layout.visibility = "hidden"
        hint = self._text["hint_cuda" if cuda else "hint_numpy"]
        self.note = ipywidgets.HTML(_note(hint.format(gpu=session.gpu, cap=NUMPY_SEQLEN)))
        self.results = ipywidgets.HTML("")
        self.run.on_click(lambda button: self.start())
        self.cancel.on_click(lambda button: self.stop())
        buttons = ipywidgets.HBox([self.run, self.cancel, self.progress])
        super().__init__([buttons, self.note, self.results])

    def start(self) -> None:
        """Run the current point; a run in progress is told to stop and gives way."""
        try:
            point = self._point()
        except ValueError as error:
            self._say(str(error), bad=True)
            return
        self.rows = []
        if self.results.value:
            self.results.value = _earlier(self._text["earlier"], self.results.value)
        self.cancel.disabled = False
        self.progress.value, self.progress.layout.visibility = 0.0, "visible"
        self._say(self._text["starting"])
        self.background.start(
            lambda on_progress, cancelled: self._backend.measure(point, on_progress, cancelled)
        )

    def stop(self) -> None:
        """Ask the run to stop; rows that are finished stay."""
        self.background.cancel()

    def source(self, row: Row) -> str:
        """Where the numbers of this run come from, for captions."""
        if self._session.backend == "cuda":
            return str(self._text["live"].format(gpu=self._session.gpu))
        return str(self._text["counted_numpy"])

    # -- called from the background thread -----------------------------------------------------

    def on_progress(self, fraction: float, text: str) -> None:
        """Show how far the run is."""
        now = time.monotonic()
        if now - self._last_progress < _PROGRESS_SECONDS:
            return
        self._last_progress = now
        self.progress.value = min(1.0, max(0.0, fraction))
        self._say(f"{text} ({fraction:.0%})")

    def on_result(self, row: Row) -> None:
        """Show one more row at once: what is finished survives a cancel and an error."""
        self.rows.append(row)
        self.results.value = table(self.rows, self.source(row))
        self._on_rows(self.rows)

    def on_end(self, error: BaseException | None, cancelled: bool) -> None:
        """Say how it ended."""
        self.cancel.disabled = True
        self.progress.layout.visibility = "hidden"
        if isinstance(error, (ValueError, ModuleNotFoundError)):
            self._say(str(error), bad=True)  # a refusal: a sentence with its remedy
        elif error is not None:
            kind = type(error).__name__
            self._say(self._text["failed"].format(kind=kind, text=error), bad=True)
        else:
            self._say(self._ending(cancelled))

    def _ending(self, cancelled: bool) -> str:
        if cancelled:
            return str(self._text["cancelled" if self.rows else "cancelled_empty"])
        done = self._text["done_cuda" if self._session.backend == "cuda" else "done_numpy"]
        return str(done.format(gpu=self._session.gpu, cap=NUMPY_SEQLEN))

    def _say(self, text: str, bad: bool = False) -> None:
        self.note.value = _note(text, bad)


def _earlier(label: str, html: str) -> str:
    """The last run's table, marked as such until the new one has something to show."""
    mark = '<div class="falab-earlier">'
    return html if html.startswith(mark) else f"{mark}{escape(label)}{html}</div>"


def _note(text: str, bad: bool = False) -> str:
    kind: Any = 'class="falab-message" role="alert"' if bad else 'class="falab-note" role="status"'
    return f"<div {kind} data-fa-run-note>{escape(text)}</div>"
