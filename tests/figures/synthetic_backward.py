"""A made-up run of backward passes with the shape of a real one: its times come from no GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fa_kernels.device import device as find_device
from fa_kernels.figures.recorded_backward import BackwardAt
from fa_kernels.masks import matmul_flops
from fa_kernels.measure.backward_run import problems
from fa_kernels.measure.records import RUN_KEYS, SCHEMA_VERSION, Row, append_rows
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import HOPPER_SMEM_PER_BLOCK
from fa_kernels.traffic.model import ALL_TENSORS
from fa_kernels.units import KIB
from fa_kernels.variants import VARIANTS
from tests.figures.synthetic import row

RUN_ID = "20260103-h200-backward"
#: ms per TFLOP of the forward's two products, and how many times as long the backward takes.
_COST = {
    "standard_tiled": (60.0, 3.0),
    "flash_kv_outer": (90.0, 4.0),
    "flash_q_outer": (45.0, 4.5),
    "flash_mma": (2.0, 3.0),
    "flash_wgmma": (1.4, 3.0),
}
#: The longest sequence at which the made-up standard attention still fits.
FITS_UP_TO = 32768


def write_backward_run(root: Path, run_id: str = RUN_ID) -> Path:
    """Write run.json and rows.csv under `root` and return the run's folder."""
    folder = root / run_id
    folder.mkdir(parents=True)
    about = dict.fromkeys(RUN_KEYS, "synthetic") | {"kind": "backward"}
    about |= {"schema": SCHEMA_VERSION, "run_id": run_id, "device": "NVIDIA H200"}  # type: ignore[dict-item]
    (folder / "run.json").write_text(json.dumps(about), encoding="utf-8")
    append_rows(folder, [r for problem in problems() for r in rows_at(problem)])
    return folder


def rows_at(problem: AttentionProblem) -> Iterator[Row]:
    """All rows of one problem, as `measure.backward_run` makes them."""
    for name, variant in VARIANTS.items():
        backward = variant.backward
        if backward is None or not variant.takes(problem):
            continue
        if not backward.takes(problem, HOPPER_SMEM_PER_BLOCK):
            continue
        at = BackwardAt.of(name, problem, find_device("h200"))
        if name == "standard_tiled" and problem.seqlen_q > FITS_UP_TO:
            why = "does not fit (estimated 999 GiB)"
            refused = row(problem, "fa_kernels", name, at.tiling, "latency_ms", None, why)
            yield replace(refused, pass_="bwd")
            continue
        given = {"p_given": True} if "p" in backward.saved else {}
        traffic = backward.launched(problem, at.tiling, **given)
        forward_ms, times = _COST[name]
        ms = 0.01 + forward_ms * matmul_flops(problem) / 1e12
        peak = variant.step_bytes(problem) + 4 * KIB
        values = {
            ("fwd", "latency_ms"): ms,
            ("bwd", "latency_ms"): times * ms,
            ("both", "extra_mem_bytes"): peak,
            ("both", "peak_mem_bytes"): peak + 2 * problem.q_bytes + 2 * problem.kv_bytes,
            ("bwd", "hbm_bytes"): traffic.total_bytes,
            **{("bwd", f"hbm_{t}_bytes"): traffic.of(t) for t in ALL_TENSORS if traffic.of(t)},
        }
        if backward.has_loose_dq(problem, at.tiling):
            values[("bwd", "deterministic_latency_ms")] = 1.3 * times * ms
        for (pass_, metric), value in values.items():
            unit = "ms" if metric.endswith("ms") else "B"
            made = row(problem, "fa_kernels", name, at.tiling, metric, value)
            yield replace(made, pass_=pass_, unit=unit)
