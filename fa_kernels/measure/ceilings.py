"""The most that one GPU does: bandwidth level by level, fp32, exponentials, tensor cores.

Each ceiling is tried with several launches. The result of every one is compared with what it must
be before it is timed, and the fastest stands for the ceiling: a limit is what the best of several
ways reaches. The launches are those of `ceiling_attempts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from fa_kernels.measure import timing
from fa_kernels.measure.ceiling_attempts import (
    Attempt,
    Gpu,
    copies,
    exponentials,
    fmas,
    hbm_reads,
    l2_adds,
    l2_reads,
    products,
    smem_reads,
)
from fa_kernels.measure.ceiling_records import CEILINGS, CeilingRow
from fa_kernels.measure.records import OURS

CUBLAS_MISSING = "cuBLAS is not here: `pip install nvidia-cublas`, which torch brings along"
QUICK, SAMPLES, WARM_UP = 3, 20, 3
METHOD = (
    "CUDA events around single launches of a millisecond or so, each queued while the one before "
    "still runs; the result of every launch shape is compared with what it must be before it is "
    "timed; the fastest of several shapes is timed 20 times after 3 for warm-up: median rate with "
    "20th and 80th percentile, over less than a tenth of a second, after which a limit on power "
    "may lower the clock further; copies count bytes read and bytes written; matrices are normally "
    "distributed, and numbers that are easier on the power limit would run faster"
)
#: Ceiling -> (provider, what tries to reach it).
WAYS: dict[str, tuple[str, Callable[[Gpu], Iterator[Attempt]]]] = {
    "hbm_copy": (OURS, copies),
    "hbm_read": (OURS, hbm_reads),
    "l2_read": (OURS, l2_reads),
    "l2_add": (OURS, l2_adds),
    "smem_read": (OURS, smem_reads),
    "fp32_fma": (OURS, fmas),
    "exp2": (OURS, exponentials),
    "matmul_fp16": ("cublas", lambda gpu: products("float16")),
    "matmul_bf16": ("cublas", lambda gpu: products("bfloat16")),
}


def timed_ms(run: Callable[[], None]) -> float:
    """GPU milliseconds of one launch that was queued while another ran.

    Else the time between the first event and the launch, in which Python works, would count.
    """
    import cupy

    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    run()
    start.record()
    run()
    stop.record()
    stop.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, stop))


def measure_ceiling(name: str, gpu: Gpu) -> CeilingRow:
    """The rate of the fastest checked attempt at a ceiling, or why there is none."""
    provider, attempts = WAYS[name]
    best, best_ms, wrong, tried = None, math.inf, 0.0, 0
    try:
        for attempt in attempts(gpu):
            attempt.run()
            error, allowed = attempt.error()
            if not error <= allowed:  # also where it is not a number
                detail = f"wrong by {error:.3g}, {allowed:.3g} allowed: {attempt.words}"
                return _without(name, provider, "failed", detail)
            for _ in range(WARM_UP):
                attempt.run()
            ms = timing.summarise([timed_ms(attempt.run) for _ in range(QUICK)]).median
            tried += 1
            # By rate: launch shapes differ a little in what they get through.
            if best is None or attempt.amount / ms > best.amount / best_ms:
                best, best_ms, wrong = attempt, ms, error
        if best is None:
            return _without(name, provider, "failed", "nothing was tried: too little free memory")
        for _ in range(WARM_UP):
            best.run()
        samples = [timed_ms(best.run) for _ in range(SAMPLES)]
    except ImportError:
        return _without(name, provider, "refused", CUBLAS_MISSING)
    except Exception as refusal:  # out of memory, a launch that fails: the others must go on
        said = " ".join(f"{type(refusal).__name__}: {refusal}".split())
        return _without(name, provider, "failed", said)
    scale = {"T": 1e12, "G": 1e9}[CEILINGS[name][0]]
    rate = timing.summarise([best.amount / ms * 1e3 / scale for ms in samples])
    detail = f"{best.words}; fastest of {tried}" if tried > 1 else best.words
    return CeilingRow(
        name, provider, CEILINGS[name], rate.p20, rate.median, rate.p80, rate.n,
        best.amount, best.set_bytes, "ok", detail, wrong,
    )  # fmt: skip


def _without(name: str, provider: str, status: str, detail: str) -> CeilingRow:
    nothing = (None, None, None, 0, 0.0, 0)
    return CeilingRow(name, provider, CEILINGS[name], *nothing, status, detail, None)
