"""From a problem and a tiling to what the backward kernels are compiled and launched with."""

from __future__ import annotations

from collections.abc import Callable

from fa_kernels.cuda.plan import (
    H200_SMEM_PER_SM,
    LaunchPlan,
    LaunchStep,
    accumulators,
    block_sparse_build,
    checked_grid,
    io_macros,
    refuse_block_mask,
    tile_macros,
    tiles,
)
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.backward_standard import gradient_reads
from fa_kernels.tiling import (
    MAX_SRAM_BYTES,
    SmemLayout,
    Tiling,
    round_up,
    standard_scores_smem,
)

#: fp32 registers per thread that dk and dv, or dq, may take each: with more, ptxas spills.
MAX_ACCUMULATORS = 32
MAX_THREADS = 256
#: One float per warp: the reduction of 02's dS launch.
ROW_STATIC_SMEM = 32 * 4
_DEFAULT_TILINGS = ((64, 64), (64, 32), (32, 32), (32, 16), (16, 16))


def backward_smem(block_m: int, block_n: int, head_dim: int, itemsize: int) -> SmemLayout:
    """Layout of recompute.cuh: Q, dO, K, V in the io dtype; P, dS, m, row scale, delta in fp32.

    The accumulators are the dk and dv tiles.
    """
    n_pad, d_pad = round_up(block_n, 4), round_up(head_dim, 16 // itemsize)
    return SmemLayout(
        parts=(
            ("Q", itemsize * block_m * d_pad),
            ("dO", itemsize * block_m * d_pad),
            ("K", itemsize * block_n * d_pad),
            ("V", itemsize * block_n * d_pad),
            ("P", 4 * block_m * n_pad),
            ("dS", 4 * block_m * n_pad),
            ("m, scale, δ", 4 * 3 * round_up(block_m, 4)),
        ),
        accumulator_bytes=2 * 4 * block_n * d_pad,
    )


def standard_product_smem(block_m: int, block_n: int, head_dim: int, itemsize: int) -> SmemLayout:
    """Layout of 02's three products with P or dS: that in fp32, the other operand in the io dtype.

    One size for all three: the operand has block_m or block_n rows.
    """
    n_pad, d_pad = round_up(block_n, 4), round_up(head_dim, 16 // itemsize)
    rows = max(block_m, block_n)
    return SmemLayout(
        parts=(("K, Q or dO", itemsize * rows * d_pad), ("P or dS", 4 * block_m * n_pad)),
        accumulator_bytes=4 * rows * d_pad,
    )


def _advisable(block_m: int, block_n: int, head_dim: int, itemsize: int) -> SmemLayout:
    """`backward_smem`, for advice: tiles that registers do not hold are too large as well."""
    if accumulators(max(block_m, block_n), head_dim, MAX_THREADS) > MAX_ACCUMULATORS:
        return SmemLayout((("more than registers hold", MAX_SRAM_BYTES),), 0)
    return backward_smem(block_m, block_n, head_dim, itemsize)


def default_backward_tiling(head_dim: int, itemsize: int, limit_bytes: int) -> Tiling:
    """What `tiling=None` stands for in a backward pass: the largest of a few that fit twice on an
    SM of `limit_bytes`, and whose dk, dv and dq leave ptxas registers to work with."""
    for block_m, block_n in _DEFAULT_TILINGS:
        layout = backward_smem(block_m, block_n, head_dim, itemsize)
        registers = accumulators(max(block_m, block_n), head_dim, MAX_THREADS)
        if 2 * layout.smem_bytes <= limit_bytes and registers <= 32:
            return Tiling(block_m, block_n)
    return Tiling(8, 8)


def plan_flash_q_outer_backward(
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    aligned: bool = True,
    count_traffic: bool = False,
    deterministic: bool = False,
) -> LaunchPlan:
    """Plan of 04_flash_q_outer_backward: delta; with a bias the statistics; keys; then dq.

    Args:
        aligned: rows of all arrays start at multiples of 16 bytes: tiles move 16 bytes at once.
        count_traffic: compile the in-kernel byte counters in.
        deterministic: dq by a launch of its own instead of atomic additions.

    Raises:
        ValueError: grid or registers not supported, in words.
    """
    macros = {"DETERMINISTIC": int(deterministic), "COUNT_TRAFFIC": int(count_traffic)}
    build = _Build("04_flash_q_outer_backward", problem, tiling, aligned, macros)
    q_tiles = problem.heads * tiles(problem.seqlen_q, tiling.block_m)
    k_tiles = problem.heads // problem.group * tiles(problem.seqlen_k, tiling.block_n)
    steps = [build.step("delta", q_tiles, smem=False)]
    if problem.bias_dtype is not None:
        steps.append(build.step("statistics", q_tiles))
    steps.append(build.step("keys", k_tiles))
    if deterministic:
        steps.append(build.step("rows", q_tiles))
    elif problem.itemsize == 2:
        steps.append(build.step("convert", q_tiles, smem=False))
    return build.plan(steps)


def plan_flash_kv_outer_backward(
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    aligned: bool = True,
    count_traffic: bool = False,
    deterministic: bool = False,
) -> LaunchPlan:
    """Plan of 03_flash_kv_outer_backward: with a bias the statistics; one block per k/v head.

    `deterministic` has no meaning: it always is. Other arguments and errors as
    `plan_flash_q_outer_backward`.
    """
    macros = {"COUNT_TRAFFIC": int(count_traffic)}
    build = _Build("03_flash_kv_outer_backward", problem, tiling, aligned, macros)
    steps = [build.step("keys", problem.heads // problem.group)]
    if problem.bias_dtype is not None:
        q_tiles = problem.heads * tiles(problem.seqlen_q, tiling.block_m)
        steps.insert(0, build.step("statistics", q_tiles))
    return build.plan(steps)


class _Build:
    """One build of 03 or 04: its macros, threads and shared memory, checked."""

    def __init__(
        self,
        kernel: str,
        problem: AttentionProblem,
        tiling: Tiling,
        aligned: bool,
        macros: dict[str, int],
    ) -> None:
        self.kernel = kernel
        layout = backward_smem(tiling.block_m, tiling.block_n, problem.head_dim, problem.itemsize)
        self.threads = _threads(tiling, problem.head_dim, layout.smem_bytes)
        _refuse_registers(tiling, problem.head_dim, self.threads)
        self.macros = io_macros(problem) | tile_macros(tiling, self.threads, aligned) | macros
        self.layout, sparse, self.static_smem = block_sparse_build(problem, tiling, layout)
        self.macros |= sparse

    def step(self, name: str, grid: int, smem: bool = True) -> LaunchStep:
        """One launch; `smem`: it uses the layout."""
        entry = f"{self.kernel.partition('_')[2]}_{name}"
        need = (self.layout.smem_bytes, self.static_smem) if smem else (0, 0)
        return LaunchStep(entry, checked_grid(entry, grid), self.threads, *need)

    def plan(self, steps: list[LaunchStep]) -> LaunchPlan:
        """The whole."""
        return LaunchPlan(self.kernel, self.macros, tuple(steps), self.layout, _advisable)


def plan_standard_tiled_backward(
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    aligned: bool = True,
    count_traffic: bool = False,
    deterministic: bool = False,
) -> LaunchPlan:
    """Plan of 02_standard_tiled_backward: five launches, of which P is kept or rebuilt before.

    `deterministic` has no meaning: it always is. Other arguments and errors as
    `plan_flash_q_outer_backward`.
    """
    refuse_block_mask(problem, "02_standard_tiled_backward")
    sizes = (tiling.block_m, tiling.block_n, problem.head_dim, problem.itemsize)
    scores, product = standard_scores_smem(*sizes), standard_product_smem(*sizes)
    threads = _threads(tiling, problem.head_dim, scores.smem_bytes)
    _refuse_registers(tiling, problem.head_dim, threads)
    # Short rows: a warp each, so that no lane idles; long rows: the whole block.
    row_threads = 32 if problem.seqlen_k <= 512 else threads
    rows_per_block, chunk = threads // row_threads, 16 // problem.itemsize
    row_in_smem = gradient_reads(problem.seqlen_k) == 1
    cached_row = 8 * round_up(problem.seqlen_k, chunk) if row_in_smem else 0
    macros = io_macros(problem) | tile_macros(tiling, threads, aligned)
    macros |= {
        "COUNT_TRAFFIC": int(count_traffic),
        "SCORES_SMEM_BYTES": scores.smem_bytes,
        "PRODUCT_SMEM_BYTES": product.smem_bytes,
        "ROW_THREADS": row_threads,
        "ROW_IN_SMEM": int(row_in_smem),
        "ROWS_ALIGNED": int(problem.seqlen_k % chunk == 0),
    }
    q_tiles = problem.heads * tiles(problem.seqlen_q, tiling.block_m)
    k_tiles = tiles(problem.seqlen_k, tiling.block_n)
    per_key_tile = (problem.heads // problem.group * k_tiles, product.smem_bytes, 0)
    rows = tiles(problem.heads * problem.seqlen_q, rows_per_block)
    launches = {
        "dv": per_key_tile,
        "dp": (q_tiles * k_tiles, scores.smem_bytes, 0),
        "ds": (rows, cached_row * rows_per_block, ROW_STATIC_SMEM),
        "dq": (q_tiles, product.smem_bytes, 0),
        "dk": per_key_tile,
    }
    steps = []
    for name, (grid, smem_bytes, static) in launches.items():
        entry = f"standard_tiled_backward_{name}"
        steps.append(LaunchStep(entry, checked_grid(entry, grid), threads, smem_bytes, static))
    layout = scores if scores.smem_bytes >= product.smem_bytes else product
    return LaunchPlan("02_standard_tiled_backward", macros, tuple(steps), layout)


def _threads(tiling: Tiling, head_dim: int, smem_bytes: int) -> int:
    """Threads per block: as `plan.plan_threads`, and enough of them for the registers of dk, dv and
    dq."""
    longer = max(tiling.block_m, tiling.block_n)
    threads = 64 if longer <= 32 else 128
    blocks_per_sm = max(1, H200_SMEM_PER_SM // max(1, smem_bytes + 1024))
    while threads < MAX_THREADS and (
        threads * blocks_per_sm < 320 or accumulators(longer, head_dim, threads) > 32
    ):
        threads *= 2
    return threads


def _refuse_registers(tiling: Tiling, head_dim: int, threads: int) -> None:
    """Raise if the tiles of dk and dv, or of dq, would not stay in registers.

    Raises:
        ValueError: names the tile, what it needs, the limit and the longest tile that fits.
    """
    for name, what in (("block_n", "dk and dv, each"), ("block_m", "dq")):
        rows = fitting = getattr(tiling, name)
        while accumulators(fitting, head_dim, threads) > MAX_ACCUMULATORS:
            fitting -= 1
        if fitting < rows:
            need = accumulators(rows, head_dim, threads)
            raise ValueError(
                f"{name} = {rows} at d = {head_dim} needs {need} fp32 registers per thread for "
                f"{what}; the backward kernel allows {MAX_ACCUMULATORS}: lower {name} to {fitting} "
                "or less (lower M), or leave tiling out."
            )


#: Every way to launch each backward kernel file.
BACKWARD_PLANS: dict[str, tuple[Callable[..., LaunchPlan], ...]] = {
    "02_standard_tiled_backward": (plan_standard_tiled_backward,),
    "03_flash_kv_outer_backward": (plan_flash_kv_outer_backward,),
    "04_flash_q_outer_backward": (plan_flash_q_outer_backward,),
}
