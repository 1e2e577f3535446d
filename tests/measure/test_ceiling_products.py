"""Products by cuBLAS: sizes and layouts, short and long, fp16 and bf16 in turns; in NumPy here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fa_kernels.measure import ceiling_attempts, ceiling_products, ceiling_timing, gemm
from fa_kernels.measure.ceiling_attempts import MATMUL, Gpu, product_sides, products
from fa_kernels.measure.ceiling_products import PRODUCT_CEILINGS, measure_products
from fa_kernels.measure.ceiling_records import CEILINGS, LATER, row_fault
from fa_kernels.measure.gemm import LAYOUTS, Gemm
from tests.measure import fake_ceilings
from tests.measure.fake_ceilings import GPU

SIDES = (16, 32)


class Turns:
    """Which dtype was timed or kept busy, in order."""

    def __init__(self) -> None:
        self.timed: list[str] = []
        self.sustained: list[str] = []
        self.pauses = 0


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    seen, last = Turns(), [""]

    def multiply(dtype: str, layout: str = "NN") -> Callable[[Any, Any, Any], None]:
        real = fake_ceilings.multiply(dtype, layout)

        def run(a: Any, b: Any, out: Any) -> None:
            last[0] = dtype
            real(a, b, out)

        return run

    def timed_ms(run: Callable[[], None]) -> float:
        run()
        seen.timed.append(last[0])
        return 1.0 if last[0] == "float16" else 2.0

    def sustained_ms(run: Callable[[], None], seconds: float) -> list[float]:
        run()
        seen.sustained.append(last[0])
        # It begins fast; the second half is what counts.
        return [0.5] * 4 + ([4.0] * 4 if last[0] == "float16" else [8.0] * 4)

    def sleep(seconds: float) -> None:
        seen.pauses += 1

    monkeypatch.setitem(sys.modules, "cupy", fake_ceilings.fake_cupy())
    monkeypatch.setattr(gemm, "multiply", multiply)
    monkeypatch.setattr(ceiling_attempts, "MATMUL", SIDES)
    monkeypatch.setattr(ceiling_timing, "timed_ms", timed_ms)
    monkeypatch.setattr(ceiling_timing, "sustained_ms", sustained_ms)
    monkeypatch.setattr(ceiling_products.time, "sleep", sleep)
    return seen


def test_short_and_long_are_rows_of_their_own(turns: Turns) -> None:
    rows = {row.ceiling: row for row in measure_products(GPU)}
    assert tuple(rows) == PRODUCT_CEILINGS
    assert set(PRODUCT_CEILINGS) <= set(CEILINGS) and set(PRODUCT_CEILINGS[2:]) <= set(LATER)
    assert not [fault for row in rows.values() if (fault := row_fault(row))]
    flop = 2.0 * SIDES[-1] ** 3
    for name, ms in zip(PRODUCT_CEILINGS, (1.0, 2.0, 4.0, 8.0), strict=True):
        assert rows[name].median == pytest.approx(flop / ms * 1e3 / 1e12), name
        assert rows[name].detail.startswith("32 × 32 × 32, ")
        assert f"fastest of {len(SIDES) * len(LAYOUTS)}; " in rows[name].detail
    assert "after pauses of 50 ms" in rows["matmul_fp16"].detail
    assert "back to back" in rows["matmul_fp16_sustained"].detail
    assert rows["matmul_fp16_sustained"].n == 8, "the second halves of two turns"


def test_the_dtypes_take_turns(turns: Turns) -> None:
    measure_products(GPU)
    bursts = turns.timed[-2 * ceiling_timing.SAMPLES :]
    assert bursts == ["float16", "bfloat16"] * ceiling_timing.SAMPLES
    assert turns.pauses == 2 * ceiling_timing.SAMPLES
    assert turns.sustained == ["float16", "bfloat16", "bfloat16", "float16"]


def test_the_clock_of_each_dtype_is_that_of_its_turns(
    turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings: list[dict[str, float]] = []
    before, clocks = ceiling_timing.sustained_ms, iter([1500.0, 1400.0, 1400.0, 1500.0])

    def sustained(run: Callable[[], None], seconds: float) -> list[float]:
        readings.extend({"sm_mhz": mhz} for mhz in [1980.0] * 4 + [next(clocks)] * 6)
        return before(run, seconds)

    monkeypatch.setattr(ceiling_timing, "sustained_ms", sustained)
    rows = {row.ceiling: row for row in measure_products(GPU, readings)}
    assert rows["matmul_fp16_sustained"].sm_mhz == 1500.0
    assert rows["matmul_bf16_sustained"].sm_mhz == 1400.0
    assert rows["matmul_fp16"].sm_mhz is None


def test_a_dtype_that_is_wrong_leaves_the_other(
    turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = gemm.multiply

    def half(dtype: str, layout: str) -> Callable[[Any, Any, Any], None]:
        return (lambda a, b, out: None) if dtype == "bfloat16" else real(dtype, layout)

    monkeypatch.setattr(gemm, "multiply", half)
    statuses = {row.ceiling: (row.status, row.detail) for row in measure_products(GPU)}
    for ending in ("", "_sustained"):
        assert statuses[f"matmul_fp16{ending}"][0] == "ok"
        assert statuses[f"matmul_bf16{ending}"][0] == "failed"
        assert "wrong by" in statuses[f"matmul_bf16{ending}"][1]


def test_a_gpu_that_fails_in_the_end_is_said_of_all(
    turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(run: Callable[[], None], seconds: float) -> list[float]:
        raise RuntimeError("lost")

    monkeypatch.setattr(ceiling_timing, "sustained_ms", broken)
    rows = measure_products(GPU)
    assert [(row.status, row.detail) for row in rows] == [("failed", "RuntimeError: lost")] * 4


def test_sizes_are_those_that_leave_room() -> None:
    large, small = (Gpu(132, 2**26, free) for free in (100 * 2**30, 4 * 2**30))
    assert product_sides(large) == list(MATMUL) and product_sides(small) == [4096, 8192]
    rows = measure_products(Gpu(2, 2**20, 2**10))
    assert {row.status for row in rows} == {"failed"} and "memory" in rows[0].detail


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_layout_gives_the_product(turns: Turns, dtype: str) -> None:
    found = list(products(dtype, 32))
    assert [attempt.words.split(", ")[1] for attempt in found] == list(LAYOUTS)
    for attempt in found:
        attempt.run()
        error, allowed = attempt.error()
        assert error <= allowed


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cublas_is_asked_for_the_product(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """cublasGemmEx as documented, in NumPy: column-major, op by operand, leading dimensions n."""
    arrays: dict[int, np.ndarray] = {}

    def gemm_ex(
        handle: Any, op_a: int, op_b: int, m: int, n: int, k: int, alpha: int, a: int, kind_a: int,
        lda: int, b: int, kind_b: int, ldb: int, beta: int, c: int, kind_c: int, ldc: int,
        *how: int,
    ) -> None:  # fmt: skip
        assert m == n == k == lda == ldb == ldc and kind_a == kind_b == kind_c == 2

        def operand(pointer: int, op: int) -> np.ndarray:
            columns = arrays[pointer].T  # rows in memory are columns here
            return columns.T if op == 1 else columns

        product = operand(a, op_a).astype(np.float64) @ operand(b, op_b).astype(np.float64)
        arrays[c][:] = product.T

    cublas = SimpleNamespace(setPointerMode=lambda *args: None, gemmEx=gemm_ex)
    device = SimpleNamespace(get_cublas_handle=lambda: 0)
    cupy = SimpleNamespace(cuda=SimpleNamespace(device=device))
    libs = ModuleType("cupy_backends.cuda.libs")
    libs.cublas = cublas  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    for name in ("cupy_backends", "cupy_backends.cuda"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", libs)

    made = Gemm.of("float16", 24)
    second = np.ascontiguousarray(made.b.T) if layout == "TN" else made.b

    class Array:
        def __init__(self, values: np.ndarray) -> None:
            self.data = SimpleNamespace(ptr=len(arrays) + 1)
            self.n = len(values)
            arrays[self.data.ptr] = values

        def __len__(self) -> int:
            return self.n

    out = np.zeros_like(made.a)
    gemm.multiply("float16", layout)(Array(made.a), Array(second), Array(out))
    assert made.error(out) <= made.allowed
    assert made.error(out.T.copy()) > made.allowed
