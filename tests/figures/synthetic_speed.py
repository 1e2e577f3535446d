"""A made-up run of kind "speed", for tests only: its times come from no GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fa_kernels.device import device as find_device
from fa_kernels.figures.recorded_backward import BackwardAt
from fa_kernels.masks import matmul_flops
from fa_kernels.measure.records import RUN_KEYS, SCHEMA_VERSION, Row, append_rows
from fa_kernels.measure.speed_backward import FIG2_LEFT
from fa_kernels.measure.speed_run import problems
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from tests.figures.synthetic import row

SPEED_ID, BACKWARD_ID = "20260103-h200-speed", "20260104-h200-speed-backward"
#: TFLOP/s at every N. The tiles of a call come first, then a faster pair.
RATES = {"flash_mma": 300.0, "torch_flash": 240.0, "torch_cudnn": 400.0}
BACKWARD_RATES = {"flash_mma": 280.0, "torch_flash": 224.0, "torch_cudnn": 400.0}
#: How many times as long a made-up backward with a deterministic dq takes.
DETERMINISTIC = 1.5
TILES, OTHER_TILES, OTHER_RATE = Tiling(128, 128), Tiling(128, 64), 330.0


def write_speed_run(
    root: Path, run_id: str = SPEED_ID, device: str = "NVIDIA H200", pass_: str = "fwd"
) -> Path:
    """Write run.json and rows.csv of one pass under `root` and return the run's folder."""
    folder = root / run_id
    folder.mkdir(parents=True)
    about = dict.fromkeys(RUN_KEYS, "synthetic")
    about |= {"schema": SCHEMA_VERSION, "run_id": run_id, "device": device}  # type: ignore[dict-item]
    (folder / "run.json").write_text(json.dumps({**about, "kind": "speed"}), encoding="utf-8")
    rows_of = rows_at if pass_ == "fwd" else backward_rows_at
    append_rows(folder, [row for problem in problems((pass_,)) for row in rows_of(problem)])
    return folder


def backward_rows_at(problem: AttentionProblem) -> Iterator[Row]:
    """Backward latencies of one problem; forward and backward in one at the paper's shape."""
    plain = replace(problem, causal=None)
    tiles = BackwardAt.of("flash_mma", plain, find_device("h200")).tiling

    def timed(
        provider: str, variant: str, pass_: str, metric: str, ms: float, tiling: Tiling | None
    ) -> Row:
        made = row(plain, provider, variant, tiling, metric, ms)
        return replace(made, pass_=pass_, causal=problem.causal or "none", unit="ms")

    for series, rate in BACKWARD_RATES.items():
        ours = series == "flash_mma"
        names = ("fa_kernels", series) if ours else (series, "sdpa")
        ms, used = 2.5 * matmul_flops(problem) / rate / 1e9, tiles if ours else None
        yield timed(*names, "bwd", "latency_ms", ms, used)
        if ours:
            yield timed(*names, "bwd", "latency_ms", ms / 2, Tiling(32, 64))
            yield timed(*names, "bwd", "deterministic_latency_ms", DETERMINISTIC * ms, used)
        if problem == FIG2_LEFT:
            yield timed(*names, "both", "latency_ms", 1.4 * ms, used)


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
