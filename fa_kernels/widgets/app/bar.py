"""The app's bar: views, banner, size of text, light or dark, full screen, and the list of keys."""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from fa_kernels.widgets.app.link import KEYS, SIZES
from fa_kernels.widgets.live_figure import STATIC


class Bar(anywidget.AnyWidget):
    """The bar, and with it the keyboard and the look of the page around it.

    Switching views needs no kernel: the page hides all but one. `query` is what the page writes
    behind its address, so that a reload, or somebody else's browser, opens the same state.
    """

    _esm = STATIC / "app.js"
    _css = STATIC / "app.css"
    view = traitlets.Unicode("explorer").tag(sync=True)
    theme = traitlets.Unicode("").tag(sync=True)
    size = traitlets.Int(100).tag(sync=True)
    sizes = traitlets.List(traitlets.Int(), list(SIZES)).tag(sync=True)
    query = traitlets.Unicode("").tag(sync=True)
    query_keys = traitlets.List(traitlets.Unicode(), list(KEYS)).tag(sync=True)
    banner = traitlets.List(traitlets.Unicode()).tag(sync=True)
    notes = traitlets.List(traitlets.Unicode()).tag(sync=True)
    text: Any = traitlets.Dict().tag(sync=True)
