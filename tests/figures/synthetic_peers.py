"""Made-up runs of kind "peers", for tests only: their times come from no GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fa_kernels.masks import matmul_flops
from fa_kernels.measure.records import RUN_KEYS, SCHEMA_VERSION, Row, append_rows
from fa_kernels.measure.speed_run import SpeedGrid
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from tests.figures.synthetic import row

PEERS_ID, FLEX_ID = "20260105-h200-peers", "20260105-h200-flex"
SEQLENS, FLEX_SEQLENS = (2048, 4096, 16384), (4096,)
#: TFLOP/s at every N, by run. Ours and fa3's are so near that their ranges touch.
RATES = {
    PEERS_ID: {"flash_mma": 300.0, "torch_flash": 240.0, "torch_cudnn": 400.0, "fa3": 301.0},
    FLEX_ID: {"flash_mma": 310.0, "flex": 320.0},
}
#: 20th and 80th percentile over the median.
SPREAD = (0.99, 1.01)
DETAILS = {
    "flash_mma": "",
    "torch_flash": "kernels: pytorch_flash::flash_fwd_kernel<Traits<64, 128>, false>(Params); "
    "3 x at::native::(anonymous namespace)::fill<float>",
    "torch_cudnn": "kernels: cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64",
    "fa3": "kernels: cutlass::device_kernel<flash::enable_sm90_or_later<flash::FwdSm90<2,",
    "flex": "kernels not known: RuntimeError: no profiler",
}
NO_FP16 = "fa3 has no float16 kernel"


def write_peers_run(
    root: Path,
    run_id: str = PEERS_ID,
    device: str = "NVIDIA H200",
    rates: Mapping[str, float] | None = None,
    seqlens: tuple[int, ...] = SEQLENS,
) -> Path:
    """Write run.json and rows.csv under `root` and return the run's folder."""
    folder = root / run_id
    folder.mkdir(parents=True)
    about = dict.fromkeys(RUN_KEYS, "synthetic")
    about |= {"schema": SCHEMA_VERSION, "run_id": run_id, "device": device}  # type: ignore[dict-item]
    (folder / "run.json").write_text(json.dumps({**about, "kind": "peers"}), encoding="utf-8")
    grid = SpeedGrid(("fwd",), seqlens=seqlens, head_dims=(64, 128))
    found = rates or RATES[run_id]
    append_rows(
        folder, [_row(p, series, rate) for p in grid.problems() for series, rate in found.items()]
    )
    return folder


def write_flex_run(root: Path) -> Path:
    """The second run: fewer N, another peer, and our rung once more."""
    return write_peers_run(root, FLEX_ID, seqlens=FLEX_SEQLENS)


def _row(problem: AttentionProblem, series: str, rate: float) -> Row:
    """A latency; of fa3 in fp16 a refusal."""
    ours = series == "flash_mma"
    ms = matmul_flops(problem) / rate / 1e9
    names = ("fa_kernels", series) if ours else (series, "sdpa")
    plain = replace(problem, causal=None)  # `row` knows no mask
    made = row(plain, *names, Tiling(128, 128) if ours else None, "latency_ms", ms)
    low, high = SPREAD
    made = replace(
        made, causal=problem.causal or "none", detail=DETAILS[series], p20=low * ms, p80=high * ms
    )
    if (series, problem.dtype) != ("fa3", "float16"):
        return made
    return replace(
        made, p20=None, median=None, p80=None, n=0, status="refused", detail=NO_FP16,
        max_abs_err=None,
    )  # fmt: skip
