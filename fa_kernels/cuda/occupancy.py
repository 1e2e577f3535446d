"""How many blocks of a kernel share one SM, and which limit stops the next: arithmetic alone.

Source: NVIDIA's occupancy calculator (cuda_occupancy.h of CUDA 13.0); the limits per architecture
are those of the CUDA Programming Guide, "Technical Specifications per Compute Capability".
"""

from __future__ import annotations

from dataclasses import dataclass

from fa_kernels.units import KIB, capacity

WARP = 32
REGISTERS, SHARED_MEMORY, THREADS, BLOCKS = "registers", "shared memory", "threads", "blocks"
RESOURCES = (REGISTERS, SHARED_MEMORY, THREADS, BLOCKS)
#: Schedulers of an SM; each has a quarter of its registers, and a warp lives in one of them.
_PARTITIONS = 4
_REGISTERS_PER_SM = 64 * 1024
#: Registers are handed out to warps in units of this many.
_REGISTER_UNIT = 256
MAX_REGISTERS_PER_THREAD = 255
MAX_THREADS_PER_BLOCK = 1024


@dataclass(frozen=True)
class SmLimits:
    """What one SM of an architecture has. CUDA reserves part of every block's shared memory."""

    max_threads: int
    max_blocks: int
    smem_bytes: int
    smem_per_block_bytes: int
    smem_reserved_bytes: int = KIB
    smem_unit_bytes: int = 128


#: By compute capability, 90 for sm_90.
SM_LIMITS: dict[int, SmLimits] = {
    75: SmLimits(1024, 16, 64 * KIB, 64 * KIB, 0, 256),
    80: SmLimits(2048, 32, 164 * KIB, 163 * KIB),
    86: SmLimits(1536, 16, 100 * KIB, 99 * KIB),
    89: SmLimits(1536, 24, 100 * KIB, 99 * KIB),
    90: SmLimits(2048, 32, 228 * KIB, 227 * KIB),
    100: SmLimits(2048, 32, 228 * KIB, 227 * KIB),
    120: SmLimits(1536, 24, 100 * KIB, 99 * KIB),
}


@dataclass(frozen=True)
class Occupancy:
    """`blocks` resident on one SM; `limits` how many each resource would allow by itself.

    `shares` is what one block takes of the SM, by resource, 0 to 1. A resource that it does not
    use is in neither.
    """

    blocks: int
    warps_per_block: int
    max_warps: int
    limits: dict[str, int]
    shares: dict[str, float]

    @property
    def limiter(self) -> str:
        """What allows no further block: "registers"; all of them, if several do."""
        found = (name for name in RESOURCES if self.limits.get(name) == self.blocks)
        return " and ".join(found)

    @property
    def warps(self) -> int:
        """Resident warps of one SM."""
        return self.blocks * self.warps_per_block

    @property
    def fraction(self) -> float:
        """Resident warps over those an SM has room for: what CUDA calls occupancy."""
        return self.warps / self.max_warps


def occupancy(threads: int, registers: int, smem_bytes: int, arch: int) -> Occupancy:
    """Resident blocks of a kernel on one SM.

    Args:
        threads: per block, 1 to 1024.
        registers: per thread, as ptxas reports them.
        smem_bytes: shared memory of a block, static and dynamic together, without what CUDA
            reserves.
        arch: compute capability, 90 for sm_90.

    Raises:
        ValueError: no such architecture, or a block that cannot be launched at all; value, limit.
    """
    if arch not in SM_LIMITS:
        known = ", ".join(f"sm_{name}" for name in SM_LIMITS)
        raise ValueError(f"sm_{arch} is not known: use one of {known}.")
    limits = SM_LIMITS[arch]
    if not 1 <= threads <= MAX_THREADS_PER_BLOCK:
        raise ValueError(f"threads = {threads}: a block has 1 to {MAX_THREADS_PER_BLOCK}.")
    if not 0 <= smem_bytes <= limits.smem_per_block_bytes:
        raise ValueError(
            f"shared memory = {capacity(smem_bytes)}: a block of sm_{arch} has at most "
            f"{capacity(limits.smem_per_block_bytes)}: take smaller tiles."
        )
    warps = -(-threads // WARP)
    allowed = {THREADS: limits.max_threads // WARP // warps, BLOCKS: limits.max_blocks}
    shares = {THREADS: warps * WARP / limits.max_threads, BLOCKS: 1 / limits.max_blocks}
    if registers:
        allowed[REGISTERS] = _by_registers(warps, registers)
        shares[REGISTERS] = warps * _per_warp(registers) / _REGISTERS_PER_SM
    block_bytes = _up(smem_bytes + limits.smem_reserved_bytes, limits.smem_unit_bytes)
    if block_bytes:
        allowed[SHARED_MEMORY] = limits.smem_bytes // block_bytes
        shares[SHARED_MEMORY] = block_bytes / limits.smem_bytes
    most = limits.max_threads // WARP
    return Occupancy(min(allowed.values()), warps, most, allowed, shares)


def _per_warp(registers: int) -> int:
    return _up(registers * WARP, _REGISTER_UNIT)


def _by_registers(warps: int, registers: int) -> int:
    """A warp's registers lie in one partition, so what is left over in each of the four is lost."""
    per_warp = _per_warp(registers)
    # The hardware checks a launch as if its warps were spread evenly over the partitions.
    if (
        registers > MAX_REGISTERS_PER_THREAD
        or per_warp * _up(warps, _PARTITIONS) > _REGISTERS_PER_SM
    ):
        raise ValueError(
            f"{registers} registers for each of {warps * WARP} threads: a thread has at most "
            f"{MAX_REGISTERS_PER_THREAD}, a block {_REGISTERS_PER_SM} in all."
        )
    return _REGISTERS_PER_SM // _PARTITIONS // per_warp * _PARTITIONS // warps


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
