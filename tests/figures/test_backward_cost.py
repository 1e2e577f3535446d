"""What rebuilding costs and saves: products, FLOPs, bytes, bounds, and the picture of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_kernels.device import Device
from fa_kernels.figures import theme
from fa_kernels.figures.backward_cost import (
    DETERMINISTIC,
    READS_P,
    REBUILDS,
    WAYS,
    Cost,
    cost_of,
    costs,
    faster_at,
)
from fa_kernels.figures.recompute import recompute_spec
from fa_kernels.figures.recorded_backward import RecordedBackward
from fa_kernels.problem import AttentionProblem
from fa_kernels.widgets.text import labels
from tests.figures.synthetic_backward import write_backward_run

TEXT = labels("recompute_cost")
POINT = AttentionProblem.of_tokens(4096, 64)


@pytest.fixture
def runs(tmp_path: Path, h200: Device) -> RecordedBackward:
    write_backward_run(tmp_path)
    return RecordedBackward.on(h200, tmp_path)


@pytest.fixture
def found(runs: RecordedBackward, h200: Device) -> list[Cost]:
    return costs(POINT, h200, runs)


def test_flops_are_exact_over_attended_pairs(h200: Device) -> None:
    causal = AttentionProblem(1, 1, 8, 8, 4, "float32", "bottom_right")
    ways = {cost.way.key: cost.flops for cost in costs(causal, h200, RecordedBackward())}
    pairs = 8 * 9 // 2
    assert ways["reads_p"] == 4 * 2 * 4 * pairs and ways["rebuilds"] == 5 * 2 * 4 * pairs
    assert ways["deterministic"] == 7 * 2 * 4 * pairs


def test_no_scores_in_the_traffic_of_what_rebuilds(found: list[Cost]) -> None:
    for cost in found:
        scores = sum(cost.traffic.of(tensor) for tensor in ("s", "p", "dp", "ds"))
        assert bool(scores) == (cost.way == READS_P)
    bytes_of = [c.traffic.total_bytes for c in (cost_of(w, found) for w in WAYS)]
    assert bytes_of[0] == max(bytes_of) and bytes_of[-1] == min(bytes_of)


def test_recorded_times_belong_to_their_way(found: list[Cost]) -> None:
    rebuilds, own_dq = cost_of(REBUILDS, found), cost_of(DETERMINISTIC, found)
    assert rebuilds.backward_ms and own_dq.backward_ms == pytest.approx(
        1.3 * rebuilds.backward_ms, rel=1e-4
    )
    assert rebuilds.counted_bytes == rebuilds.traffic.total_bytes
    assert own_dq.counted_bytes is None  # the counters ran in the other build
    assert rebuilds.step_ms == (rebuilds.forward_ms or 0) + rebuilds.backward_ms


def test_bounds_by_hand(found: list[Cost], h200: Device) -> None:
    cost = cost_of(READS_P, found)
    rate = h200.hbm_bandwidth_gb_s * 1e9
    assert cost.bytes_ms == pytest.approx(1e3 * cost.traffic.total_bytes / rate)
    peak = h200.peak_tflops("float16", tensor_cores=False) * 1e12
    assert cost.arithmetic_ms == pytest.approx(1e3 * cost.flops / peak)


def test_where_both_were_recorded(runs: RecordedBackward, h200: Device) -> None:
    ns = [n for n, _ in faster_at(POINT, h200, runs)]
    assert ns == [512, 1024, 2048, 4096, 8192, 16384]
    assert faster_at(AttentionProblem.of_tokens(4096, 32), h200, runs) == []


def test_stacks_add_up_and_gradients_are_hatched(found: list[Cost]) -> None:
    stacks = recompute_spec(found, TEXT)["data"][0]
    total = sum(cost.traffic.total_bytes for cost in found) / 1e9
    assert sum(stacks["x"]) == pytest.approx(total)
    gradients = {theme.TENSOR_COLOURS[t] for t in theme.GRADIENTS}
    shapes = stacks["marker"]["pattern"]["shape"]
    for colour, shape in zip(stacks["marker"]["color"], shapes, strict=True):
        assert (shape == "/") == (colour in gradients)


def test_without_a_run_bounds_stay_and_bars_go(h200: Device) -> None:
    spec = recompute_spec(costs(POINT, h200, RecordedBackward()), TEXT)
    traces = {trace["name"]: trace for trace in spec["data"]}
    assert traces["forward"]["x"] == traces["backward"]["x"] == []
    assert len(traces["bytes"]["x"]) == len(traces["arithmetic"]["x"]) == len(WAYS)
    assert TEXT["not_recorded"] in traces["words2"]["text"]
    assert TEXT["legend_no_bars"] in spec["layout"]["annotations"][1]["text"]


def test_every_mark_is_inside_the_axis(found: list[Cost]) -> None:
    spec = recompute_spec(found, TEXT)
    high = spec["layout"]["xaxis2"]["range"][1]
    for name in ("forward", "backward", "bytes", "arithmetic"):
        trace = next(t for t in spec["data"] if t["name"] == name)
        assert max(trace["x"]) < high
