"""Counters that hand out work: a pair for every launch that may run at a time, zero before it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fa_kernels.cuda import work_counters as subject
from fa_kernels.cuda.work_counters import PAIRS, WorkCounters, work_counters
from tests.cuda.fake_cupy import on_gpu

#: Capture modes of the driver: what torch captures with, and what allows cudaMalloc meanwhile.
GLOBAL, RELAXED = 0, 2


class Streams:
    """A GPU on which some streams are captured; `done` notes allocations and waits in order."""

    def __init__(self) -> None:
        self.device, self.current = 0, 5
        self.captured: set[int] = set()
        self.done: list[str] = []
        self.made: list[Any] = []
        runtime = SimpleNamespace(
            getDevice=lambda: self.device, streamIsCapturing=self._is_capturing
        )
        stream = lambda: SimpleNamespace(ptr=self.current)  # noqa: E731
        self.asked: list[Any] = [None]  # allocators, the current one last
        self.mode = GLOBAL
        cuda = SimpleNamespace(
            runtime=runtime, Stream=self._apart, get_current_stream=stream,
            MemoryPool=lambda: SimpleNamespace(malloc="a pool of its own"),
            using_allocator=self._using_allocator,
        )  # fmt: skip
        self.cupy = SimpleNamespace(cuda=cuda, zeros=self._zeros)

    def _is_capturing(self, handle: int) -> bool:
        assert handle not in (0, 1), "the driver refuses to say so of the legacy default stream"
        return handle in self.captured

    @contextmanager
    def _using_allocator(self, allocator: Any) -> Iterator[None]:
        self.asked.append(allocator)
        yield
        self.asked.pop()

    def _zeros(self, shape: int, dtype: Any) -> Any:
        assert self.asked[-1] == "a pool of its own", "torch's allocator ends before the counters"
        allowed = not self.captured or self.mode == RELAXED
        assert allowed, "cudaErrorStreamCaptureUnsupported, and the capture is lost"
        self.done.append("zeros")
        self.made.append(on_gpu(np.zeros(shape, dtype)))
        return self.made[-1]

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> None:
        mode._obj.value, self.mode = self.mode, mode._obj.value

    def _apart(self, non_blocking: bool) -> Any:
        assert non_blocking
        return _Apart(self.done)


class _Apart:
    def __init__(self, done: list[str]) -> None:
        self.done = done

    def __enter__(self) -> _Apart:
        self.done.append("apart")
        return self

    def __exit__(self, *_: object) -> None:
        self.done.append("back")

    def synchronize(self) -> None:
        self.done.append("waited")


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    streams = Streams()
    monkeypatch.setitem(sys.modules, "cupy", streams.cupy)
    monkeypatch.setattr(subject, "_OF_DEVICE", {})
    monkeypatch.setattr(subject.tensor_map, "driver", lambda: streams)
    return streams


def test_launches_of_one_stream_share_a_pair_and_no_others_do(streams: Streams) -> None:
    counters = WorkCounters()
    of = {stream: counters.pair(stream) for stream in (0, 1, 2, 77, 78)}
    assert len(set(of.values())) == 5
    assert {stream: counters.pair(stream) for stream in of} == of


def test_pairs_are_zero_before_anyone_uses_them(streams: Streams) -> None:
    """Made on a stream of their own, and waited for: the next launch may be on any stream."""
    counters = WorkCounters()
    pairs = {counters.pair(stream) for stream in range(3, 100)}
    assert streams.done == ["apart", "zeros", "waited", "back"]
    (made,) = streams.made
    assert made.dtype == np.uint32 and made.size == 2 * PAIRS and not made.any()
    assert all((pair - made.data.ptr) % 8 == 0 for pair in pairs)
    assert min(pairs) >= made.data.ptr and max(pairs) + 8 <= made.data.ptr + made.nbytes


def test_each_captured_launch_has_a_pair_for_good(streams: Streams) -> None:
    """A graph may be launched beside itself, and beside its stream."""
    counters = WorkCounters()
    outside = counters.pair(77)
    streams.captured = {77}
    inside = [counters.pair(77) for _ in range(3)]
    streams.captured = set()
    assert counters.pair(77) == outside
    later = [counters.pair(stream) for stream in (78, 79)]
    assert len({outside, *inside, *later}) == 6


def test_a_stream_that_is_captured_first_gets_its_own_pair_afterwards(streams: Streams) -> None:
    counters = WorkCounters()
    streams.captured = {77}
    inside = counters.pair(77)
    streams.captured = set()
    outside = counters.pair(77)
    assert outside != inside and counters.pair(77) == outside


def test_the_first_launch_may_be_in_a_capture_that_forbids_allocation(streams: Streams) -> None:
    counters = WorkCounters()
    streams.captured = {77}
    assert counters.pair(77) and len(streams.made) == 1
    assert streams.mode == GLOBAL, "as it was before"


def test_the_mode_comes_back_where_no_memory_is_left(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Any:
        assert streams.mode == RELAXED
        raise MemoryError

    monkeypatch.setattr(streams.cupy, "zeros", full)
    streams.captured = {77}
    with pytest.raises(MemoryError):
        WorkCounters().pair(77)
    assert streams.mode == GLOBAL


def test_the_per_thread_stream_is_another_in_every_thread(streams: Streams) -> None:
    """All name it by handle 2, and their launches may run at a time."""
    counters = WorkCounters()
    here = {stream: counters.pair(stream) for stream in (2, 77)}
    with ThreadPoolExecutor(1) as other:
        there = {stream: other.submit(counters.pair, stream).result() for stream in (2, 77)}
        assert other.submit(counters.pair, 2).result() == there[2] != here[2]
    assert there[77] == here[77] and counters.pair(2) == here[2]


def test_the_per_thread_stream_can_be_captured(streams: Streams) -> None:
    counters = WorkCounters()
    outside, streams.captured = counters.pair(2), {2}
    assert len({outside, counters.pair(2), counters.pair(2)}) == 3


def test_more_pairs_are_made_where_all_are_in_use(streams: Streams) -> None:
    counters = WorkCounters()
    streams.captured = {77}
    pairs = [counters.pair(77) for _ in range(2 * PAIRS + 1)]
    assert len(set(pairs)) == 2 * PAIRS + 1 and len(streams.made) == 3
    ranges = [range(made.data.ptr, made.data.ptr + made.nbytes, 8) for made in streams.made]
    assert all(any(pair in one for one in ranges) for pair in pairs), "none that was given back"


def test_each_gpu_has_its_own(streams: Streams) -> None:
    first = work_counters()
    assert work_counters() == work_counters(5) == first, "CuPy's current stream"
    streams.device = 1
    assert work_counters() != first and len(streams.made) == 2
    streams.device = 0
    assert work_counters() == first
