"""GPU time of single calls by CUDA events, cold L2, providers interleaved."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

#: Written between two timed calls: more than twice any L2, so inputs come from HBM.
FLUSH_BYTES = 1024**3
#: How long a timed call waits on the GPU, so that the host has queued all of it before it may
#: start: launch gaps of Python are not measured. Calls of some peers take the host 0.4 ms.
HOLD_NS = 1_000_000
_COLD = (
    "a 1 GiB write before each empties the L2 "
    "(leaving it full of lines to write back); a kernel of one thread then waits 1 ms and touches "
    "no memory, so that the host can queue the call and launch gaps count only if queueing takes "
    "longer"
)
_WARM = (
    "the same call is made right before, untimed, so the L2 holds what it can of its inputs and "
    "outputs; a kernel of one thread then waits 1 ms and touches no memory, so that the host can "
    "queue the call and launch gaps count only if queueing takes longer"
)
_METHOD = (
    "CUDA events around single calls on one stream; {l2}; providers interleaved call by call in "
    "one process, library by library where their workspaces do not fit together; random normal "
    "inputs; allocation from a warm pool included; median with 20th and 80th percentile. A result "
    "is timed after it passed against float64. FLOPs that rates are made of: 4 d for each pair of "
    "a query and a key that it attends to, so a square causal problem counts N (N + 1) / 2 pairs, "
    "not N^2; a backward 2.5 times as many. peak_mem_bytes, extra_mem_bytes: as asked of the "
    "allocators; device_mem_bytes: cudaMemGetInfo before and after a call that begins with empty "
    "pools, after all timing. Clocks, temperature and power while it measured: gpu_state"
)
#: State of the L2 -> how a run that begins its calls so is described in its run.json.
METHODS = {"cold": _METHOD.format(l2=_COLD), "warm": _METHOD.format(l2=_WARM)}
METHOD = METHODS["cold"]
_HOLD = r"""
extern "C" __global__ void hold(const unsigned long long ns)
{
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - begin < ns);
}
"""


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


class _Hold:
    """A wait on the GPU, which leaves memory and L2 alone."""

    def __init__(self) -> None:
        import cupy

        self._kernel = cupy.RawKernel(_HOLD, "hold")

    def __call__(self) -> None:
        import numpy as np

        self._kernel((1,), (1,), (np.uint64(HOLD_NS),))


class Flush:
    """A buffer that is overwritten to empty the L2; at most a sixteenth of the GPU's memory."""

    def __init__(self) -> None:
        import cupy

        self._hold = _Hold()
        _, total = cupy.cuda.runtime.memGetInfo()
        self._buffer = cupy.empty(min(FLUSH_BYTES, total // 16), dtype="uint8")

    def before(self, call: Callable[[], Any]) -> None:
        """Prepare for a timed call: empty the L2, and give the host time to queue it."""
        self._buffer.data.memset_async(0, self._buffer.nbytes)
        self._hold()


class WarmL2(Flush):
    """In place of a flush: the call itself, untimed, then a wait that leaves the L2 alone."""

    def __init__(self) -> None:
        self._hold = _Hold()

    def before(self, call: Callable[[], Any]) -> None:
        """Prepare for a timed call: make it once, and give the host time to queue it again."""
        call()
        self._hold()


def time_once(call: Callable[[], Any], flush: Flush) -> float:
    """GPU milliseconds of one call, the L2 in the state that `flush` leaves it in."""
    import cupy

    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    flush.before(call)
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
