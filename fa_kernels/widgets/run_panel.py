"""Run, Cancel, progress and the table of results, in one box under the explorer's figure."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

import ipywidgets

from fa_kernels.figures.point import Point
from fa_kernels.measure.records import Row
from fa_kernels.session import Session
from fa_kernels.widgets.backends import NUMPY_SEQLEN, Backend, backend_of
from fa_kernels.widgets.run_row import RunRow
from fa_kernels.widgets.run_table import table


class RunPanel(RunRow):
    """Runs one point in the background and shows what comes of it.

    `point` is called when Run is pressed and gives the point to run; `on_rows` hears every row.
    """

    mark = "run-note"

    def __init__(
        self,
        session: Session,
        point: Callable[[], Point],
        on_rows: Callable[[list[Row]], None] = lambda rows: None,
        backend: Backend | None = None,
    ) -> None:
        self._session, self._point, self._on_rows = session, point, on_rows
        self._backend = backend or backend_of(session)
        self._on_cuda = session.backend == "cuda"
        self.rows: list[Row] = []
        self.results = ipywidgets.HTML("")
        super().__init__(self._on_cuda, below=[self.results])
        hint = self._text["hint_cuda" if self._on_cuda else "hint_numpy"]
        self.say(hint.format(gpu=session.gpu, cap=NUMPY_SEQLEN))

    def start(self) -> None:
        """Run the current point; a run in progress is told to stop and gives way."""
        try:
            point = self._point()
        except ValueError as error:
            self.say(str(error), bad=True)
            return
        self.rows = []
        if self.results.value:
            self.results.value = _earlier(self._text["earlier"], self.results.value)
        self.begin(
            lambda on_progress, cancelled: self._backend.measure(point, on_progress, cancelled)
        )

    def source(self, row: Row) -> str:
        """Where the numbers of this run come from, for captions."""
        if self._on_cuda:
            return str(self._text["live"].format(gpu=self._session.gpu))
        return str(self._text["counted_numpy"])

    def on_result(self, row: Row) -> None:
        """Show one more row at once: what is finished survives a cancel and an error."""
        self.rows.append(row)
        self.results.value = table(self.rows, self.source(row))
        self._on_rows(self.rows)

    def ending(self, cancelled: bool) -> str:
        """What was run, and where; or that it was cancelled."""
        if cancelled:
            return str(self._text["cancelled" if self.rows else "cancelled_empty"])
        done = self._text["done_cuda" if self._on_cuda else "done_numpy"]
        return str(done.format(gpu=self._session.gpu, cap=NUMPY_SEQLEN))


def _earlier(label: str, html: str) -> str:
    """The last run's table, marked as such until the new one has something to show."""
    mark = '<div class="falab-earlier">'
    return html if html.startswith(mark) else f"{mark}{escape(label)}{html}</div>"
