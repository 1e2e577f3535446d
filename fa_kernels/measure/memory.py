"""Device memory of one call: as asked of CuPy's and torch's allocators, and of the driver."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from fa_kernels.units import GIB


def free_pools() -> None:
    """Give unused blocks of both libraries back to the driver, so one does not starve the other."""
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def free_large_pools(above_bytes: int = 2 * GIB) -> None:
    """`free_pools` if CuPy's holds more than this: after a huge case beside other processes."""
    import cupy

    if cupy.get_default_memory_pool().total_bytes() > above_bytes:
        free_pools()


def free_bytes() -> int:
    """Memory the driver could still give out, in bytes."""
    import cupy

    return int(cupy.cuda.runtime.memGetInfo()[0])


def poison(*sizes: int) -> None:
    """Fill blocks that the pool hands out next with NaN, so that an unwritten element shows.

    `sizes` in bytes: those of what a run allocates.
    """
    import cupy

    for block in [cupy.empty(n, "uint8") for n in sizes if n]:
        block.fill(0xFF)


def peak_extra_bytes(call: Callable[[], Any]) -> tuple[Any, int]:
    """Run `call` and return its result and the most memory it held on top of what was there.

    Counts the bytes asked for, not the pools' rounding, from CuPy (memory hook) and torch
    (allocator statistics); a call uses one of the two.
    """
    import cupy

    torch = sys.modules.get("torch")
    watch_torch = torch is not None and torch.cuda.is_initialized()
    before = 0
    if torch is not None and watch_torch:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats().get("requested_bytes.all.current", 0)
    hook = _peak_hook()
    with hook:
        result = call()
        cupy.cuda.Device().synchronize()
    from_torch = 0
    if torch is not None and watch_torch:
        peak = torch.cuda.memory_stats().get("requested_bytes.all.peak", 0)
        from_torch = int(peak) - int(before)
    return result, hook.peak + from_torch


def device_bytes(call: Callable[[], Any]) -> int:
    """Memory that the driver gave out for one call: what both pools had to ask it for.

    Everything counts that the call needs beside what is there: blocks as the pools round them, and
    memory that a library asks the driver for by itself. It may be freed again in between, so this
    is a lower bound of the peak; the pools keep theirs. Other processes on the GPU count, too. The
    call should have been made before: the first one also loads code.
    """
    import cupy

    free_pools()
    before = free_bytes()
    result = call()
    cupy.cuda.Device().synchronize()
    taken = before - free_bytes()
    del result
    return max(0, taken)


def _peak_hook() -> Any:
    import cupy

    class PeakHook(cupy.cuda.MemoryHook):
        """Adds up requested sizes of live allocations made while it is active."""

        name = "PeakHook"

        def __init__(self) -> None:
            self.live: dict[int, int] = {}
            self.current = 0
            self.peak = 0

        def malloc_postprocess(self, **kwargs: Any) -> None:
            self.live[kwargs["pmem_id"]] = kwargs["size"]
            self.current += kwargs["size"]
            self.peak = max(self.peak, self.current)

        def free_postprocess(self, **kwargs: Any) -> None:
            # Blocks from before the hook was active are not ours to subtract.
            self.current -= self.live.pop(kwargs["pmem_id"], 0)

    return PeakHook()
