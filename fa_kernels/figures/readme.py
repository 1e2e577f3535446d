"""The README's picture and table, redrawn from a recorded run: `python -m fa_kernels figures`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from fa_kernels.device import Device, device, list_devices
from fa_kernels.figures.export import save
from fa_kernels.figures.kernel_table import POINT, kernel_table, with_table
from fa_kernels.figures.point import Point
from fa_kernels.figures.recorded import RecordedRun
from fa_kernels.figures.story import story_figure, story_sentence, story_spec
from fa_kernels.measure.about import ROOT
from fa_kernels.measure.records import Run, load_run

README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "story.png"
#: Beside the picture: what it shows, from which run, and a hash of its specification.
SIDECAR = PICTURE.with_suffix(".json")
#: The picture's SRAM budget: the fastest of the recorded ones at its point.
SRAM_KIB = 64


def sheet_of(run: Run) -> Device:
    """The data sheet of the GPU that `run` was recorded on.

    Raises:
        ValueError: there is none.
    """
    for sheet in map(device, list_devices()):
        if sheet.is_called(run.device):
            return sheet
    raise ValueError(f"{run.run_id} is from a {run.device}: add its sheet to data/devices.")


def picture_point(sheet: Device) -> Point:
    """What the picture shows."""
    return Point.of(POINT["seqlen_q"], POINT["head_dim"], SRAM_KIB, POINT["dtype"], sheet)


def provenance(run: Run, sheet: Device) -> dict[str, Any]:
    """The picture's sidecar: caption, run, and a hash that changes when it must be redrawn."""
    point, recorded = picture_point(sheet), RecordedRun(run)
    spec = json.dumps(story_spec(point, recorded), sort_keys=True)
    return {
        "caption": story_sentence(point, recorded),
        "run_id": run.run_id,
        "sram_kib": SRAM_KIB,
        "command": "python -m fa_kernels figures",
        "spec_sha256": hashlib.sha256(spec.encode()).hexdigest(),
    }


def redraw(run_id: str) -> list[Path]:
    """Write the picture, its sidecar and the table of one run; the files written.

    Raises:
        RecordError: there is no such run. ValueError: no data sheet for its GPU, or the README has
            lost its markers. RuntimeError: no browser to draw the picture with.
    """
    run = load_run(run_id)
    sheet = sheet_of(run)
    text = with_table(README.read_text(encoding="utf-8"), kernel_table(run, sheet))
    figure = story_figure(picture_point(sheet), RecordedRun(run))
    save(figure, PICTURE, width=1000, scale=1.6)
    README.write_text(text, encoding="utf-8")
    about = json.dumps(provenance(run, sheet), indent=2, ensure_ascii=False)
    SIDECAR.write_text(about + "\n", encoding="utf-8")
    return [README, PICTURE, SIDECAR]
