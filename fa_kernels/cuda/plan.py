"""From a problem and a tiling to what is compiled and launched: arithmetic alone, no GPU."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fa_kernels.problem import SHORT_DTYPE, AttentionProblem
from fa_kernels.reference.standard import softmax_reads
from fa_kernels.tiling import (
    SmemLayout,
    Tiling,
    flash_smem,
    round_up,
    standard_output_smem,
    standard_scores_smem,
)
from fa_kernels.units import KIB

IO_BITS = {"float32": 32, "float16": 16}
#: Grid x limit of CUDA; all our grids are one-dimensional.
MAX_GRID = 2**31 - 1
#: fp32 accumulators per thread (tile.cuh): beyond this the O tile would spill to local memory.
MAX_ACCUMULATORS = 128
#: Two reductions of 02's softmax launch, one float per warp slot each.
SOFTMAX_STATIC_SMEM = 2 * 32 * 4
#: Shared memory of one SM on the GPU that thread counts were tuned on; a block reserves 1 KiB.
H200_SMEM_PER_SM = 228 * 1024


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
    """One kernel file compiled with `macros`, and the launches made from it, in order."""

    kernel: str
    macros: Mapping[str, int]
    steps: tuple[LaunchStep, ...]
    layout: SmemLayout

    @property
    def smem_bytes(self) -> int:
        """The most shared memory, static included, that any of the launches needs, in bytes."""
        return max(step.smem_bytes + step.static_smem_bytes for step in self.steps)


def plan_threads(tiling: Tiling, head_dim: int, smem_bytes: int) -> int:
    """Threads per block: 64 to 256, doubled while the SM would hold too few or the O tile spill.

    A block of few threads with 8 rows each reuses registers best, but the more shared memory it
    takes, the fewer blocks share an SM to hide each other's latency. The numbers were chosen by
    timing 64, 128 and 256 threads over the tilings of the recorded grid on an H200.
    """
    threads = 64 if tiling.block_m <= 32 else 128
    blocks_per_sm = max(1, H200_SMEM_PER_SM // max(1, smem_bytes + 1024))
    while threads < 256 and (
        threads * blocks_per_sm < 320 or _accumulators(tiling.block_m, head_dim, threads) > 64
    ):
        threads *= 2
    return threads


def _accumulators(block_m: int, head_dim: int, threads: int) -> int:
    """fp32 registers per thread that hold the O tile (O_ROWS * O_COL_GROUPS * 4 in tile.cuh)."""
    groups = -(-head_dim // 4)
    o_tx = min(16, 1 << (groups - 1).bit_length())
    return -(-block_m // (threads // o_tx)) * -(-groups // o_tx) * 4


def _refuse_accumulators(tiling: Tiling, head_dim: int, threads: int) -> None:
    need = _accumulators(tiling.block_m, head_dim, threads)
    if need <= MAX_ACCUMULATORS:
        return
    fitting = tiling.block_m
    while _accumulators(fitting, head_dim, threads) > MAX_ACCUMULATORS:
        fitting -= 1
    raise ValueError(
        f"block_m = {tiling.block_m} at d = {head_dim} needs {need} fp32 registers per thread for "
        f"the O tile, the kernel allows {MAX_ACCUMULATORS}: lower block_m to {fitting} or less "
        "(lower M)."
    )


def _common_macros(
    problem: AttentionProblem, tiling: Tiling, threads: int, aligned: bool, count_traffic: bool
) -> dict[str, int]:
    if problem.nheads_kv != problem.nheads:
        raise NotImplementedError(
            f"nheads_kv = {problem.nheads_kv} with nheads = {problem.nheads}: grouped-query "
            "attention is not there yet. Repeat k and v along the head axis."
        )
    if problem.dtype not in IO_BITS:
        raise NotImplementedError(
            f"dtype = {SHORT_DTYPE[problem.dtype]} has no CUDA-core kernel yet: "
            "cast q, k and v to fp16 or fp32."
        )
    return {
        "IO_BITS": IO_BITS[problem.dtype],
        "HEAD_DIM": problem.head_dim,
        "BLOCK_M": tiling.block_m,
        "BLOCK_N": tiling.block_n,
        "THREADS": threads,
        "ALIGNED": int(aligned),
        "COUNT_TRAFFIC": int(count_traffic),
    }


def _checked_grid(entry: str, grid: int) -> int:
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
    problem: AttentionProblem, tiling: Tiling, *, aligned: bool = True, count_traffic: bool = False
) -> LaunchPlan:
    """Plan of 04_flash_q_outer: one launch, one block per Q tile.

    Args:
        aligned: rows of q, k, v, out start at multiples of 16 bytes: tiles move 16 bytes at once.
        count_traffic: compile the in-kernel byte counters in.

    Raises:
        ValueError, NotImplementedError: grid, registers or dtype not supported, in words.
    """
    layout = flash_smem(tiling.block_m, tiling.block_n, problem.head_dim, problem.itemsize)
    threads = plan_threads(tiling, problem.head_dim, layout.smem_bytes)
    _refuse_accumulators(tiling, problem.head_dim, threads)
    macros = _common_macros(problem, tiling, threads, aligned, count_traffic)
    macros["SMEM_BYTES"] = layout.smem_bytes
    grid = problem.heads * tiles(problem.seqlen_q, tiling.block_m)
    step = LaunchStep(
        "flash_q_outer", _checked_grid("flash_q_outer", grid), threads, layout.smem_bytes
    )
    return LaunchPlan("04_flash_q_outer", macros, (step,), layout)


def plan_standard_tiled(
    problem: AttentionProblem, tiling: Tiling, *, aligned: bool = True, count_traffic: bool = False
) -> LaunchPlan:
    """Plan of 02_standard_tiled: three launches with S and P in HBM between them.

    Arguments and errors as `plan_flash_q_outer`.
    """
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
    macros = _common_macros(problem, tiling, threads, aligned, count_traffic) | {
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
        steps.append(LaunchStep(entry, _checked_grid(entry, grid), threads, smem_bytes, static))
    layout = scores if scores.smem_bytes >= output.smem_bytes else output
    return LaunchPlan("02_standard_tiled", macros, tuple(steps), layout)


PLANS: dict[str, Callable[..., LaunchPlan]] = {
    "02_standard_tiled": plan_standard_tiled,
    "04_flash_q_outer": plan_flash_q_outer,
}


@functools.cache
def plan_fingerprint(kernel: str) -> str:
    """First 16 hex digits of a hash over what `kernel` is compiled with at points of the grid.

    A kernel is verified as launched: another choice of threads or caches is another kernel.
    """
    text = []
    for dtype, head_dim, kib in itertools.product(IO_BITS, (20, 32, 64, 128), (16, 64, 192)):
        tiling = Tiling.from_sram(kib * KIB, head_dim, dtype)
        problem = AttentionProblem(1, 1, 4096, 4096, head_dim, dtype)
        plan = PLANS[kernel](problem, tiling)
        steps = [(s.entry, s.threads, s.smem_bytes) for s in plan.steps]
        text.append(f"{sorted(plan.macros.items())} {steps}")
    return hashlib.sha256("\n".join(text).encode()).hexdigest()[:16]
