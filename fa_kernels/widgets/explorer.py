"""The explorer: turn N, d and M and see tiles, traffic, runtime and memory move together."""

from __future__ import annotations

import threading
from html import escape
from typing import Any

import ipywidgets

from fa_kernels.device import device as find_device
from fa_kernels.device import readable_devices
from fa_kernels.figures.explorer import explorer_spec
from fa_kernels.figures.point import Point, sentence
from fa_kernels.figures.recorded import RecordedRuns
from fa_kernels.measure.records import Row
from fa_kernels.problem import DTYPE_FROM_SHORT
from fa_kernels.session import Session, in_use
from fa_kernels.widgets.backends import Backend
from fa_kernels.widgets.controls import SRAM_KIB, Controls, Settings, checked_settings
from fa_kernels.widgets.live_figure import LiveFigure
from fa_kernels.widgets.run_panel import RunPanel
from fa_kernels.widgets.text import labels

#: What M starts at, where the device allows it: the fastest recorded budget at the first point.
_DEFAULT_SRAM_KIB = 64


def point_of(settings: Settings) -> Point:
    """The point that the controls describe.

    Raises:
        ValueError: this device cannot launch it; value, limit and remedy.
    """
    dtype, sheet = DTYPE_FROM_SHORT[settings.dtype], find_device(settings.device)
    return Point.of(settings.N, settings.d, settings.M_kib, dtype, sheet)


class Explorer(ipywidgets.VBox):
    """Sentence, controls, figure, status and Run, kept in step.

    `point` is what the figure shows: the last setting that could be computed. `backend` replaces
    the session's own for Run (tests pass a fake).
    """

    def __init__(
        self, settings: Settings, session: Session, backend: Backend | None = None
    ) -> None:
        self._text = labels("explorer")
        self.session, self.runs = session, RecordedRuns(session.run, session.root)
        self.point = point_of(settings)
        self._live: dict[tuple[Any, ...], Row] = {}
        self._lock = threading.RLock()
        self.sentence = ipywidgets.HTML()
        self.message = ipywidgets.HTML()
        self.controls = Controls(settings, self.update)
        self.figure = LiveFigure()
        self.status = ipywidgets.HTML()
        self.run_panel = RunPanel(session, self._point_to_run, self.take_rows, backend)
        self._draw(self.point, settings, 0.0)
        super().__init__(
            [
                self.sentence,
                self.controls,
                self.message,
                self.figure,
                self.status,
                self.run_panel,
            ]
        )
        self.add_class("falab-explorer")

    # -- handlers: plain methods, called by widgets and by tests ---------------------------------

    def update(self, stamp: float = 0.0) -> None:
        """Follow the controls; where that cannot be computed, say why and keep what is there."""
        settings = self.controls.settings
        with self._lock:
            try:
                self._draw(point_of(settings), settings, stamp)
            except ValueError as error:
                self._complain(self._text["kept"].format(sentence=error))
            except Exception as error:  # a traceback would go to a log nobody sees
                kind = type(error).__name__
                self._complain(self._text["unexpected"].format(kind=kind, text=error))
            else:
                self._complain("")

    def take_rows(self, rows: list[Row]) -> None:
        """Draw what Run has measured so far; the points of earlier runs stay."""
        new = [row for row in rows if row.metric == "latency_ms"]
        for row in new:
            where = (row.variant, row.dtype, row.head_dim, row.seqlen_q, row.block_m, row.block_n)
            self._live[where] = row
        if new:
            self.update()

    def _point_to_run(self) -> Point:
        return point_of(self.controls.settings)

    # -- drawing ---------------------------------------------------------------------------------

    def _draw(self, point: Point, settings: Settings, stamp: float) -> None:
        run = self.runs.on(point.device)
        live, live_on = self._live_at(point)
        spec = explorer_spec(point, run, live, live_on, log=settings.scale == "log")
        said = sentence(point)
        self.figure.show(spec, self._text["figure"].format(sentence=said), stamp)
        self.point = point
        sentence_html = _subscripts(said)
        self.sentence.value = f'<div class="falab-sentence" data-fa-sentence>{sentence_html}</div>'
        sources = ["model", self.session.live]
        if run is not None:
            sources.insert(1, f"recorded {run.run_id}")
        status = self._text["status"].format(
            problem=point.problem.describe(), device=point.device.name, sources=" · ".join(sources)
        )
        if achieved := run.achieved(point) if run is not None else "":
            status += f" · {self._text['achieved'].format(shares=achieved)}"
        self.status.value = (
            f'<div class="falab-note" data-fa-status>{escape(status)}<br>'
            f"{escape(self._text['copy_call'])} <code>{escape(settings.call())}</code></div>"
        )

    def _live_at(self, point: Point) -> tuple[list[Row], str]:
        """Live rows that belong into this figure: same device, d, dtype and M."""
        gpu = self.session.gpu
        if gpu is None or not point.device.is_called(gpu):
            return [], ""
        problem = point.problem

        def belongs(row: Row) -> bool:
            tiling = point.at(row.seqlen_q).tiling
            mine = (problem.dtype, problem.head_dim, tiling.block_m, tiling.block_n)
            return (row.dtype, row.head_dim, row.block_m, row.block_n) == mine

        rows = [row for row in self._live.values() if belongs(row)]
        return rows, gpu if rows else ""

    def _complain(self, text: str) -> None:
        """Show `text` and fade what it does not belong to; "" when all is in step again."""
        self.figure.stale = bool(text)
        for shown in (self.sentence, self.status):
            (shown.add_class if text else shown.remove_class)("falab-stale")
        html = f'<div class="falab-message" role="alert" data-fa-message>{escape(text)}</div>'
        self.message.value = html if text else ""


