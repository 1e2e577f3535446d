"""Plan of 05_flash_mma: warps, registers and stages for tensor cores; arithmetic alone, no GPU."""

from __future__ import annotations

from collections.abc import Callable

from fa_kernels.block_mask import BlockMask, per_mask
from fa_kernels.cuda.plan import (
    H200_SMEM_PER_SM,
    LaunchPlan,
    LaunchStep,
    block_sparse_build,
    checked_grid,
    cuts_tiles,
    io_macros,
    tile_macros,
    tiles,
)
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import HOPPER_SMEM_PER_BLOCK, Tiling, flash_mma_smem, mma_head_dim

#: Registers of an SM and of a thread, on every architecture since sm_80.
REGISTERS_PER_SM, MAX_REGISTERS = 65536, 255
#: What a thread needs beside its fragments: addresses, m, l, one pair of operands.
OTHER_REGISTERS = 56
#: K and V of so many bytes may be in use at a time: half of an H200's L2, so that both stay in it.
SECTION_BYTES = 32 * 2**20
#: What tile_queue.cuh keeps of a list in static shared memory.
QUEUE_SMEM = 32
#: From so many times the mean on a list is long: its block would be the last to end.
LONG_LIST = 3.0
#: The steps from 04 to 05, as macros that can be turned off one by one (to 0, STAGES to 1).
SWITCHES = ("STAGES", "SWIZZLE", "Q_IN_REGS", "FOLD_SCALE", "LAZY_RESCALE", "OVERLAP", "PAIRS")
#: Scales that exp2 can take in: m times a larger one overflows, a smaller one is flushed to zero.
FOLDED_SCALES = (1e-30, 64.0)
#: From here on two warps share rows: half of the columns is whole groups of 8 chunks.
PAIRS_FROM = 256
#: From here on the next tile's S is computed ahead: below, 32 rows a warp are worth more.
OVERLAP_FROM = 192


def _fragments(warp_rows: int, tiling: Tiling, padded: int, pairs: bool = False) -> int:
    """Registers per thread that hold a warp's part of O and S, in fp32."""
    return warp_rows * (padded + tiling.block_n) // (64 if pairs else 32)


def _pairs(tiling: Tiling, padded: int, plain: bool) -> bool:
    """Whether two warps share 32 rows, each with half of S and O: O is too much for one."""
    return plain and padded >= PAIRS_FROM and tiling.block_m == 128 and tiling.block_n % 32 == 0


def _warp_rows(tiling: Tiling, padded: int, plain: bool) -> int:
    """Rows of Q a warp owns. 32 read K and V half as often as 16, but take twice the registers."""
    fits = _fragments(32, tiling, padded) + OTHER_REGISTERS <= MAX_REGISTERS
    return 32 if plain and fits and tiling.block_m % 32 == 0 and tiling.block_m >= 128 else 16


