"""Plan of 05_flash_mma_backward: who owns what on tensor cores; arithmetic alone, no GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fa_kernels.cuda.plan import (
    H200_SMEM_PER_SM,
    LaunchPlan,
    LaunchStep,
    block_sparse_build,
    checked_grid,
    io_macros,
    tile_macros,
    tiles,
)
from fa_kernels.cuda.plan_mma import (
    MAX_REGISTERS,
    QUEUE_SMEM,
    REGISTERS_PER_SM,
    refuse_other_units,
)
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import (
    HOPPER_SMEM_PER_BLOCK,
    SmemLayout,
    Tiling,
    flash_mma_backward_smem,
    mma_head_dim,
)
from fa_kernels.units import KIB

#: What a thread needs beside its fragments: addresses, statistics, one pair of operands.
OTHER_REGISTERS = 48
#: Shared memory of a block on the GPUs with tensor cores that have least of it (sm_86, sm_89).
SMALLEST_SMEM_PER_BLOCK = 99 * KIB
#: Room for the cells of a block mask.
BLOCK_MASK_BYTES = 2 * KIB


@dataclass(frozen=True)
class Shape:
    """How the warps of a block share a K/V tile.

    So many `sides`, warps, have `warp_keys` keys, and take `rows_at_once` rows of Q at a time.
    """

    warp_keys: int
    sides: int
    rows_at_once: int

    def threads(self, block_n: int) -> int:
        """Threads of a block of so many keys."""
        return 32 * self.sides * block_n // self.warp_keys

    def registers(self, padded: int) -> int:
        """Registers per thread for dk, dv, S and dP."""
        per_row = 2 * self.warp_keys // 32
        return per_row * (padded + self.rows_at_once) // self.sides


def dq_warps(warps: int, block_m: int, padded: int) -> tuple[int, int]:
    """Over how many warps the rows and the columns of a dq tile are spread.

    Powers of two that divide its fragments of 16; of those with the most warps the squarest.
    """
    powers = [1, 2, 4, 8, 16]
    rows = [m for m in powers if block_m // 16 % m == 0]
    cols = [d for d in powers if padded // 16 % d == 0]
    able = [(m, d) for m in rows for d in cols if m * d <= warps]
    return min(able, key=lambda at: (-at[0] * at[1], block_m // at[0] + padded // at[1]))


def _shapes(tiling: Tiling, padded: int) -> Iterator[Shape]:
    """Every shape for these tiles, the best first."""
    rows = [n for n in (64, 32, 16) if tiling.block_m % n == 0]
    if tiling.block_m < 64 and tiling.block_m not in rows:
        rows.insert(0, tiling.block_m)
    for keys, sides, at_once in itertools.product((32, 16), (1, 2, 4), rows):
        if tiling.block_n % keys == 0 and at_once % max(16, 8 * sides) == 0:
            yield Shape(keys, sides, at_once)


def _fits(shape: Shape, tiling: Tiling, padded: int) -> bool:
    threads = shape.threads(tiling.block_n)
    registers = min(MAX_REGISTERS, REGISTERS_PER_SM // threads // 8 * 8)
    return threads <= 512 and shape.registers(padded) + OTHER_REGISTERS <= registers


def shape_of(tiling: Tiling, padded: int) -> Shape | None:
    """How the warps share these tiles; None if no sharing leaves enough registers."""
    return next((s for s in _shapes(tiling, padded) if _fits(s, tiling, padded)), None)


def plan_flash_mma_backward(
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    aligned: bool = True,
    count_traffic: bool = False,
    deterministic: bool = False,
    shape: Shape | None = None,
    stages: int | None = None,
    min_blocks: int | None = None,
) -> LaunchPlan:
    """Plan of 05_flash_mma_backward: delta; with a bias the statistics; keys; then dq.

    Args:
        aligned: rows of all arrays start at multiples of 16 bytes: asynchronous copies.
        count_traffic: compile the in-kernel byte counters in.
        deterministic: dq by a launch of its own instead of atomic additions.
        shape, stages, min_blocks: instead of the plan's own choice, to see what that is worth.

    Raises:
        ValueError: tiles that are no whole fragments of 16 x 16, or need more registers than a
            thread has; a grid that CUDA does not allow; with the remedy.
        NotImplementedError: fp32.
    """
    refuse_other_units(problem, tiling, "05_flash_mma_backward")
    padded, bias = mma_head_dim(problem.head_dim), problem.bias_dtype is not None
    shape = shape or shape_of(tiling, padded)
    if shape is None:
        raise ValueError(
            f"B_c = {tiling.block_n}, B_r = {tiling.block_m} at d = {problem.head_dim} leaves no "
            "registers for dk and dv: use block_n = 64 or less, block_m a multiple of 32 (lower "
            "M), or leave tiling out."
        )
    if stages is None:
        stages = _stages(tiling, problem.head_dim, shape.sides > 1, bias)
    threads = shape.threads(tiling.block_n)
    layout = flash_mma_backward_smem(
        tiling.block_m, tiling.block_n, problem.head_dim, 2, stages, shape.sides > 1, bias
    )
    layout, sparse, static = block_sparse_build(problem, tiling, layout, QUEUE_SMEM, copies=2)
    if min_blocks is None:
        twice = 2 * (layout.smem_bytes + static + 1024) <= H200_SMEM_PER_SM
        few = shape.registers(padded) + OTHER_REGISTERS <= REGISTERS_PER_SM // (2 * threads)
        min_blocks = 2 if twice and few else 1
    dq_m, dq_d = dq_warps(threads // 32, tiling.block_m, padded)
    macros = io_macros(problem) | tile_macros(tiling, threads, aligned) | sparse
    macros |= {
        "COUNT_TRAFFIC": int(count_traffic),
        "DETERMINISTIC": int(deterministic),
        "HEAD_DIM_PAD": padded,
        "STAGES": stages,
        "SWIZZLE": 1,
        "SIDES": shape.sides,
        "ROWS_AT_ONCE": shape.rows_at_once,
        "DQ_WARPS_M": dq_m,
        "DQ_WARPS_D": dq_d,
        "MIN_BLOCKS": min_blocks,
    }
    steps = tuple(_steps(problem, tiling, threads, (layout.smem_bytes, static), deterministic))
    return LaunchPlan("05_flash_mma_backward", macros, steps, layout, flash_mma_backward_smem)


def _steps(
    problem: AttentionProblem,
    tiling: Tiling,
    threads: int,
    smem: tuple[int, int],
    deterministic: bool,
) -> Iterator[LaunchStep]:
    q_tiles = problem.heads * tiles(problem.seqlen_q, tiling.block_m)
    k_tiles = problem.heads // problem.group * tiles(problem.seqlen_k, tiling.block_n)

    def step(name: str, grid: int, smem: tuple[int, int] = (0, 0)) -> LaunchStep:
        entry = f"flash_mma_backward_{name}"
        return LaunchStep(entry, checked_grid(entry, grid), threads, *smem)

    yield step("delta", q_tiles)
    if problem.bias_dtype is not None:
        yield step("statistics", q_tiles, smem)
    yield step("keys", k_tiles, smem)
    if deterministic:
        yield step("rows", q_tiles, smem)
    else:
        yield step("convert", q_tiles)


def _stages(tiling: Tiling, head_dim: int, shared: bool, bias: bool) -> int:
    """Two, where a block may have so much shared memory; fewer than 64 keys are for small GPUs.

    By the tiles alone: builds must not differ by the machine they are planned on.
    """
    limit = HOPPER_SMEM_PER_BLOCK if tiling.block_n >= 64 else SMALLEST_SMEM_PER_BLOCK
    sizes = (tiling.block_m, tiling.block_n, head_dim, 2)
    two = flash_mma_backward_smem(*sizes, 2, shared, bias)
    return 2 if two.smem_bytes + BLOCK_MASK_BYTES <= limit else 1


def default_mma_backward_tiling(
    head_dim: int, itemsize: int, limit_bytes: int = HOPPER_SMEM_PER_BLOCK
) -> Tiling:
    """What `tiling=None` stands for, by head_dim and the shared memory a block may have."""
    able = _TILINGS[mma_head_dim(head_dim)]
    fits = (t for t in able if _layout(*t, head_dim, itemsize).smem_bytes <= limit_bytes)
    return Tiling(*next(fits, able[-1]))


def _layout(block_m: int, block_n: int, head_dim: int, itemsize: int) -> SmemLayout:
    """The most that these tiles need, with a bias and a block mask."""
    tiling = Tiling(block_m, block_n)
    shape = shape_of(tiling, mma_head_dim(head_dim))
    shared = shape is not None and shape.sides > 1
    stages = _stages(tiling, head_dim, shared, True)
    layout = flash_mma_backward_smem(block_m, block_n, head_dim, itemsize, stages, shared, True)
    return SmemLayout((*layout.parts, ("block mask", BLOCK_MASK_BYTES)), layout.accumulator_bytes)


#: (block_m, block_n) by padded head_dim, the first that fits is taken: an H200's, then others for
#: GPUs of 163 and 99 KiB a block.
_TILINGS: dict[int, tuple[tuple[int, int], ...]] = {
    32: ((64, 128),),
    64: ((64, 128), (32, 128)),
    96: ((64, 128), (32, 64)),
    128: ((64, 128), (32, 128), (32, 64)),
    192: ((64, 64), (32, 64), (32, 32)),
    256: ((64, 64), (32, 64), (32, 32)),
}

#: Every way to launch the file.
MMA_BACKWARD_PLANS: dict[str, tuple[Callable[..., LaunchPlan], ...]] = {
    "05_flash_mma_backward": (plan_flash_mma_backward,)
}
