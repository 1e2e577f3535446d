"""The recorded runs of one device that hold numbers of published calls."""

from __future__ import annotations

from pathlib import Path

from fa_kernels.device import Device, readable_devices
from fa_kernels.figures.recorded import read_run
from fa_kernels.measure.paper_numbers import KINDS, PaperNumbers
from fa_kernels.measure.records import Run, list_runs

#: Kinds of which one run answers alone: its calls were timed in turn in one process. Runs of kind
#: "speed" hold a pass each, those of counters the calls that were asked for.
_ALONE = ("paper",)


def paper_numbers(device: Device, root: Path | None = None) -> PaperNumbers:
    """Those of a device, the newest run of a kind first."""
    runs: list[Run] = []
    for kind in KINDS:
        found = [run for run in _runs(kind, root) if device.is_called(run.device)]
        runs += found[:1] if kind in _ALONE else found
    return PaperNumbers(runs)


def _runs(kind: str, root: Path | None) -> list[Run]:
    read = (read_run(run_id, root) for run_id in list_runs(root, kind=kind))
    return [run for run in read if isinstance(run, Run)]


def devices_with_numbers(root: Path | None = None) -> list[Device]:
    """Devices of the data sheets on which such a run was recorded."""
    names = {run.device for kind in KINDS for run in _runs(kind, root)}
    return [sheet for sheet in readable_devices() if any(map(sheet.is_called, names))]
