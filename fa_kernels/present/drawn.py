"""Figures of the suite as a page needs them without a kernel: specs, sentences, sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fa_kernels.figures.panel import LEAST_WIDTH
from fa_kernels.figures.provenance import Provenance, Shown
from fa_kernels.present.slide import SlideError, Vary
from fa_kernels.session import Session
from fa_kernels.widgets.suite import FIGURES, live_figures

_BY_NAME = {figure.name: figure for figure in FIGURES}


@dataclass(frozen=True)
class Stop:
    """A figure at one value of its slider: {"data", "layout"}, its text alternative, its runs."""

    spec: Mapping[str, Any]
    alt: str
    run_ids: tuple[str, ...]


@dataclass(frozen=True)
class Drawn:
    """A figure at every stop of its slider, in order; one stop where it has none."""

    stops: tuple[Stop, ...]
    start: int
    least_width: int

    @property
    def first(self) -> Stop:
        """The stop that is shown first."""
        return self.stops[self.start]

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The recorded runs behind any of the stops, each once."""
        return tuple(dict.fromkeys(run for stop in self.stops for run in stop.run_ids))


class Gallery:
    """Figures by name, each drawn once; `used` says whose runs they show."""

    def __init__(self, used: Session) -> None:
        self.used = used
        self._drawn: dict[tuple[str, Vary | None], Drawn] = {}

    def draw(self, name: str, vary: Vary | None = None) -> Drawn:
        """A figure of the suite; with a slider, one for each of its values.

        Raises:
            SlideError: a name that the suite does not have, or a slider that it does not take.
        """
        if name not in _BY_NAME:
            raise SlideError(f"figure {name!r} is not one of the suite: {', '.join(_BY_NAME)}.")
        if (name, vary) not in self._drawn:
            self._drawn[name, vary] = self._draw(name, vary)
        return self._drawn[name, vary]

    def sentence(self, name: str) -> str:
        """What a figure says in words: its sentence, then what it shows."""
        return self.draw(name).first.alt

    @property
    def run_ids(self) -> list[str]:
        """Every run that a figure drawn so far shows."""
        return sorted({run for drawn in self._drawn.values() for run in drawn.run_ids})

    def _draw(self, name: str, vary: Vary | None) -> Drawn:
        one = _BY_NAME[name]
        values = vary.values if vary else ()
        calls = [replace(one, kwargs={**one.kwargs, vary.argument: v}) for v in values if vary]
        try:
            shown = [_shown(call.widget()) for call in calls or [one]]
        except (TypeError, ValueError) as error:
            if vary is None:
                raise
            raise SlideError(f"vary: figure {name} with {vary.argument}: {error}") from error
        stops = tuple(_stop(figure) for figure in shown)
        least = max(figure.least_width or LEAST_WIDTH for figure in shown)
        return Drawn(stops, vary.start if vary else 0, least)


def _shown(widget: Any) -> Shown:
    (live,) = live_figures(widget)
    return live.export.shown()


def _stop(shown: Shown) -> Stop:
    return Stop(shown.spec, shown.alt, tuple(Provenance.of(shown).run_ids))
