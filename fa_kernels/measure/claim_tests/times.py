"""Claims about time: recorded latencies, beside what data sheets say of arithmetic and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fa_kernels.device import Device
from fa_kernels.masks import matmul_flops
from fa_kernels.measure.claim_tests.evidence import (
    Evidence,
    Found,
    at_words,
    lines,
    pairs,
    sizes_of,
    value,
)
from fa_kernels.measure.claim_tests.judged import Judged, judged, nothing_recorded, share
from fa_kernels.measure.claims import Claim
from fa_kernels.measure.paper import select
from fa_kernels.measure.records import Row
from fa_kernels.measure.verdict import FLASH, PRODUCTS, fit_exponent
from fa_kernels.tiling import Tiling
from fa_kernels.units import duration, significant, span
from fa_kernels.variants import FAST, VARIANTS

#: The same calls of PyTorch with S and P in memory, and fused; both on tensor cores.
EAGER, FUSED = "torch_eager", "torch_flash"
#: Ours on the fp32 units.
OURS = ("standard_tiled", "flash_q_outer")
#: Idle: more than half of the peak is not used.
IDLE = 0.5
#: The N x N matrices of a backward.
SCORES = ("p", "dp", "ds")
#: How near 2 the fitted power of a time that is quadratic must be, from `LONG_FROM` on.
NEAR, LONG_FROM = 0.15, 2048


def _on_tensor_cores(row: Row) -> bool:
    # What PyTorch calls float32 runs on the fp32 units.
    variant = VARIANTS.get(row.series)
    return row.dtype != "float32" if variant is None else variant.tensor_cores


def bytes_ms(row: Row, device: Device) -> float:
    """How long the DRAM bytes of a counted row take at the rate of HBM."""
    return value(row) / (device.hbm_bandwidth_gb_s * 1e6)


def products_ms(row: Row, device: Device, products: int = 2) -> float:
    """How long its products of matrices take at the peak of the units that compute them."""
    peak = device.peak_tflops(row.dtype, _on_tensor_cores(row))
    return products * matmul_flops(row.problem) / 2 / (peak * 1e9)


def memory_bound(claim: Claim, evidence: Evidence) -> Judged:
    """Whether the DRAM bytes of standard attention take longer than its arithmetic."""
    counted = evidence.rows("counters", metric="dram_bytes", pass_="fwd")
    device = evidence.device
    ratios = _by_units(
        (row, bytes_ms(row, device) / products_ms(row, device))
        for row in counted.of(EAGER, "standard_tiled").rows
    )
    checks = [ratio > 1 for found in ratios.values() for ratio in found]
    if not checks:
        return nothing_recorded("DRAM bytes of standard attention")
    each = [f"{span(found)} times as long {units}" for units, found in ratios.items()]
    why = (
        "At the rates of the data sheet the DRAM bytes counted for standard attention take, beside "
        f"its two products, {' and '.join(each)}: memory binds in {share(checks)} calls."
    )
    return judged(checks, why, f"{counted.source}, data sheet")


def _by_units(found: Iterable[tuple[Row, float]]) -> dict[str, list[float]]:
    """Numbers of rows, apart by the units that multiply."""
    apart: dict[str, list[float]] = {}
    for row, number in found:
        name = "on tensor cores (torch eager)" if _on_tensor_cores(row) else "on the fp32 units"
        apart.setdefault(name, []).append(number)
    return apart


def units_idle(claim: Claim, evidence: Evidence) -> Judged:
    """Whether over half of the peak is unused while bytes take longer than products."""
    device, names = evidence.device, (EAGER, "standard_tiled")
    timed = evidence.rows("grid", metric="latency_ms", pass_="fwd").of(*names)
    counted = evidence.rows("counters", metric="dram_bytes", pass_="fwd").of(*names)
    both = [
        (a, b) for name in names for a, b in pairs(timed.of(name), counted.of(name))
    ]  # fmt: skip
    if not both:
        return nothing_recorded("time and DRAM bytes of standard attention at one point")
    used = [products_ms(a, device) / value(a) for a, _ in both]
    waits = [bytes_ms(b, device) > products_ms(b, device) for _, b in both]
    checks = [part < IDLE and slow for part, slow in zip(used, waits, strict=True)]
    rows = [a for a, _ in both]
    each = [
        f"{span([100 * x for x in found])} % of their peak {units}"
        for units, found in _by_units(zip(rows, used, strict=True)).items()
    ]
    why = (
        f"Recorded standard attention reaches {' and '.join(each)}; in {share(checks)} calls that "
        "is less than half while its bytes take longer than its products."
    )
    return judged(checks, why, f"{timed.source}, {counted.source}, data sheet")


def _best(found: Found) -> list[Row]:
    """The fastest tiles of each problem."""
    best: dict[object, Row] = {}
    for row in found.rows:
        at = (row.series, sizes_of(row))
        if at not in best or value(row) < value(best[at]):
            best[at] = row
    return list(best.values())


def freed_from_waiting(claim: Claim, evidence: Evidence) -> Judged:
    """Whether the DRAM bytes of fused kernels take less time than their arithmetic."""
    counted = evidence.rows("counters", metric="dram_bytes", pass_="fwd").of(FUSED, "torch_cudnn")
    if not counted:
        return nothing_recorded("DRAM bytes of a fused kernel on tensor cores")
    ratios = [
        bytes_ms(row, evidence.device) / products_ms(row, evidence.device) for row in counted.rows
    ]
    checks = [ratio < 1 for ratio in ratios]
    why = (
        f"The DRAM bytes of FlashAttention-2 and cuDNN take {span(ratios)} times as long as their "
        f"products at the tensor cores' peak: less in {share(checks)} calls, so HBM does not bind "
        "there."
    )
    return judged(checks, why, f"{counted.source}, data sheet")


def speedup(claim: Claim, evidence: Evidence) -> Judged:
    """Time of standard attention over that of the fused kernel; numbers: from, to."""
    low, high = claim.numbers
    timed = evidence.rows("grid", metric="latency_ms", pass_="fwd")
    both = pairs(timed.of(EAGER), timed.of(FUSED))
    if not both:
        return nothing_recorded("standard and fused attention of PyTorch at one point")
    ratios = [value(a) / value(b) for a, b in both]
    checks = [low <= ratio <= high for ratio in ratios]
    most = both[ratios.index(max(ratios))][0]
    below, above = (sum(r < low for r in ratios), sum(r > high for r in ratios))
    why = (
        f"PyTorch's fused kernel is {span(ratios)} times as fast as its unfused calls forward: "
        f"{share(checks)} points lie from {significant(low)} to {significant(high)}, {below} below "
        f"and {above} above (most at {at_words(sizes_of(most))})"
    )
    ours = pairs(timed.of(OURS[0]), timed.of(OURS[1]))
    if ours:
        why += f"; on the fp32 units ours gain {span([value(a) / value(b) for a, b in ours])} times"
    if printed := _published_ratios(evidence):
        why += f"; the first paper's tables (A100, both passes too) print {span(printed)} times"
    return judged(checks, f"{why}.", f"{timed.source}, data/paper")


def _published_ratios(evidence: Evidence) -> list[float]:
    """PyTorch over FlashAttention in every row of the first paper's tables that has both."""
    rows = select(evidence.published, metric="latency", paper="FlashAttention")
    times = {(row.where, row.seqlen, row.algorithm): row.value for row in rows}
    return [
        ms / fused
        for (where, n, name), ms in times.items()
        if name == "PyTorch" and ms and (fused := times.get((where, n, "FlashAttention")))
    ]


