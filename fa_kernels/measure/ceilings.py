"""What one GPU reaches: bandwidth level by level, fp32, exponentials, tensor cores.

Each ceiling is tried with several launches. The result of every one is compared with what it must
be before it is timed, and the fastest stands for the ceiling: what the best of several ways
reached, which another may exceed. The launches are those of `ceiling_attempts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fa_kernels.measure import ceiling_timing, timing
from fa_kernels.measure.ceiling_attempts import (
    Attempt,
    Gpu,
    copies,
    exponentials,
    fmas,
    hbm_reads,
    l2_adds,
    l2_reads,
    l2_reads_apart,
    smem_reads,
)
from fa_kernels.measure.ceiling_products import PRODUCT_CEILINGS, fault_of, measure_products
from fa_kernels.measure.ceiling_records import CEILINGS, CeilingRow, without_rate
from fa_kernels.measure.ceiling_timing import Fastest, fastest_of
from fa_kernels.measure.gpu_state import Reading
from fa_kernels.measure.records import OURS
from fa_kernels.units import capacity, significant

METHOD = (
    "CUDA events around single launches of a millisecond or so, each queued while the one before "
    "still runs; the result of every launch shape is compared with what it must be before it is "
    "timed; the fastest of several shapes is timed 20 times after 3 for warm-up: median rate with "
    "20th and 80th percentile, over less than a tenth of a second; then the same launch goes on "
    "for half a second, of which sm_mhz is the median clock of the SMs; matrix products by cuBLAS, "
    "three sizes and two layouts (NN, TN: of what cuBLAS takes for the first operand) by dtype, "
    "fp16 and bf16 in turns: single launches after pauses, in which power and clock recover, and "
    "(_sustained) seconds back to back, under the limit on power; copies count bytes read and "
    "bytes written; matrices are normally distributed, and numbers that are easier on the power "
    "limit would run faster; nvidia-smi reads ten times a second meanwhile (gpu_state)"
)
#: Ceiling of this suite's kernels -> what tries to reach it.
WAYS: dict[str, Callable[[Gpu], Iterator[Attempt]]] = {
    "hbm_copy": copies,
    "hbm_read": hbm_reads,
    "l2_read": l2_reads,
    "l2_read_apart": l2_reads_apart,
    "l2_add": l2_adds,
    "smem_read": smem_reads,
    "fp32_fma": fmas,
    "exp2": exponentials,
}
#: What is measured together, in the order of measuring.
GROUPS = (*((name,) for name in WAYS), PRODUCT_CEILINGS)
#: Ceilings whose detail has the best rate of each size.
_BY_SET = ("l2_read_apart",)


def measure_group(
    names: Sequence[str], gpu: Gpu, readings: Sequence[Reading] = ()
) -> list[CeilingRow]:
    """The rows of one of `GROUPS`; `readings` of the clock grow meanwhile."""
    if tuple(names) == PRODUCT_CEILINGS:
        return measure_products(gpu, readings)
    return [measure_ceiling(name, gpu, readings) for name in names]


def measure_ceiling(name: str, gpu: Gpu, readings: Sequence[Reading] = ()) -> CeilingRow:
    """The rate of the fastest checked attempt at one of `WAYS`, or why there is none."""
    try:
        best = fastest_of(WAYS[name](gpu))
        if best is None:
            nothing = "nothing was tried: too little free memory"
            return without_rate(name, OURS, "failed", nothing)
        samples = ceiling_timing.sampled_ms(best.attempt.run)
        clock = ceiling_timing.clock_at_work(best.attempt.run, readings)
    except Exception as refusal:  # out of memory, a launch that fails: the others must go on
        return without_rate(name, OURS, *fault_of(refusal))
    scale, attempt = {"T": 1e12, "G": 1e9}[CEILINGS[name][0]], best.attempt
    rate = timing.summarise([attempt.amount / ms * 1e3 / scale for ms in samples])
    return CeilingRow(
        name, OURS, CEILINGS[name], rate.p20, rate.median, rate.p80, rate.n,
        attempt.amount, attempt.set_bytes, "ok", _detail(name, best, scale), best.wrong, clock,
    )  # fmt: skip


def _detail(name: str, best: Fastest, scale: float) -> str:
    said = f"{best.attempt.words}; fastest of {best.tried}"
    if name in _BY_SET:
        sets = [
            f"{capacity(size)} {significant(rate * 1e3 / scale)}"
            for size, rate in best.by_set.items()
        ]
        said += f"; tried shortly: {', '.join(sets)} {CEILINGS[name]}"
    return said
