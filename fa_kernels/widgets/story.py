"""The story in one figure, as a live figure for the first notebook."""

from __future__ import annotations

from fa_kernels.device import device as find_device
from fa_kernels.figures.recorded import RecordedRuns
from fa_kernels.figures.story import story_sentence, story_spec
from fa_kernels.session import Session, current
from fa_kernels.widgets.controls import checked_settings
from fa_kernels.widgets.explorer import default_device, first_that_fits, point_of
from fa_kernels.widgets.live_figure import LiveFigure


def story(
    N: int = 4096,
    d: int = 64,
    M_kib: int | None = None,
    *,
    dtype: str = "fp16",
    device: str | None = None,
    session: Session | None = None,
) -> LiveFigure:
    """Where the bytes go and what time it takes, standard beside flash, at one point.

    Args and errors as `explorer`.
    """
    used = session or current()
    slug = device or default_device(used)
    if M_kib is None:
        settings = first_that_fits(lambda kib: checked_settings(N, d, kib, dtype, slug, "log"))
    else:
        settings = checked_settings(N, d, M_kib, dtype, slug, "log")
    point = point_of(settings)
    run = RecordedRuns(used.run, used.root).on(find_device(slug))
    figure = LiveFigure()
    figure.show(story_spec(point, run), story_sentence(point, run))
    return figure
