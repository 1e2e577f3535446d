"""Recorded rates beside the peers: which rows count, in which units, and how they are averaged."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from fa_kernels.device import Device, device
from fa_kernels.figures import theme
from fa_kernels.figures.recorded_speed import LONG_FROM, RecordedSpeed, geometric_mean
from fa_kernels.figures.recorded_steps import RecordedSteps
from fa_kernels.figures.speed import speed_spec
from fa_kernels.measure.records import load_run
from fa_kernels.measure.speed_run import DTYPES, HEAD_DIMS, MASKS, SEQLENS
from fa_kernels.widgets.text import labels
from tests.figures.synthetic import write_run
from tests.figures.synthetic_speed import (
    BACKWARD_ID,
    BACKWARD_RATES,
    DETERMINISTIC,
    RATES,
    SPEED_ID,
    write_speed_run,
)
from tests.figures.test_explorer import sizes

TEXT = labels("speed")
AT: dict[str, Any] = {"head_dim": 64, "causal": None, "dtype": "float16"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> RecordedSpeed:
    root: Path = tmp_path_factory.mktemp("speed")
    write_speed_run(root)
    return RecordedSpeed(load_run(SPEED_ID, root))


@pytest.mark.parametrize("causal", MASKS)
@pytest.mark.parametrize("series", RATES)
def test_a_rate_counts_what_is_attended(
    runs: RecordedSpeed, series: str, causal: str | None
) -> None:
    """And of our kernel the tiles of a call, though others are faster."""
    curve = runs.curve(series, **{**AT, "causal": causal})
    assert [rate.seqlen for rate in curve.rates] == list(SEQLENS)
    for rate in curve.rates:
        n, heads = rate.seqlen, rate.row.batch * rate.row.nheads
        pairs = n * (n + 1) // 2 if causal else n * n
        assert rate.tflops == pytest.approx(4 * 64 * pairs * heads / rate.ms / 1e9)
        assert rate.tflops == pytest.approx(RATES[series], rel=1e-4)
    assert curve.at(4096) in curve.rates and curve.at(4000) is None


def test_series_in_order_and_without_switches(runs: RecordedSpeed) -> None:
    assert (runs.ours, runs.peers) == (["flash_mma"], ["torch_flash", "torch_cudnn"])
    assert runs.curve("flash_mma").name == "05 flash, tensor cores"
    assert runs.curve("torch_cudnn", **AT).name == "torch cuDNN"


def test_ratios_are_of_problems_that_both_have(runs: RecordedSpeed) -> None:
    found = runs.ratios("flash_mma", "torch_flash", **AT)
    assert {problem.seqlen_q for problem in found} == {n for n in SEQLENS if n >= LONG_FROM}
    assert list(found.values()) == pytest.approx([300 / 240] * 4, rel=1e-4)
    of_dim = runs.ratios("flash_mma", "torch_flash", head_dim=128)
    assert len(of_dim) == 4 * len(MASKS) * len(DTYPES)
    assert runs.ratios("flash_mma", "fa3") == {}


@pytest.fixture(scope="module")
def backward(tmp_path_factory: pytest.TempPathFactory) -> RecordedSpeed:
    root: Path = tmp_path_factory.mktemp("speed-backward")
    write_speed_run(root, BACKWARD_ID, pass_="bwd")
    return RecordedSpeed(load_run(BACKWARD_ID, root), "bwd")


@pytest.mark.parametrize("series", BACKWARD_RATES)
def test_a_backward_is_five_products(backward: RecordedSpeed, series: str) -> None:
    curve = backward.curve(series, **AT)
    assert [rate.seqlen for rate in curve.rates] == list(SEQLENS)  # without the paper's shape
    for rate in curve.rates:
        assert rate.tflops == pytest.approx(BACKWARD_RATES[series], rel=1e-4)


def test_a_deterministic_dq_is_kept_apart(backward: RecordedSpeed, runs: RecordedSpeed) -> None:
    plain, own_dq = backward.curve("flash_mma", **AT), backward.deterministic("flash_mma", **AT)
    assert len(own_dq.rates) == len(SEQLENS)
    for rate in own_dq.rates:
        base = plain.at(rate.seqlen)
        assert base and rate.ms == pytest.approx(DETERMINISTIC * base.ms, rel=1e-4)
    assert backward.deterministic("torch_flash", **AT).rates == ()
    assert runs.deterministic("flash_mma", **AT).rates == ()


def test_a_row_is_of_exactly_its_problem(backward: RecordedSpeed) -> None:
    row = backward.curve("flash_mma", **AT).rates[0].row
    assert backward.row("flash_mma", row.problem) == row
    assert backward.row("flash_q_outer", row.problem) is None


def test_both_passes_in_one_at_the_papers_shape(tmp_path: Path, h200: Device) -> None:
    assert RecordedSteps.on(h200, None, tmp_path).steps == []
    write_speed_run(tmp_path)
    assert RecordedSteps.on(h200, None, tmp_path).run is None  # forwards alone
    write_speed_run(tmp_path, BACKWARD_ID, pass_="bwd")
    steps = RecordedSteps.on(h200, None, tmp_path).steps
    assert [step.series for step in steps] == ["flash_mma", "torch_flash", "torch_cudnn"]
    for step in steps:
        assert step.backward and step.both.ms == pytest.approx(1.4 * step.backward.ms, rel=1e-4)
        assert step.both.tflops == pytest.approx(BACKWARD_RATES[step.series], rel=1e-4)
    assert RecordedSteps.on(device("t4"), None, tmp_path).steps == []


def test_the_mean_of_a_ratio_and_its_inverse_is_one() -> None:
    assert geometric_mean([4, 1 / 4]) == pytest.approx(1)
    assert geometric_mean([2]) == pytest.approx(2)


def test_runs_are_those_of_the_device(tmp_path: Path, h200: Device) -> None:
    assert RecordedSpeed.on(h200, None, tmp_path).run is None
    write_run(tmp_path, head_dims=(64,), dtypes=("float16",), seqlens=(4096,))
    assert RecordedSpeed.on(h200, None, tmp_path).run is None  # a grid is no such run
    write_speed_run(tmp_path)
    write_speed_run(tmp_path, "20270101-h200-speed")
    write_speed_run(tmp_path, "20280101-a100-speed", "NVIDIA A100-SXM4-80GB")
    assert RecordedSpeed.on(h200, None, tmp_path).run_id == "20270101-h200-speed"
    assert RecordedSpeed.on(device("a100-80gb"), None, tmp_path).run_id == "20280101-a100-speed"
    assert RecordedSpeed.on(device("t4"), None, tmp_path).run_id == ""
    first = load_run(SPEED_ID, tmp_path)
    assert RecordedSpeed.on(h200, first, tmp_path).run_id == SPEED_ID


@pytest.mark.parametrize("d", HEAD_DIMS)
def test_plotly_takes_the_figure(runs: RecordedSpeed, d: int) -> None:
    curves = [runs.curve(name, **{**AT, "head_dim": d}) for name in (*runs.ours, *runs.peers)]
    spec = speed_spec(curves, runs.run_id, "fwd", TEXT)
    go.Figure(spec)
    assert min(sizes(spec)) >= 12
    for curve, line in zip(curves, spec["data"], strict=True):
        style = theme.style_of(curve.series)
        assert line["marker"]["symbol"] == style.marker and line["line"]["dash"] == style.dash
        assert line["x"] == [math.log2(n) for n in SEQLENS]
        assert line["y"] == [rate.tflops for rate in curve.rates]
    assert len({line["marker"]["symbol"] for line in spec["data"]}) == len(curves)
    words = spec["layout"]["annotations"][0]["text"]
    assert f"recorded {SPEED_ID}" in words and "05 flash, tensor cores" in words
    assert max(max(line["y"]) for line in spec["data"]) < spec["layout"]["yaxis"]["range"][1]


def test_without_a_run_the_axes_are_bare() -> None:
    spec = speed_spec([], "", "bwd", TEXT)
    go.Figure(spec)
    assert TEXT["titles"]["bwd"] in spec["layout"]["annotations"][0]["text"]
    assert spec["data"] == [] and TEXT["not_recorded"] in spec["layout"]["annotations"][0]["text"]
