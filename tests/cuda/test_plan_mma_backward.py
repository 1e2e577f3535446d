"""Launch arithmetic of the backward on tensor cores: shapes, shared memory, and refusals."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_kernels.cuda.compile import kernel_source
from fa_kernels.cuda.plan import MAX_GRID, LaunchPlan
from fa_kernels.cuda.plan_mma_backward import (
    BLOCK_MASK_BYTES,
    SMALLEST_SMEM_PER_BLOCK,
    Shape,
    default_mma_backward_tiling,
    dq_warps,
    plan_flash_mma_backward,
    shape_of,
)
from fa_kernels.packed import Packed
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import (
    HOPPER_SMEM_PER_BLOCK,
    MMA_HEAD_DIMS,
    Tiling,
    flash_mma_backward_smem,
    mma_head_dim,
)
from fa_kernels.units import KIB
from tests.cuda.test_plan_backward import entries
from tests.reference.problems import HEAD_DIMS, bounded, random_mask

PROBLEM = AttentionProblem(4, 32, 4096, 2048, 64, "float16", nheads_kv=8)
#: Shared memory of a block on the GPUs with tensor cores, in bytes.
LIMITS = (SMALLEST_SMEM_PER_BLOCK, 163 * KIB, HOPPER_SMEM_PER_BLOCK)


def assert_consistent(plan: LaunchPlan) -> None:
    """What the static_asserts of mma_backward.cuh and mma_backward_rows.cuh ask for."""
    m = plan.macros
    warps, block_m, block_n, padded = (
        m["THREADS"] // 32, m["BLOCK_M"], m["BLOCK_N"], m["HEAD_DIM_PAD"],
    )  # fmt: skip
    assert m["THREADS"] % 32 == 0 and 32 <= m["THREADS"] <= 512
    warp_keys = block_n * m["SIDES"] // warps
    assert warp_keys * warps == block_n * m["SIDES"] and warp_keys in (16, 32)
    assert m["SIDES"] in (1, 2, 4) and (m["SIDES"] == 1 or warps // m["SIDES"] < 16)
    assert block_m % m["ROWS_AT_ONCE"] == m["ROWS_AT_ONCE"] % 16 == 0
    assert m["ROWS_AT_ONCE"] // m["SIDES"] % 8 == 0
    rows, columns = m["DQ_WARPS_M"], m["DQ_WARPS_D"]
    assert block_m // 16 % rows == padded // 16 % columns == 0 and rows * columns <= warps
    cells = 2 * m.get("MASK_SMEM_BYTES", 0)
    s_bytes = 16 * block_n * (-(-block_m // 32) * 4)
    numbers = 4 * block_m * (3 if m["BIAS"] else 2)
    smem = 4 * padded * block_n + m["STAGES"] * (4 * padded * block_m + numbers)
    smem += (3 if m["SIDES"] > 1 else 2) * s_bytes + cells
    assert m["SMEM_BYTES"] == smem >= 4 * block_m * padded
    for step in plan.steps:
        assert step.threads == m["THREADS"] and 1 <= step.grid <= MAX_GRID


def test_by_hand() -> None:
    plan = plan_flash_mma_backward(PROBLEM, Tiling(64, 128), count_traffic=True)
    assert plan.kernel == "05_flash_mma_backward"
    assert plan.macros["THREADS"] == 128  # a warp per 32 keys
    q_tiles, k_tiles = 4 * 32 * 64, 4 * 8 * 16
    assert entries(plan) == {"delta": q_tiles, "keys": k_tiles, "convert": q_tiles}
    smem = 2 * 128 * 128 + 2 * 2 * 64 * 128 + 2 * 2 * 128 * 64 + 2 * 2 * 4 * 64
    assert [step.smem_bytes for step in plan.steps] == [0, smem, 0]
    assert plan.smem_bytes == plan.layout.smem_bytes == smem == 99328
    assert dict(plan.macros) | {
        "IO_BITS": 16, "IO_BF16": 0, "HEAD_DIM": 64, "HEAD_DIM_PAD": 64, "BLOCK_M": 64,
        "BLOCK_N": 128, "ALIGNED": 1, "COUNT_TRAFFIC": 1, "SMEM_BYTES": smem, "DETERMINISTIC": 0,
        "BLOCK_SPARSE": 0, "STAGES": 2, "SIDES": 1,
    } == plan.macros, "an option without a value here is one that is off"  # fmt: skip
    assert_consistent(plan)


def test_a_bias_and_a_fixed_order_have_launches_of_their_own() -> None:
    tiling = Tiling(64, 128)
    plain = plan_flash_mma_backward(PROBLEM, tiling)
    biased = plan_flash_mma_backward(replace(PROBLEM, bias_dtype="float32"), tiling)
    fixed = plan_flash_mma_backward(PROBLEM, tiling, deterministic=True)
    assert list(entries(plain)) == ["delta", "keys", "convert"]
    assert list(entries(biased)) == ["delta", "statistics", "keys", "convert"]
    assert list(entries(fixed)) == ["delta", "keys", "rows"]
    assert entries(fixed)["rows"] == entries(fixed)["delta"] == entries(biased)["statistics"]
    changed = {name for name in fixed.macros if fixed.macros[name] != plain.macros[name]}
    assert changed == {"DETERMINISTIC"}


def test_packed_sequences_are_planned_for_the_longest() -> None:
    packed = Packed((0, 100, 110), (0, 30, 130))
    problem = AttentionProblem(2, 4, 100, 100, 64, "float16", packed=packed, nheads_kv=2)
    made = plan_flash_mma_backward(problem, Tiling(32, 32))
    other = plan_flash_mma_backward(replace(problem, packed=None), Tiling(32, 32))
    assert made.macros["PACKED"] == 1
    assert entries(made) == entries(other)


def test_a_block_mask_is_a_build_of_its_own() -> None:
    """Two tables of cells: warps may still be in the visit before."""
    mask = random_mask(4096, 2048, 24, 40)
    plan = plan_flash_mma_backward(replace(PROBLEM, block_mask=mask), Tiling(64, 32))
    assert (plan.macros["MASK_BLOCK_M"], plan.macros["MASK_BLOCK_N"]) == (24, 40)
    stages, sides = plan.macros["STAGES"], plan.macros["SIDES"]
    bare = flash_mma_backward_smem(64, 32, 64, 2, stages, sides > 1)
    assert plan.layout.smem_bytes - bare.smem_bytes == 2 * 16  # 4 x 2 blocks, rounded up


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_the_default_tiling_can_always_be_launched(head_dim: int) -> None:
    """With every option, on every GPU, and clipped to sequences of any length."""
    blocks = random_mask(1024, 3000, 24, 40)
    for limit, bias, deterministic in itertools.product(LIMITS, (None, "float32"), (False, True)):
        default = default_mma_backward_tiling(head_dim, 2, limit)
        for n, mask in ((1024, None), (1024, blocks), *((n, None) for n in range(1, 140, 16))):
            for nq, nk in ((n, 3000), (1024, n), (n, n)):
                if mask is not None and (nq, nk) != (1024, 3000):
                    continue
                tiling = default.clipped(nq, nk)
                problem = AttentionProblem(
                    1, 1, nq, nk, head_dim, "float16", bias_dtype=bias, block_mask=mask
                )
                plan = plan_flash_mma_backward(problem, tiling, deterministic=deterministic)
                assert plan.smem_bytes <= limit


def test_the_default_tiling_by_hand() -> None:
    assert default_mma_backward_tiling(64, 2) == Tiling(64, 128)
    assert default_mma_backward_tiling(64, 2, SMALLEST_SMEM_PER_BLOCK) == Tiling(32, 128)
    assert default_mma_backward_tiling(128, 2) == Tiling(64, 128)
    assert default_mma_backward_tiling(128, 2, 163 * KIB) == Tiling(32, 128)
    assert default_mma_backward_tiling(256, 2, SMALLEST_SMEM_PER_BLOCK) == Tiling(32, 32)


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 256), st.booleans())
@bounded
def test_plans_are_consistent_or_refused_for_registers(
    rows: int, columns: int, d: int, bias: bool
) -> None:
    tiling = Tiling(16 * rows, 16 * columns)
    bias_dtype = "float32" if bias else None
    problem = AttentionProblem(2, 4, 130, 70, d, "float16", bias_dtype=bias_dtype)
    if shape_of(tiling, mma_head_dim(d)) is None:
        with pytest.raises(ValueError, match=r"leaves no registers for dk and dv: use block_n ="):
            plan_flash_mma_backward(problem, tiling)
        return
    assert_consistent(plan_flash_mma_backward(problem, tiling))


@pytest.mark.parametrize("head_dim", MMA_HEAD_DIMS)
def test_what_the_register_refusal_advises_is_never_refused_for_registers(head_dim: int) -> None:
    """`block_n = 64 or less, block_m a multiple of 32`."""
    problem = replace(PROBLEM, head_dim=head_dim)
    for block_m, block_n in itertools.product(range(32, 513, 32), (16, 32, 48, 64)):
        assert_consistent(plan_flash_mma_backward(problem, Tiling(block_m, block_n)))


@pytest.mark.parametrize("name", ["block_m", "block_n"])
def test_tiles_that_are_no_whole_fragments_are_refused(name: str) -> None:
    sizes = {"block_m": 32, "block_n": 32, name: 40}
    with pytest.raises(ValueError, match=rf"^{name} = 40: tensor cores .* of 16, so use 32, or"):
        plan_flash_mma_backward(PROBLEM, Tiling(**sizes))


def test_fp32_is_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"^05_flash_mma_backward takes float16 and bfl"):
        plan_flash_mma_backward(replace(PROBLEM, dtype="float32"), Tiling(64, 64))


def test_a_grid_beyond_cudas_limit_is_refused() -> None:
    problem = AttentionProblem(2**19, 2**13, 2**17, 2**17, 64, "float16")  # 2^32 heads
    with pytest.raises(ValueError, match=rf"would need \d+ blocks, CUDA allows {MAX_GRID}: use "):
        plan_flash_mma_backward(problem, Tiling(16, 16))


@pytest.mark.parametrize("padded", MMA_HEAD_DIMS)
def test_all_of_dq_has_a_warp(padded: int) -> None:
    """As many warps as can be, each with as many fragments as any other."""
    for warps, block_m in itertools.product((1, 2, 3, 4, 8, 16), range(16, 129, 16)):
        rows, columns = dq_warps(warps, block_m, padded)
        assert 1 <= rows * columns <= warps
        assert block_m // 16 % rows == padded // 16 % columns == 0
    assert dq_warps(4, 64, 64) == (2, 2)  # the squarest


def test_a_shape_says_how_many_threads_and_registers_it_takes() -> None:
    alone, pair = Shape(32, 1, 16), Shape(32, 2, 16)
    assert (alone.threads(128), pair.threads(128)) == (128, 256)
    # dk and dv of 32 keys by 64 columns and S and dP of 32 keys by 16 rows, in fp32, by 32 lanes.
    assert alone.registers(64) == 2 * 64 + 2 * 16 == 2 * pair.registers(64)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_builds_differ_by_the_tiles_and_not_by_the_machine(head_dim: int) -> None:
    """Fewer than 64 keys are what small GPUs have: both stages only where they fit there."""
    problem = replace(PROBLEM, head_dim=head_dim)
    for block_m, block_n in itertools.product((32, 64), (32, 48)):
        plan = plan_flash_mma_backward(problem, Tiling(block_m, block_n))
        assert plan.macros["STAGES"] == 1 or plan.smem_bytes <= SMALLEST_SMEM_PER_BLOCK


def test_the_room_for_a_block_mask_is_that_of_small_blocks() -> None:
    """Cells of 4 x 4 elements: two tables of a 64 x 128 tile."""
    mask = random_mask(4096, 2048, 4, 4)
    problem = replace(PROBLEM, block_mask=mask)
    plan, bare = (plan_flash_mma_backward(p, Tiling(64, 128)) for p in (problem, PROBLEM))
    assert plan.layout.smem_bytes - bare.layout.smem_bytes <= BLOCK_MASK_BYTES


def test_every_option_changes_macros_that_the_source_knows() -> None:
    base = plan_flash_mma_backward(PROBLEM, Tiling(64, 32))
    source = kernel_source(base.kernel)
    options: tuple[dict[str, Any], ...] = (
        {"masked": True}, {"bias_dtype": "float32"}, {"dropout_p": 0.1, "seed": 0},
        {"dropout_p": 0.1, "keep_given": True}, {"window": (5, 3)},
    )  # fmt: skip
    for fields in options:
        made = plan_flash_mma_backward(replace(PROBLEM, **fields), Tiling(64, 32))
        changed = {name for name in made.macros if made.macros[name] != base.macros[name]}
        assert changed and all(re.search(rf"\b{name}\b", source) for name in made.macros)
    assert plan_flash_mma_backward(PROBLEM, Tiling(64, 32), aligned=False).macros["ALIGNED"] == 0
