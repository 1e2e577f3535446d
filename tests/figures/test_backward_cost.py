"""What rebuilding costs and saves: products, FLOPs, bytes, bounds, and the picture of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fa_kernels.device import Device, device
from fa_kernels.figures import theme
from fa_kernels.figures.backward_cost import (
    DETERMINISTIC,
    ON_TENSOR_CORES,
    READS_P,
    REBUILDS,
    WAYS,
    Cost,
    FastTimes,
    Way,
    cost_of,
    costs,
    faster_at,
    recorded_in,
)
from fa_kernels.figures.recompute import recompute_spec
from fa_kernels.figures.recorded_backward import RecordedBackward
from fa_kernels.problem import AttentionProblem
from fa_kernels.widgets.text import labels
from tests.figures.synthetic_backward import RUN_ID, write_backward_run
from tests.figures.synthetic_speed import BACKWARD_ID, BACKWARD_RATES, SPEED_ID, write_speed_run

TEXT = labels("recompute_cost")
TENSOR_CORES, WARPGROUPS = ON_TENSOR_CORES
POINT = AttentionProblem.of_tokens(4096, 64)


@pytest.fixture
def runs(tmp_path: Path, h200: Device) -> RecordedBackward:
    write_backward_run(tmp_path)
    return RecordedBackward.on(h200, tmp_path)


@pytest.fixture
def fast(tmp_path: Path, h200: Device) -> FastTimes:
    write_speed_run(tmp_path)
    write_speed_run(tmp_path, BACKWARD_ID, pass_="bwd")
    return FastTimes.on(h200, None, tmp_path)


@pytest.fixture
def found(runs: RecordedBackward, fast: FastTimes, h200: Device) -> list[Cost]:
    return costs(POINT, h200, runs, fast)


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
    reads = cost_of(READS_P, found)
    # P read for dV and dS, dP written and read, dS written and read for dQ and for dK.
    assert reads.scores_bytes == 7 * 2 * POINT.heads * POINT.seqlen_q**2
    assert cost_of(TENSOR_CORES, found).scores_bytes == 0


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
    fast, rebuilds = cost_of(TENSOR_CORES, found), cost_of(REBUILDS, found)
    assert fast.flops == rebuilds.flops
    peak = h200.peak_tflops("float16", tensor_cores=True) * 1e12
    assert fast.arithmetic_ms == pytest.approx(1e3 * fast.flops / peak)


def test_tensor_cores_have_runs_and_tiles_of_their_own(
    found: list[Cost], runs: RecordedBackward, fast: FastTimes, h200: Device
) -> None:
    cost = cost_of(TENSOR_CORES, found)
    assert cost.backward_ms == pytest.approx(
        cost.flops / BACKWARD_RATES["flash_mma"] / 1e9, rel=1e-4
    )
    assert cost.forward_ms and cost.backward_ms and cost.forward_ms < cost.backward_ms
    assert cost.counted_bytes is None
    assert recorded_in(found, runs, fast) == [RUN_ID, BACKWARD_ID, SPEED_ID]
    assert recorded_in(found[:-2], runs, fast) == [RUN_ID]
    alone = costs(POINT, h200, RecordedBackward(), fast)
    assert recorded_in(alone, RecordedBackward(), fast) == [BACKWARD_ID, SPEED_ID]
    # Bytes of the forward are those of its own tiles, which differ from the backward's.
    variant = TENSOR_CORES.algorithm
    tiling = variant.tiling_for(POINT, h200.smem_per_block_bytes)
    assert tiling != cost.at.tiling
    assert cost.forward_traffic == variant.launched(POINT, tiling)


def test_other_tiles_of_the_backward_are_another_call(fast: FastTimes, h200: Device) -> None:
    at = cost_of(TENSOR_CORES, costs(POINT, h200, RecordedBackward(), fast)).at
    assert fast.backward_ms(at)
    assert fast.backward_ms(replace(at, tiling=replace(at.tiling, block_m=16))) is None
    assert fast.backward_ms(replace(at, problem=AttentionProblem.of_tokens(4095, 64))) is None


def test_no_tensor_cores_for_fp32_and_old_gpus(h200: Device) -> None:
    fp32 = AttentionProblem.of_tokens(4096, 64, "float32")
    for problem, sheet in ((fp32, h200), (POINT, device("t4"))):
        ways = [cost.way for cost in costs(problem, sheet, RecordedBackward())]
        assert ways == [way for way in WAYS if way not in ON_TENSOR_CORES]


def test_a_rung_is_left_out_where_its_backward_takes_no_such_call(h200: Device) -> None:
    def ways(d: int, sheet: Device) -> list[Way]:
        problem = AttentionProblem.of_tokens(4096, d)
        return [c.way for c in costs(problem, sheet, RecordedBackward()) if c.way.on_tensor_cores]

    assert ways(64, h200) == ways(128, h200) == [TENSOR_CORES, WARPGROUPS]
    assert ways(256, h200) == [TENSOR_CORES], "06 takes d up to 128"
    assert ways(64, device("a100-80gb")) == [TENSOR_CORES], "06 is written for Hopper"


def test_the_recorded_run_holds_what_06_says(h200: Device) -> None:
    """One product costs less than the matrices; on the fp32 units arithmetic binds."""
    runs, fast = RecordedBackward.on(h200), FastTimes.on(h200)
    for d in (64, 128, 256):
        for n in (512, 1024, 2048, 4096, 8192, 16384):
            known = costs(AttentionProblem.of_tokens(n, d), h200, runs, fast)
            reads, quick, slow = (cost_of(w, known) for w in (READS_P, TENSOR_CORES, REBUILDS))
            assert quick.backward_ms
            scores_ms = reads.scores_bytes / (h200.hbm_bandwidth_gb_s * 1e6)
            assert scores_ms > quick.backward_ms / 5
            if d <= 128:
                quickest = cost_of(WARPGROUPS, known)
                assert quickest.backward_ms and quickest.backward_ms < quick.backward_ms
            assert slow.arithmetic_ms > slow.bytes_ms


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
    low, high = (10**end for end in spec["layout"]["xaxis2"]["range"])
    for name in ("forward", "backward", "bytes", "arithmetic"):
        trace = next(t for t in spec["data"] if t["name"] == name)
        ends = [x + base for x, base in zip(trace["x"], trace.get("base", [0] * 9), strict=False)]
        assert low < min(ends) and max(ends) < high
    ticks = spec["layout"]["xaxis2"]["tickvals"]
    assert 3 <= len(ticks) <= 8 and low < ticks[0] and ticks[-1] < high


def test_bars_end_at_their_times(found: list[Cost]) -> None:
    bars = next(t for t in recompute_spec(found, TEXT)["data"] if t["name"] == "backward")
    ends = [base + x for base, x in zip(bars["base"], bars["x"], strict=True)]
    assert ends == pytest.approx([cost.backward_ms for cost in found if cost.backward_ms])
    assert len(ends) == len(found) - 1, "the made-up run has no 06"
