"""A made-up run of kind "training", for tests only: its times come from no GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from fa_kernels.measure.records import RUN_KEYS, SCHEMA_VERSION, append_rows
from fa_kernels.problem import AttentionProblem
from tests.figures.synthetic import row

TRAINING_ID = "20260105-h200-training"
#: Milliseconds of a step by (series, dropout).
TIMES = {
    ("flash_mma", 0.0): 200.0,
    ("torch_flash", 0.0): 250.0,
    ("flash_mma", 0.1): 300.0,
    ("torch_flash", 0.1): 240.0,
}
MEMORY_BYTES = 2**30


def write_training_run(root: Path, run_id: str = TRAINING_ID, factor: float = 1.0) -> Path:
    """Write run.json and rows.csv under `root`, times `factor`; the run's folder."""
    folder = root / run_id
    folder.mkdir(parents=True)
    about = dict.fromkeys(RUN_KEYS, "synthetic")
    about |= {"schema": SCHEMA_VERSION, "run_id": run_id, "device": "NVIDIA H200"}  # type: ignore[dict-item]
    (folder / "run.json").write_text(json.dumps({**about, "kind": "training"}), encoding="utf-8")
    problem = AttentionProblem(32, 12, 1024, 1024, 64, "bfloat16")
    rows = []
    for (series, dropout_p), ms in TIMES.items():
        names = ("fa_kernels", series) if series == "flash_mma" else (series, "sdpa")
        time = row(problem, *names, None, "latency_ms", ms * factor)
        memory = row(problem, *names, None, "extra_mem_bytes", MEMORY_BYTES)
        rows += [
            replace(one, pass_="step", causal="bottom_right", dropout_p=dropout_p)
            for one in (replace(time, unit="ms"), memory)
        ]
    append_rows(folder, rows)
    return folder
