"""Plan of 07_decode_split_kv: how a decoding step is cut and launched; arithmetic alone, no GPU."""

from __future__ import annotations

from dataclasses import dataclass

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

#: Warps of a block, which take turns with the tiles of 16 keys: 4, or 2 where 4 have no room.
WARPS = (4, 2)
#: Steps of a warp that have a place in shared memory, one of them in use: the most that fit.
STAGES = (3, 2)
#: A split more has to make the last wave of blocks so much fuller.
WORTH_A_SPLIT = 0.95
#: Blocks of an SM that registers allow.
MOST_BLOCKS = 4
#: Blocks that any GPU with clusters has room for in one.
MAX_CLUSTER = 8
#: SMs of an H200.
H200_SMS = 132
#: K and V that a block with an SM to itself reads while splits leave their results in HBM and a
#: second launch merges them; and how much longer it takes beside each other block there. Set so
#: that the faster way is taken on an H200: they choose between numbers of splits, no more.
MERGE_BYTES, CROWDED = 160 * 1024, 0.65
#: What CUDA takes of an SM's shared memory for each block.
RESERVED_BYTES = 1024


def padded_head_dim(head_dim: int) -> int:
    """head_dim as the products take it: 64 columns of V at a time."""
    return round_up(head_dim, 64)


def group_rows(problem: DecodeProblem) -> int:
    """Rows of one block, of all rows that share a k/v head: the columns of one or two products."""
    return 8 if problem.rows <= 8 else 16


@dataclass(frozen=True)
class DecodeBlock:
    """A block of decode_split_kv_attend: its warps, the steps that each has room for, and what an
    SM holds of it."""

    warps: int
    stages: int
    layout: SmemLayout
    per_sm: int


def decode_smem(head_dim: int, rows: int, warps: int, stages: int) -> SmemLayout:
    """Shared memory of a block of decode_split_kv_attend."""
    padded = padded_head_dim(head_dim)
    parts = (
        ("q", rows * (2 * padded + 64)),
        ("k and v", warps * stages * 4 * TILE_KEYS * padded),
        ("m and l", 8 * warps * rows),
        ("barriers", 8 * warps * stages),
    )
    return SmemLayout(parts, accumulator_bytes=4 * rows * padded)


def _layout_of_tiles(block_m: int, block_n: int, head_dim: int, itemsize: int = 2) -> SmemLayout:
    return decode_smem(head_dim, block_m, WARPS[-1], STAGES[-1])


def decode_block(
    problem: DecodeProblem,
    limit_bytes: int = HOPPER_SMEM_PER_BLOCK,
    sm_bytes: int = H200_SMEM_PER_SM,
) -> DecodeBlock:
    """The most warps, then the most stages, that shared memory has room for.

    Args:
        limit_bytes: shared memory that a block may have.
        sm_bytes: shared memory of an SM, which its blocks share.
    """
    for warps in WARPS:
        blocks = [_block_of(problem, warps, stages, sm_bytes) for stages in STAGES]
        # A block an SM leaves nothing that hides the end of one behind the next.
        twice = [block for block in blocks if block.per_sm > 1]
        for block in twice or blocks[-1:]:
            if block.layout.smem_bytes <= limit_bytes:
                return block
    return blocks[-1]  # too large: refused where it is known for which GPU


def _block_of(problem: DecodeProblem, warps: int, stages: int, sm_bytes: int) -> DecodeBlock:
    layout = decode_smem(problem.head_dim, group_rows(problem), warps, stages)
    fit = sm_bytes // (layout.smem_bytes + RESERVED_BYTES)
    return DecodeBlock(warps, stages, layout, max(1, min(MOST_BLOCKS, fit)))


def cluster_of(problem: DecodeProblem, num_splits: int, sms: int = H200_SMS) -> int:
    """Blocks of a cluster that merges the splits on chip; 1: the merge is a launch of its own.

    Clusters of more than two leave SMs empty unless each block has one to itself.
    """
    roomy = num_splits == 2 or _blocks(problem) * num_splits <= sms
    return num_splits if 1 < num_splits <= MAX_CLUSTER and roomy else 1


def _blocks(problem: DecodeProblem) -> int:
    """Blocks of one split."""
    return problem.batch * problem.nheads_kv * tiles(problem.rows, group_rows(problem))


