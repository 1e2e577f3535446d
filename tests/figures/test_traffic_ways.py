"""The figure of the five ways: every number in its place, under its own name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from fa_kernels.device import Device
from fa_kernels.figures.point import Point
from fa_kernels.figures.recorded_numbers import RecordedNumbers
from fa_kernels.figures.traffic_ways import (
    COUNTED,
    DRAM,
    L2,
    LAUNCHED,
    PAPER,
    WAYS,
    all_ways,
    traffic_ways_spec,
)
from fa_kernels.measure.records import load_run
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.units import KIB
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.text import labels
from tests.figures.synthetic_counters import COUNTERS_ID, write_counters
from tests.figures.test_explorer import sizes

TEXT = labels("traffic_ways")
#: Algorithms and controls; the same algorithm on other units has other tiles and no row.
SHOWN = [name for name, v in VARIANTS.items() if v.same_algorithm is None]


def point_at(h200: Device, n: int = 4096, dtype: str = "float16") -> Point:
    problem = AttentionProblem.of_tokens(n, 64, dtype)
    return Point(problem, 64 * KIB, Tiling(64, 128).clipped(n, n), h200)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> RecordedNumbers:
    root: Path = tmp_path_factory.mktemp("counters")
    write_counters(root)
    return RecordedNumbers([load_run(COUNTERS_ID, root)])


def trace(spec: dict[str, Any], name: str) -> dict[str, Any]:
    return next(t for t in spec["data"] if t["name"] == name)


def test_models_are_the_variants_own(h200: Device) -> None:
    point = point_at(h200)
    for row in all_ways(point, RecordedNumbers()):
        variant = VARIANTS[row.variant]
        assert row.bytes[PAPER] == variant.paper(point.problem, point.tiling).total_bytes
        assert row.bytes[LAUNCHED] == variant.launched(point.problem, point.tiling).total_bytes
        assert row.bytes[COUNTED] is row.bytes[L2] is row.bytes[DRAM] is None
        assert row.l2_share is None and not row.runs


def test_counters_come_with_their_run(h200: Device, numbers: RecordedNumbers) -> None:
    for row in all_ways(point_at(h200), numbers):
        assert row.bytes[L2] and row.bytes[DRAM] and row.bytes[COUNTED] is None
        assert row.runs == {L2: COUNTERS_ID, DRAM: COUNTERS_ID}
        assert row.l2_share is not None and 0 <= row.l2_share < 1
        # With what was left in the L2, or a call could move less than its outputs.
        assert row.written_back and (row.bytes[DRAM] or 0) >= row.compulsory_bytes


@pytest.mark.parametrize("n", [1, 113, 4096])
@pytest.mark.parametrize("recorded", [True, False])
def test_plotly_takes_it_and_words_are_large_enough(
    n: int, recorded: bool, h200: Device, numbers: RecordedNumbers
) -> None:
    rows = all_ways(point_at(h200, n), numbers if recorded else RecordedNumbers())
    spec = traffic_ways_spec(rows, TEXT)
    go.Figure(spec)
    assert min(sizes(spec)) >= 12
    assert len(trace(spec, LAUNCHED)["x"]) == len(SHOWN)
    nothing = [w for w in trace(spec, "words")["text"] if w == TEXT["say"]["nothing"]]
    assert len(nothing) == (0 if recorded and n == 4096 else len(SHOWN))


def test_every_number_lies_on_the_axis(h200: Device, numbers: RecordedNumbers) -> None:
    import math

    spec = traffic_ways_spec(all_ways(point_at(h200), numbers), TEXT)
    low, high = spec["layout"]["xaxis"]["range"]
    for way in WAYS:
        assert all(low < math.log10(x) < high for x in trace(spec, way)["x"])


def test_every_algorithm_and_control_has_a_row(h200: Device) -> None:
    assert [row.variant for row in all_ways(point_at(h200), RecordedNumbers())] == SHOWN


def test_fp32_leaves_out_the_16_bit_variant(h200: Device) -> None:
    rows = all_ways(point_at(h200, dtype="float32"), RecordedNumbers())
    assert {row.variant for row in rows} == set(SHOWN) - {"flash_kv_outer_io"}
