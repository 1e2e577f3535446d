"""Text that is folded away until a reader opens it; it stays open while its content changes."""

from __future__ import annotations

import anywidget
import traitlets

from fa_kernels.widgets.live_figure import STATIC


class Fold(anywidget.AnyWidget):
    """A native `<details>`: `summary` is always there, `value` (HTML) only when it is open.

    `opened` follows the reader, in every view of the widget: what is costly is computed then.
    """

    _esm = STATIC / "fold.js"
    _css = STATIC / "lab.css"
    summary = traitlets.Unicode("").tag(sync=True)
    value = traitlets.Unicode("").tag(sync=True)
    opened = traitlets.Bool(False).tag(sync=True)
