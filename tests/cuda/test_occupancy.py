"""Resident blocks per SM: equal to NVIDIA's own calculator, limiter by limiter."""

from __future__ import annotations

import pytest

from fa_kernels.cuda.occupancy import (
    BLOCKS,
    REGISTERS,
    SHARED_MEMORY,
    SM_LIMITS,
    THREADS,
    occupancy,
)
from fa_kernels.measure.compile_all import SMEM_PER_BLOCK

#: sm, threads, registers, bytes of shared memory -> blocks, and what registers, shared memory,
#: warps and block slots allow: computed by cudaOccMaxActiveBlocksPerMultiprocessor of
#: cuda_occupancy.h (CUDA 13.0), with the largest carve-out. All 13720 points of a grid over these
#: arguments agreed; here are five of each architecture, one for each limiter and one tie.
NVIDIA = (
    (75, 256, 128, 20000, 2, 2, 3, 4, 16),
    (75, 64, 128, 33000, 1, 8, 1, 16, 16),
    (75, 1000, 32, 20000, 1, 2, 3, 1, 16),
    (75, 32, 32, 1000, 16, 64, 64, 32, 16),
    (75, 1000, 64, 8192, 1, 1, 8, 1, 16),
    (80, 32, 168, 1000, 12, 12, 82, 64, 32),
    (80, 160, 90, 100000, 1, 4, 1, 12, 32),
    (80, 1000, 16, 33000, 2, 4, 4, 2, 32),
    (80, 32, 24, 1000, 32, 84, 82, 64, 32),
    (80, 1024, 24, 49152, 2, 2, 3, 2, 32),
    (86, 64, 136, 1000, 6, 6, 50, 24, 16),
    (86, 64, 64, 16384, 5, 16, 5, 24, 16),
    (86, 160, 32, 8192, 9, 12, 11, 9, 16),
    (86, 32, 90, 1000, 16, 20, 50, 48, 16),
    (86, 512, 40, 256, 3, 3, 80, 3, 16),
    (89, 128, 200, 33000, 2, 2, 3, 12, 24),
    (89, 128, 96, 101376, 1, 5, 1, 12, 24),
    (89, 1000, 24, 33000, 1, 2, 3, 1, 24),
    (89, 32, 16, 1000, 24, 128, 50, 48, 24),
    (89, 1000, 24, 101376, 1, 2, 1, 1, 24),
    (90, 160, 128, 256, 3, 3, 182, 12, 32),
    (90, 32, 24, 20000, 11, 84, 11, 64, 32),
    (90, 256, 24, 8192, 8, 10, 25, 8, 32),
    (90, 32, 40, 256, 32, 48, 182, 64, 32),
    (90, 256, 40, 33000, 6, 6, 6, 8, 32),
    (100, 128, 128, 20000, 4, 4, 11, 16, 32),
    (100, 128, 90, 100000, 2, 5, 2, 16, 32),
    (100, 256, 16, 256, 8, 16, 182, 8, 32),
    (100, 32, 16, 1000, 32, 128, 114, 64, 32),
    (100, 128, 168, 65536, 3, 3, 3, 16, 32),
    (120, 512, 90, 49152, 1, 1, 2, 3, 24),
    (120, 160, 40, 101376, 1, 9, 1, 9, 24),
    (120, 160, 24, 1000, 9, 16, 50, 9, 24),
    (120, 32, 24, 256, 24, 84, 80, 48, 24),
    (120, 64, 16, 256, 24, 64, 80, 24, 24),
)


@pytest.mark.parametrize("row", NVIDIA, ids=str)
def test_it_agrees_with_nvidias_calculator(row: tuple[int, ...]) -> None:
    arch, threads, registers, smem_bytes, blocks, *allowed = row
    found = occupancy(threads, registers, smem_bytes, arch)
    assert found.blocks == blocks
    names = (REGISTERS, SHARED_MEMORY, THREADS, BLOCKS)
    assert [found.limits[name] for name in names] == allowed
    tight = [name for name, most in zip(names, allowed, strict=True) if most == blocks]
    assert found.limiter == " and ".join(tight)


def test_warps_and_shares() -> None:
    """Rung 04 as it is shipped for the H200: 147 registers, so 4864 a warp, three in a quarter."""
    found = occupancy(threads=128, registers=147, smem_bytes=41728, arch=90)
    assert (found.blocks, found.warps, found.max_warps) == (3, 12, 64)
    assert found.fraction == pytest.approx(12 / 64)
    assert found.shares[REGISTERS] == pytest.approx(4 * 4864 / 65536)
    # CUDA keeps 1 KiB of every block for itself, and hands out units of 128 bytes.
    assert found.shares[SHARED_MEMORY] == pytest.approx((41728 + 1024) / (228 * 1024))
    assert found.shares[THREADS] == 128 / 2048 and found.shares[BLOCKS] == 1 / 32


@pytest.mark.parametrize("arch", SM_LIMITS)
def test_one_block_more_does_not_fit(arch: int) -> None:
    for registers in (32, 96, 168, 255):
        for smem_bytes in (0, 16384, 49152, 65536):
            found = occupancy(128, registers, smem_bytes, arch)
            assert all(found.blocks * share <= 1 for share in found.shares.values())
            assert found.limiter


def test_what_a_block_does_not_use_limits_nothing() -> None:
    found = occupancy(threads=64, registers=0, smem_bytes=0, arch=75)
    assert set(found.limits) == {THREADS, BLOCKS} == set(found.shares)
    assert found.blocks == 16 and found.limiter == "threads and blocks"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((128, 32, 0, 61), "sm_61 is not known: use one of sm_75"),
        ((0, 32, 0, 90), "threads = 0"),
        ((2048, 32, 0, 90), "threads = 2048: a block has 1 to 1024"),
        ((128, 32, 228 * 1024, 90), "at most 227 KiB: take smaller tiles"),
        ((128, 256, 0, 90), "256 registers for each of 128 threads: a thread has at most 255"),
        ((1024, 80, 0, 90), "80 registers for each of 1024 threads"),
    ],
)
def test_what_cannot_be_launched_is_refused(arguments: tuple[int, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        occupancy(*arguments)


def test_the_limits_are_those_that_builds_are_held_to() -> None:
    known = {arch: limits.smem_per_block_bytes for arch, limits in SM_LIMITS.items()}
    assert known == SMEM_PER_BLOCK
