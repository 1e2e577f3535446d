"""Launch arithmetic: grids, threads, shared memory, and refusals whose remedy works."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fa_kernels.cuda import fingerprint
from fa_kernels.cuda.compile import kernel_names, kernel_source
from fa_kernels.cuda.fingerprint import plan_fingerprint
from fa_kernels.cuda.plan import (
    MAX_ACCUMULATORS,
    MAX_GRID,
    NAIVE_THREADS,
    LaunchPlan,
    plan_flash_kv_outer,
    plan_flash_kv_outer_io,
    plan_flash_q_outer,
    plan_flash_q_outer_one_block,
    plan_standard_naive,
    plan_standard_tiled,
    plan_threads,
    tiles,
)
from fa_kernels.cuda.plan_mma import MAX_REGISTERS, SWITCHES, plan_flash_mma
from fa_kernels.measure.cases import suited
from fa_kernels.measure.verify import cases, takes
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.standard import ROW_CACHE_BYTES
from fa_kernels.tiling import (
    HOPPER_SMEM_PER_BLOCK,
    Tiling,
    flash_mma_smem,
    flash_smem,
    largest_paper_sram,
    standard_output_smem,
    standard_scores_smem,
)
from fa_kernels.units import KIB
from fa_kernels.variants import VARIANTS, Variant
from tests.reference.problems import HEAD_DIMS, bounded, random_mask

#: Every variant with every dtype that it takes.
EACH = [(variant, dtype) for variant in VARIANTS.values() for dtype in variant.dtypes]
each = pytest.mark.parametrize(
    ("variant", "dtype"), EACH, ids=[f"{variant.name}-{dtype}" for variant, dtype in EACH]
)
each_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
variants = st.sampled_from(list(VARIANTS.values()))
#: Those that keep the O tile in the registers of a thread per group of elements (tile.cuh).
tiled = st.sampled_from([v for v in VARIANTS.values() if v.tiled and not v.tensor_cores])
blocks = st.integers(1, 300)
lengths = st.integers(1, 5000)


def wide(variant: Variant) -> str:
    """The dtype with the smallest rounding that a variant takes."""
    return variant.dtypes[0]


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
    assert dict(plan.macros) | {
        "IO_BITS": 16, "IO_BF16": 0, "HEAD_DIM": 64, "BLOCK_M": 64, "BLOCK_N": 32,
        "THREADS": step.threads, "ALIGNED": 1, "COUNT_TRAFFIC": 1, "SMEM_BYTES": 25344,
        "TRACE": 0, "ONE_BLOCK_PER_HEAD": 0, "BLOCK_SPARSE": 0,
    } == plan.macros, "an option without a value here is one that is off"  # fmt: skip


def test_flash_with_one_block_per_head_by_hand() -> None:
    problem = AttentionProblem(4, 32, 4096, 4096, 64, "bfloat16")
    plan = plan_flash_q_outer_one_block(problem, Tiling(64, 32), trace=True)
    assert plan.steps[0].grid == 4 * 32
    assert plan.macros["ONE_BLOCK_PER_HEAD"] == plan.macros["TRACE"] == 1
    assert (plan.macros["IO_BITS"], plan.macros["IO_BF16"]) == (16, 1)


def test_few_blocks_get_more_threads() -> None:
    """One block per head does not fill a GPU: what it has no neighbours for, it does itself."""
    tiling = Tiling(64, 64)
    few, many = (AttentionProblem(1, n, 4096, 4096, 64, "float16") for n in (16, 1024))
    for plan in (plan_flash_kv_outer, plan_flash_q_outer_one_block):
        made = [plan(problem, tiling) for problem in (few, many)]
        assert [p.macros["FEW_BLOCKS"] for p in made] == [1, 0]
        assert made[0].steps[0].threads >= made[1].steps[0].threads
    # A block per Q tile does not depend on the number of heads.
    one, other = (plan_flash_q_outer(problem, tiling) for problem in (few, many))
    assert one.macros == other.macros and one.macros["FEW_BLOCKS"] == 0
    # What cannot fill the GPU never gets fewer threads than what can.
    for blocks in (1, 131, 132, 133, 264, 265, 10**6):
        assert plan_threads(tiling, 64, 25000, blocks) >= plan_threads(tiling, 64, 25000)


def test_kv_outer_by_hand() -> None:
    problem = AttentionProblem(4, 32, 4096, 4096, 64, "float16")
    plan = plan_flash_kv_outer(problem, Tiling(64, 32))
    (step,) = plan.steps
    assert (plan.kernel, step.entry, step.grid) == ("03_flash_kv_outer", "flash_kv_outer", 128)
    # 04 with as many blocks: a comparison of the two is one of loop orders alone.
    other = plan_flash_q_outer_one_block(problem, Tiling(64, 32))
    assert plan.steps[0] == replace(other.steps[0], entry="flash_kv_outer")
    assert plan.layout == other.layout == plan_flash_q_outer(problem, Tiling(64, 32)).layout
    io = plan_flash_kv_outer_io(problem, Tiling(64, 32))
    assert (plan.macros["O_IO_DTYPE"], io.macros["O_IO_DTYPE"]) == (0, 1)
    fp32 = AttentionProblem(4, 32, 4096, 4096, 64, "float32")
    assert plan_flash_kv_outer(fp32, Tiling(64, 32)).macros["O_IO_DTYPE"] == 1, "the same there"


def test_naive_by_hand() -> None:
    problem = AttentionProblem(2, 3, 113, 2000, 20, "float16")
    plan = plan_standard_naive(problem, Tiling(32, 64), aligned=False)
    scores, softmax, output = plan.steps
    assert scores.grid == 6 * 113 * 8  # ceil(2000 / 256) blocks a row
    assert softmax.grid == math.ceil(6 * 113 / 8)  # a warp a row
    assert output.grid == math.ceil(6 * 113 * 20 / 256)
    assert {step.threads for step in plan.steps} == {NAIVE_THREADS}
    assert plan.smem_bytes == plan.layout.smem_bytes == 0
    assert plan == plan_standard_naive(problem, Tiling(1, 1)), "tiles have no meaning"


@pytest.mark.parametrize("plan", [plan_flash_q_outer, plan_flash_kv_outer])
def test_a_block_mask_by_hand(plan: Any) -> None:
    mask = random_mask(4096, 4096, 24, 40)
    dense = AttentionProblem(4, 32, 4096, 4096, 64, "float16")
    masked = AttentionProblem(4, 32, 4096, 4096, 64, "float16", block_mask=mask)
    off, on = plan(dense, Tiling(64, 64)), plan(masked, Tiling(64, 64))
    changed = {
        name: on.macros[name] for name in on.macros if on.macros[name] != off.macros.get(name)
    }
    need = off.macros["SMEM_BYTES"] + 16  # 4 x 3 cells at most
    assert changed == {
        "BLOCK_SPARSE": 1, "MASK_BLOCK_M": 24, "MASK_BLOCK_N": 40, "SMEM_BYTES": need,
    }  # fmt: skip
    assert on.steps[0].smem_bytes == on.layout.smem_bytes == need
    assert on.smem_bytes == need + 16, "the entry of the list is static shared memory"
    assert on.steps[0].grid == off.steps[0].grid


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


def assert_threads_cover(plan: LaunchPlan, problem: AttentionProblem) -> None:
    """A thread for every element, a warp for every row, and less than a block too many."""
    rows = problem.heads * problem.seqlen_q
    scores, softmax, output = (step.grid * step.threads for step in plan.steps)
    assert rows * problem.seqlen_k <= scores < rows * (problem.seqlen_k + NAIVE_THREADS)
    assert 32 * rows <= softmax < 32 * rows + NAIVE_THREADS
    assert rows * problem.head_dim <= output < rows * problem.head_dim + NAIVE_THREADS


def assert_fragments_cover(variant: Variant, problem: AttentionProblem, tiling: Tiling) -> None:
    """Refusals with value, limit and remedy; what is not refused covers every Q tile by warps."""
    if problem.dtype not in variant.dtypes:
        remedy = "Cast q, k and v, or use variant='flash_q_outer'"
        with pytest.raises(
            NotImplementedError, match=rf"takes .*, got {problem.dtype}: .*{remedy}"
        ):
            variant.plan(problem, tiling)
        return
    if not variant.takes(problem):
        said = f"multiples of 16 bytes, which d = {problem.head_dim} does not give: .*'flash_mma'"
        with pytest.raises(NotImplementedError, match=said):
            variant.plan(problem, tiling)
        return
    multiple = variant.tile_multiple
    odd = [name for name in ("block_m", "block_n") if getattr(tiling, name) % multiple]
    if odd:
        value = getattr(tiling, odd[0])
        pieces = {16: "tensor cores take whole fragments", 64: "warpgroups take whole slabs"}
        said = f"{odd[0]} = {value}: {pieces[multiple]} of {multiple}, so use (\\d+), or variant="
        with pytest.raises(ValueError, match=f"^{said}") as refusal:
            variant.plan(problem, tiling)
        (advised,) = map(int, re.findall(r"so use (\d+)", str(refusal.value)))
        assert advised % multiple == 0 and abs(advised - value) < multiple
    own = variant.nearest_tiling(problem, tiling)
    plan = variant.plan(problem, own)
    (step,) = plan.steps
    assert plan.layout.smem_bytes == step.smem_bytes == plan.macros["SMEM_BYTES"] == plan.smem_bytes
    assert (plan.macros["BLOCK_M"], plan.macros["BLOCK_N"]) == (own.block_m, own.block_n)
    multiplying = plan.macros["THREADS"]
    copying = {16: 0, 64: 128}[variant.tile_multiple]  # one warpgroup does nothing else
    assert step.threads == multiplying + copying <= 512
    assert own.block_m // (multiplying // 32) in (16, 32)  # rows of Q that a warp owns
    rows = step.grid * own.block_m
    assert 6 * problem.seqlen_q <= rows < 6 * (problem.seqlen_q + own.block_m)


@given(variants, blocks, blocks, st.integers(1, 256), lengths, lengths,
       st.sampled_from(("float16", "bfloat16", "float32")))  # fmt: skip
@bounded
def test_every_plan_covers_the_problem_within_cudas_limits(
    variant: Variant, block_m: int, block_n: int, d: int, nq: int, nk: int, dtype: str
) -> None:
    problem, tiling = AttentionProblem(2, 3, nq, nk, d, dtype), Tiling(block_m, block_n)
    if not variant.tiled:
        assert_threads_cover(variant.plan(problem, tiling), problem)
        return
    if variant.tensor_cores:
        assert_fragments_cover(variant, problem, tiling)
        return
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
    if plan.kernel == "03_flash_kv_outer" or plan.macros.get("ONE_BLOCK_PER_HEAD"):
        assert plan.steps[0].grid == 6
    else:
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


@given(st.integers(1, 4096), st.integers(1, 256), tiled)
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


@given(st.integers(1, 32), st.integers(1, 256), st.integers(1, 256))
@bounded
def test_following_the_register_refusal_of_tensor_cores_works(
    rows: int, columns: int, d: int
) -> None:
    problem = AttentionProblem(1, 1, 4096, 4096, d, "float16")
    block_m, block_n = 16 * rows, 16 * columns
    for _ in range(16):  # "use smaller tiles": a handful of times at most
        try:
            plan_flash_mma(problem, Tiling(block_m, block_n))
            return
        except ValueError as refusal:
            found = re.fullmatch(
                rf"B_c = {block_n}, B_r = {block_m} at d = {d} needs about (\d+) registers per "
                r"thread for S and O, a block of that size may have (\d+): use smaller tiles "
                r"\(lower M\)\.",
                str(refusal),
            )
        assert found is not None and int(found[2]) <= MAX_REGISTERS
        block_m, block_n = (16 * max(1, size // 32) for size in (block_m, block_n))
    pytest.fail("no tile is small enough")


def test_tensor_cores_by_hand() -> None:
    problem = AttentionProblem(4, 32, 4096, 4096, 64, "bfloat16")
    plan = plan_flash_mma(problem, Tiling(64, 32), count_traffic=True)
    (step,) = plan.steps
    assert (plan.kernel, step.entry, step.grid) == ("05_flash_mma", "flash_mma", 4 * 32 * 64)
    assert step.threads == 4 * 32  # a warp per 16 rows
    assert step.smem_bytes == flash_mma_smem(64, 32, 64).smem_bytes == 2 * 64 * (64 + 4 * 32)
    off = plan_flash_mma(problem, Tiling(64, 32), count_traffic=True, without=SWITCHES)
    changed = {name for name in plan.macros if plan.macros[name] != off.macros[name]}
    assert changed <= {*SWITCHES, "SMEM_BYTES", "MIN_BLOCKS"} and {"STAGES", "SWIZZLE"} <= changed


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize(
    "variant",
    [pytest.param(v, id=name) for name, v in VARIANTS.items() if not v.tensor_cores],
)
def test_what_the_shared_memory_refusal_advises_can_be_launched(
    variant: Variant, head_dim: int, dtype: str
) -> None:
    """`lower M to x KiB` must not run into the register limit instead."""
    problem = AttentionProblem(1, 1, 8192, 8192, head_dim, dtype)
    for limit_kib in (64, 99, 163, 227):
        sram_bytes = largest_paper_sram(head_dim, dtype, limit_kib * KIB)
        plan = variant.plan(problem, Tiling.from_sram(sram_bytes, head_dim, dtype))
        assert plan.smem_bytes <= limit_kib * KIB


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_what_is_advised_where_tensor_cores_need_too_much_can_be_launched(head_dim: int) -> None:
    """`lower M to x KiB`, then the next lower multiple of 16, then smaller tiles: it ends well."""
    problem = AttentionProblem(1, 1, 8192, 8192, head_dim, "float16")
    for limit_kib in (64, 99, 163, 227):
        sram_bytes = largest_paper_sram(head_dim, "float16", limit_kib * KIB, flash_mma_smem)
        paper = Tiling.from_sram(sram_bytes, head_dim, "float16")
        lower = Tiling(*(max(16, size // 16 * 16) for size in (paper.block_m, paper.block_n)))
        variant = VARIANTS["flash_mma"]
        plan = variant.plan(problem, variant.nearest_tiling(problem, lower))
        assert plan.smem_bytes <= limit_kib * KIB and plan.layout_of is flash_mma_smem


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@each
def test_the_default_tiling_can_always_be_launched(
    variant: Variant, head_dim: int, dtype: str
) -> None:
    for limit_kib in (64, 99, 163, 227):
        for nk in (1, 1024, 16000, 65536):  # 16384: a whole row is more than a T4 block may have
            problem = AttentionProblem(1, 1, 1024, nk, head_dim, dtype)
            # One that is for a GPU of its own has the shared memory of that one.
            limit = HOPPER_SMEM_PER_BLOCK if variant.max_arch == 90 else limit_kib * KIB
            tiling = variant.tiling_for(problem, limit)
            if not variant.takes(problem):
                with pytest.raises(NotImplementedError, match="use variant='flash_mma'"):
                    variant.plan(problem, tiling)
                return
            assert variant.plan(problem, tiling).smem_bytes <= limit


@each_variant
def test_a_grid_beyond_cudas_limit_is_refused(variant: Variant) -> None:
    problem = AttentionProblem(2**19, 2**13, 2**17, 2**17, 64, "float16")  # 2^32 heads
    with pytest.raises(ValueError, match=rf"would need \d+ blocks, CUDA allows {MAX_GRID}: use "):
        variant.plan(problem, Tiling(variant.tile_multiple, variant.tile_multiple))


@each_variant
def test_every_dtype_is_a_build_of_its_own(variant: Variant) -> None:
    builds = set()
    for dtype in variant.dtypes:
        problem = AttentionProblem(1, 1, 8, 8, 64, dtype)
        plan = variant.plan(problem, variant.nearest_tiling(problem, Tiling(16, 16)))
        builds.add((plan.macros["IO_BITS"], plan.macros["IO_BF16"]))
    known = {"float16": (16, 0), "bfloat16": (16, 1), "float32": (32, 0)}
    assert builds == {known[dtype] for dtype in variant.dtypes}


@each_variant
def test_the_trace_changes_one_macro_alone(variant: Variant) -> None:
    if not variant.traced:
        return
    problem, tiling = AttentionProblem(1, 1, 64, 64, 64), Tiling(16, 16)
    off, on = (variant.plan(problem, tiling, trace=t) for t in (False, True))
    assert {k for k in on.macros if on.macros[k] != off.macros[k]} == {"TRACE"}
    assert on.steps == off.steps


@pytest.mark.parametrize("kernel", kernel_names())
def test_the_fingerprint_is_of_every_plan_of_a_kernel(
    kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = plan_fingerprint(kernel)
    assert re.fullmatch(r"[0-9a-f]{16}", before)
    assert before == plan_fingerprint.__wrapped__(kernel)
    table, defaults = fingerprint._PLANS, fingerprint._DEFAULTS
    for n, plan in enumerate(table[kernel]):

        def other(*args: Any, plan: Any = plan, **options: Any) -> LaunchPlan:
            made = plan(*args, **options)
            return replace(made, macros={**made.macros, "THREADS": 32})

        changed = list(table[kernel])
        changed[n] = other
        for of in (defaults, fingerprint._FIXED_TILES):
            if plan in of:
                monkeypatch.setitem(of, other, of[plan])
        monkeypatch.setitem(table, kernel, tuple(changed))
        assert plan_fingerprint.__wrapped__(kernel) != before


@each_variant
def test_every_macro_is_used_by_the_kernel(variant: Variant) -> None:
    """An option that nothing reads would be set and do nothing."""
    mask = random_mask(64, 64, 24, 40) if variant.block_sparse else None
    problem = AttentionProblem(1, 1, 64, 64, 64, block_mask=mask)
    plan = variant.plan(problem, variant.nearest_tiling(problem, Tiling(16, 16)))
    source = kernel_source(plan.kernel)
    unused = [macro for macro in plan.macros if not re.search(rf"\b{macro}\b", source)]
    assert not unused


@each_variant
def test_the_steps_are_the_kernels_entries(variant: Variant) -> None:
    problem = AttentionProblem(1, 1, 64, 64, 64)
    plan: LaunchPlan = variant.plan(problem, variant.nearest_tiling(problem, Tiling(16, 16)))
    entries = re.findall(
        r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\)|LAUNCH_BOUNDS)\s+(\w+)\(',
        kernel_source(plan.kernel),
    )
    assert [step.entry for step in plan.steps] == entries


@each_variant
def test_counters_change_one_macro_alone(variant: Variant) -> None:
    problem = AttentionProblem(1, 1, 64, 64, 64)
    tiling = variant.nearest_tiling(problem, Tiling(16, 16))
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
            if takes(variant, case):
                variant.plan(case.problem, suited(variant, case).tiling)
    too_large = sum(need.smem_bytes > HOPPER_SMEM_PER_BLOCK for need in needs)
    assert too_large <= len(needs) // 50
