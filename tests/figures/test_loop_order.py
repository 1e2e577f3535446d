"""One change at a time: gains, bytes, and what is said where nothing was recorded."""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go
import pytest

from fa_kernels.device import Device
from fa_kernels.figures.loop_order import (
    KV_OUTER,
    ONE_BLOCK,
    PARALLEL,
    Q_OUTER,
    SWAP,
    loop_order_spec,
    order_at,
)
from fa_kernels.figures.point import Point
from fa_kernels.figures.recorded_numbers import RecordedNumbers
from fa_kernels.measure.records import load_run
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.units import KIB
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.text import labels
from tests.figures.synthetic import RUN_ID, write_run
from tests.figures.test_explorer import sizes

TEXT = labels("loop_order")
SEQLENS = (256, 1024, 4096)


def points(h200: Device) -> list[Point]:
    return [
        Point(AttentionProblem.of_tokens(n, 64), 64 * KIB, Tiling(64, 128), h200) for n in SEQLENS
    ]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> RecordedNumbers:
    root: Path = tmp_path_factory.mktemp("grid")
    write_run(root, head_dims=(64,), dtypes=("float16",), seqlens=SEQLENS)
    return RecordedNumbers([load_run(RUN_ID, root)])


def test_controls_isolate_one_change() -> None:
    """The middle variant is a control for the last one, and shares its model."""
    assert VARIANTS[ONE_BLOCK].control_for == Q_OUTER
    assert VARIANTS[ONE_BLOCK].launched is VARIANTS[Q_OUTER].launched
    assert SWAP == (KV_OUTER, ONE_BLOCK) and PARALLEL == (ONE_BLOCK, Q_OUTER)


def test_gains_are_ratios_of_recorded_times(h200: Device, numbers: RecordedNumbers) -> None:
    for point in points(h200):
        order = order_at(point, numbers)
        swap, parallel = order.gain(SWAP), order.gain(PARALLEL)
        first, last = order.latency[KV_OUTER], order.latency[Q_OUTER]
        assert swap and parallel and first and last
        assert swap * parallel == pytest.approx(first.value / last.value)


def test_with_and_without_a_run_plotly_takes_it(h200: Device, numbers: RecordedNumbers) -> None:
    for found in (numbers, RecordedNumbers()):
        spec = loop_order_spec([order_at(point, found) for point in points(h200)], TEXT)
        go.Figure(spec)
        assert min(sizes(spec)) >= 12
        words = " ".join(note["text"] for note in spec["layout"]["annotations"])
        assert (TEXT["empty"] in words) == (found is not numbers)
        marks = next(t for t in spec["data"] if t["name"] == "bytes")
        assert len(marks["x"]) == len(SEQLENS)  # the model is always there
