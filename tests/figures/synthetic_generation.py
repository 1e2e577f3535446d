"""A made-up run of kind "generation", for tests only: its times come from no GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fa_kernels.figures.recorded_generation import WAYS
from fa_kernels.measure.records import RUN_KEYS, SCHEMA_VERSION, Row, append_rows
from fa_kernels.problem import AttentionProblem
from tests.figures.synthetic import row

GENERATION_ID = "20260107-h200-generation"
PROMPTS, BATCH = (512, 4096), 16
#: Numbers of new tokens, with a cache and without.
CACHED_MARKS, MARKS = (1, 8, 16, 24, 32), (1, 2, 3, 4)
#: Milliseconds of the first new token by tokens of the prompt, of each further one by way.
FIRST_MS = {512: 30.0, 4096: 100.0}
MS = {"neither": 20.0, "attention": 10.0, "cache": 8.0, "both": 4.0}
MEMORY_BYTES = 2**28


def generation_rows() -> Iterator[Row]:
    """Every way after both prompts."""
    for prompt in PROMPTS:
        for key, (provider, variant) in WAYS.items():
            for mark in CACHED_MARKS if key in ("cache", "both") else MARKS:
                problem = AttentionProblem(
                    BATCH, 12, prompt, prompt + mark, 64, "bfloat16", "bottom_right"
                )
                ms = FIRST_MS[prompt] + MS[key] * (mark - 1)
                time = row(problem, provider, variant, None, "latency_ms", ms)
                yield replace(time, pass_="step", causal="bottom_right", unit="ms")
            memory = row(problem, provider, variant, None, "extra_mem_bytes", MEMORY_BYTES)
            yield replace(memory, pass_="step", causal="bottom_right")


def write_generation_run(root: Path, rows: list[Row] | None = None) -> Path:
    """Write run.json and rows.csv under `root`; the run's folder."""
    folder = root / GENERATION_ID
    folder.mkdir(parents=True)
    about = dict.fromkeys(RUN_KEYS, "synthetic")
    about |= {"schema": SCHEMA_VERSION, "run_id": GENERATION_ID, "device": "NVIDIA H200"}  # type: ignore[dict-item]
    (folder / "run.json").write_text(json.dumps({**about, "kind": "generation"}), encoding="utf-8")
    append_rows(folder, list(generation_rows()) if rows is None else rows)
    return folder