def default_splits(
    problem: DecodeProblem,
    sms: int,
    limit_bytes: int = HOPPER_SMEM_PER_BLOCK,
    sm_bytes: int = H200_SMEM_PER_SM,
    clusters: bool = True,
) -> int:
    """Into how many parts keys are split: the fewest that keep all of `sms` busy to the end, or
    those of a cluster where saving the merge is worth more.

    The blocks of a call come in waves of as many as the GPU holds. Lengths are not known here, so
    all are taken to fill the cache.
    """
    block = decode_block(problem, limit_bytes, sm_bytes)
    blocks = _blocks(problem)
    at_once = sms * block.per_sm
    # Fewer keys are not worth a split of their own: a tile for each warp.
    most = max(1, problem.capacity // (block.warps * TILE_KEYS))
    best, fullest = 1, 0.0
    for splits in range(1, min(MAX_SPLITS, most) + 1):
        waves = blocks * splits / at_once
        full = waves / -(-blocks * splits // at_once)
        if fullest < WORTH_A_SPLIT * full:
            best, fullest = splits, full
    if best == 1 or not clusters:
        return best
    able = [n for n in range(2, min(MAX_CLUSTER, most) + 1) if cluster_of(problem, n, sms) > 1]

    def estimate(splits: int) -> float:  # in keys of a block alone
        waves = -(-blocks * splits // at_once)
        beside = min(block.per_sm, -(-blocks * splits // sms)) - 1
        keys = problem.capacity / splits * waves * (1 + CROWDED * beside)
        merges = splits != cluster_of(problem, splits, sms)
        return keys + merges * MERGE_BYTES / (2 * problem.head_dim * problem.itemsize)

    return min(best, *able, key=estimate) if able else best


def plan_decode(
    problem: DecodeProblem,
    num_splits: int,
    *,
    aligned: bool = True,
    whole_tiles: bool = True,
    count_traffic: bool = False,
    limit_bytes: int = HOPPER_SMEM_PER_BLOCK,
    sm_bytes: int = H200_SMEM_PER_SM,
    clusters: bool = True,
    sms: int = H200_SMS,
) -> LaunchPlan:
    """Plan of 07_decode_split_kv: append, if there is something new, the splits, and their merge.

    Args:
        num_splits: parts that the keys of every sequence are split into, 1..`MAX_SPLITS`.
        aligned: rows of all arrays start at multiples of 16 bytes: asynchronous copies.
        whole_tiles: rows of k and v lie behind one another: from sm_90 on a tile is one copy.
        count_traffic: compile the in-kernel byte counters in.
        limit_bytes, sm_bytes: as `decode_block`.
        clusters: splits may be merged in clusters of blocks, which sm_90 and later have.
        sms: SMs of the GPU, for which clusters are made.

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
    block = decode_block(p, limit_bytes, sm_bytes)
    rows, threads, layout = group_rows(p), 32 * block.warps, block.layout
    cluster = cluster_of(p, num_splits, sms) if clusters else 1
    macros = {
        "IO_BITS": IO_BITS[p.dtype],
        "IO_BF16": int(p.dtype == "bfloat16"),
        "HEAD_DIM": p.head_dim,
        "HEAD_DIM_PAD": padded_head_dim(p.head_dim),
        "GROUP_ROWS": rows,
        "WARPS": block.warps,
        "THREADS": threads,
        "STAGES": block.stages,
        "STEP_TILES": 1,
        "CLUSTER": cluster,
        "MAX_SPLITS": MAX_SPLITS,
        "SWIZZLE": 1,
        "ALIGNED": int(aligned),
        "BULK_COPIES": int(aligned and whole_tiles),
        "PAGED": int(p.paged),
        "WINDOW": int(p.left is not None),
        "COUNT_TRAFFIC": int(count_traffic),
        "SMEM_BYTES": layout.smem_bytes,
        "MIN_BLOCKS": block.per_sm,
    }
    steps = []
    if p.seqlen_new:
        chunks = p.batch * p.nheads_kv * p.seqlen_new * tiles(p.head_dim, 8)
        grid = checked_grid("decode_split_kv_append", tiles(chunks, threads))
        steps.append(LaunchStep("decode_split_kv_append", grid, threads, 0))
    grid = checked_grid("decode_split_kv_attend", _blocks(p) * num_splits)
    steps.append(LaunchStep("decode_split_kv_attend", grid, threads, layout.smem_bytes))
    if num_splits > cluster:
        grid = checked_grid("decode_split_kv_merge", p.batch * p.nheads * p.seqlen_q)
        static = 4 * (MAX_SPLITS + block.warps * padded_head_dim(p.head_dim) + 1)
        steps.append(LaunchStep("decode_split_kv_merge", grid, threads, 0, static))
    return LaunchPlan("07_decode_split_kv", macros, tuple(steps), layout, _layout_of_tiles)


#: What refusals show of a block: its rows and the keys of a tile.
DECODE_TILING = Tiling(8, TILE_KEYS)
