"""Launch arithmetic of the backward kernels: grids, threads, shared memory, and refusals."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_kernels.cuda import launch
from fa_kernels.cuda.compile import kernel_source
from fa_kernels.cuda.plan import MAX_GRID, LaunchPlan
from fa_kernels.cuda.plan_backward import (
    MAX_ACCUMULATORS,
    backward_smem,
    default_backward_tiling,
    plan_flash_kv_outer_backward,
    plan_flash_q_outer_backward,
    plan_standard_tiled_backward,
    standard_product_smem,
)
from fa_kernels.packed import Packed
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling, standard_scores_smem
from fa_kernels.units import KIB
from tests.cuda.test_plan import accumulators
from tests.reference.problems import HEAD_DIMS, bounded, random_mask

Plan = Callable[..., LaunchPlan]
FLASH: dict[str, Plan] = {
    "kv_outer": plan_flash_kv_outer_backward,
    "q_outer": plan_flash_q_outer_backward,
    "q_outer, deterministic": lambda *args, **options: plan_flash_q_outer_backward(
        *args, **options, deterministic=True
    ),
}
ALL = FLASH | {"standard": plan_standard_tiled_backward}
each_plan = pytest.mark.parametrize("plan", ALL.values(), ids=ALL)
each_flash = pytest.mark.parametrize("plan", FLASH.values(), ids=FLASH)
PROBLEM = AttentionProblem(4, 32, 4096, 2048, 64, "float16", nheads_kv=8)


def entries(plan: LaunchPlan) -> dict[str, int]:
    """What follows the kernel's name in each entry, and its grid."""
    stem = plan.kernel.partition("_")[2]
    assert all(step.entry.startswith(f"{stem}_") for step in plan.steps)
    return {step.entry.removeprefix(f"{stem}_"): step.grid for step in plan.steps}


def test_q_outer_by_hand() -> None:
    plan = plan_flash_q_outer_backward(PROBLEM, Tiling(64, 32), count_traffic=True)
    assert plan.kernel == "04_flash_q_outer_backward"
    q_tiles, k_tiles = 4 * 32 * 64, 4 * 8 * 64
    assert entries(plan) == {"delta": q_tiles, "keys": k_tiles, "convert": q_tiles}
    smem = 2 * (2 * 64 + 2 * 32) * 64 + 8 * 64 * 32 + 12 * 64
    assert [step.smem_bytes for step in plan.steps] == [0, smem, 0]
    assert plan.smem_bytes == plan.layout.smem_bytes == smem == 41728
    assert dict(plan.macros) | {
        "IO_BITS": 16, "IO_BF16": 0, "HEAD_DIM": 64, "BLOCK_M": 64, "BLOCK_N": 32, "ALIGNED": 1,
        "COUNT_TRAFFIC": 1, "SMEM_BYTES": smem, "DETERMINISTIC": 0, "BLOCK_SPARSE": 0,
    } == plan.macros, "an option without a value here is one that is off"  # fmt: skip


def test_deterministic_gives_dq_a_launch_of_its_own() -> None:
    plan = plan_flash_q_outer_backward(PROBLEM, Tiling(64, 32), deterministic=True)
    assert list(entries(plan)) == ["delta", "keys", "rows"]
    assert entries(plan)["rows"] == entries(plan)["delta"] and plan.macros["DETERMINISTIC"] == 1
    # An fp32 dq is added up in place: there is nothing to convert.
    wide = plan_flash_q_outer_backward(replace(PROBLEM, dtype="float32"), Tiling(32, 32))
    assert list(entries(wide)) == ["delta", "keys"]


def test_kv_outer_by_hand() -> None:
    plan = plan_flash_kv_outer_backward(PROBLEM, Tiling(64, 32), deterministic=True)
    assert plan.kernel == "03_flash_kv_outer_backward" and entries(plan) == {"keys": 4 * 8}
    other = plan_flash_q_outer_backward(PROBLEM, Tiling(64, 32))
    assert plan.layout == other.layout and plan.macros["THREADS"] == other.macros["THREADS"]


