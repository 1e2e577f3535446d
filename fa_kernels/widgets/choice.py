"""A choice from a short list, as a native list box that keeps its keys to itself.

JupyterLab's command mode takes the arrow keys and letters of an ipywidgets Dropdown: "b", on the
way to "butterfly", would insert a cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anywidget
import traitlets

from fa_kernels.widgets.live_figure import STATIC


class Choice(anywidget.AnyWidget):
    """One of `options`, (text, value) pairs; `value` and the page's `index` follow each other."""

    _esm = STATIC / "choice.js"
    _css = STATIC / "lab.css"
    label = traitlets.Unicode("").tag(sync=True)
    texts = traitlets.List(traitlets.Unicode()).tag(sync=True)
    index = traitlets.Int(0).tag(sync=True)
    disabled = traitlets.Bool(False).tag(sync=True)
    #: What the page says of the choice under the mouse.
    about = traitlets.Unicode("").tag(sync=True)
    #: Wall clock of the choice, in ms since 1970 (browser's clock).
    stamp = traitlets.Float(0.0).tag(sync=True)
    value = traitlets.Any()

    def __init__(self, label: str, options: Sequence[tuple[str, Any]], value: Any) -> None:
        self._values = [one for _, one in options]
        texts, index = [text for text, _ in options], self._values.index(value)
        super().__init__(label=label, texts=texts, index=index, value=value)
        self.observe(self._follow_page, "index")
        self.observe(self._follow_value, "value")

    @property
    def options(self) -> list[tuple[str, Any]]:
        """(text, value) pairs."""
        return list(zip(self.texts, self._values, strict=True))

    def offer(self, options: Sequence[tuple[str, Any]], value: Any) -> None:
        """Replace the list and choose `value` from it."""
        values = [one for _, one in options]
        index = values.index(value)
        with self.hold_sync():
            self._values, self.texts = values, [text for text, _ in options]
            self.index, self.value = index, value

    @traitlets.validate("value")
    def _known(self, proposal: Any) -> Any:
        if proposal["value"] not in self._values:
            raise traitlets.TraitError(
                f"{self.label} = {proposal['value']!r} is not offered: use one of {self._values}."
            )
        return proposal["value"]

    @traitlets.validate("index")
    def _inside(self, proposal: Any) -> Any:
        if not 0 <= proposal["value"] < len(self._values):
            raise traitlets.TraitError(f"{self.label}: there is no option {proposal['value']}.")
        return proposal["value"]

    def _follow_page(self, change: Any) -> None:
        self.value = self._values[change.new]

    def _follow_value(self, change: Any) -> None:
        self.index = self._values.index(change.new)
