"""Counters by which blocks of one launch hand out its work among themselves.

A pair of 32-bit zeros per launch that runs at a time; a kernel leaves them zero again. Launches of
one stream follow one another and share a pair. A CUDA graph may be launched beside anything: each
capture has pairs of its own, for good. (A graph that is instantiated twice, or stands twice in
another, must not run beside itself; nor may a stream be destroyed and its handle come again while
its last launch still runs.)
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from fa_kernels.cuda import tensor_map

#: Pairs that are made at a time, all zero before anyone uses them.
PAIRS = 1024
_PAIR_BYTES = 8
#: Handles of the legacy default stream, which cannot be captured.
_LEGACY = (0, 1)
#: Of the per-thread default stream: one handle, but a stream in every thread.
_PER_THREAD = 2
#: CU_STREAM_CAPTURE_MODE_RELAXED
_RELAXED = 2


class WorkCounters:
    """Pairs of one GPU by stream; they live as long as the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[Any] = []
        self._free: list[int] = []
        self._by_stream: dict[Hashable, int] = {}

    def pair(self, stream: int) -> int:
        """Address of the pair for a launch on a stream, given by its handle.

        Raises:
            MemoryError: no memory for more pairs.
        """
        import cupy

        captured = stream not in _LEGACY and cupy.cuda.runtime.streamIsCapturing(stream)
        key = (stream, threading.get_ident()) if stream == _PER_THREAD else stream
        if not captured and (known := self._by_stream.get(key)) is not None:
            return known
        with self._lock:
            if not self._free:
                if captured:
                    with _allocation_allowed():
                        self._make()
                else:
                    self._make()
            address = self._free.pop()
            if not captured:
                self._by_stream[key] = address
        return address

    def _make(self) -> None:
        import cupy

        # On a stream of their own, and waited for: the next launch may be on any stream. And from a
        # pool of their own: torch's allocator, which a call on tensors asks, ends before they do.
        pool = cupy.cuda.MemoryPool()
        own = cupy.cuda.using_allocator(pool.malloc)
        with cupy.cuda.Stream(non_blocking=True) as apart, own:
            made = cupy.zeros(2 * PAIRS, np.uint32)
            apart.synchronize()
        self._held += [pool, made]
        self._free += range(made.data.ptr, made.data.ptr + _PAIR_BYTES * PAIRS, _PAIR_BYTES)


@contextmanager
def _allocation_allowed() -> Iterator[None]:
    """A capture of mode "global", torch's, forbids cudaMalloc to every thread: not to this now."""
    mode = ctypes.c_int(_RELAXED)
    exchange = tensor_map.driver().cuThreadExchangeStreamCaptureMode
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


_OF_DEVICE: dict[int, WorkCounters] = {}


def work_counters(stream: int | None = None) -> int:
    """Address of the pair for a launch on the current GPU, by default on CuPy's current stream."""
    import cupy

    if stream is None:
        stream = cupy.cuda.get_current_stream().ptr
    device = cupy.cuda.runtime.getDevice()
    counters = _OF_DEVICE.get(device) or _OF_DEVICE.setdefault(device, WorkCounters())
    return counters.pair(stream)
