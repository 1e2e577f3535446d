"""The row under every figure that writes it for a paper, beside the notebook."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fa_kernels.figures.figure_files import FORMATS, VENUES, save_figure
from fa_kernels.figures.provenance import Shown
from fa_kernels.widgets.text import labels

if TYPE_CHECKING:
    from fa_kernels.widgets.live_figure import LiveFigure

#: Beside the notebook, in whose folder its kernel runs; git ignores it.
FOLDER = Path("figures")
#: HTML first, because it needs no browser; the rest as a paper would take them.
OFFERED = ("html", "pdf", "svg", "png")
#: One export at a time: each starts a browser, and two would choose the same name.
_ONE_AT_A_TIME = threading.Lock()


def offer() -> dict[str, Any]:
    """What the row shows: its words, and (value, text) of each venue and format."""
    text = labels("export")
    venues = [
        [venue, text["venue_at"].format(venue=text["venues"][venue], inches=f"{inches:g}")]
        for venue, inches in VENUES.items()
    ]
    formats = [[suffix, text["formats"][suffix]] for suffix in (*OFFERED, "all")]
    words = {name: said for name, said in text.items() if isinstance(said, str)}
    return {"words": words, "venues": venues, "formats": formats}


class Export:
    """Writes one live figure; what came of it stands in the figure's `export_said`.

    Nothing is overwritten: another setting or venue gets a name of its own ("speed-2"), and a
    further format of what was written last joins its files.
    """

    def __init__(self, figure: LiveFigure) -> None:
        self._figure = figure
        self._last: tuple[Shown, str, str] | None = None  # what was written last, venue and name
        self._thread: threading.Thread | None = None

    def shown(self) -> Shown:
        """The figure as it is now, with the sentence and setting of the widget around it.

        Raises:
            ValueError: it belongs to an earlier setting.
        """
        figure = self._figure
        return Shown.of(figure if figure.owner is None else figure.owner)

    def start(self, chosen: object = None) -> None:
        """Write in the background what the figure shows now; the page follows `export_busy`.

        `chosen`: {"venue": ..., "format": ...} as the page has them. Its changes of the two traits
        may still be on their way when the button's message is here.
        """
        figure = self._figure
        if figure.export_busy:
            return
        if isinstance(chosen, dict):
            if chosen.get("venue") in VENUES:
                figure.export_venue = chosen["venue"]
            if chosen.get("format") in (*OFFERED, "all"):
                figure.export_format = chosen["format"]
        try:
            shown = self.shown()
        except (ValueError, TypeError) as error:
            figure.export_said = str(error)
            return
        with figure.hold_sync():
            figure.export_busy, figure.export_said = True, labels("export")["busy"]
        self._thread = threading.Thread(target=self._write, args=(shown,), daemon=True)
        self._thread.start()

    def join(self, timeout: float | None = None) -> None:
        """Wait for what is being written (for tests)."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _write(self, shown: Shown) -> None:
        figure, text = self._figure, labels("export")
        try:
            with _ONE_AT_A_TIME:
                said = self._written(shown, figure.export_venue, figure.export_format)
        except (ValueError, OSError) as error:
            said = text["refused"].format(sentence=error)
        except Exception as error:  # a traceback would go to a log nobody sees
            said = text["unexpected"].format(kind=type(error).__name__, text=error)
        with figure.hold_sync():
            figure.export_busy, figure.export_said = False, said

    def _written(self, shown: Shown, venue: str, wanted: str) -> str:
        """Write the files and say which; what was written of the same figure before is kept."""
        formats = set(OFFERED if wanted == "all" else (wanted,))
        again = self._last is not None and self._last[:2] == (shown, venue)
        name = self._last[2] if self._last and again else free_name(self._figure.name)
        if again:
            formats |= {s for s in OFFERED if (FOLDER / f"{name}.{s}").exists()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is missing is said in place
            saved = save_figure(
                shown, name, venue, folder=FOLDER, formats=sorted(formats), overwrite=again
            )
        self._last = (shown, venue, name)
        paths = [path.as_posix() for path in saved.files]
        said = labels("export")["written"].format(
            files=", ".join(paths), inches=f"{VENUES[venue]:g}"
        )
        return " ".join(filter(None, (saved.missing, said, saved.cramped)))


def free_name(name: str, folder: Path = FOLDER) -> str:
    """`name`, or with the first number that makes it one of which no file is there yet."""
    number = 1
    while True:
        stem = name if number == 1 else f"{name}-{number}"
        if not any((folder / f"{stem}.{suffix}").exists() for suffix in FORMATS):
            return stem
        number += 1
