"""A made-up run of kind "speed", for tests only: its times come from no GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fa_kernels.masks import matmul_flops
from fa_kernels.measure.records import RUN_KEYS, SCHEMA_VERSION, Row, append_rows
from fa_kernels.measure.speed_run import problems
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from tests.figures.synthetic import row

SPEED_ID = "20260103-h200-speed"
#: TFLOP/s at every N. The tiles of a call come first, then a faster pair.
RATES = {"flash_mma": 300.0, "torch_flash": 240.0, "torch_cudnn": 400.0}
TILES, OTHER_TILES, OTHER_RATE = Tiling(128, 128), Tiling(128, 64), 330.0


def write_speed_run(root: Path, run_id: str = SPEED_ID, device: str = "NVIDIA H200") -> Path:
    """Write run.json and rows.csv under `root` and return the run's folder."""
    folder = root / run_id
    folder.mkdir(parents=True)
    about = dict.fromkeys(RUN_KEYS, "synthetic")
    about |= {"schema": SCHEMA_VERSION, "run_id": run_id, "device": device}  # type: ignore[dict-item]
    (folder / "run.json").write_text(json.dumps({**about, "kind": "speed"}), encoding="utf-8")
    append_rows(folder, [row for problem in problems() for row in rows_at(problem)])
    return folder


def rows_at(problem: AttentionProblem) -> Iterator[Row]:
    """Latencies of one problem: ours with two pairs of tiles and without a switch, then peers."""
    plain = replace(problem, causal=None)  # `row` knows no mask

    def timed(provider: str, variant: str, tiles: Tiling | None, rate: float) -> Row:
        ms = matmul_flops(problem) / rate / 1e9
        made = row(plain, provider, variant, tiles, "latency_ms", ms)
        return replace(made, causal=problem.causal or "none")

    yield timed("fa_kernels", "flash_mma", TILES, RATES["flash_mma"])
    yield timed("fa_kernels", "flash_mma", OTHER_TILES, OTHER_RATE)
    yield timed("fa_kernels", "flash_mma_without_swizzle", TILES, 60.0)
    for peer in ("torch_flash", "torch_cudnn"):
        yield timed(peer, "sdpa", None, RATES[peer])
