"""A knob: a slider over a list of good values, and a box that takes any value or says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anywidget
import traitlets

from fa_kernels.widgets.live_figure import STATIC


def parse(text: str, check: Callable[[object], int]) -> int:
    """What was typed, checked: "4096", "4096.0".

    Raises:
        ValueError: as `check`, with the typed text in the sentence.
    """
    value: object = text.strip()
    for kind in (int, float):
        try:
            value = kind(text)
            break
        except ValueError:
            continue
    return check(value)


class Knob(anywidget.AnyWidget):
    """One number with a visible name and unit.

    `values` are the stops of the slider, ascending; `value` may lie between them. `error` is a
    sentence shown under the slider; the page shows what was typed as invalid while it is set.
    """

    _esm = STATIC / "knob.js"
    _css = STATIC / "lab.css"
    label = traitlets.Unicode("").tag(sync=True)
    description = traitlets.Unicode("").tag(sync=True)
    unit = traitlets.Unicode("").tag(sync=True)
    values = traitlets.List(traitlets.Int()).tag(sync=True)
    value = traitlets.Int(0).tag(sync=True)
    error = traitlets.Unicode("").tag(sync=True)
    #: Wall clock of the movement that set `value`, in ms since 1970 (browser's clock).
    stamp = traitlets.Float(0.0).tag(sync=True)

    def __init__(self, check: Callable[[object], int] = int, **traits: Any) -> None:  # type: ignore[assignment]
        super().__init__(**traits)
        self._check = check
        self.on_msg(lambda widget, content, buffers: widget.receive(content))

    def receive(self, content: Any) -> None:
        """A message of the page: {"typed": text}."""
        if isinstance(content, dict) and "typed" in content:
            self.type(str(content["typed"]))

    def type(self, text: str) -> None:
        """Take a typed value, or show the sentence that says why not; the old value stays."""
        try:
            value = parse(text, self._check)
        except ValueError as error:
            self.error = str(error)
            return
        with self.hold_sync():
            self.error, self.stamp, self.value = "", 0.0, value
