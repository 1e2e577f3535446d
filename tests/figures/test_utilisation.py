"""Counters beside predictions: shares of the right peaks, the fastest tiles, what is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import plotly.graph_objects as go
import pytest

from fa_kernels.device import Device, device
from fa_kernels.figures.utilisation import (
    DRAM,
    FMA,
    ISSUE,
    L2,
    PANELS,
    TENSOR,
    RecordedCounters,
    Used,
    utilisation_spec,
    value_words,
)
from fa_kernels.measure.records import COUNTER_UNITS, Row
from fa_kernels.problem import AttentionProblem
from fa_kernels.widgets.text import labels
from tests.measure.rows import row, write_run

TEXT = labels("utilisation")
PROBLEM = AttentionProblem.of_tokens(4096, 64)
#: 550 GFLOP in 20 ms.
COUNTED = {
    "ncu_latency_ms": 20.0, "fma_pct": 50.0, "sm_pct": 70.0, "tensor_pct": 0.0,
    "l2_bytes": 8e9, "dram_bytes": 0.96e9, "occupancy_pct": 12.5,
}  # fmt: skip


def rows(variant: str, provider: str = "fa_kernels", **changed: float) -> list[Row]:
    tiles: tuple[int, int] | tuple[None, None] = (64, 128)
    if provider != "fa_kernels" or variant == "standard_naive":
        tiles = (None, None)
    return [
        row(
            provider=provider, variant=variant, metric=metric, unit=COUNTER_UNITS[metric], n=1,
            p20=value, median=value, p80=value, block_m=tiles[0], block_n=tiles[1],
        )
        for metric, value in {**COUNTED, **changed}.items()
    ]  # fmt: skip


@pytest.fixture
def counters(tmp_path: Path) -> RecordedCounters:
    slow = [replace(r, block_m=32) for r in rows("flash_q_outer", ncu_latency_ms=40.0)]
    write_run(
        tmp_path, [*slow, *rows("flash_q_outer"), *rows("sdpa", "torch_flash", ncu_latency_ms=2.0)],
        "20260103-h200-counters", kind="counters",
    )  # fmt: skip
    newer = rows("flash_mma", tensor_pct=48.5, ncu_latency_ms=2.0)
    write_run(tmp_path, newer, "20260104-h200-counters", kind="counters")
    return RecordedCounters.on(device("h200"), tmp_path)


def of(counters: RecordedCounters) -> dict[str, Used]:
    return {one.series: one for one in counters.used(PROBLEM)}


def test_each_series_comes_from_the_newest_run_that_has_it(counters: RecordedCounters) -> None:
    found = of(counters)
    assert found["flash_q_outer"].run_id == "20260103-h200-counters"
    assert found["flash_mma"].run_id == "20260104-h200-counters"
    assert not found["standard_tiled"].rows and found["standard_tiled"].value(FMA) is None
    tiling = found["flash_q_outer"].tiling
    assert tiling is not None and tiling.block_m == 64, "the faster of two tilings"


def test_shares_are_of_time_and_data_sheet(counters: RecordedCounters, h200: Device) -> None:
    flash = of(counters)["flash_q_outer"]
    assert (flash.value(FMA), flash.value(ISSUE)) == (50.0, 70.0)
    assert flash.value(L2) == pytest.approx(400)  # 8 GB in 20 ms, in GB/s
    assert flash.value(DRAM) == pytest.approx(100 * 48 / h200.hbm_bandwidth_gb_s)
    assert flash.busiest == (ISSUE, 70.0)


def test_predictions_follow_from_the_models(counters: RecordedCounters, h200: Device) -> None:
    found = of(counters)
    flash, mma, peer = found["flash_q_outer"], found["flash_mma"], found["torch_flash"]
    flops = 4 * 128 * 4096**2 * 64
    assert flash.predicted(FMA) == pytest.approx(100 * flops / 20e-3 / h200.fp32_tflops / 1e12)
    assert mma.predicted(TENSOR) == pytest.approx(
        100 * flops / 2e-3 / h200.fp16_tensor_tflops / 1e12
    )
    assert flash.predicted(TENSOR) is mma.predicted(FMA) is flash.predicted(ISSUE) is None
    once = 4 * PROBLEM.q_bytes
    assert peer.predicted(DRAM) == pytest.approx(once / 2e-3 / h200.hbm_bandwidth_gb_s / 1e7)
    assert peer.predicted(L2) is None, "nobody modelled what a peer asks for"
    assert found["standard_tiled"].predicted(DRAM) is None, "no time, no rate"


def test_what_has_no_row_says_so_and_nothing_is_drawn_for_it(counters: RecordedCounters) -> None:
    found = counters.used(PROBLEM)
    spec = utilisation_spec(found, TEXT)
    go.Figure(spec)
    traces = {trace["name"]: trace for trace in spec["data"]}
    assert len(traces) == 3 * len(PANELS)
    counted = [one for one in found if one.rows]
    assert {one.series for one in counted} == {"flash_q_outer", "flash_mma", "torch_flash"}
    for panel in PANELS:
        assert len(traces[panel]["x"]) == len(counted)
        assert max(traces[panel]["x"]) <= spec["layout"][_axis(panel)]["range"][1]
    words = [word for word in traces["tensor, words"]["text"] if TEXT["not_counted"] in word]
    assert len(words) == len(found) - len(counted)


def _axis(panel: str) -> str:
    i = PANELS.index(panel)
    return f"xaxis{i + 1}" if i else "xaxis"


def test_a_counter_that_is_missing_leaves_the_others(h200: Device) -> None:
    some = {r.metric: r for r in rows("flash_mma") if r.metric != "tensor_pct"}
    one = Used("flash_mma", PROBLEM, h200, some, "20260104-h200-counters")
    assert value_words(one, TENSOR) == "" and value_words(one, FMA) == "50 %"
    spec = utilisation_spec([one], TEXT)
    words = next(t for t in spec["data"] if t["name"] == "tensor, words")["text"]
    assert words == [f"&nbsp;{TEXT['no_value']}"]


def test_recorded_pipes_do_at_least_what_the_products_need(h200: Device) -> None:
    """The committed runs: a multiplying pipe is busy for no less than its products take."""
    checked = 0
    counters = RecordedCounters.on(h200)
    for problem in counters.sizes():
        for one in counters.used(problem):
            for panel in (FMA, TENSOR, DRAM):
                value, least = one.value(panel), one.predicted(panel)
                if value is not None and least is not None:
                    # DRAM counts without what is left in the L2. The sheet's peak of the tensor
                    # cores is that of a clock below the boost clock, so it can be exceeded.
                    share = {FMA: 0.97, TENSOR: 0.85, DRAM: 0.6}[panel]
                    assert value >= share * least, (one.name, problem)
                    checked += 1
    assert checked > 50
