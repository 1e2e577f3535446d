"""A made-up run of kind "paper", for tests only: its times come from no GPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fa_kernels.masks import matmul_flops
from fa_kernels.measure.paper_calls import MIDDLE_BLOCK_M, PaperCall, paper_calls
from fa_kernels.measure.records import RUN_KEYS, SCHEMA_VERSION, Row, append_rows
from fa_kernels.problem import AttentionProblem
from fa_kernels.variants import VARIANTS
from tests.measure.rows import ROW

PAPER_ID = "20260105-h200-paper"
#: TFLOP/s of the matrix products, at every N and in every pass.
RATES = {
    "standard_tiled": 20.0, "flash_kv_outer": 30.0, "flash_q_outer": 28.0, "flash_mma": 300.0,
    "torch_eager": 50.0, "torch_flash": 250.0, "torch_cudnn": 400.0,
}  # fmt: skip
PRODUCTS = {"fwd": 2, "bwd": 5, "both": 7}
#: What holds N x N matrices does not fit from here on.
TOO_LONG = 16384
#: ms of Algorithm 1 by block size; 512 is refused.
BY_BLOCK = {64: 12.0, 128: 9.0, 256: 10.0}
MEMORY = {"torch_eager": 2.0, "flash_mma": 1.0}


def time_ms(series: str, pass_: str, problem: AttentionProblem) -> float:
    """The made-up time of a call: products at the series' rate, of the kept blocks alone."""
    kept = 1.0 if problem.block_mask is None else problem.block_mask.density
    dense = replace(problem, block_mask=None)
    return kept * PRODUCTS[pass_] * matmul_flops(dense) / 2 / RATES[series] / 1e9


def rows_of(call: PaperCall, rate: Callable[..., float] = time_ms) -> Iterator[Row]:
    """Rows of every way through a call."""
    problem = call.problem
    for series in (*call.variants, *call.peers):
        whole = series in ("standard_tiled", "torch_eager")
        for dropout_p in call.dropouts:
            for pass_ in PRODUCTS:
                at: dict[str, Any] = {"pass_": pass_, "dropout_p": dropout_p}
                if whole and problem.seqlen_q >= TOO_LONG:
                    yield _row(problem, series, "latency_ms", None, **at)
                    continue
                yield _row(problem, series, "latency_ms", rate(series, pass_, problem), **at)
            if series in MEMORY and not dropout_p and not (whole and problem.seqlen_q >= TOO_LONG):
                each = 2 * problem.q_rows
                held = problem.seqlen_q if whole else 64
                size = MEMORY[series] * each * held
                yield _row(problem, series, "peak_mem_bytes", size, pass_="both")
        if call.counted and series in VARIANTS:
            for pass_, gigabytes in (("fwd", 2.0), ("bwd", 3.0)):
                size = gigabytes * 1e9 * (8.0 if whole else 1.0)
                yield _row(problem, series, "hbm_bytes", size, pass_=pass_)
        if series == "flash_kv_outer":
            for tiling in call.tilings:
                tiles = {"block_m": MIDDLE_BLOCK_M, "block_n": tiling.block_n}
                ms = BY_BLOCK.get(tiling.block_n)
                yield _row(problem, series, "latency_ms", ms, pass_="fwd", **tiles)
                if ms:
                    size = 2e9 * 128 / tiling.block_n
                    yield _row(problem, series, "hbm_bytes", size, pass_="fwd", **tiles)


def _row(
    problem: AttentionProblem, series: str, metric: str, value: float | None, **at: Any
) -> Row:
    ours, mask = series in VARIANTS, problem.block_mask
    blocks = {"block_m": 64, "block_n": 96} if ours else {"block_m": None, "block_n": None}
    made = replace(
        ROW, provider="fa_kernels" if ours else series, variant=series if ours else "sdpa",
        batch=problem.batch, nheads=problem.nheads, nheads_kv=problem.nheads,
        seqlen_q=problem.seqlen_q, seqlen_k=problem.seqlen_k, head_dim=problem.head_dim,
        density=mask.density if mask else 1.0,
        block_mask=f"{mask.name} {mask.block_m}x{mask.block_n}" if mask else "",
        metric=metric, unit="ms" if metric == "latency_ms" else "B", p20=value, median=value,
        p80=value, **{**blocks, **at},
    )  # fmt: skip
    if value is None:
        refused = ours and series == "flash_kv_outer"
        status = "refused" if refused else "does not fit"
        return replace(made, status=status, detail="no room", n=0, max_abs_err=None)
    return made


def write_paper_run(
    root: Path,
    run_id: str = PAPER_ID,
    device: str = "NVIDIA H200",
    rate: Callable[..., float] = time_ms,
) -> Path:
    """Write run.json and rows.csv under `root` and return the run's folder."""
    folder = root / run_id
    folder.mkdir(parents=True)
    about: dict[str, Any] = dict.fromkeys(RUN_KEYS, "synthetic")
    about |= {"schema": SCHEMA_VERSION, "run_id": run_id, "device": device, "kind": "paper"}
    (folder / "run.json").write_text(json.dumps(about), encoding="utf-8")
    append_rows(folder, [row for call in paper_calls() for row in rows_of(call, rate)])
    return folder
