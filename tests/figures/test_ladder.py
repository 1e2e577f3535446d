"""Recorded steps of the ladder, and the roofline that they stand under."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from fa_kernels.device import Device, device
from fa_kernels.figures.ladder import LadderRuns, Step, gain_words, ladder_spec
from fa_kernels.figures.recorded_ceilings import MeasuredCeilings
from fa_kernels.figures.roofline import Ceilings, Mark, least_bytes, marks_of, roofline_spec
from fa_kernels.figures.rungs import in_rung_order
from fa_kernels.masks import matmul_flops
from fa_kernels.measure.baselines import GRID_PEERS
from fa_kernels.measure.records import Run, load_run
from fa_kernels.problem import AttentionProblem
from fa_kernels.widgets.text import labels
from tests.figures.synthetic import RUN_ID, write_run
from tests.figures.synthetic_ceilings import rate_of, write_ceilings_run
from tests.figures.test_explorer import sizes

LADDER, ROOFLINE = labels("ladder"), labels("roofline")
PROBLEM = AttentionProblem.of_tokens(4096, 64, "float16")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    root: Path = tmp_path_factory.mktemp("ladder")
    write_run(root, head_dims=(64,), seqlens=(512, 4096))
    return load_run(RUN_ID, root)


@pytest.fixture
def runs(made: Run) -> LadderRuns:
    return LadderRuns([made])


def step_of(found: list[Step], series: str) -> Step:
    return next(step for step in found if step.series == series)


def test_rungs_then_peers_each_with_the_rung_before(runs: LadderRuns) -> None:
    found = runs.steps(PROBLEM)
    rungs = [v.name for v in in_rung_order() if "float16" in v.dtypes]
    assert [step.series for step in found] == [*rungs, *GRID_PEERS]
    befores = [step.before.series if step.before else None for step in found]
    assert befores == [None, *rungs[:-1], *([None] * len(GRID_PEERS))]
    flash = step_of(found, "flash_q_outer")
    assert flash.name == "04 flash" and flash.before is not None and flash.before.ms
    assert flash.ms and flash.gain == pytest.approx(flash.before.ms / flash.ms)
    assert flash.tflops == pytest.approx(matmul_flops(PROBLEM) / flash.ms / 1e9)
    assert not flash.across_runs and flash.run_id == RUN_ID


def test_the_fastest_tiles_are_taken(made: Run, runs: LadderRuns) -> None:
    flash = step_of(runs.steps(PROBLEM), "flash_q_outer")
    wanted: dict[str, Any] = {"variant": "flash_q_outer", "metric": "latency_ms", "seqlen_q": 4096}
    rows = made.select(**wanted, dtype="float16", block_mask="")
    assert flash.ms == min(row.median for row in rows if row.median)
    assert flash.tiling is not None
    assert step_of(runs.steps(PROBLEM), "standard_naive").tiling is None
    counted = runs.counted_bytes(flash)
    assert counted and flash.variant is not None
    assert counted == flash.variant.launched(PROBLEM, flash.tiling).total_bytes


def test_what_was_not_recorded_says_so(runs: LadderRuns) -> None:
    found = runs.steps(replace(PROBLEM, head_dim=80))
    assert all(step.ms is None and step.gain is None and step.tflops is None for step in found)
    go.Figure(ladder_spec(found, LADDER))
    assert runs.seqlens(64, "float16") == [512, 4096] and runs.seqlens(80, "float16") == []
    assert runs.counted_bytes(found[0]) is None


def test_a_dtype_that_a_rung_does_not_take_leaves_it_out(runs: LadderRuns) -> None:
    found = runs.steps(replace(PROBLEM, dtype="float32"))
    names = {step.series for step in found}
    assert "torch_flash" not in names and "flash_q_outer" in names
    for variant in in_rung_order():
        assert (variant.name in names) == ("float32" in variant.dtypes)


def test_a_kernel_of_a_later_run_says_so(made: Run) -> None:
    """What came later was recorded later: a ratio across two runs is marked."""
    old = replace(made, rows=tuple(r for r in made.rows if r.series != "flash_q_outer"))
    new = replace(made, run_id="20270101-h200-more")
    found = LadderRuns([old, new]).steps(PROBLEM)
    flash = step_of(found, "flash_q_outer")
    assert flash.run_id == "20270101-h200-more" and flash.across_runs
    assert gain_words(flash, LADDER).endswith(LADDER["across"])
    assert step_of(found, "flash_kv_outer").run_id == RUN_ID


def test_switches_stand_under_their_rung(made: Run) -> None:
    """Of a later run of kind "speed", with peers of its own."""
    series = "flash_q_outer_without_swizzle"
    mine = [r for r in made.rows if r.series in ("flash_q_outer", "torch_flash")]
    off = [replace(r, variant=series, median=2 * r.median) for r in mine
           if r.series == "flash_q_outer" and r.metric == "latency_ms" and r.median]  # fmt: skip
    fast = ("flash_q_outer", "flash_mma", "flash_wgmma")
    old = replace(made, rows=tuple(r for r in made.rows if r.series not in fast))
    new = replace(made, run_id="20270101-h200-speed", rows=(*mine, *off))
    runs = LadderRuns([old, new])
    found = runs.steps(PROBLEM)
    flash, step = (step_of(found, name) for name in ("flash_q_outer", series))
    assert found.index(step) == found.index(flash) + 1 and step.before is flash
    assert step.name == "04 without SWIZZLE" and not step.is_rung and flash.is_rung
    assert step.gain == pytest.approx(0.5) and not step.across_runs
    assert gain_words(step, LADDER) == LADDER["switch_slower"].format(ratio="2.00×")
    assert step_of(found, "torch_flash").run_id == "20270101-h200-speed"
    assert step_of(found, "torch_cudnn").run_id == RUN_ID
    assert series not in {mark.step.series for mark in marks_of(found, {}, runs)}
    assert step_of(found, "flash_mma").before is flash  # a switch is no rung to stand on
    go.Figure(ladder_spec(found, LADDER))


def test_slower_is_said_as_such(runs: LadderRuns) -> None:
    found = runs.steps(PROBLEM)
    flash = step_of(found, "flash_q_outer")
    assert flash.row is not None and flash.row.median
    slow = replace(flash, row=replace(flash.row, median=1e3 * flash.row.median))
    assert "slower than 03" in gain_words(slow, LADDER)
    assert gain_words(found[0], LADDER) == ""


def test_runs_are_those_of_the_device(tmp_path: Path, h200: Device) -> None:
    write_run(tmp_path, head_dims=(64,), dtypes=("float16",), seqlens=(4096,))
    write_run(tmp_path, "20270101-a100-x", "NVIDIA A100-SXM4-80GB", (64,), ("float16",), (512,))
    assert LadderRuns.on(h200, None, tmp_path).seqlens(64, "float16") == [4096]
    assert LadderRuns.on(device("a100-80gb"), None, tmp_path).seqlens(64, "float16") == [512]
    assert LadderRuns.on(device("t4"), None, tmp_path).seqlens(64, "float16") == []


def test_plotly_takes_the_ladder(runs: LadderRuns) -> None:
    spec = ladder_spec(runs.steps(PROBLEM), LADDER)
    go.Figure(spec)
    assert min(sizes(spec)) >= 12


# -- the roofline ----------------------------------------------------------------------------


def test_ceilings_are_the_data_sheets(h200: Device) -> None:
    half = Ceilings.of(h200, "float16")
    assert half.peak(False) == h200.fp32_tflops and half.peak(True) == h200.fp16_tensor_tflops
    assert half.roof(1, True) == pytest.approx(h200.hbm_bandwidth_gb_s / 1e3)
    assert half.roof(1e6, True) == half.peak(True) and half.roof(1e6, False) == half.peak(False)
    single = Ceilings.of(h200, "float32")
    assert single.tensor_tflops is None and single.peak(True) == h200.fp32_tflops
    assert Ceilings.of(device("t4"), "bfloat16").tensor_tflops is None


def marks(runs: LadderRuns, problem: AttentionProblem = PROBLEM) -> list[Mark]:
    return marks_of(runs.steps(problem), {"flash_q_outer": True}, runs)


def test_marks_stand_at_the_model_and_at_the_count(runs: LadderRuns) -> None:
    found = {mark.step.series: mark for mark in marks(runs)}
    flash, naive, peer = (found[n] for n in ("flash_q_outer", "standard_naive", "torch_flash"))
    assert flash.tensor_cores and not naive.tensor_cores and peer.tensor_cores
    assert flash.counted_intensity == pytest.approx(flash.intensity)
    assert naive.intensity < 1 < flash.intensity
    # A peer's bytes were not counted: it stands where no kernel can be further right.
    assert peer.at_most and peer.counted_intensity is None
    assert peer.intensity == pytest.approx(matmul_flops(PROBLEM) / least_bytes(PROBLEM))
    assert all(mark.intensity <= peer.intensity for mark in found.values())


def test_names_stand_apart(runs: LadderRuns, h200: Device) -> None:
    spec = roofline_spec(marks(runs), Ceilings.of(h200, "float16"), ROOFLINE)
    names = next(t for t in spec["data"] if t["name"] == "names")
    words = [text.replace("&nbsp;", "").replace("<br>", "") for text in names["text"]]
    assert words == [mark.step.name for mark in marks(runs)]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("slug", ["h200", "t4"])
def test_plotly_takes_the_roofline(runs: LadderRuns, dtype: str, slug: str) -> None:
    ceilings = Ceilings.of(device(slug), dtype)
    for found in (marks(runs, replace(PROBLEM, dtype=dtype)), []):
        spec = roofline_spec(found, ceilings, ROOFLINE)
        go.Figure(spec)
        assert min(sizes(spec)) >= 12


# -- its measured ceilings -------------------------------------------------------------------


def measured_of(root: Path, h200: Device, dtype: str, *leave_out: str) -> Ceilings | None:
    write_ceilings_run(root, leave_out)
    return Ceilings.measured(MeasuredCeilings.on(h200, root), dtype)


def test_measured_ceilings_are_those_of_the_run(tmp_path: Path, h200: Device) -> None:
    half = measured_of(tmp_path, h200, "float16")
    wanted = (rate_of("hbm_read"), rate_of("fp32_fma"), rate_of("matmul_fp16"))
    assert half
    assert (half.bandwidth_gb_s, half.fp32_tflops, half.tensor_tflops) == pytest.approx(wanted)
    found = MeasuredCeilings.on(h200, tmp_path)
    brain, single = (Ceilings.measured(found, dtype) for dtype in ("bfloat16", "float32"))
    assert brain and brain.tensor_tflops == pytest.approx(rate_of("matmul_bf16"))
    assert single and single.tensor_tflops is None
    assert Ceilings.measured(MeasuredCeilings(), "float16") is None


def test_a_run_without_bandwidth_has_no_roof(tmp_path: Path, h200: Device) -> None:
    assert measured_of(tmp_path, h200, "float16", "hbm_read", "hbm_copy") is None


def test_without_one_of_two_bandwidths_the_other_is_the_roof(tmp_path: Path, h200: Device) -> None:
    roof = measured_of(tmp_path, h200, "float16", "hbm_read")
    assert roof and roof.bandwidth_gb_s == pytest.approx(rate_of("hbm_copy"))


def test_the_measured_roof_is_dashed_and_says_its_numbers(
    runs: LadderRuns, tmp_path: Path, h200: Device
) -> None:
    sheet = Ceilings.of(h200, "float16")
    measured = measured_of(tmp_path, h200, "float16")
    without = roofline_spec(marks(runs), sheet, ROOFLINE)
    both = roofline_spec(marks(runs), sheet, ROOFLINE, measured)
    go.Figure(both)
    names = [trace["name"] for trace in both["data"]]
    assert [n for n in names if n != "measured ceilings"] == [t["name"] for t in without["data"]]
    dashed = next(t for t in both["data"] if t["name"] == "measured ceilings")
    assert dashed["line"]["dash"] == "dash"
    assert measured and max(y for y in dashed["y"] if y) == measured.tensor_tflops
    words = next(t for t in both["data"] if t["name"] == "ceiling words")["text"]
    assert [text.count("measured") for text in words] == [1, 1, 0]
    assert words[2].endswith(f"; cuBLAS (4096 × 4096 × 4096): {measured.tensor_tflops:.0f}")
    assert not any(
        "measured" in text for trace in without["data"] for text in trace.get("text", [])
    )
