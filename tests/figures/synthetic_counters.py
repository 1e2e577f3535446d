"""A made-up run of hardware counters, for tests only: no GPU counted these bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from fa_kernels.device import device
from fa_kernels.figures.point import Point
from fa_kernels.figures.working_set import working_set
from fa_kernels.measure.records import COUNTER_UNITS, RUN_KEYS, SCHEMA_VERSION, append_rows
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.units import KIB
from fa_kernels.variants import VARIANTS
from tests.figures.synthetic import row

COUNTERS_ID = "20260103-h200-counters"
#: The second shape shares N, d and tiles with the first and differs in batch and heads.
SHAPES = (
    AttentionProblem.of_tokens(1024, 64),
    AttentionProblem(64, 16, 1024, 1024, 64, "float16"),
    AttentionProblem.of_tokens(4096, 64),
)


def write_counters(root: Path, budgets_kib: tuple[int, ...] = (64,)) -> Path:
    """Write the run under `root`: what fits the L2 moves little more than the least it can."""
    folder = root / COUNTERS_ID
    folder.mkdir(parents=True)
    about = dict.fromkeys(RUN_KEYS, "synthetic")
    about |= {"schema": SCHEMA_VERSION, "run_id": COUNTERS_ID, "device": "NVIDIA H200"}  # type: ignore[dict-item]
    about |= {"kind": "counters"}
    (folder / "run.json").write_text(json.dumps(about), encoding="utf-8")
    rows = []
    for problem in SHAPES:
        for kib in budgets_kib:
            tiling = Tiling.from_sram(kib * KIB, problem.head_dim, problem.dtype)
            point = Point(problem, kib * KIB, tiling, device("h200"))
            for name in VARIANTS:
                own = VARIANTS[name].nearest_tiling(problem, tiling)
                for metric, value in counters(name, replace(point, tiling=own)).items():
                    one = row(problem, "fa_kernels", name, own, metric, value)
                    rows.append(replace(one, unit=COUNTER_UNITS[metric]))
    append_rows(folder, rows)
    return folder


def counters(name: str, point: Point) -> dict[str, float]:
    """Made-up counters of one call that obey every bound."""
    variant = VARIANTS[name]
    moved, floor = point.traffic(variant), point.compulsory_bytes(variant)
    l2_reads = 0.97 * sum(moved.read_bytes.values())
    l2_writes = sum(moved.written_bytes.values())
    fits = working_set(variant, point).fits
    dram = min(1.05 * floor if fits else max(1.2 * floor, 0.5 * moved.total_bytes), 3 * floor)
    left = 0.1 * point.problem.q_bytes
    found = {
        "l2_read_bytes": l2_reads, "l2_write_bytes": l2_writes, "l2_bytes": l2_reads + l2_writes,
        "dram_read_bytes": 0.75 * (dram - left), "dram_write_bytes": 0.25 * (dram - left),
        "dram_bytes": dram - left, "dram_writeback_bytes": left,
    }  # fmt: skip
    return {metric: round(value) for metric, value in found.items()}
