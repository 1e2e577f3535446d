"""The memory of a training step: N² if P is kept, N if it is rebuilt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fa_kernels.device import Device
from fa_kernels.figures.recorded_backward import KEEPS_P, REBUILDS_P, RecordedBackward
from fa_kernels.figures.saved_memory import (
    PEAK,
    RECORDED,
    SAVED,
    SEQLENS,
    SHOWN,
    SavedAt,
    power,
    power_words,
    saved_memory_spec,
)
from fa_kernels.problem import AttentionProblem
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.text import labels
from tests.figures.synthetic_backward import write_backward_run

TEXT = labels("saved_memory")


def along_n(runs: RecordedBackward, heads: int = 2) -> list[SavedAt]:
    sizes = [AttentionProblem(1, heads, n, n, 64, "float16") for n in SEQLENS]
    return [SavedAt.of(problem, runs) for problem in sizes]


@pytest.fixture
def recorded(tmp_path: Path, h200: Device) -> list[SavedAt]:
    write_backward_run(tmp_path)
    return along_n(RecordedBackward.on(h200, tmp_path))


def test_powers_of_n(recorded: list[SavedAt]) -> None:
    assert power(recorded, SAVED, KEEPS_P) == pytest.approx(2)
    assert power(recorded, SAVED, REBUILDS_P) == pytest.approx(1)
    for kind in (PEAK, RECORDED):
        assert power(recorded, kind, KEEPS_P) == pytest.approx(2, abs=0.03)
        assert power(recorded, kind, REBUILDS_P) == pytest.approx(1, abs=0.01)
    assert power(along_n(RecordedBackward()), RECORDED, KEEPS_P) is None


def test_the_peak_by_hand() -> None:
    """fp16, one head: P and dP beside O, lse, dQ, dK, dV; or an fp32 dQ and delta beside them."""
    n, d = 512, 64
    problem = AttentionProblem(1, 1, n, n, d, "float16")
    outputs, gradients = 2 * n * d + 4 * n, 3 * 2 * n * d
    kept = VARIANTS[KEEPS_P].step_bytes(problem)
    assert kept == outputs + gradients + 2 * 2 * n * n
    rebuilt = VARIANTS[REBUILDS_P].step_bytes(problem)
    assert rebuilt == outputs + gradients + 4 * n * d + 4 * n


def test_recorded_points_have_markers_of_their_own(recorded: list[SavedAt], h200: Device) -> None:
    spec = saved_memory_spec(recorded, h200, TEXT)
    traces = {trace["name"]: trace for trace in spec["data"]}
    dots = traces["standard_tiled, recorded"]
    assert dots["marker"]["symbol"] == "square-open" and len(dots["x"]) == len(SEQLENS) - 1
    assert traces["standard_tiled, not run"]["x"] == [SEQLENS[-1]]
    assert "does not fit" in traces["standard_tiled, not run"]["hovertext"][0]
    assert traces["flash_q_outer, not run"]["x"] == []
    heads = [note["text"] for note in spec["layout"]["annotations"]]
    assert TEXT["legend_dots"] in heads[1] and "N<sup>2.00</sup>" in heads[0]


def test_without_a_run_the_model_stands_alone_and_says_so(h200: Device) -> None:
    spec = saved_memory_spec(along_n(RecordedBackward()), h200, TEXT)
    traces = {trace["name"]: trace for trace in spec["data"]}
    assert all(traces[f"{name}, recorded"]["x"] == [] for name in SHOWN)
    assert TEXT["legend_no_dots"] in spec["layout"]["annotations"][1]["text"]


def test_what_exceeds_the_device_is_crossed_out(h200: Device) -> None:
    spec = saved_memory_spec(along_n(RecordedBackward(), heads=32), h200, TEXT)
    crosses = next(t for t in spec["data"] if t["name"] == "standard_tiled, not run")
    assert 65536 in crosses["x"] and crosses["hovertext"][0] == TEXT["too_large"]
    top = 10 ** spec["layout"]["yaxis2"]["range"][1]
    assert max(crosses["y"]) < top


def test_both_panels_share_their_axis(recorded: list[SavedAt], h200: Device) -> None:
    layout = saved_memory_spec(recorded, h200, TEXT)["layout"]
    assert layout["yaxis"]["range"] == layout["yaxis2"]["range"]


def test_one_point_has_no_slope(recorded: list[SavedAt]) -> None:
    one = [replace(recorded[-1])]
    assert power_words(power(one, SAVED, KEEPS_P)) == ""
