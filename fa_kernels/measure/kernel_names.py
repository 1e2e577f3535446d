"""Which GPU kernels a peer's call really runs, as torch's profiler sees them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

#: Of the longest-running kernels, so many are named, each cut to so many characters.
SHOWN, CHARACTERS = 3, 110


def kernels_of(call: Callable[[], Any]) -> str:
    """Names of the kernels that one call launches, longest-running first, for `Row.detail`.

    E.g. "kernels: flash_fwd_kernel<...>; 2 x copy_kernel". Where the profiler is not available it
    says so: "kernels not known: ...". The call is made once more, and not timed.
    """
    try:
        found = _profiled(call)
    except Exception as error:  # CUPTI is refused in many ways; a run does without the names
        why = " ".join(f"{type(error).__name__}: {error}".split())[:CHARACTERS]
        return f"kernels not known: {why}"
    return f"kernels: {_joined(found)}" if found else "kernels not known: the profiler saw none"


def _profiled(call: Callable[[], Any]) -> list[tuple[str, int]]:
    """(name, launches) by falling GPU time."""
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no GPU")
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        # Some releases of torch say so of every profile: there is one cycle here.
        warnings.filterwarnings("ignore", ".*Profiler clears events", UserWarning)
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            call()
            torch.cuda.synchronize()
    on_gpu = [e for e in profiler.key_averages() if e.device_type == DeviceType.CUDA]
    on_gpu = [e for e in on_gpu if not e.key.startswith(("Memcpy", "Memset"))]
    on_gpu.sort(key=lambda event: -event.self_device_time_total)
    return [(event.key, event.count) for event in on_gpu]


def _joined(kernels: list[tuple[str, int]]) -> str:
    texts = []
    for name, count in kernels[:SHOWN]:
        times = f"{count} x " if count > 1 else ""
        texts.append(times + name.removeprefix("void ")[:CHARACTERS])
    rest = len(kernels) - SHOWN
    return "; ".join([*texts, f"and {rest} more"] if rest > 0 else texts)
