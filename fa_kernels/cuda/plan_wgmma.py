"""Plan of 06_flash_wgmma: warpgroups, registers and tiles on Hopper; arithmetic alone, no GPU."""

from __future__ import annotations

from collections.abc import Callable

from fa_kernels.cuda.plan import (
    LaunchPlan,
    LaunchStep,
    block_sparse_build,
    checked_grid,
    io_macros,
    tile_macros,
    tiles,
)
from fa_kernels.cuda.plan_mma import FOLDED_SCALES, refuse_fp32
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import (
    HOPPER_SMEM_PER_BLOCK,
    Tiling,
    flash_wgmma_smem,
    wgmma_head_dim,
)

#: Threads of a warpgroup, and of the one that copies.
WARPGROUP = 128
#: Rows of Q that a warpgroup owns, and the columns of a slab: tiles are whole ones.
GROUP_ROWS = 64
#: Warpgroups that may multiply: more would leave them too few registers.
MAX_GROUPS = 3
#: fp32 and packed 16-bit registers that S, O and P may take of a thread's, by warpgroups.
_FRAGMENT_REGISTERS = {1: 200, 2: 192, 3: 128}
KERNEL = "06_flash_wgmma"


def plan_flash_wgmma(
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    aligned: bool = True,
    count_traffic: bool = False,
    without: tuple[str, ...] = (),
) -> LaunchPlan:
    """Plan of 06_flash_wgmma: one launch; its grid is the number of Q tiles of all heads.

    Args:
        aligned: rows of q, k, v, out start at multiples of 16 bytes: TMA wants them so.
        count_traffic: compile the in-kernel byte counters in.
        without: names of `SWITCHES` to turn off, to see what each is worth.

    Raises:
        ValueError: tiles that are no whole slabs, or need more registers than a thread has; a grid
            that CUDA does not allow; with the remedy.
        NotImplementedError: fp32, packed sequences, rows that TMA cannot read; with the remedy.
    """
    refuse_other_tensors(problem, aligned, KERNEL)
    refuse_other_tiles(tiling, problem.head_dim)
    padded = wgmma_head_dim(problem.head_dim)
    groups = tiling.block_m // GROUP_ROWS
    layout = flash_wgmma_smem(tiling.block_m, tiling.block_n, problem.head_dim)
    layout, sparse, _ = block_sparse_build(problem, tiling, layout, 0, copies=2)
    macros = io_macros(problem) | tile_macros(tiling, groups * WARPGROUP, True) | sparse
    macros |= {
        "COUNT_TRAFFIC": int(count_traffic),
        "HEAD_DIM_PAD": padded,
        "STAGES": 2,
        "SWIZZLE": 1,
        "PAIRS": 0,
        "FOLD_SCALE": int(FOLDED_SCALES[0] <= problem.scale <= FOLDED_SCALES[1]),
        "LAZY_RESCALE": 1,
        # Turns do not pay where two warpgroups find short lists.
        "TAKE_TURNS": int(problem.block_mask is None or groups == MAX_GROUPS),
        "OVERLAP": 1,
    }
    macros |= dict.fromkeys(without, 0)
    grid = checked_grid("flash_wgmma", problem.heads * tiles(problem.seqlen_q, tiling.block_m))
    step = LaunchStep("flash_wgmma", grid, (groups + 1) * WARPGROUP, layout.smem_bytes)
    return LaunchPlan(KERNEL, macros, (step,), layout, flash_wgmma_smem)


#: What can be turned off one by one: O is rescaled at every visit; warpgroups do not take turns;
#: S of a tile waits for P V of the tile before.
SWITCHES = ("LAZY_RESCALE", "TAKE_TURNS", "OVERLAP")


def refuse_other_tensors(problem: AttentionProblem, aligned: bool, kernel: str) -> None:
    """Raise, with the remedy, if TMA or wgmma do not take these tensors.

    Raises:
        NotImplementedError: fp32, packed sequences, rows that do not start at 16 bytes.
    """
    refuse_fp32(problem, kernel)
    if problem.packed is not None:
        raise NotImplementedError(
            f"{kernel} takes no packed sequences: a box that TMA copies would reach into the next "
            "one. Use variant='flash_mma'."
        )
    if problem.head_dim % 8 or not aligned:
        why = f"d = {problem.head_dim}" if problem.head_dim % 8 else "these strides"
        raise NotImplementedError(
            f"{kernel} takes rows that start at multiples of 16 bytes, which {why} does not give: "
            "pass contiguous arrays with d a multiple of 8, or use variant='flash_mma'."
        )


def refuse_other_tiles(tiling: Tiling, head_dim: int) -> None:
    """Raise, with the remedy, if warpgroups do not take these tiles.

    Raises:
        ValueError: names the size, what is allowed, and a remedy.
    """
    for name, value in (("block_m", tiling.block_m), ("block_n", tiling.block_n)):
        if value % GROUP_ROWS:
            raise ValueError(
                f"{name} = {value}: warpgroups take whole slabs of {GROUP_ROWS}, so use "
                f"{max(GROUP_ROWS, value // GROUP_ROWS * GROUP_ROWS)}, or variant='flash_mma'."
            )
    groups = tiling.block_m // GROUP_ROWS
    if groups > MAX_GROUPS:
        raise ValueError(
            f"block_m = {tiling.block_m}: a block has registers for {MAX_GROUPS * GROUP_ROWS} rows "
            f"of Q, so use block_m = {MAX_GROUPS * GROUP_ROWS} or less."
        )
    # S in fp32, O in fp32, P in 16 bits, over the 128 threads of a warpgroup.
    per_row = tiling.block_n + wgmma_head_dim(head_dim) + tiling.block_n // 2
    need, have = per_row * GROUP_ROWS // WARPGROUP, _FRAGMENT_REGISTERS[groups]
    if need > have:
        raise ValueError(
            f"B_c = {tiling.block_n}, B_r = {tiling.block_m} at d = {head_dim} needs {need} "
            f"registers per thread for S, P and O, a block of that size may have {have}: use "
            "smaller tiles (lower M)."
        )


def default_wgmma_tiling(
    head_dim: int, itemsize: int, limit_bytes: int = HOPPER_SMEM_PER_BLOCK
) -> Tiling:
    """What `tiling=None` stands for, by head_dim; `limit_bytes` is that of Hopper anyway."""
    return Tiling(*_TILINGS[wgmma_head_dim(head_dim)])


def suited_wgmma_tiling(problem: AttentionProblem, tiling: Tiling) -> Tiling:
    """The default tiling under a problem's options.

    Three warpgroups have registers for no look at single elements, and should not cut the blocks of
    a mask.
    """
    mask = problem.block_mask
    looks = problem.masked or problem.bias_dtype is not None or problem.keep_given
    cut = mask is not None and mask.block_m % tiling.block_m != 0
    if tiling.block_m == MAX_GROUPS * GROUP_ROWS and (looks or cut):
        return Tiling(2 * GROUP_ROWS, tiling.block_n)
    return tiling


#: (block_m, block_n) by padded head_dim.
_TILINGS: dict[int, tuple[int, int]] = {
    64: (192, 128),
    128: (128, 128),
    192: (128, 64),
    256: (128, 64),
}

#: Every way to launch the file.
WGMMA_PLANS: dict[str, tuple[Callable[..., LaunchPlan], ...]] = {KERNEL: (plan_flash_wgmma,)}