@each_flash
def test_a_bias_needs_a_launch_that_looks_for_large_rows(plan: Plan) -> None:
    made = plan(replace(PROBLEM, bias_dtype="float32"), Tiling(64, 32))
    assert entries(made)["statistics"] == 4 * 32 * 64 and made.macros["BIAS"] == 2
    names = list(entries(made))
    assert names.index("statistics") < names.index("keys")
    assert [n for n in names if n != "statistics"] == list(entries(plan(PROBLEM, Tiling(64, 32))))


def test_standard_by_hand() -> None:
    plan = plan_standard_tiled_backward(PROBLEM, Tiling(64, 32))
    q_tiles, k_tiles = 4 * 32 * 64, 64
    assert entries(plan) == {
        "dv": 4 * 8 * k_tiles, "dp": q_tiles * k_tiles, "ds": 4 * 32 * 4096,
        "dq": q_tiles, "dk": 4 * 8 * k_tiles,
    }  # fmt: skip
    product, scores = 2 * 64 * 64 + 4 * 64 * 32, 2 * (64 + 32) * 64 + 4 * 64 * 32
    assert plan.macros["PRODUCT_SMEM_BYTES"] == product
    assert plan.macros["SCORES_SMEM_BYTES"] == scores == plan.layout.smem_bytes
    row = 2 * 4 * 2048  # P and dP of a row, in fp32
    assert [step.smem_bytes for step in plan.steps] == [product, scores, row, product, product]


