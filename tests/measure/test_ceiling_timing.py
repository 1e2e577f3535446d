"""Launches timed one by one and on and on: with events that count, in the place of a GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from fa_kernels.measure import ceiling_timing
from fa_kernels.measure.ceiling_attempts import Attempt
from fa_kernels.measure.ceiling_timing import (
    WrongResult,
    clock_at_work,
    fastest_of,
    median_clock,
    sustained_ms,
    timed_ms,
)


class FakeGpu:
    """Launches take `ms` each, one after another; an event is done once it is waited for."""

    def __init__(self, ms: float) -> None:
        self.ms, self.now, self.launches, self.waited = ms, 0.0, 0, 0
        self.most_ahead = 0

    def run(self) -> None:
        self.launches += 1
        self.now += self.ms
        self.most_ahead = max(self.most_ahead, self.launches - self.waited)

    def event(self) -> Any:
        made = SimpleNamespace(at=0.0, of=0)

        def record() -> None:
            made.at, made.of = self.now, self.launches

        def synchronize() -> None:
            self.waited = max(self.waited, made.of)

        made.record, made.synchronize = record, synchronize
        return made


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    made = FakeGpu(2.0)
    cuda = SimpleNamespace(
        Event=made.event, get_elapsed_time=lambda first, second: second.at - first.at
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    return made


def test_one_launch_is_timed_behind_another(gpu: FakeGpu) -> None:
    assert timed_ms(gpu.run) == 2.0 and gpu.launches == gpu.waited == 2


def test_launches_go_on_for_the_seconds_and_some_wait_at_any_time(gpu: FakeGpu) -> None:
    times = sustained_ms(gpu.run, 0.1)
    assert times == [2.0] * 50
    assert gpu.launches == gpu.waited > 50, "all have ended"
    assert 2 <= gpu.most_ahead <= 16, "queued, but not without end"


def attempt(gpu: FakeGpu, ms: float, amount: float, error: float = 0.0, size: int = 0) -> Attempt:
    def run() -> None:
        gpu.ms = ms
        gpu.run()

    return Attempt(f"{ms:g} ms", amount, size, run, lambda: (error, 0.0))


def test_the_fastest_by_rate_is_found_and_goes_on_from_before(gpu: FakeGpu) -> None:
    slow, fast = attempt(gpu, 1.0, 10.0, size=1), attempt(gpu, 2.0, 30.0, size=2)
    first = fastest_of([slow])
    both = fastest_of([fast], first)
    assert first and both and first.attempt is slow and both.attempt is fast
    assert both.tried == 2 and both.by_set == {1: 10.0, 2: 15.0}
    assert fastest_of([slow], both) == ceiling_timing.Fastest(fast, 2.0, 0.0, 3, {1: 10.0, 2: 15.0})
    assert fastest_of([]) is None


@pytest.mark.parametrize("error", [1.0, float("nan")])
def test_what_is_wrong_is_not_timed(
    gpu: FakeGpu, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceiling_timing, "timed_ms", lambda run: pytest.fail("timed"))
    with pytest.raises(WrongResult, match="wrong by .*, 0 allowed: 1 ms"):
        fastest_of([attempt(gpu, 1.0, 1.0, error)])


def test_the_clock_is_read_while_the_launch_goes_on(gpu: FakeGpu) -> None:
    readings = [{"sm_mhz": 345.0}]

    def run() -> None:
        gpu.run()
        if gpu.launches % 50 == 0:  # every 100 ms
            readings.append({"sm_mhz": 1980.0 - gpu.launches / 10})

    # Read at 100 ms and on: the first may be from before, the median is of the others.
    found = clock_at_work(run, readings)
    assert found is not None and 1950.0 <= found <= 1975.0 and len(readings) >= 5
    assert clock_at_work(gpu.run, []) is None


def test_without_a_clock_there_is_no_median() -> None:
    assert median_clock([]) is None and median_clock([{"sm_mhz": 1.0}]) is None
    assert median_clock([{"sm_mhz": 1.0}, {"power_w": 5.0}, {"sm_mhz": 2.0}]) == 2.0
