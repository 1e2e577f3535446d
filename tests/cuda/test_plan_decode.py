"""How a decoding step is cut and launched on GPUs of different shared memory; arithmetic alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fa_kernels.cuda.compile import compile_report
from fa_kernels.cuda.occupancy import SM_LIMITS
from fa_kernels.cuda.plan_decode import (
    MOST_BLOCKS,
    cluster_of,
    decode_block,
    default_splits,
    group_rows,
    plan_decode,
)
from fa_kernels.decode_problem import DecodeProblem
from fa_kernels.problem import MAX_HEAD_DIM
from fa_kernels.units import KIB

#: (shared memory of a block, of an SM) and SMs.
GPUS = {
    "4090": (99 * KIB, 100 * KIB, 128),
    "A100": (163 * KIB, 164 * KIB, 108),
    "H200": (227 * KIB, 228 * KIB, 132),
}
ONE = DecodeProblem(16, 32, 8, 1, 0, 8192, 128, "bfloat16")
MANY = replace(ONE, nheads_kv=2)  # 16 rows a block
SIZES = [replace(p, head_dim=d) for p in (ONE, MANY) for d in (20, 64, 96, 128, 160, 192, 256)]


@pytest.mark.parametrize("problem", SIZES, ids=lambda p: f"d{p.head_dim}-group{p.group}")
@pytest.mark.parametrize("gpu", GPUS)
def test_a_block_fits_and_the_blocks_of_an_sm_do(gpu: str, problem: DecodeProblem) -> None:
    """Every head_dim, on every GPU with 99 KiB a block or more."""
    limit, sm, _ = GPUS[gpu]
    block = decode_block(problem, limit, sm)
    assert block.layout.smem_bytes <= limit
    assert block.per_sm * (block.layout.smem_bytes + KIB) <= sm
    assert (
        block.per_sm == MOST_BLOCKS or (block.per_sm + 1) * (block.layout.smem_bytes + KIB) > sm
    ), "one more would not fit"


@pytest.mark.parametrize(
    ("gpu", "head_dim", "warps", "stages", "per_sm"),
    [
        ("4090", 64, 4, 2, 2),
        ("4090", 128, 4, 2, 1),
        ("4090", 160, 2, 2, 1),
        ("4090", 256, 2, 2, 1),
        ("A100", 64, 4, 3, 3),
        ("A100", 128, 4, 2, 2),
        ("A100", 256, 4, 2, 1),
        ("H200", 64, 4, 3, 4),
        ("H200", 128, 4, 3, 2),
        ("H200", 160, 4, 2, 2),
        ("H200", 256, 4, 2, 1),
    ],
)
def test_warps_and_stages_are_as_many_as_there_is_room_for(
    gpu: str, head_dim: int, warps: int, stages: int, per_sm: int
) -> None:
    block = decode_block(replace(ONE, head_dim=head_dim), *GPUS[gpu][:2])
    assert (block.warps, block.stages, block.per_sm) == (warps, stages, per_sm)


@pytest.mark.parametrize("gpu", GPUS)
def test_the_macros_and_launches_are_those_of_the_block(gpu: str) -> None:
    limit, sm, _ = GPUS[gpu]
    for problem in SIZES:
        block = decode_block(problem, limit, sm)
        plan = plan_decode(replace(problem, seqlen_new=1), 8, limit_bytes=limit, sm_bytes=sm)
        macros = plan.macros
        assert (macros["WARPS"], macros["THREADS"]) == (block.warps, 32 * block.warps)
        assert (macros["STAGES"], macros["MIN_BLOCKS"]) == (block.stages, block.per_sm)
        rows, padded = group_rows(problem), macros["HEAD_DIM_PAD"]
        ring = block.warps * block.stages * 64 * padded
        rest = 8 * block.warps * (rows + block.stages)
        # The static_assert of the kernel.
        assert macros["SMEM_BYTES"] == rows * (2 * padded + 64) + ring + rest
        append, attend, merge = plan.steps
        assert {step.threads for step in plan.steps} == {32 * block.warps}
        assert attend.smem_bytes == macros["SMEM_BYTES"] and append.smem_bytes == 0
        assert merge.static_smem_bytes == 4 * (128 + block.warps * padded + 1)
        # Those of decode.cuh: accumulators, then O, pass through the place of K and V.
        values = padded // 16 * (rows // 8) * 4
        assert 4 * (block.warps // 2) * 32 * values <= ring
        assert 4 * rows * (padded + 4) <= ring


def test_the_default_is_an_h200() -> None:
    limit, sm, _ = GPUS["H200"]
    for problem in SIZES:
        assert plan_decode(problem, 8) == plan_decode(problem, 8, limit_bytes=limit, sm_bytes=sm)
        assert default_splits(problem, 132) == default_splits(problem, 132, limit, sm)


def fullness(problem: DecodeProblem, gpu: str, splits: int) -> float:
    """How much of the blocks that the GPU holds a call keeps busy, its last wave included."""
    limit, sm, sms = GPUS[gpu]
    rows = -(-problem.rows // group_rows(problem))
    blocks = problem.batch * problem.nheads_kv * rows * splits
    waves = blocks / (sms * decode_block(problem, limit, sm).per_sm)
    return waves / math.ceil(waves)


@pytest.mark.parametrize("batch", [1, 3, 16])
@pytest.mark.parametrize("gpu", GPUS)
def test_splits_fill_the_blocks_that_the_sms_really_hold(gpu: str, batch: int) -> None:
    """As few as fill them within 5% of what any number of splits can."""
    limit, sm, sms = GPUS[gpu]
    for problem in (replace(p, batch=batch) for p in SIZES):
        splits = default_splits(problem, sms, limit, sm, clusters=False)
        full = [fullness(problem, gpu, n) for n in range(1, 129)]
        assert full[splits - 1] >= 0.95 * max(full)
        assert all(other < full[splits - 1] for other in full[: splits - 1])


def test_an_a100_holds_fewer_blocks_for_each_of_its_sms() -> None:
    """At d = 64 three blocks of 3 stages, where an H200's SM has room for four."""
    one = replace(ONE, batch=1, head_dim=64)
    a100, h200 = ((limit, sm) for limit, sm, _ in (GPUS["A100"], GPUS["H200"]))
    assert default_splits(one, 108, *a100, clusters=False) == 39  # 8 * 39 = 312 of 324
    assert default_splits(one, 108, *h200, clusters=False) == 54  # 8 * 54 = 432 of 432


