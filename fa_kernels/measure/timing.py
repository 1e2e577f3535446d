"""GPU time of single calls by CUDA events, cold L2, providers interleaved."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

#: Written between two timed calls: more than twice any L2, so inputs come from HBM; and long enough
#: (about 0.3 ms on an H200) that the next call is queued before it may start: launch gaps of
#: Python are not measured.
FLUSH_BYTES = 1024**3
METHOD = (
    "CUDA events around single calls on one stream; a 1 GiB write before each empties the L2 "
    "(leaving it full of lines to write back) and gives the host 0.3 ms to queue the call, so "
    "launch gaps count only if queueing takes longer; providers interleaved call by call in one "
    "process, library by library where their workspaces do not fit together; random normal inputs; "
    "allocation from a warm pool included; median with 20th and 80th percentile"
)


@dataclass(frozen=True)
class Latency:
    """Milliseconds per call: 20th percentile, median, 80th percentile of `n` calls."""

    p20: float
    median: float
    p80: float
    n: int


def summarise(samples: Sequence[float]) -> Latency:
    """Nearest-rank percentiles of a list of milliseconds."""
    ordered = sorted(samples)

    def rank(fraction: float) -> float:
        return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]

    return Latency(rank(0.2), statistics.median(ordered), rank(0.8), len(ordered))


class Flush:
    """A buffer that is overwritten to empty the L2; at most a sixteenth of the GPU's memory."""

    def __init__(self) -> None:
        import cupy

        _, total = cupy.cuda.runtime.memGetInfo()
        self._buffer = cupy.empty(min(FLUSH_BYTES, total // 16), dtype="uint8")

    def __call__(self) -> None:
        self._buffer.data.memset_async(0, self._buffer.nbytes)


def time_once(call: Callable[[], Any], flush: Flush) -> float:
    """GPU milliseconds of one call after emptying the L2."""
    import cupy

    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    flush()
    start.record()
    call()
    stop.record()
    stop.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, stop))


#: A call longer than this needs no further warm-up, and its first timing counts as a sample.
LONG_MS = 200.0


def repetitions(latency_ms: float, budget_ms: float = 200.0) -> int:
    """How many timed calls fit a budget: 3 to 20."""
    return max(3, min(20, int(budget_ms / max(latency_ms, 1e-3))))


def time_interleaved(
    calls: Sequence[Callable[[], Any]],
    flush: Flush,
    first_ms: Sequence[float],
    cancelled: Callable[[], bool] = lambda: False,
) -> list[Latency | None]:
    """Latency of every call, measured in rounds over all, so that clock drift hits all alike.

    Args:
        calls: already warmed up (compiled, pools filled).
        first_ms: one earlier timing of each, which sets its number of repetitions.
        cancelled: polled between rounds; what was timed so far is summarised.

    Returns:
        A latency per call, None for one that was cancelled before it was timed.
    """
    wanted = [repetitions(ms) for ms in first_ms]
    samples = [[ms] if ms > LONG_MS else [] for ms in first_ms]
    for _ in range(max(wanted, default=0)):
        if cancelled():
            break
        for i, call in enumerate(calls):
            if len(samples[i]) < wanted[i]:
                samples[i].append(time_once(call, flush))
    return [summarise(s) if s else None for s in samples]
