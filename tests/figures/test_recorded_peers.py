"""Runs of any peers: which come first, who is faster where, and which kernel really ran."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fa_kernels.device import Device, device
from fa_kernels.figures.recorded_peers import (
    Standing,
    curves_by_run,
    kernels_in,
    peers_runs,
    short_kernel,
)
from fa_kernels.measure.records import load_run
from tests.figures.synthetic_peers import (
    DETAILS,
    FLEX_ID,
    NO_FP16,
    PEERS_ID,
    RATES,
    SEQLENS,
    write_flex_run,
    write_peers_run,
)
from tests.figures.synthetic_speed import write_speed_run

AT: dict[str, Any] = {"head_dim": 128, "causal": "bottom_right", "dtype": "bfloat16"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_peers_run(tmp_path)
    write_flex_run(tmp_path)
    return tmp_path


def test_the_run_with_most_times_comes_first(root: Path, h200: Device) -> None:
    assert [run.run_id for run in peers_runs(h200, None, root)] == [PEERS_ID, FLEX_ID]
    named = load_run(FLEX_ID, root)
    assert [run.run_id for run in peers_runs(h200, named, root)] == [FLEX_ID, PEERS_ID]
    write_peers_run(root, "20270101-h200-peers", rates=RATES[PEERS_ID])
    assert peers_runs(h200, None, root)[0].run_id == "20270101-h200-peers"


def test_runs_are_those_of_the_device_and_kind(root: Path, h200: Device) -> None:
    write_speed_run(root)
    write_peers_run(root, "20280101-a100-peers", "NVIDIA A100-SXM4-80GB", RATES[PEERS_ID])
    assert [run.run_id for run in peers_runs(h200, None, root)] == [PEERS_ID, FLEX_ID]
    (other,) = peers_runs(device("a100-80gb"), None, root)
    assert other.run_id == "20280101-a100-peers" and other.head_dims == {64, 128}
    assert peers_runs(device("t4"), None, root) == ()


def test_curves_are_of_one_run_each(root: Path, h200: Device) -> None:
    found = curves_by_run(peers_runs(h200, None, root), **AT)
    assert {run_id: [c.series for c in curves] for run_id, curves in found.items()} == {
        run_id: list(rates) for run_id, rates in RATES.items()
    }
    for run_id, curves in found.items():
        for curve in curves:
            for rate in curve.rates:
                assert rate.tflops == pytest.approx(RATES[run_id][curve.series], rel=1e-4)
    assert curves_by_run(peers_runs(h200, None, root), **{**AT, "head_dim": 256}) == {}


def test_who_is_faster_is_said_only_where_the_ranges_are_apart(root: Path, h200: Device) -> None:
    by_peer = {s.peer: s for s in peers_runs(h200, None, root)[0].standings(**AT)}
    assert list(by_peer) == ["torch_flash", "torch_cudnn", "fa3"]
    flash, cudnn, near = by_peer.values()
    assert (flash.faster, flash.slower, flash.level) == (3, 0, 0)
    assert (cudnn.faster, cudnn.slower, cudnn.level) == (0, 3, 0)
    assert (near.faster, near.slower, near.level) == (0, 0, 3)
    assert flash.ratios == pytest.approx((300 / 240,) * 3, rel=1e-4)


def test_a_standing_is_of_points_that_both_have(root: Path, h200: Device) -> None:
    (flex,) = peers_runs(h200, None, root)[1].standings(**AT)
    assert flex == Standing("flex", flex.ratios, 0, 1)
    assert flex.ratios == pytest.approx((310 / 320,), rel=1e-4)


def test_what_has_no_time_keeps_its_reason(root: Path, h200: Device) -> None:
    run = peers_runs(h200, None, root)[0]
    refused = run.untimed(**{**AT, "dtype": "float16"})
    assert [row.seqlen_q for row in refused] == list(SEQLENS)
    assert {(row.series, row.status, row.detail) for row in refused} == {
        ("fa3", "refused", NO_FP16)
    }
    assert run.untimed(**AT) == []
    assert "fa3" not in {s.peer for s in run.standings(**{**AT, "dtype": "float16"})}


def test_kernels_are_those_that_the_row_names(root: Path) -> None:
    rows = {row.series: row for row in load_run(PEERS_ID, root).rows if row.dtype == "bfloat16"}
    assert kernels_in(rows["flash_mma"]) == ("05_flash_mma",)
    first, second = kernels_in(rows["torch_flash"])
    assert first.startswith("pytorch_flash::") and second.startswith("3 x ")
    assert kernels_in(replace(rows["fa3"], detail=DETAILS["flex"])) == ()


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("pytorch_flash::flash_fwd_kernel<Traits<64, 128>, false>(Params)", "flash_fwd_kernel"),
        ("fmha_cutlassF_f16_rf_sm80(Kernel<cutlass::half_t", "fmha_cutlassF_f16_rf_sm80"),
        ("cutlass::device_kernel<flash::enable_sm90_or_later<flash::FwdSm90<2,", "FwdSm90"),
        ("3 x at::native::(anonymous namespace)::fill<float>", "fill"),
        ("device_kernel", "device_kernel"),
    ],
)  # fmt: skip
def test_a_kernel_is_called_by_its_own_name(name: str, short: str) -> None:
    assert short_kernel(name) == short


def test_a_long_name_is_cut_and_says_so() -> None:
    short = short_kernel("k" * 200)
    assert short.endswith("…") and len(short) < 60
