"""Which recorded run is shown where none is named: runs of other GPUs may be added by anybody."""

from __future__ import annotations

import json
from pathlib import Path

from fa_kernels.measure.records import device_of, list_runs

#: Beside the README's picture: what it shows, from which run, and a hash of its specification.
SIDECAR = Path(__file__).parents[2] / "docs" / "images" / "story.json"


def readme_device() -> str:
    """The GPU whose runs the README shows, as CUDA calls it; "" if that cannot be found out."""
    try:
        run_id = json.loads(SIDECAR.read_text(encoding="utf-8"))["run_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return device_of(str(run_id))


def runs_to_show(gpu: str | None = None, root: Path | None = None) -> list[str]:
    """Runs of the grid, best to show first: of `gpu`, of the README's GPU, others; newest first."""
    runs = list_runs(root, kind="grid")
    order = [name for name in (gpu, readme_device()) if name]

    def rank(run_id: str) -> int:
        device = device_of(run_id, root)
        if not device:
            return 0  # cannot be read: whoever opens it says why, and takes the next one
        return order.index(device) if device in order else len(order)

    return sorted(runs, key=rank)  # stable: those of one GPU stay newest first
