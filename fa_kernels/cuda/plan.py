"""From a problem and a tiling to what is compiled and launched: arithmetic alone, no GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fa_kernels.cuda.arguments import option_macros
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.standard import softmax_reads
from fa_kernels.tiling import (
    LayoutOf,
    SmemLayout,
    Tiling,
    flash_smem,
    round_up,
    standard_output_smem,
    standard_scores_smem,
    with_block_mask,
)

IO_BITS = {"float32": 32, "float16": 16, "bfloat16": 16}
#: Grid x limit of CUDA; all our grids are one-dimensional.
MAX_GRID = 2**31 - 1
#: fp32 accumulators per thread (tile.cuh): beyond this the O tile would spill to local memory.
MAX_ACCUMULATORS = 128
#: Two reductions of 02's softmax launch, one float per warp slot each.
SOFTMAX_STATIC_SMEM = 2 * 32 * 4
#: Threads of a block of 01_standard_naive: a thread per element, so no tile sets the number.
NAIVE_THREADS = 256
#: The GPU that thread counts were tuned on: shared memory of one SM, of which a block reserves
#: 1 KiB, and number of SMs.
H200_SMEM_PER_SM = 228 * 1024
H200_SMS = 132


@dataclass(frozen=True)
class LaunchStep:
    """One kernel launch: entry point, grid and block size, dynamic shared memory in bytes.

    `static_smem_bytes` is what the kernel declares for itself; both count against the GPU's limit.
    """

    entry: str
    grid: int
    threads: int
    smem_bytes: int
    static_smem_bytes: int = 0


@dataclass(frozen=True)
class LaunchPlan:
    """One kernel file compiled with `macros`, and the launches made from it, in order.

    `layout_of` gives the layout of other tiles, where these are refused.
    """

    kernel: str
    macros: Mapping[str, int]
    steps: tuple[LaunchStep, ...]
    layout: SmemLayout
    layout_of: LayoutOf = flash_smem

    @property
    def smem_bytes(self) -> int:
        """The most shared memory, static included, that any of the launches needs, in bytes."""
        return max(step.smem_bytes + step.static_smem_bytes for step in self.steps)


def plan_threads(tiling: Tiling, head_dim: int, smem_bytes: int, blocks: int | None = None) -> int:
    """Threads per block: 64 to 256, doubled while the SM would hold too few or the O tile spill.

    `blocks` is how many there are, where that may be too few to fill the GPU.

    A block of few threads with 8 rows each reuses registers best, but the more shared memory it
    takes, the fewer blocks share an SM to hide each other's latency. The numbers were chosen by
    timing 64, 128 and 256 threads over the tilings of the recorded grid on an H200.
    """
    threads = 64 if tiling.block_m <= 32 else 128
    blocks_per_sm = max(1, H200_SMEM_PER_SM // max(1, smem_bytes + 1024))
    if blocks is not None:
        blocks_per_sm = min(blocks_per_sm, -(-blocks // H200_SMS))
    while threads < 256 and (
        threads * blocks_per_sm < 320 or accumulators(tiling.block_m, head_dim, threads) > 64
    ):
        threads *= 2
    return threads


def accumulators(block_m: int, head_dim: int, threads: int) -> int:
    """fp32 registers per thread that hold a tile of so many rows (`Accumulator` in tile.cuh)."""
    groups = -(-head_dim // 4)
    o_tx = min(16, 1 << (groups - 1).bit_length())
    return -(-block_m // (threads // o_tx)) * -(-groups // o_tx) * 4


def _refuse_accumulators(tiling: Tiling, head_dim: int, threads: int) -> None:
    need = accumulators(tiling.block_m, head_dim, threads)
    if need <= MAX_ACCUMULATORS:
        return
    fitting = tiling.block_m
    while accumulators(fitting, head_dim, threads) > MAX_ACCUMULATORS:
        fitting -= 1
    raise ValueError(
        f"block_m = {tiling.block_m} at d = {head_dim} needs {need} fp32 registers per thread for "
        f"the O tile, the kernel allows {MAX_ACCUMULATORS}: lower block_m to {fitting} or less "
        "(lower M)."
    )


def io_macros(problem: AttentionProblem) -> dict[str, int]:
    """What io.cuh and score.cuh are compiled with."""
    return {
        "IO_BITS": IO_BITS[problem.dtype],
        "IO_BF16": int(problem.dtype == "bfloat16"),
        "HEAD_DIM": problem.head_dim,
        **option_macros(problem),
    }


def tile_macros(tiling: Tiling, threads: int, aligned: bool) -> dict[str, int]:
    """What tile.cuh is compiled with."""
    return {
        "BLOCK_M": tiling.block_m,
        "BLOCK_N": tiling.block_n,
        "THREADS": threads,
        "ALIGNED": int(aligned),
    }


def refuse_block_mask(problem: AttentionProblem, kernel: str) -> None:
    """Raise NotImplementedError, with the remedy, if there is one: `kernel` takes none."""
    if problem.block_mask is not None:
        raise NotImplementedError(
            f"{kernel} has no block mask: use variant='flash_q_outer' or 'flash_kv_outer'."
        )


def checked_grid(entry: str, grid: int) -> int:
    """`grid`, or a ValueError with the remedy if it is more than CUDA allows."""
    if grid > MAX_GRID:
        raise ValueError(
            f"{entry} would need {grid} blocks, CUDA allows {MAX_GRID}: "
            "use larger tiles (raise M), a shorter sequence, or split the batch."
        )
    return grid


def tiles(length: int, block: int) -> int:
    """How many tiles of `block` cover `length`."""
    return -(-length // block)


def plan_flash_q_outer(
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    aligned: bool = True,
    count_traffic: bool = False,
    trace: bool = False,
    one_block_per_head: bool = False,
) -> LaunchPlan:
    """Plan of 04_flash_q_outer: one launch, one block per Q tile.

    Args:
        aligned: rows of q, k, v, out start at multiples of 16 bytes: tiles move 16 bytes at once.
        count_traffic: compile the in-kernel byte counters in.
        trace: compile in what records one row for the stepper.
        one_block_per_head: one block goes over all Q tiles of a head, as in 03.

    Raises:
        ValueError, NotImplementedError: grid, registers or dtype not supported, in words.
    """
    q_tiles = 1 if one_block_per_head else tiles(problem.seqlen_q, tiling.block_m)
    options = {"TRACE": int(trace), "ONE_BLOCK_PER_HEAD": int(one_block_per_head)}
    options["COUNT_TRAFFIC"] = int(count_traffic)
    grid = problem.heads * q_tiles
    blocks = grid if one_block_per_head else None
    return _plan_flash("04_flash_q_outer", problem, tiling, grid, blocks, aligned, options)


def plan_flash_q_outer_one_block(
    problem: AttentionProblem, tiling: Tiling, **options: bool
) -> LaunchPlan:
    """`plan_flash_q_outer` with one block per head (-DONE_BLOCK_PER_HEAD)."""
    return plan_flash_q_outer(problem, tiling, one_block_per_head=True, **options)


def plan_flash_kv_outer(
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    aligned: bool = True,
    count_traffic: bool = False,
    trace: bool = False,
    o_io_dtype: bool = False,
) -> LaunchPlan:
    """Plan of 03_flash_kv_outer: one launch, one block per head.

    `o_io_dtype` carries O in the io dtype; fp32 inputs always do, that being the same. Other
    arguments and errors as `plan_flash_q_outer`.
    """
    options = {"TRACE": int(trace), "O_IO_DTYPE": int(o_io_dtype or problem.itemsize == 4)}
    options["COUNT_TRAFFIC"] = int(count_traffic)
    grid = problem.heads
    return _plan_flash("03_flash_kv_outer", problem, tiling, grid, grid, aligned, options)


def plan_flash_kv_outer_io(
    problem: AttentionProblem, tiling: Tiling, **options: bool
) -> LaunchPlan:
    """`plan_flash_kv_outer` with O in the io dtype (-DO_IO_DTYPE)."""
    return plan_flash_kv_outer(problem, tiling, o_io_dtype=True, **options)


def cuts_tiles(problem: AttentionProblem, tiling: Tiling) -> bool:
    """Whether a tile can touch two blocks of the mask: CUTS_TILES of block_mask.cuh."""
    mask = problem.block_mask
    if mask is None:
        return False
    return mask.block_m % tiling.block_m != 0 or mask.block_n % tiling.block_n != 0


def block_sparse_build(
    problem: AttentionProblem,
    tiling: Tiling,
    layout: SmemLayout,
    walk_smem: int = 16,
    copies: int = 1,
) -> tuple[SmemLayout, dict[str, int], int]:
    """(layout, macros, static shared memory in bytes) of a flash build with its block mask.

    `walk_smem`: static shared memory that finding the way takes, in bytes; `copies`: how many
    tiles' worth of the mask's blocks are in shared memory at a time.
    """
    mask = problem.block_mask
    macros = {"BLOCK_SPARSE": int(mask is not None)}
    if mask is not None:
        layout = with_block_mask(layout, tiling, mask.block_m, mask.block_n, copies)
        macros |= {"MASK_BLOCK_M": mask.block_m, "MASK_BLOCK_N": mask.block_n}
    macros["SMEM_BYTES"] = layout.smem_bytes
    return layout, macros, walk_smem if mask is not None else 0


def _plan_flash(
    kernel: str,
    problem: AttentionProblem,
    tiling: Tiling,
    grid: int,
    blocks: int | None,
    aligned: bool,
    options: dict[str, int],
) -> LaunchPlan:
    """One launch of a flash rung; `blocks` is the grid where it may be too small to fill a GPU."""
    layout = flash_smem(tiling.block_m, tiling.block_n, problem.head_dim, problem.itemsize)
    threads = plan_threads(tiling, problem.head_dim, layout.smem_bytes, blocks)
    _refuse_accumulators(tiling, problem.head_dim, threads)
    macros = io_macros(problem) | tile_macros(tiling, threads, aligned) | options
    macros["FEW_BLOCKS"] = int(blocks is not None and blocks <= 2 * H200_SMS)
    layout, sparse, static = block_sparse_build(problem, tiling, layout)
    macros |= sparse
    entry = kernel.partition("_")[2]
    step = LaunchStep(entry, checked_grid(entry, grid), threads, layout.smem_bytes, static)
    return LaunchPlan(kernel, macros, (step,), layout)


def plan_standard_naive(
    problem: AttentionProblem, tiling: Tiling, *, aligned: bool = True, count_traffic: bool = False
) -> LaunchPlan:
    """Plan of 01_standard_naive: three launches, a thread per element; `tiling` has no meaning.

    Arguments and errors as `plan_flash_q_outer`.
    """
    refuse_block_mask(problem, "01_standard_naive")
    rows = problem.heads * problem.seqlen_q
    grids = {
        "scores": rows * tiles(problem.seqlen_k, NAIVE_THREADS),
        "softmax": tiles(rows, NAIVE_THREADS // 32),
        "output": tiles(rows * problem.head_dim, NAIVE_THREADS),
    }
    steps = []
    for name, grid in grids.items():
        entry = f"standard_naive_{name}"
        steps.append(LaunchStep(entry, checked_grid(entry, grid), NAIVE_THREADS, 0))
    macros = io_macros(problem) | {"THREADS": NAIVE_THREADS, "COUNT_TRAFFIC": int(count_traffic)}
    return LaunchPlan("01_standard_naive", macros, tuple(steps), SmemLayout((), 0))


def plan_standard_tiled(
    problem: AttentionProblem, tiling: Tiling, *, aligned: bool = True, count_traffic: bool = False
) -> LaunchPlan:
    """Plan of 02_standard_tiled: three launches with S and P in HBM between them.

    Arguments and errors as `plan_flash_q_outer`.
    """
    refuse_block_mask(problem, "02_standard_tiled")
    sizes = (tiling.block_m, tiling.block_n, problem.head_dim, problem.itemsize)
    scores, output = standard_scores_smem(*sizes), standard_output_smem(*sizes)
    threads = plan_threads(tiling, problem.head_dim, scores.smem_bytes)
    _refuse_accumulators(tiling, problem.head_dim, threads)
    # Short rows: a warp each, so that no lane idles; long rows: the whole block.
    row_threads = 32 if problem.seqlen_k <= 1024 else threads
    chunk = 16 // problem.itemsize
    row_in_smem = softmax_reads(problem.seqlen_k) == 1
    rows_per_block = threads // row_threads
    cached_row = 4 * round_up(problem.seqlen_k, chunk) if row_in_smem else 0
    macros = io_macros(problem) | tile_macros(tiling, threads, aligned)
    macros |= {
        "COUNT_TRAFFIC": int(count_traffic),
        "SCORES_SMEM_BYTES": scores.smem_bytes,
        "OUTPUT_SMEM_BYTES": output.smem_bytes,
        "ROW_THREADS": row_threads,
        "ROW_IN_SMEM": int(row_in_smem),
        "ROWS_ALIGNED": int(problem.seqlen_k % chunk == 0),
    }
    q_tiles = tiles(problem.seqlen_q, tiling.block_m)
    k_tiles = tiles(problem.seqlen_k, tiling.block_n)
    grids = {
        "scores": (problem.heads * q_tiles * k_tiles, scores.smem_bytes),
        "softmax": (
            tiles(problem.heads * problem.seqlen_q, rows_per_block),
            cached_row * rows_per_block,
        ),
        "output": (problem.heads * q_tiles, output.smem_bytes),
    }
    steps = []
    for name, (grid, smem_bytes) in grids.items():
        entry = f"standard_tiled_{name}"
        static = SOFTMAX_STATIC_SMEM if name == "softmax" else 0
        steps.append(LaunchStep(entry, checked_grid(entry, grid), threads, smem_bytes, static))
    layout = scores if scores.smem_bytes >= output.smem_bytes else output
    return LaunchPlan("02_standard_tiled", macros, tuple(steps), layout)


#: Every way to launch each kernel file.
PLANS: dict[str, tuple[Callable[..., LaunchPlan], ...]] = {
    "01_standard_naive": (plan_standard_naive,),
    "02_standard_tiled": (plan_standard_tiled,),
    "03_flash_kv_outer": (plan_flash_kv_outer, plan_flash_kv_outer_io),
    "04_flash_q_outer": (plan_flash_q_outer, plan_flash_q_outer_one_block),
}
