"""Run without a GPU: both algorithms in NumPy, counted, compared with float64, cancellable."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from fa_kernels.device import device
from fa_kernels.figures.point import Point
from fa_kernels.session import Session
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.backends import CudaBackend, NumpyBackend, backend_of
from fa_kernels.widgets.run_table import METRICS, predicted, table


def silent(fraction: float, text: str) -> None:
    assert 0 <= fraction <= 1


@pytest.fixture
def point() -> Point:
    return Point.of(4096, 48, 24, "float16", device("h200"))


def test_counted_is_predicted_to_the_byte(point: Point) -> None:
    rows = list(NumpyBackend(cap=100).measure(point, silent, lambda: False))
    totals = [row for row in rows if row.metric == "hbm_bytes"]
    assert [row.variant for row in totals] == list(VARIANTS)
    for row in totals:
        assert row.seqlen_q == 100
        assert row.median == predicted(row)
        assert row.max_abs_err is not None
        assert row.max_abs_err < 2e-3
    for variant in VARIANTS:
        parts = [r.median or 0 for r in rows if r.variant == variant and r.metric != "hbm_bytes"]
        total = next(r.median for r in totals if r.variant == variant)
        assert sum(parts) == total


def test_progress_goes_forward(point: Point) -> None:
    seen: list[float] = []
    list(NumpyBackend(cap=200).measure(point, lambda f, t: seen.append(f), lambda: False))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_cancel_stops_inside_an_algorithm(point: Point) -> None:
    calls = 0

    def cancelled() -> bool:
        nonlocal calls
        calls += 1
        return calls > 1

    assert list(NumpyBackend(cap=300).measure(point, silent, cancelled)) == []


def test_the_table_shows_both(point: Point) -> None:
    rows = list(NumpyBackend(cap=64).measure(point, silent, lambda: False))
    html = table(rows, "counted in <NumPy>")
    assert html.count("<tr>") == 1 + len(VARIANTS)
    assert "counted in &lt;NumPy&gt;" in html
    assert html.count(">1.0000<") == len(VARIANTS)
    assert table([], "nothing") == ""
    assert set(METRICS) >= {"hbm_bytes", "latency_ms"}


def test_cuda_backend_calls_the_live_measurement(
    point: Point, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def measure_point(*arguments: Any) -> Any:
        seen.extend(arguments)
        return iter(["row"])

    fake = types.ModuleType("fa_kernels.measure.live")
    fake.measure_point = measure_point  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fa_kernels.measure.live", fake)
    found: list[Any] = list(CudaBackend().measure(point, silent, lambda: False))
    assert found == ["row"]
    assert seen[:2] == [point.problem, point.tiling]


def test_the_session_chooses() -> None:
    assert isinstance(backend_of(Session("cuda", "NVIDIA H200")), CudaBackend)
    assert isinstance(backend_of(Session("numpy")), NumpyBackend)
