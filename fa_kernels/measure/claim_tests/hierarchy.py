"""Claims about the memory of a GPU, from data sheets."""

from __future__ import annotations

import math

from fa_kernels.device import Device
from fa_kernels.measure.claim_tests.evidence import Evidence
from fa_kernels.measure.claim_tests.judged import Judged, judged, share, untested
from fa_kernels.measure.claims import Claim
from fa_kernels.units import GIB, KIB, capacity, significant, span

#: The claims are about GPUs with memory of this kind; others have GDDR.
HBM = "HBM"
#: How far a data sheet's number may be from one printed with one or two digits.
PRINTED_TO = 0.05
SHEETS = "data sheets"


def _with_hbm(evidence: Evidence) -> list[Device]:
    return [sheet for sheet in evidence.sheets if sheet.memory_type.startswith(HBM)]


def _short(sheet: Device) -> str:
    return sheet.name.removeprefix("NVIDIA ")


def sram_bandwidth(claim: Claim, evidence: Evidence) -> Judged:
    """SRAM over HBM in bandwidth, by order of magnitude; numbers: the factor."""
    order = round(math.log10(claim.numbers[0]))
    ratios = {
        _short(sheet): sheet.smem_bandwidth_gb_s / sheet.hbm_bandwidth_gb_s
        for sheet in _with_hbm(evidence)
    }
    if not ratios:
        return untested("There is no data sheet of a GPU with HBM.")
    checks = [round(math.log10(ratio)) == order for ratio in ratios.values()]
    each = ", ".join(f"{name} {significant(ratio)}" for name, ratio in ratios.items())
    why = (
        "Shared memory of all SMs together (32 banks of 4 bytes a clock each) over the bandwidth "
        f"of HBM: {each}; {share(checks)} round to the order of magnitude of "
        f"{significant(claim.numbers[0])}."
    )
    source, (smem, hbm) = SHEETS, (evidence.ceiling("smem_read"), evidence.ceiling("hbm_read"))
    if smem and hbm:
        checks.append(round(math.log10(smem / hbm)) == order)
        why += (
            f" Measured on the {_short(evidence.device)}: {significant(smem / 1e3)} over "
            f"{significant(hbm / 1e3)} TB/s, {significant(smem / hbm)}."
        )
        source += f", recorded {evidence.ceilings_run}"
    return judged(checks, why, source)


def sram_capacity(claim: Claim, evidence: Evidence) -> Judged:
    """HBM over SRAM in capacity, read as one SM's and as all; numbers: from, below."""
    low, high = claim.numbers
    sheets = _with_hbm(evidence)
    if not sheets:
        return untested("There is no data sheet of a GPU with HBM.")
    one = [sheet.hbm_capacity_bytes / sheet.l1_smem_per_sm_bytes for sheet in sheets]
    every = [ratio / sheet.sm_count for ratio, sheet in zip(one, sheets, strict=True)]
    checks = [low <= ratio < high for ratio in (*one, *every)]
    why = (
        f"HBM is {_thousands(one)} times the SRAM of one SM (level-1 cache and shared memory) and "
        f"{_thousands(every)} times that of all SMs together ({len(sheets)} GPUs); {share(checks)} "
        f"of these lie from {low:,.0f} to {high:,.0f}."
    )
    return judged(checks, why, SHEETS)


def _thousands(ratios: list[float]) -> str:
    return span(ratios, lambda ratio: f"{round(ratio, -2):,.0f}")


def scores_and_sram(claim: Claim, evidence: Evidence) -> Judged:
    """Whether S fits what one block may use; numbers: the N from which it must not."""
    n, sheets = int(claim.numbers[0]), evidence.sheets
    if not sheets:
        return untested("There is no data sheet.")
    checks = [2 * n * n > sheet.smem_per_block_bytes for sheet in sheets]
    fits = [math.isqrt(sheet.smem_per_block_bytes // 2) for sheet in sheets]
    why = (
        f"At N = {n} one head's S takes {capacity(2 * n * n)} in 16 bits; a block may use "
        f"{span([s.smem_per_block_bytes for s in sheets], capacity)} of SRAM, which holds an S "
        f"up to N = {span(fits, lambda f: f'{f:.0f}')} and nothing else."
    )
    return judged(checks, why, SHEETS)


def a100_memory(claim: Claim, evidence: Evidence) -> Judged:
    """The A100's numbers; numbers: SRAM KB per SM, its TB/s, HBM GB and TB/s from, to."""
    small, large = (evidence.sheet(f"a100-{size}gb") for size in (40, 80))
    if small is None or large is None:
        return untested("The data sheets of both A100 are not here.")
    sram, rate, gb_low, gb_high, tb_low, tb_high = claim.numbers
    found = [
        (small.l1_smem_per_sm_bytes / KIB, sram), (small.smem_bandwidth_gb_s / 1e3, rate),
        (small.hbm_capacity_bytes / GIB, gb_low), (large.hbm_capacity_bytes / GIB, gb_high),
        (small.hbm_bandwidth_gb_s / 1e3, tb_low), (large.hbm_bandwidth_gb_s / 1e3, tb_high),
    ]  # fmt: skip
    checks = [abs(ours / said - 1) <= PRINTED_TO for ours, said in found]
    values = [significant(ours) for ours, _ in found]
    why = (
        f"The data sheets give {values[0]} KiB of SRAM per SM, {values[1]} TB/s for the shared "
        f"memory of all, {values[2]} and {values[3]} GiB of HBM at {values[4]} and {values[5]} "
        f"TB/s: {share(checks)} within {100 * PRINTED_TO:.0f} % of what is said (one block may use "
        f"{capacity(small.smem_per_block_bytes)} of that SRAM)."
    )
    return judged(checks, why, SHEETS)
