"""Launch arithmetic: grids, threads, shared memory, and refusals whose remedy works."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fa_kernels.cuda.compile import kernel_source
from fa_kernels.cuda.plan import (
    MAX_ACCUMULATORS,
    MAX_GRID,
    LaunchPlan,
    plan_flash_q_outer,
    plan_standard_tiled,
    plan_threads,
    tiles,
)
from fa_kernels.measure.verify import cases
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.standard import ROW_CACHE_BYTES
from fa_kernels.tiling import (
    HOPPER_SMEM_PER_BLOCK,
    Tiling,
    default_tiling,
    flash_smem,
    largest_paper_sram,
    standard_output_smem,
    standard_scores_smem,
)
from fa_kernels.units import KIB
from fa_kernels.variants import VARIANTS, Variant
from tests.reference.problems import HEAD_DIMS, bounded

each_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
variants = st.sampled_from(list(VARIANTS.values()))
blocks = st.integers(1, 300)
lengths = st.integers(1, 5000)


def accumulators(block_m: int, head_dim: int, threads: int) -> int:
    """fp32 registers per thread for the O tile, as the constants of tile.cuh compute them."""
    o_groups = math.ceil(head_dim / 4)
    o_tx = 1
    while o_tx < o_groups and o_tx < 16:
        o_tx *= 2
    return math.ceil(block_m / (threads // o_tx)) * math.ceil(o_groups / o_tx) * 4


def test_flash_by_hand() -> None:
    problem = AttentionProblem(4, 32, 4096, 4096, 64, "float16")
    plan = plan_flash_q_outer(problem, Tiling(64, 32), count_traffic=True)
    assert plan.kernel == "04_flash_q_outer"
    (step,) = plan.steps
    assert (step.entry, step.grid) == ("flash_q_outer", 4 * 32 * 64)
    assert step.smem_bytes == plan.smem_bytes == plan.layout.smem_bytes == 25344
    assert plan.macros == {
        "IO_BITS": 16, "HEAD_DIM": 64, "BLOCK_M": 64, "BLOCK_N": 32, "THREADS": step.threads,
        "ALIGNED": 1, "COUNT_TRAFFIC": 1, "SMEM_BYTES": 25344,
    }  # fmt: skip


def test_standard_by_hand() -> None:
    problem = AttentionProblem(2, 3, 113, 2000, 64, "float32")
    plan = plan_standard_tiled(problem, Tiling(32, 64), aligned=False)
    scores, softmax, output = plan.steps
    assert scores.grid == 6 * 4 * 32  # ceil(113 / 32) x ceil(2000 / 64) tiles of S
    assert softmax.grid == 6 * 113  # long rows: one block each
    assert output.grid == 6 * 4
    assert scores.smem_bytes == standard_scores_smem(32, 64, 64, 4).smem_bytes
    assert output.smem_bytes == standard_output_smem(32, 64, 64, 4).smem_bytes
    assert softmax.smem_bytes == 4 * 2000
    assert plan.macros["IO_BITS"] == 32 and plan.macros["ALIGNED"] == 0
    assert plan.macros["SCORES_SMEM_BYTES"] == scores.smem_bytes
    assert plan.macros["OUTPUT_SMEM_BYTES"] == output.smem_bytes


@pytest.mark.parametrize(
    ("nk", "dtype", "rows_aligned"),
    [(1024, "float16", 1), (1020, "float16", 0), (1020, "float32", 1), (1023, "float32", 0)],
)
def test_short_rows_of_s_share_a_block_a_warp_each(nk: int, dtype: str, rows_aligned: int) -> None:
    plan = plan_standard_tiled(AttentionProblem(1, 1, 100, nk, 64, dtype), Tiling(32, 32))
    softmax = plan.steps[1]
    rows = softmax.threads // 32
    assert plan.macros["ROW_THREADS"] == 32
    assert softmax.grid == math.ceil(100 / rows)
    assert softmax.smem_bytes % rows == 0 and softmax.smem_bytes // rows >= 4 * nk
    assert plan.macros["ROWS_ALIGNED"] == rows_aligned


@pytest.mark.parametrize(("extra", "in_smem"), [(0, 1), (1, 0)])
def test_rows_longer_than_the_chip_take_no_shared_memory(extra: int, in_smem: int) -> None:
    problem = AttentionProblem(1, 1, 4, ROW_CACHE_BYTES // 4 + extra, 64, "float16")
    plan = plan_standard_tiled(problem, Tiling(32, 32))
    assert plan.macros["ROW_IN_SMEM"] == in_smem
    assert plan.steps[1].smem_bytes == in_smem * ROW_CACHE_BYTES


@given(variants, blocks, blocks, st.integers(1, 256), lengths, lengths,
       st.sampled_from(("float16", "float32")))  # fmt: skip
@bounded
def test_every_plan_covers_the_problem_within_cudas_limits(
    variant: Variant, block_m: int, block_n: int, d: int, nq: int, nk: int, dtype: str
) -> None:
    problem, tiling = AttentionProblem(2, 3, nq, nk, d, dtype), Tiling(block_m, block_n)
    if accumulators(block_m, d, 256) > MAX_ACCUMULATORS:  # even spread over the most threads
        with pytest.raises(ValueError, match="registers per thread"):
            variant.plan(problem, tiling)
        return
    plan = variant.plan(problem, tiling)
    assert (
        plan.layout.smem_bytes
        <= plan.smem_bytes
        == max(s.smem_bytes + s.static_smem_bytes for s in plan.steps)
    )
    for step in plan.steps:
        assert step.threads == plan.macros["THREADS"]
        assert step.threads in (64, 128, 256)
        assert 1 <= step.grid <= MAX_GRID
    rows = plan.steps[-1].grid * block_m  # every Q tile of every head, and no more
    assert 6 * nq <= rows < 6 * (nq + block_m)
    assert accumulators(block_m, d, plan.macros["THREADS"]) <= MAX_ACCUMULATORS


@given(blocks, st.integers(1, 256), st.integers(0, 300 * KIB))
@bounded
def test_threads_are_a_power_of_two_from_64_to_256(block_m: int, d: int, smem: int) -> None:
    threads = plan_threads(Tiling(block_m, 32), d, smem)
    assert threads in (64, 128, 256)
    # More shared memory leaves fewer blocks on an SM: never fewer threads in each.
    assert plan_threads(Tiling(block_m, 32), d, smem + 16 * KIB) >= threads


@given(st.integers(1, 4096), st.integers(1, 256), variants)
@bounded
def test_following_the_remedy_of_the_register_refusal_works(
    block_m: int, d: int, variant: Variant
) -> None:
    problem = AttentionProblem(1, 1, 4096, 64, d, "float16")
    try:
        variant.plan(problem, Tiling(block_m, 16))
        assume(False)
    except ValueError as refusal:
        found = re.fullmatch(
            rf"block_m = {block_m} at d = {d} needs (\d+) fp32 registers per thread for the O "
            rf"tile, the kernel allows 128: lower block_m to (\d+) or less \(lower M\)\.",
            str(refusal),
        )
    assert found is not None and int(found[1]) > MAX_ACCUMULATORS
    advised = int(found[2])
    assert 1 <= advised < block_m
    for lower in (advised, max(1, advised // 2), 1):
        variant.plan(problem, Tiling(lower, 16))
    with pytest.raises(ValueError, match="registers"):
        variant.plan(problem, Tiling(advised + 1, 16))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@each_variant
def test_what_the_shared_memory_refusal_advises_can_be_launched(
    variant: Variant, head_dim: int, dtype: str
) -> None:
    """`lower M to x KiB` must not run into the register limit instead."""
    problem = AttentionProblem(1, 1, 8192, 8192, head_dim, dtype)
    for limit_kib in (64, 99, 163, 227):
        sram_bytes = largest_paper_sram(head_dim, dtype, limit_kib * KIB)
        plan = variant.plan(problem, Tiling.from_sram(sram_bytes, head_dim, dtype))
        assert plan.smem_bytes <= limit_kib * KIB


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@each_variant
def test_the_default_tiling_can_always_be_launched(
    variant: Variant, head_dim: int, dtype: str
) -> None:
    for limit_kib in (64, 99, 163, 227):
        for nk in (1, 1024, 16000, 65536):  # 16384: a whole row is more than a T4 block may have
            problem = AttentionProblem(1, 1, 1024, nk, head_dim, dtype)
            tiling = default_tiling(head_dim, problem.itemsize, limit_kib * KIB)
            assert variant.plan(problem, tiling).smem_bytes <= limit_kib * KIB


@each_variant
def test_a_grid_beyond_cudas_limit_is_refused(variant: Variant) -> None:
    problem = AttentionProblem(2**10, 2**4, 2**17, 2**17, 64, "float16")
    with pytest.raises(ValueError, match=rf"would need \d+ blocks, CUDA allows {MAX_GRID}: use "):
        variant.plan(problem, Tiling(1, 1))


@each_variant
def test_a_dtype_without_a_kernel_is_refused(variant: Variant) -> None:
    problem = AttentionProblem(1, 1, 8, 8, 64, "bfloat16")
    with pytest.raises(NotImplementedError, match=r"dtype = bf16 .*cast q, k and v to fp16 or"):
        variant.plan(problem, Tiling(16, 16))


@each_variant
def test_every_macro_is_used_by_the_kernel(variant: Variant) -> None:
    """An option that nothing reads would be set and do nothing."""
    plan = variant.plan(AttentionProblem(1, 1, 64, 64, 64), Tiling(16, 16))
    source = kernel_source(plan.kernel)
    unused = [macro for macro in plan.macros if not re.search(rf"\b{macro}\b", source)]
    assert not unused


@each_variant
def test_the_steps_are_the_kernels_entries(variant: Variant) -> None:
    plan: LaunchPlan = variant.plan(AttentionProblem(1, 1, 64, 64, 64), Tiling(16, 16))
    entries = re.findall(
        r'extern "C" __global__[^(]*\([^)]*\)\s+(\w+)\(', kernel_source(plan.kernel)
    )
    assert [step.entry for step in plan.steps] == entries


@each_variant
def test_counters_change_one_macro_alone(variant: Variant) -> None:
    problem, tiling = AttentionProblem(1, 1, 64, 64, 64), Tiling(16, 16)
    off, on = (variant.plan(problem, tiling, count_traffic=c) for c in (False, True))
    assert {k for k in on.macros if on.macros[k] != off.macros[k]} == {"COUNT_TRAFFIC"}
    assert on.steps == off.steps


def test_tiles() -> None:
    assert [tiles(n, 16) for n in (1, 15, 16, 17, 32)] == [1, 1, 1, 2, 2]


def test_every_case_of_verify_can_be_planned_and_almost_all_fit_an_h200() -> None:
    """What `make verify` would run: a case that cannot even be planned would stop it half-way."""
    needs = [
        flash_smem(c.tiling.block_m, c.tiling.block_n, c.problem.head_dim, c.problem.itemsize)
        for c in cases()
    ]
    for case in cases():
        for variant in VARIANTS.values():
            variant.plan(case.problem, case.tiling)
    too_large = sum(need.smem_bytes > HOPPER_SMEM_PER_BLOCK for need in needs)
    assert too_large <= len(needs) // 50
