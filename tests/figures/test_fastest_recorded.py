"""The fastest recorded kernel: of this GPU and dtype, dense, forward, timed; and none otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fa_kernels.device import Device, device
from fa_kernels.figures.fastest_recorded import FastestKernel
from fa_kernels.measure.records import load_run
from tests.measure.rows import RUN_ID, row, write_run

PEER = {"provider": "torch_cudnn", "variant": "", "block_m": None, "block_n": None}
#: A forward pass of B = 4, H = 32, N = 4096, d = 64: 4 d N^2 FLOP a head.
FLOP = 4 * 64 * 4096**2 * 4 * 32


def fast(ms: float, **changed: Any) -> Any:
    return row(p20=ms, median=ms, p80=ms, **{**PEER, **changed})


@pytest.fixture(autouse=True)
def fresh() -> None:
    load_run.cache_clear()


def test_the_fastest_of_all_runs_is_found(tmp_path: Path, h200: Device) -> None:
    write_run(tmp_path, [row(), fast(1.0)])
    write_run(tmp_path, [fast(0.8)], "20260103-h200-peers", kind="peers")
    write_run(tmp_path, [fast(0.5)], "20260104-a100-grid", device="NVIDIA A100-SXM4-80GB")
    found = FastestKernel.of_each_dtype(h200, tmp_path)
    assert list(found) == ["float16"]
    best = found["float16"]
    assert (best.run_id, best.name, best.seqlen, best.head_dim) == (
        "20260103-h200-peers", "torch cuDNN", 4096, 64,
    )  # fmt: skip
    assert best.tflops == pytest.approx(FLOP / 0.8e-3 / 1e12)
    assert FastestKernel.of_each_dtype(device("t4"), tmp_path) == {}


@pytest.mark.parametrize(
    "changed",
    [
        {"pass_": "bwd"},
        {"causal": "bottom_right"},
        {"dropout_p": 0.1},
        {"block_mask": "local 64x64", "density": 0.5},
        {"metric": "launch_us", "unit": "us"},
    ],
)
def test_what_is_no_dense_forward_does_not_count(
    tmp_path: Path, h200: Device, changed: dict[str, Any]
) -> None:
    write_run(tmp_path, [fast(1.0), fast(0.1, **changed)])
    assert FastestKernel.of_each_dtype(h200, tmp_path)["float16"].tflops < FLOP / 0.9e-3 / 1e12


def test_a_run_that_cannot_be_read_is_passed_over(tmp_path: Path, h200: Device) -> None:
    folder = write_run(tmp_path, [fast(1.0)])
    (folder / "rows.csv").write_text("nothing\n", encoding="utf-8")
    load_run.cache_clear()
    assert RUN_ID in str(folder) and FastestKernel.of_each_dtype(h200, tmp_path) == {}
