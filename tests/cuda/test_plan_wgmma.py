"""Plans of 06: warpgroups, registers, whole slabs; what is refused, and that the remedy works."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_kernels.cuda import sass
from fa_kernels.cuda.compile import compile_report
from fa_kernels.cuda.compiled import can_compile
from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.cuda.plan_wgmma import (
    MAX_GROUPS,
    SWITCHES,
    default_wgmma_tiling,
    plan_flash_wgmma,
    suited_wgmma_tiling,
)
from fa_kernels.cuda.plan_wgmma_backward import (
    default_wgmma_backward_tiling,
    dq_sum_shape,
    plan_flash_wgmma_backward,
    wgmma_backward_smem,
)
from fa_kernels.packed import Packed
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import (
    HOPPER_SMEM_PER_BLOCK,
    WGMMA_HEAD_DIMS,
    Tiling,
    flash_wgmma_smem,
    wgmma_head_dim,
)
from tests.reference.problems import bounded, random_mask

PROBLEM = AttentionProblem(4, 32, 4096, 4096, 64, "bfloat16")
#: Every head_dim that TMA can read, as the kernel pads it.
TAKEN = range(8, 257, 8)


def test_by_hand() -> None:
    plan = plan_flash_wgmma(PROBLEM, Tiling(192, 128), count_traffic=True)
    (step,) = plan.steps
    assert (plan.kernel, step.entry) == ("06_flash_wgmma", "flash_wgmma")
    assert step.grid == 4 * 32 * 22, "an item for every Q tile of every head"
    assert step.threads == (3 + 1) * 128 and plan.macros["THREADS"] == 3 * 128
    assert step.smem_bytes == plan.smem_bytes == 2 * 64 * (192 + 4 * 128) + 256
    assert plan.layout == flash_wgmma_smem(192, 128, 64)
    assert dict(plan.macros) | {
        "IO_BITS": 16, "IO_BF16": 1, "HEAD_DIM": 64, "HEAD_DIM_PAD": 64, "BLOCK_M": 192,
        "BLOCK_N": 128, "STAGES": 2, "COUNT_TRAFFIC": 1, "TAKE_TURNS": 1, "LAZY_RESCALE": 1,
        "OVERLAP": 1, "PAIRS": 0, "BLOCK_SPARSE": 0,
    } == plan.macros  # fmt: skip


def test_gradients_by_hand() -> None:
    plan = plan_flash_wgmma_backward(PROBLEM, Tiling(128, 128))
    delta, keys, convert = plan.steps
    assert [step.entry.removeprefix("flash_wgmma_backward_") for step in plan.steps] == [
        "delta", "keys", "convert",
    ]  # fmt: skip
    assert delta.grid == convert.grid == keys.grid == 4 * 32 * 32
    assert (delta.threads, keys.threads, convert.threads) == (256, 384, 256)
    assert (delta.smem_bytes, convert.smem_bytes) == (0, 2 * 64 * 128)
    assert keys.smem_bytes == wgmma_backward_smem(128, 128, 64).smem_bytes <= HOPPER_SMEM_PER_BLOCK
    grouped = plan_flash_wgmma_backward(replace(PROBLEM, nheads_kv=4), Tiling(128, 128))
    assert [step.grid for step in grouped.steps] == [4096, 512, 4096], "a block per tile of k and v"
    assert dq_sum_shape(PROBLEM, Tiling(128, 128)) == (4, 32, 32, 128 * 64)
    assert dq_sum_shape(replace(PROBLEM, seqlen_q=129), Tiling(128, 128)) == (4, 32, 2, 128 * 64)


@pytest.mark.parametrize("d", TAKEN)
def test_default_tiles_fit_and_head_dims_are_padded_to_slabs(d: int) -> None:
    problem = replace(PROBLEM, head_dim=d, softmax_scale=None)
    padded = wgmma_head_dim(d)
    assert padded in WGMMA_HEAD_DIMS and padded - 64 < d <= padded
    plan = plan_flash_wgmma(problem, default_wgmma_tiling(d, 2))
    assert plan.macros["HEAD_DIM_PAD"] == padded and plan.macros["HEAD_DIM"] == d
    assert plan.smem_bytes <= HOPPER_SMEM_PER_BLOCK
    if d <= 128:
        gradients = plan_flash_wgmma_backward(problem, default_wgmma_backward_tiling(d, 2))
        assert gradients.smem_bytes <= HOPPER_SMEM_PER_BLOCK
        assert gradients.macros["HEAD_DIM_PAD"] == padded


@pytest.mark.parametrize("switch", SWITCHES)
def test_switches_are_turned_off_one_by_one(switch: str) -> None:
    d = 256 if switch == "LAZY_RESCALE" else 64
    problem = replace(PROBLEM, head_dim=d, softmax_scale=None)
    tiling = default_wgmma_tiling(d, 2)
    on, off = (plan_flash_wgmma(problem, tiling, without=w) for w in ((), (switch,)))
    assert (on.macros[switch], off.macros[switch]) == (1, 0)
    assert {**on.macros, switch: 0} == off.macros and on.steps == off.steps


def test_two_warpgroups_take_no_turns_under_a_block_mask() -> None:
    masked = replace(PROBLEM, block_mask=random_mask(4096, 4096, 128, 128))
    turns = {
        (rows, of is masked): plan_flash_wgmma(of, Tiling(rows, 128)).macros["TAKE_TURNS"]
        for rows in (128, 192) for of in (PROBLEM, masked)
    }  # fmt: skip
    assert turns == {(128, False): 1, (192, False): 1, (128, True): 0, (192, True): 1}


# -- refusals -------------------------------------------------------------------------------

BOTH = pytest.mark.parametrize("plan", [plan_flash_wgmma, plan_flash_wgmma_backward])
PACKED = {"batch": 2, "packed": Packed((0, 4096, 5000), (0, 4096, 5000))}


@BOTH
@pytest.mark.parametrize(
    ("fields", "aligned", "said"),
    [
        ({"dtype": "float32"}, True, r"takes float16 and bfloat16, got float32: .*Cast q, k and v"),
        (PACKED, True, r"takes no packed sequences: .* Use variant='flash_mma'"),
        ({"head_dim": 63}, True, r"16 bytes, which d = 63 does not give: .*variant='flash_mma'"),
        ({"head_dim": 20}, True, r"which d = 20 does not give: pass contiguous arrays with d a"),
        ({}, False, r"which these strides does not give: pass contiguous arrays"),
    ],
)  # fmt: skip
def test_what_tma_and_wgmma_do_not_take(
    plan: Any, fields: dict[str, Any], aligned: bool, said: str
) -> None:
    problem = replace(PROBLEM, **{"softmax_scale": None, **fields})
    with pytest.raises(NotImplementedError, match=said):
        plan(problem, Tiling(128, 128), aligned=aligned)


@pytest.mark.parametrize(
    ("tiling", "said"),
    [
        (Tiling(100, 128), r"^block_m = 100: .* slabs of 64, so use 64, or variant='flash_mma'"),
        (Tiling(128, 33), r"^block_n = 33: .* slabs of 64, so use 64, or"),
        (Tiling(128, 200), r"^block_n = 200: .* slabs of 64, so use 192, or"),
        (Tiling(256, 64), r"^block_m = 256: .* for 192 rows of Q, so use block_m = 192 or less"),
        (Tiling(192, 256), r"^B_c = 256, B_r = 192 at d = 64 needs 224 registers .* have 128: use"),
    ],
)
def test_other_tiles_are_refused_with_value_limit_and_remedy(tiling: Tiling, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan_flash_wgmma(PROBLEM, tiling)


@given(st.integers(1, 400), st.integers(1, 600), st.sampled_from(TAKEN))
@bounded
def test_following_the_remedies_ends_well(block_m: int, block_n: int, d: int) -> None:
    """Whole slabs first, then no more than three of rows, then "smaller tiles"."""
    problem = replace(PROBLEM, head_dim=d, softmax_scale=None)
    for _ in range(12):
        try:
            plan = plan_flash_wgmma(problem, Tiling(block_m, block_n))
        except ValueError as refusal:
            said = str(refusal)
            if use := re.search(r"^block_([mn]) = \d+: .*so use (?:block_m = )?(\d+)", said):
                block_m, block_n = (
                    (int(use[2]), block_n) if use[1] == "m" else (block_m, int(use[2]))
                )
                continue
            need = re.search(r"needs (\d+) registers .* may have (\d+): use smaller", said)
            assert need and int(need[1]) > int(need[2]), said
            block_n, block_m = max(64, block_n - 64), max(64, block_m - 64)
        else:
            assert_registers_fit(plan, d)
            return
    pytest.fail(f"no end at {block_m} x {block_n}, d = {d}")


def assert_registers_fit(plan: LaunchPlan, d: int) -> None:
    """S, P and O of 64 rows in the registers of 128 threads; all threads in those of an SM."""
    groups = plan.macros["THREADS"] // 128
    fragments = (1.5 * plan.macros["BLOCK_N"] + wgmma_head_dim(d)) * 64 / 128
    consumer, producer = (160, 32) if groups == 3 else (232, 40)
    assert fragments < consumer and groups <= MAX_GROUPS
    assert groups == 1 or (groups * consumer + producer) * 128 <= 65536


def test_the_largest_tiles_that_fit_are_taken() -> None:
    """What stands next to a refusal: the limit is where the message says it is."""
    for d, tiling in ((64, Tiling(192, 128)), (128, Tiling(128, 128)), (256, Tiling(128, 64))):
        problem = replace(PROBLEM, head_dim=d, softmax_scale=None)
        plan_flash_wgmma(problem, tiling)
        with pytest.raises(ValueError, match=f"at d = {d} needs .* registers"):
            plan_flash_wgmma(problem, Tiling(tiling.block_m, tiling.block_n + 128))


@pytest.mark.parametrize(
    ("fields", "options", "said"),
    [
        ({"bias_dtype": "float32"}, {}, r"takes no bias: use variant='flash_mma'"),
        ({}, {"deterministic": True}, r"so it is not deterministic: use variant='flash_mma'"),
        ({"head_dim": 136}, {}, r"takes d up to 128, got 136: .* Use variant='flash_mma'"),
    ],
)
def test_gradients_that_are_left_to_05(
    fields: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    problem = replace(PROBLEM, **{"softmax_scale": None, **fields})
    tiling = default_wgmma_backward_tiling(problem.head_dim, 2)
    with pytest.raises(NotImplementedError, match=said):
        plan_flash_wgmma_backward(problem, tiling, **options)


@pytest.mark.parametrize(("d", "own"), [(64, (128, 128)), (128, (64, 128)), (72, (64, 128))])
def test_gradients_have_one_tiling_for_a_head_dim(d: int, own: tuple[int, int]) -> None:
    problem = replace(PROBLEM, head_dim=d, softmax_scale=None)
    plan_flash_wgmma_backward(problem, Tiling(*own))
    for other in (Tiling(64, 64), Tiling(192, 128)):
        said = rf"^B_c = {other.block_n}, B_r = {other.block_m} at d = {d}: .* takes block_n = "
        said += rf"{own[1]}, block_m = {own[0]} alone\. Leave tiling out"
        with pytest.raises(ValueError, match=said):
            plan_flash_wgmma_backward(problem, other)


# -- tiles under a problem's options -----------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "rows"),
    [
        ({}, 192),
        ({"causal": "bottom_right"}, 192),
        ({"window": (100, 0)}, 192),
        ({"dropout_p": 0.1, "seed": 0}, 192),
        ({"masked": True}, 128),
        ({"bias_dtype": "float32"}, 128),
        ({"dropout_p": 0.1, "keep_given": True}, 128),
        ({"block_mask": random_mask(4096, 4096, 192, 128)}, 192),
        ({"block_mask": random_mask(4096, 4096, 384, 128)}, 192),
        ({"block_mask": random_mask(4096, 4096, 128, 128)}, 128),
        ({"block_mask": random_mask(4096, 4096, 24, 40)}, 128),
    ],
)
def test_two_warpgroups_where_three_lack_registers_or_cut_a_mask(
    fields: dict[str, Any], rows: int
) -> None:
    problem = replace(PROBLEM, **fields)
    assert suited_wgmma_tiling(problem, Tiling(192, 128)) == Tiling(rows, 128)
    for tiling in (Tiling(128, 128), Tiling(64, 64)):
        assert suited_wgmma_tiling(problem, tiling) == tiling


@pytest.mark.skipif(not can_compile(), reason="needs CuPy's binding of NVRTC")
@pytest.mark.skipif(sass.nvdisasm() is None, reason="needs nvdisasm: nvidia-cuda-nvdisasm")
@pytest.mark.parametrize("without", [(), ("OVERLAP",)])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_exponentials_run_beside_the_product_before(
    head_dim: int, without: tuple[str, ...]
) -> None:
    """In machine code: the compiler is free to do them after the wait, and did."""
    problem = replace(PROBLEM, head_dim=head_dim)
    tiling = default_wgmma_tiling(head_dim, 2)
    plan = plan_flash_wgmma(problem, tiling, without=without)
    loops = sass.read_loops(sass.listing(compile_report(plan.kernel, plan.macros, "sm_90a").cubin))
    (loop,) = (
        codes for codes in loops["flash_wgmma"] if "MUFU.EX2" in codes
        and sum(c.startswith("WARPGROUP.DEPBAR") for c in codes) == 2
    )  # fmt: skip
    scores, output = (i for i, code in enumerate(loop) if code.startswith("WARPGROUP.DEPBAR"))
    exponentials = tiling.block_n * 64 // 128  # of a thread
    beside = loop[scores:output].count("MUFU.EX2")
    if without:
        assert beside == 0
    else:
        assert exponentials - 4 <= beside <= exponentials + 2, "with those of two rows' alpha"