def orders_of_magnitude(claim: Claim, evidence: Evidence) -> Judged:
    """The same formula with and without use of the hierarchy; numbers: the factor."""
    factor = claim.numbers[0]
    timed = evidence.rows("grid", metric="latency_ms", pass_="fwd")
    naive = pairs(
        timed.of("standard_naive"), Found("", tuple(_best(timed.of("flash_q_outer")))), tiles=False
    )
    fused = pairs(timed.of(EAGER), timed.of(FUSED))
    found = [[value(a) / value(b) for a, b in both] for both in (naive, fused) if both]
    if not found:
        return nothing_recorded("two kernels of the same formula at one point")
    checks = [ratio >= factor for ratios in found for ratio in ratios]
    names = (
        "naive standard over fused, both of ours on the fp32 units",
        "PyTorch unfused over fused",
    )
    each = [
        f"{name} {span([value(a) / value(b) for a, b in both])}"
        for name, both in zip(names, (naive, fused), strict=True)
        if both
    ]
    why = (
        f"Ratios of recorded times: {'; '.join(each)}; {share(checks)} are {significant(factor)} "
        "or more."
    )
    return judged(checks, why, timed.source)


def quadratic_time(claim: Claim, evidence: Evidence) -> Judged:
    """By what power of N the recorded time per sequence and head grows; numbers: the power."""
    law = claim.numbers[0]
    timed = evidence.rows("grid", metric="latency_ms", pass_="fwd").of(EAGER, *OURS)
    powers = {
        at: fit_exponent((r.seqlen_q, value(r) / (r.batch * r.nheads)) for r in line)
        for at, line in lines(timed.rows, LONG_FROM).items()
    }
    if not powers:
        return nothing_recorded("times over N")
    checks = [abs(power - law) <= NEAR for power in powers.values()]
    why = (
        f"From N = {LONG_FROM} on the recorded time of a head grows as "
        f"N^{span(list(powers.values()), lambda x: f'{x:.2f}')} (PyTorch's unfused calls and two "
        f"kernels of ours): {share(checks)} powers are within {NEAR} of {significant(law)}"
    )
    series, dtype, d = max(powers, key=lambda at: abs(powers[at] - law))[:3]
    why += "." if all(checks) else f", farthest from it {series} at d = {d}, {dtype}."
    return judged(checks, why, timed.source)


