"""The bound over M: models to the element, where curves meet the floor, and what was recorded."""

from __future__ import annotations

import plotly.graph_objects as go
import pytest

from fa_kernels.device import Device
from fa_kernels.figures.lower_bound import (
    COUNTED,
    DRAM,
    FLOOR,
    FREE,
    KV_OUTER,
    LAW,
    LINES,
    Q_OUTER,
    LowerBound,
    lower_bound_spec,
    recorded_points,
)
from fa_kernels.figures.recorded_numbers import RecordedNumbers
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.model import paper_flash_kv_outer, paper_flash_q_outer
from fa_kernels.units import KIB
from fa_kernels.widgets.setting import SRAM_KIB
from fa_kernels.widgets.text import labels

TEXT = labels("lower_bound")
SIZES = [(1, 1), (113, 64), (1023, 128), (4096, 64), (50, 256)]


@pytest.mark.parametrize(("n", "d"), SIZES)
@pytest.mark.parametrize("kib", [1, 16, 192])
def test_curves_are_the_papers_models_without_numbers_per_row(n: int, d: int, kib: int) -> None:
    problem = AttentionProblem(1, 1, n, n, d, "float16")
    tiling, bound = Tiling.from_sram(kib * KIB, d, "float16").clipped(n, n), LowerBound(n, d)
    m = kib * KIB / 2
    for moved, value in (
        (paper_flash_kv_outer(problem, tiling), bound.kv_outer(m)),
        (paper_flash_q_outer(problem, tiling), bound.q_outer(m)),
    ):
        elements = (moved.total_bytes - moved.of("lse")) / 2
        assert value * n * d == elements


@pytest.mark.parametrize(("n", "d"), SIZES)
def test_no_curve_goes_below_the_floor_and_each_meets_what_it_can(n: int, d: int) -> None:
    bound = LowerBound(n, d)
    for line in (KV_OUTER, Q_OUTER, FREE):
        values = [y for m in bound.budgets() if (y := bound.at(line, m)) is not None]
        assert min(values) >= FLOOR
        assert values == sorted(values, reverse=True), "a larger M never moves more"
    assert bound.kv_outer(bound.one_pass) == 5 and bound.free(bound.free_meets_floor) == FLOOR
    if n > 1:  # with one row there is nothing to fall from
        assert bound.kv_outer(bound.one_pass - 1) > 5
        assert (bound.free(bound.free_meets_floor - 1) or 0) > FLOOR


def test_the_law_speaks_from_d_to_nd_and_ends_below_the_floor() -> None:
    bound = LowerBound(4096, 64)
    nd = 4096 * 64
    assert bound.law(63) is None and bound.law(nd + 1) is None
    assert (bound.law(64), bound.law(nd)) == (4096, 1)
    assert bound.law(bound.law_meets_floor) == FLOOR
    # Within the theorem's range Algorithm 1 stays within a constant of the larger of law and floor.
    for m in (m for m in bound.budgets() if 64 * 64 <= m <= nd):
        assert 1 <= bound.kv_outer(m) / max(bound.law(m) or 0, FLOOR) <= 14


def test_recorded_calls_lie_where_the_models_say(h200: Device) -> None:
    """The committed runs: counts on the curves, DRAM of Q outer on the floor."""
    problem, bound = AttentionProblem.of_tokens(4096, 64), LowerBound(4096, 64)
    points = recorded_points(problem, SRAM_KIB, RecordedNumbers.on(h200, None))
    assert {(p.series, p.way) for p in points} == {
        (name, way) for name in ("flash_kv_outer_io", "flash_q_outer") for way in (COUNTED, DRAM)
    }
    for point in points:
        if point.way == COUNTED:
            line = KV_OUTER if point.series == "flash_kv_outer_io" else Q_OUTER
            # lse and what l and m add are not in the curve.
            assert point.moved == pytest.approx(bound.at(line, point.m) or 0, rel=0.05)
        elif point.series == "flash_q_outer":
            assert point.moved == pytest.approx(FLOOR, rel=0.05)
        assert point.run_id


@pytest.mark.parametrize(("n", "d"), SIZES)
def test_plotly_takes_it_and_every_point_is_on_the_axes(n: int, d: int, h200: Device) -> None:
    points = recorded_points(
        AttentionProblem.of_tokens(n, d), SRAM_KIB, RecordedNumbers.on(h200, None)
    )
    spec = lower_bound_spec(LowerBound(n, d), points, h200, 2, TEXT)
    go.Figure(spec)
    assert [trace["name"] for trace in spec["data"]] == [*LINES, "floor", COUNTED, DRAM]
    low, high = spec["layout"]["yaxis"]["range"]
    for trace in spec["data"]:
        assert all(10**low <= y <= 10**high for y in trace["y"])
    law = next(trace for trace in spec["data"] if trace["name"] == LAW)
    assert all(d <= m <= n * d for m in law["x"])
    assert len(set(spec["layout"]["xaxis"]["tickvals"])) == len(spec["layout"]["xaxis"]["tickvals"])
