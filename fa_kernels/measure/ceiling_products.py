"""What cuBLAS reaches with matrix products of 16 bits: in single launches, and for seconds.

A product of this size draws so much power that the clock falls within tens of milliseconds, so a
short and a long measurement differ, and whatever comes second comes out lower. Therefore both are
measured, and fp16 and bf16 take turns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from fa_kernels.measure import ceiling_timing, timing
from fa_kernels.measure.ceiling_attempts import Gpu, product_sides, products
from fa_kernels.measure.ceiling_records import CEILINGS, CeilingRow, without_rate
from fa_kernels.measure.ceiling_timing import Fastest, WrongResult, fastest_of
from fa_kernels.measure.gpu_state import Reading

CUBLAS_MISSING = "cuBLAS is not here: `pip install nvidia-cublas`, which torch brings along"
#: Ceiling -> dtype. Each has a second ceiling, with this ending.
PRODUCTS, SUSTAINED = {"matmul_fp16": "float16", "matmul_bf16": "bfloat16"}, "_sustained"
#: The ceilings that are measured together.
PRODUCT_CEILINGS = (*PRODUCTS, *(f"{name}{SUSTAINED}" for name in PRODUCTS))
#: Before each single launch the GPU rests: power and clock recover.
PAUSE_SECONDS = 0.05
#: How long one dtype goes on before it is the other's turn; the second half of a turn counts.
TURN_SECONDS = 1.0


def measure_products(gpu: Gpu, readings: Sequence[Reading] = ()) -> list[CeilingRow]:
    """A row for each of `PRODUCT_CEILINGS`; `readings` of the clock grow meanwhile."""
    best: dict[str, Fastest] = {}
    faults: dict[str, tuple[str, str]] = {}
    for side in product_sides(gpu):
        for name, dtype in PRODUCTS.items():
            if name in faults:
                continue
            try:
                found = fastest_of(products(dtype, side), best.get(name))
            except Exception as refusal:  # out of memory, a launch that fails: the rest goes on
                faults[name] = fault_of(refusal)
            else:
                best |= {name: found} if found else {}
    best = {name: found for name, found in best.items() if name not in faults}
    try:
        rows = {**_bursts(best), **_sustained(best, readings)}
    except Exception as refusal:
        rows, faults = {}, {**faults, **dict.fromkeys(best, fault_of(refusal))}
    nothing = ("failed", "nothing was tried: too little free memory")
    return [
        rows.get(name)
        or without_rate(name, "cublas", *faults.get(name.removesuffix(SUSTAINED), nothing))
        for name in PRODUCT_CEILINGS
    ]


def fault_of(refusal: Exception) -> tuple[str, str]:
    """Status and detail of a row without a rate."""
    if isinstance(refusal, ImportError):
        return "refused", CUBLAS_MISSING
    if isinstance(refusal, WrongResult):
        return "failed", str(refusal)
    return "failed", " ".join(f"{type(refusal).__name__}: {refusal}".split())


def _bursts(best: dict[str, Fastest]) -> dict[str, CeilingRow]:
    """Single launches, each after a pause, the dtypes in turns."""
    samples: dict[str, list[float]] = {name: [] for name in best}
    for _ in range(ceiling_timing.SAMPLES):
        for name, found in best.items():
            time.sleep(PAUSE_SECONDS)
            samples[name].append(ceiling_timing.timed_ms(found.attempt.run))
    how = f"single launches after pauses of {1e3 * PAUSE_SECONDS:.0f} ms"
    return {name: _row(name, best[name], times, how, None) for name, times in samples.items()}


def _sustained(best: dict[str, Fastest], readings: Sequence[Reading]) -> dict[str, CeilingRow]:
    """Back to back, in turns: first, second, second, first, so that a drift meets both alike."""
    samples: dict[str, list[float]] = {name: [] for name in best}
    clocks: dict[str, list[float]] = {name: [] for name in best}
    for name in (*best, *reversed(best)):
        before = len(readings)
        times = ceiling_timing.sustained_ms(best[name].attempt.run, TURN_SECONDS)
        samples[name] += times[len(times) // 2 :]
        late = readings[before + (len(readings) - before) // 2 :]
        clocks[name] += [reading["sm_mhz"] for reading in late if "sm_mhz" in reading]
    how = f"back to back in turns of {TURN_SECONDS:g} s with the other dtype, second halves"
    rows = {}
    for name, times in samples.items():
        clock = timing.summarise(clocks[name]).median if clocks[name] else None
        rows[f"{name}{SUSTAINED}"] = _row(f"{name}{SUSTAINED}", best[name], times, how, clock)
    return rows


def _row(
    name: str, found: Fastest, times: Sequence[float], how: str, sm_mhz: float | None
) -> CeilingRow:
    attempt = found.attempt
    rate = timing.summarise([attempt.amount / ms * 1e3 / 1e12 for ms in times])
    detail = f"{attempt.words}; fastest of {found.tried}; {how}"
    return CeilingRow(
        name, "cublas", CEILINGS[name], rate.p20, rate.median, rate.p80, rate.n,
        attempt.amount, attempt.set_bytes, "ok", detail, found.wrong, sm_mhz,
    )  # fmt: skip