def recompute_pays(claim: Claim, evidence: Evidence) -> Judged:
    """On fp32 units by time; on tensor cores one product against P, which nobody moves."""
    timed = evidence.rows("backward", metric="latency_ms", pass_="bwd")
    both = pairs(timed.of(OURS[1]), timed.of(OURS[0]))
    fast = evidence.rows("speed", metric="latency_ms", pass_="bwd").of(*FAST)
    plain = [value(a) / value(b) for a, b in both]
    products = PRODUCTS[FLASH][1]
    saved, with_all = (
        [_moving_ms(row, evidence.device, tensors) * products / value(row) for row in fast.rows]
        for tensors in (("p",), SCORES)
    )
    if not plain and not saved:
        return nothing_recorded("a backward that rebuilds P")
    checks = [ratio < 1 for ratio in plain] + [ratio > 1 for ratio in saved]
    parts = []
    if plain:
        faster = [ratio < 1 for ratio in plain]
        parts.append(
            f"on the fp32 units the backward that rebuilds P takes {span(plain)} times as long as "
            f"the one that reads it, and is faster at {share(faster)} points"
        )
    if saved:
        dearer = [ratio > 1 for ratio in saved]
        parts.append(
            f"on tensor cores writing and reading P would take {span(saved)} times as long as one "
            f"of the recorded backward's {products} products, longer at {share(dearer)} points "
            f"(with dP and dS, which it does not move either, {span(with_all)} times)"
        )
    why = "; ".join(parts)
    found = [one.source for one in (timed, fast) if one]
    return judged(checks, f"{why[0].upper()}{why[1:]}.", f"{', '.join(found)}, model, data sheet")


def _moving_ms(row: Row, device: Device, tensors: Sequence[str]) -> float:
    """Time at the rate of HBM of N x N matrices: P written by a forward, read by the backward that
    is given it, and what else of `tensors` that backward writes and reads."""
    variant = VARIANTS[OURS[0]]
    assert variant.backward is not None
    tiling = Tiling(row.block_m or 64, row.block_n or 64)
    moved = variant.backward.launched(row.problem, tiling, p_given=True)
    written = variant.launched(row.problem, tiling).written_bytes["p"]
    return (written + sum(map(moved.of, tensors))) / (device.hbm_bandwidth_gb_s * 1e6)


def training_speedup(claim: Claim, evidence: Evidence) -> Judged:
    """Steps of a whole model, unfused over fused; numbers: the factor said at most."""
    factor = claim.numbers[0]
    steps = evidence.rows("training", dense=False, metric="latency_ms", pass_="step")
    both = [
        (a, b)
        for a in steps.of(EAGER).rows
        for b in steps.of(FUSED, *FAST).rows
        if (sizes_of(a), a.dropout_p) == (sizes_of(b), b.dropout_p)
    ]
    if not both:
        recorded = nothing_recorded("training steps with unfused attention, at any model size")
        if not steps:
            return recorded
        times = span([value(row) for row in steps.rows], duration)
        what = f"{recorded.why} Steps of GPT-2 small with fused kernels alone take {times}."
        return judged([], what, steps.source)
    ratios = [value(a) / value(b) for a, b in both]
    checks = [ratio >= factor for ratio in ratios]
    why = (
        f"Steps of GPT-2 small with fused attention are {span(ratios)} times as fast as with "
        f"unfused: {share(checks)} reach {significant(factor)}."
    )
    return judged(checks, why, steps.source)
