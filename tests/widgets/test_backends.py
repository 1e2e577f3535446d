"""Run without a GPU: every algorithm in NumPy, counted, compared with float64, cancellable."""

from __future__ import annotations

import sys
import types
from dataclasses import replace
from typing import Any

import pytest

from fa_kernels.device import device
from fa_kernels.figures.point import Point
from fa_kernels.session import Session
from fa_kernels.variants import ALGORITHMS, VARIANTS
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
    assert [row.variant for row in totals] == list(ALGORITHMS)
    for row in totals:
        assert row.seqlen_q == 100
        assert row.median == predicted(row)
        assert row.max_abs_err is not None
        assert row.max_abs_err < 2e-3
    for variant in ALGORITHMS:
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
    assert html.count("<tr>") == 1 + len(ALGORITHMS)
    assert "counted in &lt;NumPy&gt;" in html
    assert html.count(">1.0000<") == len(ALGORITHMS)
    assert table([], "nothing") == ""
    assert set(METRICS) >= {"hbm_bytes", "latency_ms"}


@pytest.mark.parametrize("pattern", ["dense", "local"])
def test_cuda_backend_calls_the_live_measurement(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def measure_point(*arguments: Any) -> Any:
        seen.extend(arguments)
        return iter(["row"])

    fake = types.ModuleType("fa_kernels.measure.live")
    fake.measure_point = measure_point  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fa_kernels.measure.live", fake)
    point = Point.of(4096, 48, 24, "float16", device("h200"), pattern, 1 / 4)
    found: list[Any] = list(CudaBackend().measure(point, silent, lambda: False))
    assert found == ["row"]
    mask = point.blocks.mask() if point.blocks else None
    assert seen[:2] == [replace(point.problem, block_mask=mask), point.tiling]


def test_numpy_runs_the_pattern(point: Point) -> None:
    sparse = Point.of(4096, 48, 24, "float16", device("h200"), "butterfly", 1 / 4)
    rows = list(NumpyBackend(cap=400).measure(sparse, silent, lambda: False))
    for row in (row for row in rows if row.metric == "hbm_bytes"):
        variant = VARIANTS[row.variant]
        assert bool(row.block_mask) == (row.density < 1) == variant.block_sparse
        assert row.median == predicted(row)
        assert row.max_abs_err is not None
        assert row.max_abs_err < 2e-3
    html = table(rows, "counted")
    assert html.count(">1.0000<") == len(ALGORITHMS)
    assert "butterfly block mask" in html
    assert "(the standard variants: dense)" in html


def test_numpy_runs_bf16() -> None:
    pytest.importorskip("ml_dtypes")
    point = Point.of(4096, 48, 24, "bfloat16", device("h200"))
    rows = list(NumpyBackend(cap=64).measure(point, silent, lambda: False))
    assert {row.dtype for row in rows} == {"bfloat16"}
    errors = [row.max_abs_err for row in rows if row.max_abs_err is not None]
    assert 1e-4 < max(errors) < 2e-2


def test_bf16_without_its_package_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    point = Point.of(4096, 48, 24, "bfloat16", device("h200"))
    with pytest.raises(ModuleNotFoundError, match="pip install ml_dtypes"):
        list(NumpyBackend(cap=64).measure(point, silent, lambda: False))


def test_the_session_chooses() -> None:
    assert isinstance(backend_of(Session("cuda", "NVIDIA H200")), CudaBackend)
    assert isinstance(backend_of(Session("numpy")), NumpyBackend)
