"""The README's picture and table, redrawn from a recorded run: `python -m fa_kernels figures`."""

from __future__ import annotations

from pathlib import Path

from fa_kernels.device import device, list_devices
from fa_kernels.figures.export import save
from fa_kernels.figures.kernel_table import POINT, kernel_table, with_table
from fa_kernels.figures.point import Point
from fa_kernels.figures.recorded import RecordedRun, recorded_on
from fa_kernels.figures.story import story_figure
from fa_kernels.measure.records import load_run

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "story.png"
#: The picture's SRAM budget: the fastest of the recorded ones at its point.
SRAM_KIB = 64


def redraw(run_id: str) -> list[Path]:
    """Write the picture and the table of one run; the files written.

    Raises:
        RecordError: there is no such run. ValueError: no data sheet for its GPU, or the README has
            lost its markers. RuntimeError: no browser to draw the picture with.
    """
    run = load_run(run_id)
    sheets = [d for d in map(device, list_devices()) if recorded_on(run.device, d)]
    if not sheets:
        raise ValueError(f"{run_id} was recorded on {run.device}: add its sheet to data/devices.")
    text = with_table(README.read_text(encoding="utf-8"), kernel_table(run, sheets[0].arch))
    README.write_text(text, encoding="utf-8")
    point = Point.of(POINT["seqlen_q"], POINT["head_dim"], SRAM_KIB, POINT["dtype"], sheets[0])
    return [README, save(story_figure(point, RecordedRun(run)), PICTURE, width=1000, scale=1.6)]
