"""The story in one figure, as a live figure for the first notebook."""

from __future__ import annotations

from html import escape

import ipywidgets

from fa_kernels.figures.recorded import RecordedRuns
from fa_kernels.figures.story import story_sentence, story_spec
from fa_kernels.session import Session, in_use
from fa_kernels.widgets.explorer_point import opening_settings, point_of
from fa_kernels.widgets.live_figure import LiveFigure
from fa_kernels.widgets.text import takeaway_html


def story(
    N: int = 4096,
    d: int = 64,
    M_kib: int | None = None,
    *,
    dtype: str = "fp16",
    device: str | None = None,
    session: Session | None = None,
) -> ipywidgets.VBox:
    """Where the bytes go and what time it takes, standard beside flash, at one point; the message
    stands above.

    Args and errors as `explorer`.
    """
    used = in_use(session)
    settings = opening_settings(used, N, d, M_kib, dtype, device)
    point = point_of(settings)
    run = RecordedRuns(used.run, used.root).on(point.device)
    figure = LiveFigure("story", setting=settings)
    said = story_sentence(point, run)
    figure.show(story_spec(point, run), said)
    return ipywidgets.VBox([ipywidgets.HTML(takeaway_html("story", escape(said))), figure])
