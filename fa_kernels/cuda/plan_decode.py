"""Plan of 07_decode_split_kv: how a decoding step is cut and launched; arithmetic alone, no GPU."""

from __future__ import annotations

from fa_kernels.cuda.plan import (
    H200_SMEM_PER_SM,
    IO_BITS,
    LaunchPlan,
    LaunchStep,
    checked_grid,
    tiles,
)
from fa_kernels.decode_problem import MAX_SPLITS, TILE_KEYS, DecodeProblem
from fa_kernels.tiling import HOPPER_SMEM_PER_BLOCK, SmemLayout, Tiling, round_up

#: Warps of a block, which take turns with the tiles of 16 keys.
WARPS = 4
#: Steps of a warp that have a place in shared memory, one of them in use: the most that fit.
STAGES = (3, 2)
#: Fewer keys than this are not worth a split of their own: a tile for each warp.
MIN_SPLIT_KEYS = WARPS * TILE_KEYS
#: A split more has to make the last wave of blocks so much fuller.
WORTH_A_SPLIT = 0.95
#: Blocks of an SM that registers allow.
MOST_BLOCKS = 4


def padded_head_dim(head_dim: int) -> int:
    """head_dim as the products take it: 64 columns of V at a time."""
    return round_up(head_dim, 64)


def group_rows(problem: DecodeProblem) -> int:
    """Rows of one block, of all rows that share a k/v head: the columns of one or two products."""
    return 8 if problem.rows <= 8 else 16


def decode_smem(head_dim: int, rows: int, stages: int) -> SmemLayout:
    """Shared memory of a block of decode_split_kv_attend."""
    padded = padded_head_dim(head_dim)
    parts = (
        ("q", rows * (2 * padded + 64)),
        ("k and v", WARPS * stages * 4 * TILE_KEYS * padded),
        ("m and l", 8 * WARPS * rows),
        ("barriers", 8 * WARPS * stages),
    )
    return SmemLayout(parts, accumulator_bytes=4 * rows * padded)


def _layout_of_tiles(block_m: int, block_n: int, head_dim: int, itemsize: int = 2) -> SmemLayout:
    return decode_smem(head_dim, block_m, STAGES[-1])


def _layout(problem: DecodeProblem, limit_bytes: int) -> tuple[int, SmemLayout]:
    """Stages and layout: the most stages that a block has room for."""
    rows = group_rows(problem)
    layouts = [(n, decode_smem(problem.head_dim, rows, n)) for n in STAGES]
    # A block an SM leaves nothing that hides the end of one behind the next.
    twice = [x for x in layouts if 2 * (x[1].smem_bytes + 1024) <= H200_SMEM_PER_SM]
    fits = [x for x in twice or layouts[-1:] if x[1].smem_bytes <= limit_bytes]
    return (fits or layouts[-1:])[0]


def _blocks_per_sm(layout: SmemLayout) -> int:
    return max(1, min(MOST_BLOCKS, H200_SMEM_PER_SM // (layout.smem_bytes + 1024)))


def default_splits(
    problem: DecodeProblem, sms: int, limit_bytes: int = HOPPER_SMEM_PER_BLOCK
) -> int:
    """Into how many parts keys are split: the fewest that keep all of `sms` busy to the end.

    The blocks of a call come in waves of as many as the GPU holds. Lengths are not known here, so
    all are taken to fill the cache.
    """
    rows = tiles(problem.rows, group_rows(problem))
    blocks = problem.batch * problem.nheads_kv * rows
    at_once = sms * _blocks_per_sm(_layout(problem, limit_bytes)[1])
    best, fullest = 1, 0.0
    for splits in range(1, min(MAX_SPLITS, max(1, problem.capacity // MIN_SPLIT_KEYS)) + 1):
        waves = blocks * splits / at_once
        full = waves / -(-blocks * splits // at_once)
        if fullest < WORTH_A_SPLIT * full:
            best, fullest = splits, full
    return best


def plan_decode(
    problem: DecodeProblem,
    num_splits: int,
    *,
    aligned: bool = True,
    whole_tiles: bool = True,
    count_traffic: bool = False,
    limit_bytes: int = HOPPER_SMEM_PER_BLOCK,
) -> LaunchPlan:
    """Plan of 07_decode_split_kv: append, if there is something new, the splits, and their merge.

    Args:
        num_splits: parts that the keys of every sequence are split into, 1..`MAX_SPLITS`.
        aligned: rows of all arrays start at multiples of 16 bytes: asynchronous copies.
        whole_tiles: rows of k and v lie behind one another: from sm_90 on a tile is one copy.
        count_traffic: compile the in-kernel byte counters in.
        limit_bytes: shared memory that a block may have.

    Raises:
        NotImplementedError: fp32.
        ValueError: a grid that CUDA does not allow; with the remedy.
    """
    p = problem
    if p.dtype not in ("float16", "bfloat16"):
        raise NotImplementedError(
            f"07_decode_split_kv takes float16 and bfloat16, got {p.dtype}: tensor cores would "
            "round it to TF32. Cast q and the caches, or use backend='numpy' on host arrays."
        )
    rows, threads = group_rows(p), 32 * WARPS
    stages, layout = _layout(p, limit_bytes)
    macros = {
        "IO_BITS": IO_BITS[p.dtype],
        "IO_BF16": int(p.dtype == "bfloat16"),
        "HEAD_DIM": p.head_dim,
        "HEAD_DIM_PAD": padded_head_dim(p.head_dim),
        "GROUP_ROWS": rows,
        "WARPS": WARPS,
        "THREADS": threads,
        "STAGES": stages,
        "STEP_TILES": 1,
        "MAX_SPLITS": MAX_SPLITS,
        "SWIZZLE": 1,
        "ALIGNED": int(aligned),
        "BULK_COPIES": int(aligned and whole_tiles),
        "PAGED": int(p.paged),
        "WINDOW": int(p.left is not None),
        "COUNT_TRAFFIC": int(count_traffic),
        "SMEM_BYTES": layout.smem_bytes,
        "MIN_BLOCKS": _blocks_per_sm(layout),
    }
    steps = []
    if p.seqlen_new:
        chunks = p.batch * p.nheads_kv * p.seqlen_new * tiles(p.head_dim, 8)
        grid = checked_grid("decode_split_kv_append", tiles(chunks, threads))
        steps.append(LaunchStep("decode_split_kv_append", grid, threads, 0))
    blocks = p.batch * p.nheads_kv * tiles(p.rows, rows) * num_splits
    grid = checked_grid("decode_split_kv_attend", blocks)
    steps.append(LaunchStep("decode_split_kv_attend", grid, threads, layout.smem_bytes))
    if num_splits > 1:
        grid = checked_grid("decode_split_kv_merge", p.batch * p.nheads * p.seqlen_q)
        static = 4 * (MAX_SPLITS + WARPS * padded_head_dim(p.head_dim) + 1)
        steps.append(LaunchStep("decode_split_kv_merge", grid, threads, 0, static))
    return LaunchPlan("07_decode_split_kv", macros, tuple(steps), layout, _layout_of_tiles)


#: What refusals show of a block: its rows and the keys of a tile.
DECODE_TILING = Tiling(8, TILE_KEYS)