def plan_flash_mma(
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    aligned: bool = True,
    count_traffic: bool = False,
    without: tuple[str, ...] = (),
) -> LaunchPlan:
    """Plan of 05_flash_mma: one launch, one block per Q tile, a warp for 16 or 32 of its rows.

    Args:
        aligned: rows of q, k, v, out start at multiples of 16 bytes: asynchronous copies.
        count_traffic: compile the in-kernel byte counters in.
        without: names of `SWITCHES` to turn off, to see what each is worth.

    Raises:
        ValueError: tiles that are no whole fragments of 16 x 16, or need more registers than a
            thread has; a grid that CUDA does not allow; with the remedy.
        NotImplementedError: fp32.
    """
    refuse_other_units(problem, tiling, "05_flash_mma")
    padded = mma_head_dim(problem.head_dim)
    options = io_macros(problem)
    # Dropout that is drawn takes four registers for a moment; arrays and bounds stay.
    stay = any(options[name] for name in ("MASK", "BIAS", "PACKED", "WINDOW"))
    plain = not stay and options["DROPOUT"] != 2
    # Nor does a block mask that cuts no tile: which are visited stays in shared memory.
    plain_walk = plain and not cuts_tiles(problem, tiling)
    pairs = "PAIRS" not in without and _pairs(tiling, padded, plain_walk)
    warp_rows = 32 if pairs else _warp_rows(tiling, padded, plain_walk)
    threads = 32 * (tiling.block_m // warp_rows) * (2 if pairs else 1)
    registers = min(MAX_REGISTERS, REGISTERS_PER_SM // threads // 8 * 8)
    need = _fragments(warp_rows, tiling, padded, pairs) + OTHER_REGISTERS
    if need > registers or threads > 512:
        raise ValueError(_too_many_registers(problem, tiling, need, registers))
    q_in_regs = plain and need + warp_rows * padded // 64 <= min(registers, 224)
    stages = 1 if "STAGES" in without else 2
    ahead = not pairs and need + warp_rows * tiling.block_n // 32 <= registers
    sizes = (tiling.block_m, tiling.block_n, problem.head_dim)
    layout = flash_mma_smem(*sizes, stages=stages, pairs=pairs)
    layout, sparse, static = block_sparse_build(problem, tiling, layout, QUEUE_SMEM, copies=2)
    fits_twice = 2 * (layout.smem_bytes + static + 1024) <= H200_SMEM_PER_SM
    few = need + q_in_regs * warp_rows * padded // 64 <= REGISTERS_PER_SM // (2 * threads)
    macros = options | tile_macros(tiling, threads, aligned) | sparse
    macros |= {
        "COUNT_TRAFFIC": int(count_traffic),
        "HEAD_DIM_PAD": padded,
        "STAGES": stages,
        "SWIZZLE": 1,
        "PAIRS": int(pairs),
        "OVERLAP": int(padded >= OVERLAP_FROM and ahead and plain and stages == 2),
        "Q_IN_REGS": int(q_in_regs),
        "FOLD_SCALE": int(FOLDED_SCALES[0] <= problem.scale <= FOLDED_SCALES[1]),
        # Pairs of warps wait for each other anyway: the test costs them more than it saves.
        "LAZY_RESCALE": int(not pairs),
        "MIN_BLOCKS": 2 if fits_twice and few else 1,
    }
    macros |= {name: 0 for name in without if name != "STAGES"}
    grid = checked_grid("flash_mma", problem.heads * tiles(problem.seqlen_q, tiling.block_m))
    step = LaunchStep("flash_mma", grid, threads, layout.smem_bytes, static)
    return LaunchPlan("05_flash_mma", macros, (step,), layout, flash_mma_smem)


def refuse_fp32(problem: AttentionProblem, kernel: str) -> None:
    """Raise, with the remedy, unless operands have 16 bits, which tensor cores take unrounded.

    Raises:
        NotImplementedError: fp32.
    """
    if problem.itemsize != 2:
        raise NotImplementedError(
            f"{kernel} takes float16 and bfloat16, got float32: tensor cores would round it to "
            "TF32. Cast q, k and v, or use variant='flash_q_outer', which is exact in fp32."
        )


def refuse_other_units(problem: AttentionProblem, tiling: Tiling, kernel: str) -> None:
    """Raise, with the remedy, if tensor cores do not take this dtype or these tiles.

    Raises:
        ValueError: tiles that are no whole fragments of 16 x 16.
        NotImplementedError: fp32.
    """
    refuse_fp32(problem, kernel)
    for name, value in (("block_m", tiling.block_m), ("block_n", tiling.block_n)):
        if value % 16:
            raise ValueError(
                f"{name} = {value}: tensor cores take whole fragments of 16, so use "
                f"{max(16, value // 16 * 16)}, or variant='flash_q_outer' for any tile."
            )


def _too_many_registers(
    problem: AttentionProblem, tiling: Tiling, need: int, registers: int
) -> str:
    return (
        f"B_c = {tiling.block_n}, B_r = {tiling.block_m} at d = {problem.head_dim} needs about "
        f"{need} registers per thread for S and O, a block of that size may have {registers}: "
        "use smaller tiles (lower M)."
    )


def heads_in_section(problem: AttentionProblem) -> int:
    """Heads whose Q tiles are launched together, so that the GPU can begin with the longest.

    As many as keep their K and V in L2 where rows differ in length, one elsewhere; all of them
    where a block mask has a few rows that are much longer than the others.
    """
    if problem.causal is None and problem.packed is None and problem.block_mask is None:
        return 1
    per_head = 2 * problem.seqlen_k * problem.head_dim * problem.itemsize
    return _section(problem, problem.heads, per_head / problem.group, by_keys=False)


def kv_heads_in_section(problem: AttentionProblem) -> int:
    """The same for blocks that own a K/V tile: heads whose Q and dO fit into L2."""
    per_head = 2 * problem.seqlen_q * problem.head_dim * problem.itemsize * problem.group
    return _section(problem, problem.heads // problem.group, per_head, by_keys=True)


def _section(problem: AttentionProblem, heads: int, per_head: float, by_keys: bool) -> int:
    # Such a row takes as long as all the others of its head together: it has to start first.
    if problem.block_mask is not None and longest_list(problem.block_mask, by_keys) > LONG_LIST:
        return heads
    return max(1, min(heads, int(SECTION_BYTES / max(1.0, per_head))))


@per_mask(entries=64)
def longest_list(mask: BlockMask | None, by_keys: bool) -> float:
    """Blocks that the longest row (or column) of blocks keeps, over the mean of all."""
    assert mask is not None
    counts = mask.keep.sum(axis=-2 if by_keys else -1)
    return float(counts.max() / max(counts.mean(), 1e-9))


def default_mma_tiling(
    head_dim: int, itemsize: int, limit_bytes: int = HOPPER_SMEM_PER_BLOCK
) -> Tiling:
    """What `tiling=None` stands for, by head_dim and the shared memory a block may have."""
    for block_m, block_n in _TILINGS[mma_head_dim(head_dim)]:
        pairs = _pairs(Tiling(block_m, block_n), mma_head_dim(head_dim), True)
        if flash_mma_smem(block_m, block_n, head_dim, pairs=pairs).smem_bytes <= limit_bytes:
            return Tiling(block_m, block_n)
    return Tiling(16, 16)


#: (block_m, block_n) by padded head_dim, the first that fits is taken. At 64, 128 and 256 the
#: fastest of those measured on an H200, with and without a causal mask, in 20261130-h200-speed
#: (`measure --speed` measures others too); the second ones are for GPUs of 99 KiB a block.
_TILINGS: dict[int, tuple[tuple[int, int], ...]] = {
    32: ((128, 128),),
    64: ((128, 128),),
    96: ((128, 64), (64, 64)),
    128: ((128, 64), (64, 64)),
    192: ((128, 64), (64, 32)),
    256: ((128, 64), (64, 32)),
}

#: Every way to launch the file.
MMA_PLANS: dict[str, tuple[Callable[..., LaunchPlan], ...]] = {"05_flash_mma": (plan_flash_mma,)}