@pytest.mark.parametrize(
    ("nk", "rows", "cached"), [(512, 32, 1), (513, 0, 1), (8064, 0, 1), (8065, 0, 0)]
)
def test_rows_of_ds_are_cached_up_to_63_kib(nk: int, rows: int, cached: int) -> None:
    """P and dP together; short rows are a warp each, long ones a block."""
    problem = AttentionProblem(2, 3, 64, nk, 64, "float16")
    plan = plan_standard_tiled_backward(problem, Tiling(64, 64))
    threads = plan.macros["THREADS"]
    assert plan.macros["ROW_IN_SMEM"] == cached
    assert plan.macros["ROW_THREADS"] == (rows or threads)
    ds = plan.steps[2]
    per_block = threads // plan.macros["ROW_THREADS"]
    assert ds.smem_bytes == cached * per_block * 8 * (-(-nk // 8) * 8)
    assert ds.grid == -(-6 * 64 // per_block)


@each_plan
def test_packed_sequences_are_planned_for_the_longest(plan: Plan) -> None:
    packed = Packed((0, 100, 110), (0, 30, 130))
    problem = AttentionProblem(2, 4, 100, 100, 64, "float16", packed=packed, nheads_kv=2)
    padded = replace(problem, packed=None)
    made, other = plan(problem, Tiling(32, 32)), plan(padded, Tiling(32, 32))
    assert made.macros["PACKED"] == 1
    found, want = entries(made), entries(other)
    assert found == want


@each_flash
def test_a_block_mask_is_a_build_of_its_own(plan: Plan) -> None:
    mask = random_mask(4096, 2048, 24, 40)
    made = plan(replace(PROBLEM, block_mask=mask), Tiling(64, 32))
    assert (made.macros["MASK_BLOCK_M"], made.macros["MASK_BLOCK_N"]) == (24, 40)
    cells = made.layout.smem_bytes - backward_smem(64, 32, 64, 2).smem_bytes
    assert cells == 16  # 4 x 2 blocks of the mask, rounded up
    keys = next(step for step in made.steps if step.entry.endswith("_keys"))
    assert keys.static_smem_bytes == 16 and made.macros["SMEM_BYTES"] == keys.smem_bytes


def test_standard_takes_no_block_mask() -> None:
    problem = replace(PROBLEM, block_mask=random_mask(4096, 2048, 64, 64))
    with pytest.raises(NotImplementedError, match="no block mask: use variant='flash_q_outer'"):
        plan_standard_tiled_backward(problem, Tiling(64, 32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@each_plan
def test_the_default_tiling_can_always_be_launched(plan: Plan, head_dim: int, dtype: str) -> None:
    for limit_kib in (64, 99, 163, 227):
        problem = AttentionProblem(1, 1, 1024, 3000, head_dim, dtype)
        tiling = default_backward_tiling(head_dim, problem.itemsize, limit_kib * KIB)
        made = plan(problem, tiling)
        assert made.smem_bytes <= limit_kib * KIB
        longer = max(tiling.block_m, tiling.block_n)
        assert accumulators(longer, head_dim, made.macros["THREADS"]) <= 32


def test_the_default_tiling_is_the_largest_that_fits_twice() -> None:
    assert default_backward_tiling(64, 2, 227 * KIB) == Tiling(64, 64)
    assert default_backward_tiling(64, 2, 99 * KIB) == Tiling(64, 32)
    assert default_backward_tiling(128, 4, 227 * KIB) == Tiling(64, 32)
    # dk and dv of 64 keys at d = 256 would take 128 registers of every thread.
    assert default_backward_tiling(256, 2, 227 * KIB) == Tiling(32, 32)
    assert default_backward_tiling(256, 4, 16 * KIB) == Tiling(8, 8)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 256), st.sampled_from(list(ALL)))
@bounded
def test_plans_are_consistent_or_refused_for_registers(
    block_m: int, block_n: int, d: int, name: str
) -> None:
    problem, tiling = AttentionProblem(2, 4, 130, 70, d, "float16"), Tiling(block_m, block_n)
    most = accumulators(max(block_m, block_n), d, 256)  # even spread over the most threads
    if most > MAX_ACCUMULATORS:
        with pytest.raises(ValueError, match="fp32 registers per thread"):
            ALL[name](problem, tiling)
        return
    plan = ALL[name](problem, tiling)
    assert plan.smem_bytes == max(s.smem_bytes + s.static_smem_bytes for s in plan.steps)
    for step in plan.steps:
        assert step.threads == plan.macros["THREADS"] in (64, 128, 256)
        assert 1 <= step.grid <= MAX_GRID
    assert accumulators(max(block_m, block_n), d, plan.macros["THREADS"]) <= MAX_ACCUMULATORS


@given(st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 256))
@bounded
def test_following_the_remedy_of_the_register_refusal_works(m: int, n: int, d: int) -> None:
    """At most one advice for each side, and then it runs."""
    problem, sizes = AttentionProblem(1, 1, 4096, 4096, d, "float16"), {"block_m": m, "block_n": n}
    for _ in range(3):
        try:
            plan_flash_q_outer_backward(problem, Tiling(**sizes))
            return
        except ValueError as refusal:
            found = re.search(
                r"^(block_[mn]) = (\d+) at d = (\d+) needs (\d+) fp32 registers per thread for "
                r"(dk and dv, each|dq); the backward kernel allows 32: lower block_[mn] to (\d+) "
                r"or less \(lower M\), or leave tiling out\.$",
                str(refusal),
            )
        assert found is not None
        name, advised = found[1], int(found[6])
        assert int(found[2]) == sizes[name] > advised >= 1 and int(found[4]) > MAX_ACCUMULATORS
        sizes[name] = advised
    pytest.fail(f"three refusals in a row, the last for {sizes}")


@pytest.mark.parametrize("limit_kib", [64, 99, 163, 227])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("head_dim", [20, 64, 128, 256])
def test_what_the_shared_memory_refusal_advises_can_be_launched(
    monkeypatch: pytest.MonkeyPatch, head_dim: int, dtype: str, limit_kib: int
) -> None:
    """`lower M to x KiB` must not run into the register limit instead."""
    monkeypatch.setattr(launch, "smem_limit_bytes", lambda: limit_kib * KIB)
    problem = AttentionProblem(1, 1, 8192, 8192, head_dim, dtype)
    side = 1  # as long as registers hold
    while accumulators(side + 1, head_dim, 256) <= MAX_ACCUMULATORS:
        side += 1
    tiling = Tiling(side, side)
    plan = plan_flash_q_outer_backward(problem, tiling)
    if plan.smem_bytes <= limit_kib * KIB:
        launch.refuse_on_this_gpu(plan, problem, tiling)
        return
    with pytest.raises(ValueError, match="needs .* of shared memory per block") as refusal:
        launch.refuse_on_this_gpu(plan, problem, tiling)
    advised = re.search(r"lower M to (\d+) KiB", str(refusal.value))
    assert advised is not None
    smaller = Tiling.from_sram(int(advised[1]) * KIB, head_dim, dtype)
    launch.refuse_on_this_gpu(plan_flash_q_outer_backward(problem, smaller), problem, smaller)


def test_a_mask_that_no_longer_fits_is_not_blamed_on_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_flash_q_outer_backward(
        replace(PROBLEM, block_mask=random_mask(4096, 2048, 64, 32)), Tiling(64, 32)
    )
    monkeypatch.setattr(launch, "smem_limit_bytes", lambda: plan.layout.smem_bytes)
    with pytest.raises(ValueError, match="and the mask need .*: use smaller tiles"):
        launch.refuse_on_this_gpu(plan, PROBLEM, Tiling(64, 32))


@each_plan
def test_a_grid_beyond_cudas_limit_is_refused(plan: Plan) -> None:
    problem = AttentionProblem(2**19, 2**13, 2**17, 2**17, 64, "float16")  # 2^32 heads
    with pytest.raises(ValueError, match=rf"would need \d+ blocks, CUDA allows {MAX_GRID}: use "):
        plan(problem, Tiling(1, 1))


@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 256), st.sampled_from([2, 4]))
@bounded
def test_layouts_state_what_the_static_asserts_do(m: int, n: int, d: int, itemsize: int) -> None:
    """16 bytes a chunk of K, Q, V, dO; 4 an element of P and dS, their rows padded to 4."""
    chunks, n_pad = -(-d * itemsize // 16), -(-n // 4) * 4
    rows = 12 * (-(-m // 4) * 4)
    flash = 32 * chunks * (m + n) + 8 * m * n_pad + rows
    assert backward_smem(m, n, d, itemsize).smem_bytes == flash
    product = 16 * chunks * max(m, n) + 4 * m * n_pad
    assert standard_product_smem(m, n, d, itemsize).smem_bytes == product
    # The accumulators that the paper keeps in SRAM.
    assert backward_smem(m, n, d, itemsize).accumulator_bytes >= 8 * n * d
    assert (
        standard_scores_smem(m, n, d, itemsize).smem_bytes == 16 * chunks * (m + n) + 4 * m * n_pad
    )


@each_plan
def test_every_option_changes_macros_that_the_source_knows(plan: Plan) -> None:
    base = plan(PROBLEM, Tiling(64, 32))
    source = kernel_source(base.kernel)
    options: tuple[dict[str, Any], ...] = (
        {"masked": True}, {"bias_dtype": "float32"}, {"dropout_p": 0.1, "seed": 0},
        {"dropout_p": 0.1, "keep_given": True}, {"window": (5, 3)},
    )  # fmt: skip
    for fields in options:
        made = plan(replace(PROBLEM, **fields), Tiling(64, 32))
        changed = {name for name in made.macros if made.macros[name] != base.macros[name]}
        assert changed and all(name in source for name in made.macros)
    assert plan(PROBLEM, Tiling(64, 32), aligned=False).macros["ALIGNED"] == 0
