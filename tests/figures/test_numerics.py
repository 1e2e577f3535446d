"""Recorded errors: which run answers, relative to what, and every line on the axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from fa_kernels.device import Device
from fa_kernels.figures.numerics import (
    FAST,
    FLASH,
    SHOWN,
    STANDARD,
    RecordedErrors,
    numerics_spec,
)
from fa_kernels.measure.numerics import DTYPES, EXACT, HEAD_DIMS, INPUTS, SEQLENS
from fa_kernels.measure.records import Row
from fa_kernels.widgets.text import labels
from tests.measure.rows import row, write_run

TEXT = labels("numerics")
CPU_ID, GPU_ID = "20260105-cpu-numerics", "20260103-h200-numerics"


def error(series: str, value: float, metric: str = "rmse", **changed: Any) -> Row:
    provider, variant = "fa_kernels", series
    if series == EXACT:
        provider, variant = EXACT, "rounded"
    elif series.startswith("torch"):
        provider, variant = series, "sdpa"
    about: dict[str, Any] = {"batch": 1, "nheads": 8, "nheads_kv": 8, "inputs": "normal"}
    return row(
        provider=provider, variant=variant, metric=metric, unit="", p20=value, median=value,
        p80=value, n=1, max_abs_err=2 * value, **{**about, **changed},
    )  # fmt: skip


def some_errors(**changed: Any) -> list[Row]:
    return [
        error(EXACT, 0.25, "rms", **changed),
        error(EXACT, 2.0**-14, **changed),
        error(STANDARD, 2.0**-12, **changed),
        error(FLASH, 2.0**-14, **changed),
        error(FAST, 2.0**-13, **changed),
    ]


def test_a_gpus_own_run_comes_first_and_numpy_stands_in(tmp_path: Path, h200: Device) -> None:
    assert RecordedErrors.on(h200, tmp_path).run is None
    write_run(tmp_path, some_errors(), CPU_ID, kind="numerics", device="CPU (NumPy 2.4.6)")
    on_cpu = RecordedErrors.on(h200, tmp_path)
    assert on_cpu.run is not None and on_cpu.run.run_id == CPU_ID and on_cpu.in_numpy
    write_run(tmp_path, [*some_errors(), error("torch_flash", 0.1)], GPU_ID, kind="numerics")
    on_gpu = RecordedErrors.on(h200, tmp_path)
    assert on_gpu.run is not None and on_gpu.run.run_id == GPU_ID and not on_gpu.in_numpy
    assert on_gpu.series() == [STANDARD, FLASH, FAST, "torch_flash"]


def test_units_are_relative_to_the_exact_result(tmp_path: Path, h200: Device) -> None:
    rows = [*some_errors(), *some_errors(seqlen_k=512), *some_errors(seqlen_k=512, head_dim=128)]
    write_run(tmp_path, rows, GPU_ID, kind="numerics")
    errors = RecordedErrors.on(h200, tmp_path)
    line = errors.line(STANDARD, "float16", 64, "normal")
    assert [e.keys for e in line] == [512, 4096]
    assert line[0].units == pytest.approx(2, rel=1e-5)  # 2^-12 of a quarter, u = 2^-11
    assert errors.ratios(STANDARD, FAST, "float16", "normal") == pytest.approx([2, 2, 2], rel=1e-5)
    assert errors.line(STANDARD, "float32", 64, "normal") == []


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_recorded_line_is_drawn_within_the_axes(
    inputs: str, head_dim: int, h200: Device
) -> None:
    errors = RecordedErrors.on(h200)
    spec = numerics_spec(errors, head_dim, inputs, TEXT)
    go.Figure(spec)
    low, high = spec["layout"]["yaxis"]["range"]
    for trace in spec["data"]:
        assert all(10**low < y < 10**high for y in trace["y"])
    names = [trace["name"] for trace in spec["data"]]
    assert names.count("u") == names.count(EXACT) == names.count(FLASH) == len(DTYPES)
    assert names.count(FAST) == len(DTYPES) - 1, "tensor cores take no fp32"


def test_without_a_run_the_axes_are_there() -> None:
    spec = numerics_spec(RecordedErrors(), 64, "normal", TEXT)
    go.Figure(spec)
    assert {trace["name"] for trace in spec["data"]} == {"u"}
    assert TEXT["not_recorded"] in spec["layout"]["annotations"][0]["text"]


def test_the_committed_errors_say_what_the_notebook_says(h200: Device) -> None:
    """Flash is as near as rounding allows in 16 bits, at every N, d and distribution."""
    errors = RecordedErrors.on(h200)
    for dtype in ("float16", "bfloat16"):
        for inputs in INPUTS:
            near = errors.ratios(FLASH, EXACT, dtype, inputs)
            assert len(near) == len(SEQLENS) * len(HEAD_DIMS)
            assert max(near) < 1.1
            assert min(errors.ratios(STANDARD, FLASH, dtype, inputs)) > 1.5
            assert max(errors.ratios(FAST, EXACT, dtype, inputs)) < 2
    in_fp32 = errors.ratios(STANDARD, FLASH, "float32", "normal")
    assert max(in_fp32) < 3 and min(in_fp32) > 0.3
    assert set(SHOWN) <= set(errors.series())
