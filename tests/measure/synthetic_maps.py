"""Made-up q, k and v, for tests only: they come from no model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fa_kernels.measure.maps import write_maps

NAME = "20260102-h200-maps"
ABOUT: dict[str, Any] = {
    "command": "a test", "commit": "x", "dirty": False, "started": "x", "device": "NVIDIA H200",
    "python": "3", "torch": "2", "text": {"source": "none", "bytes": 1, "held_out": 0.1},
    "model": {"layers": 1, "heads": 2, "seqlen": 64},
    "training": {"steps": 1, "seconds": 1.0, "loss": 1.0, "held_out_loss": 1.5},
}  # fmt: skip


def write(folder: Path, name: str = NAME, **changed: Any) -> Path:
    """Two heads of 64 tokens; `changed` replaces arrays."""
    rng = np.random.default_rng(0)
    arrays = {key: rng.standard_normal((2, 64, 8)) for key in ("q", "k", "v")}
    arrays["q"][1] *= 4
    given: dict[str, Any] = {
        **arrays, "layers": [0, 0], "heads": [0, 1], "tokens": bytes(range(32, 96)),
    }  # fmt: skip
    return write_maps(folder, name, ABOUT, **(given | changed))
