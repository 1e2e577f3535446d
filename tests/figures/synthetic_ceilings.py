"""A made-up run of kind "ceilings": each ceiling a fixed part of what the data sheet says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fa_kernels.device import device
from fa_kernels.figures.recorded_ceilings import sheet_rate
from fa_kernels.measure.ceiling_records import CEILINGS, CeilingRow, append_ceilings
from fa_kernels.measure.records import load_run
from tests.measure.rows import write_run

RUN_ID = "20270101-h200-ceilings"
#: Of the data sheet; where that says nothing, the rate itself.
PART = {
    "hbm_copy": 0.85, "hbm_read": 0.9, "smem_read": 0.95, "fp32_fma": 0.9, "exp2": 0.96,
    "matmul_fp16": 0.7, "matmul_bf16": 0.72, "matmul_fp16_sustained": 0.65,
    "matmul_bf16_sustained": 0.66,
}  # fmt: skip
#: What was launched, by provider.
HOW = {
    "fa_kernels": "528 blocks of 256 threads, 4 MiB; fastest of 4",
    "cublas": "4096 × 4096 × 4096, fp32 accumulation, cublasGemmEx",
}
RATE = {"l2_read": 5600.0, "l2_read_apart": 5000.0, "l2_add": 1200.0}


def rate_of(name: str, slug: str = "h200") -> float:
    """The made-up median."""
    sheet = sheet_rate(device(slug), name).value
    return RATE[name] if sheet is None else PART[name] * sheet


def row_of(name: str, slug: str = "h200") -> CeilingRow:
    """A row of the run."""
    rate = rate_of(name, slug)
    provider = "cublas" if name.startswith("matmul") else "fa_kernels"
    return CeilingRow(
        name, provider, CEILINGS[name], 0.99 * rate, rate, 1.01 * rate, 20, 4e9, 2**22, "ok",
        HOW[provider], 0.0,
    )  # fmt: skip


def write_ceilings_run(
    root: Path,
    leave_out: tuple[str, ...] = (),
    run_id: str = RUN_ID,
    slug: str = "h200",
    sm_mhz: float | None = None,
) -> None:
    """The run in a folder of runs, without the ceilings of `leave_out`."""
    folder = write_run(root, [], run_id, kind="ceilings", device=device(slug).cuda_names[0])
    rows = [row_of(name, slug) for name in CEILINGS if name not in leave_out]
    append_ceilings(folder, [replace(row, sm_mhz=sm_mhz) for row in rows])
    load_run.cache_clear()
