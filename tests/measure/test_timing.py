"""Percentiles, repetitions and interleaving; the clock itself is CUDA's."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_kernels.figures.recorded_speed import PRODUCTS
from fa_kernels.masks import matmul_flops
from fa_kernels.measure import timing
from fa_kernels.measure.timing import LONG_MS, repetitions, summarise, time_interleaved
from fa_kernels.problem import AttentionProblem
from tests.reference.problems import bounded


def test_summary_by_hand() -> None:
    assert summarise([5.0, 1.0, 4.0, 2.0, 3.0]) == timing.Latency(1.0, 3.0, 4.0, 5)
    assert summarise([2.0, 1.0]) == timing.Latency(1.0, 1.5, 2.0, 2)
    assert summarise([7.0]) == timing.Latency(7.0, 7.0, 7.0, 1)


@given(st.lists(st.floats(0.001, 1e4), min_size=1, max_size=23))
@bounded
def test_percentiles_are_nearest_rank(samples: list[float]) -> None:
    got = summarise(samples)
    ordered, n = sorted(samples), len(samples)
    assert got.p20 == ordered[math.ceil(Fraction(1, 5) * n) - 1]
    assert got.p80 == ordered[math.ceil(Fraction(4, 5) * n) - 1]
    assert ordered[0] <= got.p20 <= got.median <= got.p80 <= ordered[-1]
    assert got.n == n


@pytest.mark.parametrize(
    ("ms", "n"), [(0.0, 20), (0.001, 20), (10.0, 20), (20.0, 10), (50.0, 4), (100.0, 3), (3e3, 3)]
)
def test_repetitions_fit_a_budget(ms: float, n: int) -> None:
    assert repetitions(ms) == n


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every call takes the next number of milliseconds; the order of calls is kept."""
    order: list[Any] = []

    def time_once(call: Callable[[], Any], flush: Any) -> float:
        order.append(call)
        return float(len(order))

    monkeypatch.setattr(timing, "time_once", time_once)
    return order


def timed(
    calls: list[Callable[[], Any]],
    first_ms: list[float],
    cancelled: Callable[[], bool] = lambda: False,
) -> list[timing.Latency | None]:
    return time_interleaved(calls, None, first_ms, cancelled)  # type: ignore[arg-type]


def calls(n: int) -> list[Callable[[], Any]]:
    return [lambda: None for _ in range(n)]


def test_calls_are_interleaved_round_by_round(clock: list[Any]) -> None:
    a, b = calls(2)
    first, second = timed([a, b], [50.0, 50.0])
    assert clock == [a, b] * 4
    assert first is not None and second is not None
    assert (first.n, second.n) == (4, 4)
    assert first.median == 4.0 and second.median == 5.0  # 1 3 5 7 and 2 4 6 8


def test_slow_calls_are_repeated_less_and_their_first_timing_counts(clock: list[Any]) -> None:
    a, b = calls(2)
    fast, slow = timed([a, b], [50.0, LONG_MS + 1])
    assert fast is not None and slow is not None
    assert clock.count(a) == fast.n == 4
    assert slow.n == 3 and clock.count(b) == 2
    assert slow.p80 == LONG_MS + 1


def test_cancelling_keeps_the_rounds_that_are_done(clock: list[Any]) -> None:
    a, b = calls(2)
    results = timed([a, b], [1.0, 1.0], lambda: len(clock) >= 6)
    assert [r.n for r in results if r] == [3, 3]


def test_cancelling_at_once_times_nothing(clock: list[Any]) -> None:
    results = timed(calls(3), [1.0] * 3, lambda: True)
    assert results == [None] * 3
    assert not clock


def test_nothing_to_time(clock: list[Any]) -> None:
    assert timed([], []) == [] == clock


# -- the state of the L2 --------------------------------------------------------------------------


HOLD = "hold 1000000"  # ns


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is queued on the GPU, in order."""
    queued: list[str] = []

    class Event:
        def record(self) -> None:
            queued.append("event")

        def synchronize(self) -> None:
            pass

    data = SimpleNamespace(memset_async=lambda value, nbytes: queued.append(f"write {nbytes}"))
    cuda = SimpleNamespace(
        Event=Event,
        get_elapsed_time=lambda start, stop: 1.5,
        runtime=SimpleNamespace(memGetInfo=lambda: (0, 2**37)),
    )
    cupy = SimpleNamespace(
        cuda=cuda,
        empty=lambda n, dtype: SimpleNamespace(data=data, nbytes=n),
        RawKernel=lambda source, name: lambda grid, block, args: queued.append(f"{name} {args[0]}"),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return queued


def test_a_cold_call_follows_a_write_beyond_the_l2(stream: list[str]) -> None:
    """And a wait, in which the host queues the call."""
    assert timing.time_once(lambda: stream.append("call"), timing.Flush()) == 1.5
    assert stream == ["write 1073741824", HOLD, "event", "call", "event"]


def test_a_warm_call_follows_itself_and_a_wait(stream: list[str]) -> None:
    """The wait touches no memory."""
    assert timing.time_once(lambda: stream.append("call"), timing.WarmL2()) == 1.5
    assert stream == ["call", HOLD, "event", "call", "event"]


def test_a_run_says_how_its_calls_found_the_l2_and_what_a_flop_is() -> None:
    cold, warm = timing.METHODS["cold"], timing.METHODS["warm"]
    assert cold == timing.METHOD and "empties the L2" in cold and "L2 holds" not in cold
    assert "L2 holds what it can" in warm and "empties the L2" not in warm
    assert all("N (N + 1) / 2 pairs" in text for text in (cold, warm))
    problem = AttentionProblem(1, 1, 8, 8, 16, "float16", "bottom_right")
    assert matmul_flops(problem) == 4 * 16 * 8 * 9 // 2
    assert PRODUCTS["bwd"] / PRODUCTS["fwd"] == 2.5, "what the method says of a backward"


def test_the_kernel_that_waits_compiles() -> None:
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc")
    program = nvrtc.createProgram(timing._HOLD, "hold.cu", [], [])
    nvrtc.compileProgram(program, ["--gpu-architecture=sm_90"])
    assert nvrtc.getCUBIN(program)
