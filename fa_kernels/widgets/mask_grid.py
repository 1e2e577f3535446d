"""A grid of blocks to keep or drop, with a history: what the page paints, undoes and copies."""

from __future__ import annotations

from typing import Any

import anywidget
import numpy as np
import traitlets

from fa_kernels.widgets.live_figure import STATIC

#: Steps back that are remembered.
MAX_HISTORY = 200
#: Pages whose strokes are counted; one that was forgotten is drawn at once.
MAX_VIEWS = 32


def rows_of(keep: np.ndarray) -> list[str]:
    """(rows, keys) bool as text, a row of "#" (kept) and "." each."""
    return ["".join("#" if cell else "." for cell in row) for row in keep]


def keep_of(rows: Any, shape: tuple[int, int]) -> np.ndarray:
    """The reverse.

    Raises:
        ValueError: other text, or another shape.
    """
    letters = (
        [row if isinstance(row, str) else "" for row in rows] if isinstance(rows, list) else []
    )
    if len(letters) != shape[0] or any(len(r) != shape[1] or set(r) - set("#.") for r in letters):
        raise ValueError(
            f"rows = {rows!r} is no mask: give {shape[0]} rows of {shape[1]} letters, # to keep a "
            "block and . to drop it."
        )
    return np.array([[cell == "#" for cell in row] for row in letters])


class MaskGrid(anywidget.AnyWidget):
    """The grid. `keep` is what it shows; `put` changes it, and `undo`, `redo`, `reset` go through
    what was shown. `code` is what Copy copies."""

    _esm = STATIC / "mask_grid.js"
    _css = STATIC / "lab.css"
    rows = traitlets.List(traitlets.Unicode()).tag(sync=True)
    text = traitlets.Dict().tag(sync=True)
    code = traitlets.Unicode("").tag(sync=True)
    can_undo = traitlets.Bool(False).tag(sync=True)
    can_redo = traitlets.Bool(False).tag(sync=True)
    #: Page -> the number of its last message that was answered: until then it keeps what it shows.
    seen = traitlets.Dict().tag(sync=True)

    def __init__(self, keep: np.ndarray, text: dict[str, str]) -> None:
        super().__init__(rows=rows_of(keep), text=text)
        self._history, self._at, self._first = [rows_of(keep)], 0, rows_of(keep)
        self.on_msg(lambda widget, content, buffers: widget.receive(content))

    @property
    def keep(self) -> np.ndarray:
        """bool (rows, keys)."""
        return np.array([[cell == "#" for cell in row] for row in self.rows])

    def receive(self, content: Any) -> None:
        """A message of the page: {"rows": [...]} after a stroke, or {"do": "undo"}."""
        if not isinstance(content, dict):
            return
        with self.hold_sync():
            try:
                if "rows" in content:
                    self.put(keep_of(content["rows"], self.keep.shape))
                elif content.get("do") in ("undo", "redo", "reset"):
                    getattr(self, content["do"])()
            finally:
                self._answer(content.get("view"), content.get("stroke"))

    def _answer(self, view: Any, stroke: Any) -> None:
        """Tell a page that its message was heard, whatever came of it."""
        if isinstance(view, str) and isinstance(stroke, int):
            known = {name: n for name, n in self.seen.items() if name != view}
            self.seen = dict([*known.items(), (view, stroke)][-MAX_VIEWS:])

    def put(self, keep: np.ndarray) -> None:
        """Show another mask: one step of the history, unless it is the one on screen."""
        rows = rows_of(keep)
        if rows == self.rows:
            return
        self._history = [*self._history[: self._at + 1], rows][-MAX_HISTORY:]
        self._go(len(self._history) - 1)

    def start(self, keep: np.ndarray) -> None:
        """`put` a mask to which `reset` goes back from now on."""
        self._first = rows_of(keep)
        self.put(keep)

    def undo(self) -> None:
        """One step back, if there is one."""
        self._go(max(0, self._at - 1))

    def redo(self) -> None:
        """One step forward again."""
        self._go(min(len(self._history) - 1, self._at + 1))

    def reset(self) -> None:
        """Back to the mask that was begun with; a step that can be undone."""
        self.put(keep_of(self._first, self.keep.shape))

    def _go(self, at: int) -> None:
        self._at = at
        with self.hold_sync():
            self.can_undo, self.can_redo = at > 0, at < len(self._history) - 1
            self.rows = self._history[at]
