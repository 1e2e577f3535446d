"""Plan of 06_flash_wgmma_backward: its tiles, stages and registers; arithmetic alone, no GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fa_kernels.cuda.plan import (
    LaunchPlan,
    LaunchStep,
    block_sparse_build,
    checked_grid,
    io_macros,
    tile_macros,
    tiles,
)
from fa_kernels.cuda.plan_wgmma import WARPGROUP, refuse_other_tensors
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import HOPPER_SMEM_PER_BLOCK, SmemLayout, Tiling, wgmma_head_dim

KERNEL = "06_flash_wgmma_backward"
#: Threads that compute: two warpgroups, each with 64 of the keys.
THREADS = 2 * WARPGROUP
#: Registers per thread of those that compute, and of the warpgroup that fetches: 65536 in all. At
#: d = 128, and where a dropout mask is looked up, dk, dv, S and dP leave none to spare.
REGISTERS, SCARCE_REGISTERS = (232, 40), (240, 24)
#: (block_m, block_n) by padded head_dim: dk, dv, S and dP of 64 keys fill a warpgroup's registers.
_TILINGS: dict[int, tuple[int, int]] = {64: (128, 128), 128: (64, 128)}
#: From here on dq goes to memory by TMA: additions from registers hold the products up longer.
BULK_FROM = 128
#: From here on dk and dv leave no room for S, dP and dq of more rows, but for P in 16 bits.
EARLY_DV_FROM = 128


def wgmma_backward_smem(
    block_m: int,
    block_n: int,
    head_dim: int,
    itemsize: int = 2,
    stages: int = 2,
    bulk: bool = False,
) -> SmemLayout:
    """Layout: K, V, `stages` of Q, dO and what goes with them, two dS, barriers; 16-bit.

    `bulk`: dq passes through shared memory. The accumulators are the dk and dv tiles.
    """
    row_bytes = 2 * wgmma_head_dim(head_dim)
    parts = [("K", row_bytes * block_n), ("V", row_bytes * block_n)]
    parts += [("Q", stages * row_bytes * block_m), ("dO", stages * row_bytes * block_m)]
    parts += [("dS", 2 * 2 * block_m * block_n)] + [("dq", 2 * row_bytes * block_m)] * bulk
    parts += [("m, δ", stages * (8 * block_m + 16)), ("barriers", 8 * (2 * stages + 2))]
    return SmemLayout(parts=tuple(parts), accumulator_bytes=4 * row_bytes * block_n)


def plan_flash_wgmma_backward(
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    aligned: bool = True,
    count_traffic: bool = False,
    deterministic: bool = False,
    stages: int = 2,
    early_dv: bool | None = None,
    bulk: bool | None = None,
) -> LaunchPlan:
    """Plan of 06_flash_wgmma_backward: delta; keys; then dq.

    Args:
        aligned: rows of all arrays start at multiples of 16 bytes: TMA wants them so.
        count_traffic: compile the in-kernel byte counters in.
        deterministic: refused.
        stages, early_dv, bulk: instead of the plan's own choice, to see what that is worth: Q
            tiles in shared memory, dV before dS is there, dq added by TMA.

    Raises:
        ValueError: other tiles than this head_dim's; a grid that CUDA does not allow; with the
            remedy.
        NotImplementedError: fp32, packed sequences, rows that TMA cannot read, a bias, a head_dim
            above 128, a deterministic dq; with the remedy.
    """
    _refuse_others(problem, tiling, aligned, deterministic)
    padded = wgmma_head_dim(problem.head_dim)
    bulk = padded >= BULK_FROM if bulk is None else bulk
    scarce = padded > 64 or problem.keep_given
    registers = SCARCE_REGISTERS if scarce else REGISTERS
    sizes = (tiling.block_m, tiling.block_n, problem.head_dim)
    layout = wgmma_backward_smem(*sizes, 2, stages, bulk)
    layout, sparse, _ = block_sparse_build(problem, tiling, layout, 0, copies=stages)
    macros = io_macros(problem) | tile_macros(tiling, THREADS, aligned) | sparse
    macros |= {
        "COUNT_TRAFFIC": int(count_traffic),
        "HEAD_DIM_PAD": padded,
        "STAGES": stages,
        "SWIZZLE": 1,
        "EARLY_DV": int(padded >= EARLY_DV_FROM if early_dv is None else early_dv),
        "DQ_BULK": int(bulk),
        "CONSUMER_REGISTERS": registers[0],
        "PRODUCER_REGISTERS": registers[1],
    }
    steps = tuple(_steps(problem, tiling, layout.smem_bytes, 2 * padded * tiling.block_m))
    return LaunchPlan(KERNEL, macros, steps, layout, wgmma_backward_smem)


def _steps(
    problem: AttentionProblem, tiling: Tiling, keys_smem: int, q_bytes: int
) -> Iterator[LaunchStep]:
    q_tiles = problem.heads * tiles(problem.seqlen_q, tiling.block_m)
    k_tiles = problem.heads // problem.group * tiles(problem.seqlen_k, tiling.block_n)

    def step(name: str, grid: int, threads: int, smem: int) -> LaunchStep:
        entry = f"flash_wgmma_backward_{name}"
        return LaunchStep(entry, checked_grid(entry, grid), threads, smem)

    yield step("delta", q_tiles, THREADS, 0)
    yield step("keys", k_tiles, THREADS + WARPGROUP, keys_smem)
    yield step("convert", q_tiles, THREADS, q_bytes)


def dq_sum_shape(problem: AttentionProblem, tiling: Tiling) -> tuple[int, int, int, int]:
    """Of the fp32 workspace in which dq adds up: whole tiles, with their padding."""
    q_tiles = tiles(problem.seqlen_q, tiling.block_m)
    numbers = tiling.block_m * wgmma_head_dim(problem.head_dim)
    return problem.batch, problem.nheads, q_tiles, numbers


def _refuse_others(
    problem: AttentionProblem, tiling: Tiling, aligned: bool, deterministic: bool
) -> None:
    refuse_other_tensors(problem, aligned, KERNEL)
    if problem.bias_dtype is not None:
        raise NotImplementedError(f"{KERNEL} takes no bias: use variant='flash_mma'.")
    if deterministic:
        raise NotImplementedError(
            f"{KERNEL} adds dq up in any order, so it is not deterministic: use "
            "variant='flash_mma'."
        )
    if wgmma_head_dim(problem.head_dim) not in _TILINGS:
        raise NotImplementedError(
            f"{KERNEL} takes d up to {max(_TILINGS)}, got {problem.head_dim}: dk and dv of 64 keys "
            "would not fit into the registers. Use variant='flash_mma'."
        )
    block_m, block_n = _TILINGS[wgmma_head_dim(problem.head_dim)]
    if (tiling.block_m, tiling.block_n) != (block_m, block_n):
        raise ValueError(
            f"B_c = {tiling.block_n}, B_r = {tiling.block_m} at d = {problem.head_dim}: {KERNEL} "
            f"takes block_n = {block_n}, block_m = {block_m} alone. Leave tiling out, or use "
            "variant='flash_mma'."
        )


def default_wgmma_backward_tiling(
    head_dim: int, itemsize: int, limit_bytes: int = HOPPER_SMEM_PER_BLOCK
) -> Tiling:
    """What `tiling=None` stands for; of a head_dim that the plan refuses, that of the next."""
    return Tiling(*_TILINGS.get(wgmma_head_dim(head_dim), _TILINGS[max(_TILINGS)]))


#: Every way to launch the file.
WGMMA_BACKWARD_PLANS: dict[str, tuple[Callable[..., LaunchPlan], ...]] = {
    KERNEL: (plan_flash_wgmma_backward,)
}