@pytest.mark.parametrize("batch", [1, 3, 16, 64])
def test_a_cluster_is_two_blocks_or_has_an_sm_for_each(batch: int) -> None:
    for problem in (replace(p, batch=batch) for p in SIZES):
        blocks = batch * problem.nheads_kv * -(-problem.rows // group_rows(problem))
        assert cluster_of(problem, 1) == 1 and cluster_of(problem, 2) == 2
        for splits in range(3, 12):
            roomy = blocks * splits <= 132 and splits <= 8
            assert cluster_of(problem, splits) == (splits if roomy else 1)


def test_what_a_cluster_merges_has_no_launch_for_it() -> None:
    one = replace(ONE, batch=1)
    entries = [
        [step.entry.rpartition("_")[2] for step in plan.steps]
        for plan in (
            plan_decode(one, 8), plan_decode(one, 9), plan_decode(one, 8, clusters=False),
            plan_decode(one, 8, sms=63), plan_decode(one, 1),
        )
    ]  # fmt: skip
    merged = ["attend", "merge"]
    assert entries == [["attend"], merged, merged, merged, ["attend"]]


@pytest.mark.parametrize(
    ("batch", "nheads_kv", "tokens", "splits", "cluster"),
    [
        (16, 8, 8192, 2, True),
        (1, 8, 65536, 33, False),
        (1, 8, 8192, 33, False),
        (1, 8, 1024, 8, True),
        (1, 8, 256, 4, True),
        (2, 8, 4096, 8, True),
        (4, 8, 4096, 4, True),
        (4, 8, 8192, 8, False),
        (64, 8, 4096, 1, False),
    ],
)
def test_a_cluster_is_taken_where_it_was_faster(
    batch: int, nheads_kv: int, tokens: int, splits: int, cluster: bool
) -> None:
    """Of both ways on an H200, timed with the L2 cold."""
    problem = replace(ONE, batch=batch, nheads_kv=nheads_kv, max_seqlen=tokens)
    assert default_splits(problem, 132) == splits
    assert (cluster_of(problem, splits) > 1) is cluster


def test_few_keys_are_not_split_below_a_tile_for_each_warp() -> None:
    short = replace(ONE, batch=1, max_seqlen=200, head_dim=256)
    assert default_splits(short, 132) == 200 // 64
    limit, sm, sms = GPUS["4090"]
    assert default_splits(short, sms, limit, sm, clusters=False) == 200 // 32


@pytest.mark.parametrize(("arch", "gpu"), [(80, "A100"), (89, "4090"), (90, "H200")])
def test_the_largest_heads_compile_without_spills(arch: int, gpu: str) -> None:
    pytest.importorskip("cupy_backends")
    limit, sm, _ = GPUS[gpu]
    limits = SM_LIMITS[arch]
    assert (limits.smem_per_block_bytes, limits.smem_bytes) == (limit, sm)
    problem = replace(MANY, head_dim=MAX_HEAD_DIM)
    for splits in (2, 9):
        plan = plan_decode(problem, splits, limit_bytes=limit, sm_bytes=sm, clusters=arch >= 90)
        report = compile_report(plan.kernel, plan.macros, f"sm_{arch}")
        assert {step.entry for step in plan.steps} <= set(report.registers)
        assert report.spill_bytes == 0
        assert plan.macros["WARPS"] == (2 if arch == 89 else 4)