def _subscripts(text: str) -> str:
    return escape(text).replace("B_r", "B<sub>r</sub>").replace("B_c", "B<sub>c</sub>")


def default_device(session: Session) -> str:
    """The sheet of the session's GPU, else of its run's GPU, else the largest GPU of the sheets."""
    sheets = readable_devices()
    names = [session.gpu, session.run.device if session.run else None]
    for name in filter(None, names):
        for sheet in sheets:
            if sheet.is_called(name):
                return sheet.slug
    if not sheets:
        return "h200"  # asking for it gives the sentence that says how to restore the sheets
    return max(sheets, key=lambda sheet: sheet.hbm_capacity_bytes).slug


def explorer(
    N: int = 4096,
    d: int = 64,
    M_kib: int | None = None,
    *,
    dtype: str = "fp16",
    device: str | None = None,
    scale: str = "log",
    session: Session | None = None,
) -> Any:
    """The explorer of N, d and M as a widget.

    Args:
        N: sequence length; batch and heads follow: 16384 tokens and a width of 2048.
        d: head dimension.
        M_kib: SRAM budget in KiB; default: 64, or the most this device allows.
        dtype: "fp16" or "fp32".
        device: slug of a sheet in data/devices; default: the GPU that is here or was recorded on.
        scale: "log" or "linear".
        session: what `fa.session` returned; default: the current one.

    Raises:
        ValueError: an argument the controls cannot show; value, limit and remedy.
        TypeError: `session` is not one.
    """
    used = in_use(session)
    return Explorer(opening_settings(used, N, d, M_kib, dtype, device, scale), used)


def opening_settings(
    session: Session,
    N: object,
    d: object,
    M_kib: object,
    dtype: object,
    device: object,
    scale: object = "log",
) -> Settings:
    """Arguments of a widget as settings; None stands for the session's device, or its largest M.

    Raises:
        ValueError: as `checked_settings`.
    """
    slug = default_device(session) if device is None else device
    if M_kib is not None:
        return checked_settings(N, d, M_kib, dtype, slug, scale)
    for kib in reversed([kib for kib in SRAM_KIB if kib <= _DEFAULT_SRAM_KIB]):
        settings = checked_settings(N, d, kib, dtype, slug, scale)
        try:
            point_of(settings)
        except ValueError:
            continue
        return settings
    return checked_settings(N, d, SRAM_KIB[0], dtype, slug, scale)
