"""The explorer: turn N, d, M and density; tiles, traffic, runtime and memory move together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from html import escape
from typing import Any

import ipywidgets

from fa_kernels.figures.explorer import explorer_spec
from fa_kernels.figures.point import Point
from fa_kernels.figures.recorded import RecordedRuns, is_at
from fa_kernels.figures.sentence import sentence
from fa_kernels.figures.theta_law import theta_law
from fa_kernels.measure.records import Row
from fa_kernels.session import Session, in_use
from fa_kernels.widgets.backends import Backend
from fa_kernels.widgets.controls import Controls, Settings
from fa_kernels.widgets.explorer_point import default_device as default_device
from fa_kernels.widgets.explorer_point import explorer_headline, opening_settings, point_of
from fa_kernels.widgets.fold import Fold
from fa_kernels.widgets.headline import Headline
from fa_kernels.widgets.live_figure import LiveFigure
from fa_kernels.widgets.run_panel import RunPanel
from fa_kernels.widgets.steered import Steering
from fa_kernels.widgets.text import labels, takeaway_html
from fa_kernels.widgets.theta_law import ThetaTable


class Explorer(Steering, ipywidgets.VBox):
    """Sentence, controls, figure, status and Run, kept in step.

    `point` is what the figure shows: the last setting that could be computed. `backend` replaces
    the session's own for Run (tests pass a fake).
    """

    def __init__(
        self, settings: Settings, session: Session, backend: Backend | None = None
    ) -> None:
        self._text, self._opened = labels("explorer"), settings
        self.session, self.runs = session, RecordedRuns(session.run, session.root)
        self.point = point_of(settings)
        self._live: dict[tuple[Any, ...], Row] = {}
        self._lock = threading.RLock()
        #: Called after each update, also after one that was refused.
        self.on_update: Callable[[], None] = lambda: None
        self.sentence = ipywidgets.HTML()
        self.message = ipywidgets.HTML()
        self.controls = Controls(settings, self.update)
        self.steer([*self.controls.knobs, *self.controls.choices])
        self.figure = LiveFigure("explorer", owner=self)
        self.status = ipywidgets.HTML()
        self.theta = Fold(summary=self._text["theta"])
        self.theta.observe(lambda change: self._draw_theta(), "opened")
        self.run_panel = RunPanel(session, self._point_to_run, self.take_rows, backend)
        self._draw(self.point, settings, 0.0)
        super().__init__(
            [
                self.sentence,
                self.controls,
                self.message,
                self.figure,
                self.status,
                self.theta,
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
        self.on_update()

    @property
    def setting(self) -> Settings:
        """What the controls show now."""
        return self.controls.settings

    def reset(self) -> None:
        """Back to the setting that the cell opened with, in one redraw."""
        self.controls.apply(self._opened)

    def call(self) -> str:
        """The call that opens the explorer as its controls stand."""
        return self.setting.call()

    def headline(self) -> Headline:
        """Bytes, work, recorded time and memory of the two variants that are compared."""
        return explorer_headline(self.point, self.runs.on(self.point.device))

    def take_rows(self, rows: list[Row]) -> None:
        """Draw what Run has measured so far; the points of earlier runs stay."""
        new = [row for row in rows if row.metric == "latency_ms"]
        with self._lock:  # they come from Run's thread, and a moved knob draws those there are
            for row in new:
                sizes = (row.dtype, row.head_dim, row.seqlen_q, row.block_m, row.block_n)
                self._live[(row.variant, *sizes, row.block_mask, row.density)] = row
        if new:
            self.update()

    def _point_to_run(self) -> Point:
        return point_of(self.controls.settings)

    # -- drawing ---------------------------------------------------------------------------------

    def _draw(self, point: Point, settings: Settings, stamp: float) -> None:
        run = self.runs.on(point.device)
        live, live_on = self._live_at(point)
        pin = self.figure.row.pin
        spec = explorer_spec(
            point, run, live, live_on, log=settings.scale == "log", hold=pin.spec if pin else None
        )
        said = sentence(point)
        self.point = point
        self.figure.show(spec, self._text["figure"].format(sentence=said), stamp)
        self.sentence.value = takeaway_html("sentence", _subscripts(said))
        sources = ["model", self.session.live]
        if run is not None:
            sources.insert(1, f"recorded {run.run_id}")
        status = self._text["status"].format(
            problem=point.problem.describe(), device=point.device.name, sources=" · ".join(sources)
        )
        if words := point.sparse_words():
            status += f" · {self._text['sparse'].format(words=words)}"
        if achieved := run.achieved(point) if run is not None else "":
            status += f" · {self._text['achieved'].format(shares=achieved)}"
        self.status.value = f'<div class="falab-note" data-fa-status>{escape(status)}</div>'
        self._draw_theta()

    def _draw_theta(self) -> None:
        """The table of exponents, which takes as long as the figure: only when it is unfolded."""
        if self.theta.opened:
            found = theta_law(self.point, self.runs.on(self.point.device))
            self.theta.value = ThetaTable(found).html("falab-table falab-dense falab-theta")

    def _live_at(self, point: Point) -> tuple[list[Row], str]:
        """Live rows that belong into this figure: same device, d, dtype, M and block pattern."""
        gpu = self.session.gpu
        if gpu is None or not point.device.is_called(gpu):
            return [], ""
        live = (row for row in self._live.values() if is_at(row, point.at(row.seqlen_q)))
        rows = list(live)
        return rows, gpu if rows else ""

    def _complain(self, text: str) -> None:
        """Show `text` and fade what it does not belong to; "" when all is in step again."""
        self.figure.stale = bool(text)
        for shown in (self.sentence, self.status, self.theta):
            (shown.add_class if text else shown.remove_class)("falab-stale")
        html = f'<div class="falab-message" role="alert" data-fa-message>{escape(text)}</div>'
        self.message.value = html if text else ""


def _subscripts(text: str) -> str:
    return escape(text).replace("B_r", "B<sub>r</sub>").replace("B_c", "B<sub>c</sub>")


def explorer(
    N: int = 4096,
    d: int = 64,
    M_kib: int | None = None,
    *,
    dtype: str = "fp16",
    device: str | None = None,
    scale: str = "log",
    pattern: str = "dense",
    density: float = 1 / 4,
    session: Session | None = None,
) -> Any:
    """The explorer of N, d, M and the block pattern as a widget.

    Args:
        N: sequence length; batch and heads follow: 16384 tokens and a width of 2048.
        d: head dimension.
        M_kib: SRAM budget in KiB; default: 64, or the most this device allows.
        dtype: "fp16", "bf16" or "fp32".
        device: slug of a sheet in data/devices; default: the GPU that is here or was recorded on.
        scale: "log" or "linear".
        pattern: "dense", "local", "butterfly" or "random": which tiles the flash variants keep.
        density: the fraction of tiles to keep, the paper's s; means nothing where dense.
        session: what `fa.session` returned; default: the current one.

    Raises:
        ValueError: an argument the controls cannot show; value, limit and remedy.
        TypeError: `session` is not one.
    """
    used = in_use(session)
    sparse = (pattern, density)
    return Explorer(opening_settings(used, N, d, M_kib, dtype, device, scale, *sparse), used)
