"""The README's picture, table and numbers, from recorded runs: `python -m fa_kernels figures`."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from fa_kernels.device import Device, device, list_devices
from fa_kernels.figures.decode_speed import decode_run_on, decoding
from fa_kernels.figures.export import save
from fa_kernels.figures.how_fast import how_fast
from fa_kernels.figures.kernel_table import POINT, kernel_table
from fa_kernels.figures.point import Point
from fa_kernels.figures.recorded import RecordedRun
from fa_kernels.figures.recorded_peers import peers_runs
from fa_kernels.figures.recorded_speed import RecordedSpeed
from fa_kernels.figures.recorded_training import RecordedTraining
from fa_kernels.figures.shown import SIDECAR
from fa_kernels.figures.story import story_figure, story_sentence, story_spec
from fa_kernels.measure.about import ROOT
from fa_kernels.measure.records import Run, load_run

README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "story.png"
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


def generated(run: Run, sheet: Device) -> dict[str, str]:
    """What the README has between its markers, by their name; the newest runs of the GPU count."""
    speed = RecordedSpeed.on(sheet)
    backward = RecordedSpeed.on(sheet, pass_="bwd")
    table = kernel_table(run, sheet, speed.run)
    training = RecordedTraining.on(sheet)
    fast = how_fast(speed, backward, training, peers_runs(sheet))
    return {
        "kernel table": table,
        "how fast": "\n\n".join(filter(None, (fast, decoding(decode_run_on(sheet))))),
    }


def with_block(readme: str, name: str, text: str) -> str:
    """The README's text with what is between the two markers of `name` replaced.

    Raises:
        ValueError: the markers are not there.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    block = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not block.search(readme):
        raise ValueError(f"README.md has no block from {begin} to {end}: put the markers back.")
    return block.sub(lambda _: f"{begin}\n{text}\n{end}", readme)


def redraw(run_id: str) -> list[Path]:
    """Write the picture, its sidecar, the table and the numbers of one run; the files written.

    Raises:
        RecordError: there is no such run. ValueError: no data sheet for its GPU, or the README has
            lost its markers. RuntimeError: no browser to draw the picture with.
    """
    run = load_run(run_id)
    sheet = sheet_of(run)
    text = README.read_text(encoding="utf-8")
    for name, block in generated(run, sheet).items():
        text = with_block(text, name, block)
    figure = story_figure(picture_point(sheet), RecordedRun(run))
    save(figure, PICTURE, width=1000, scale=1.6)
    README.write_text(text, encoding="utf-8")
    about = json.dumps(provenance(run, sheet), indent=2, ensure_ascii=False)
    SIDECAR.write_text(about + "\n", encoding="utf-8")
    return [README, PICTURE, SIDECAR]
