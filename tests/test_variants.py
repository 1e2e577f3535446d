"""Every variant is exact attention: the same laws, over awkward shapes, head dims and masks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.cuda.compile import KERNEL_DIR, kernel_names
from fa_kernels.cuda.plan import PLANS
from fa_kernels.cuda.plan_backward import BACKWARD_PLANS
from fa_kernels.cuda.plan_mma import MMA_PLANS
from fa_kernels.cuda.plan_mma_backward import MMA_BACKWARD_PLANS
from fa_kernels.cuda.plan_wgmma import WGMMA_PLANS
from fa_kernels.cuda.plan_wgmma_backward import WGMMA_BACKWARD_PLANS
from fa_kernels.measure.check import Truth
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.standard import attention_float64
from fa_kernels.tiling import Tiling
from fa_kernels.variants import (
    ALGORITHMS,
    FAST,
    RUNGS,
    VARIANTS,
    Variant,
    fastest,
    find_variant,
    with_backward,
)
from tests.reference.problems import (
    HEAD_DIMS,
    LONG,
    MASKS,
    SHAPES,
    allowed_pairs,
    plain_attention,
    random_inputs,
    random_mask,
)
from tests.taken import taken

pytestmark = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)

ODD_TILING = Tiling(16, 24)  # several tiles in both directions, the last ones partial


def wide(variant: Variant) -> str:
    """The dtype with the smallest rounding that a variant takes."""
    return variant.dtypes[0]


@pytest.mark.parametrize("causal", MASKS)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_reference_is_exact_attention(
    variant: Variant, shape: tuple[int, int], head_dim: int, causal: str | None
) -> None:
    problem = AttentionProblem(1, 2, *shape, head_dim, causal=causal)
    q, k, v = random_inputs(problem)
    out, lse = variant.reference(q, k, v, problem, ODD_TILING)
    for want_out, want_lse in (
        attention_float64(q, k, v, problem),
        plain_attention(q, k, v, problem),
    ):
        np.testing.assert_allclose(out, want_out, rtol=0, atol=1e-12)
        np.testing.assert_allclose(lse, want_lse, rtol=0, atol=1e-12)


def assert_rule(variant: Variant, problem: AttentionProblem, tiling: Tiling) -> None:
    """At most twice the error of a plain run in the same dtype, plus its rounding units."""
    inputs = random_inputs(problem, problem.dtype)
    out, lse = variant.reference(*inputs, problem, tiling)
    assert (out.dtype, lse.dtype) == (io_dtype(problem.dtype), np.float32)
    check = Truth(inputs, problem, xp=np).check(out, lse, variant.roundings(problem, tiling))
    assert check.ok, check


@pytest.mark.parametrize("causal", MASKS)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("shape", [(113, 203), (203, 113), (239, 1)])
def test_the_io_dtypes_keep_the_tolerance_rule(
    variant: Variant, shape: tuple[int, int], head_dim: int, causal: str | None
) -> None:
    for dtype in variant.dtypes:
        if dtype == "bfloat16" and head_dim not in (20, 64):
            continue  # it differs from fp16 in two conversions alone
        problem = AttentionProblem(1, 2, *shape, head_dim, dtype, causal)
        assert_rule(
            variant, problem, variant.default_tiling(head_dim, problem.itemsize, 227 * 1024)
        )


def test_a_long_shape_keeps_the_tolerance_rule(variant: Variant) -> None:
    for dtype in variant.dtypes:
        head_dim = 64 if variant.tiled else 8  # 01 in NumPy takes its products row by row
        problem = AttentionProblem(1, 1, *LONG, head_dim, dtype, "bottom_right")
        assert_rule(variant, problem, Tiling(64, 64))


@pytest.mark.parametrize("lead", [(1, 1), (2, 3)])
@pytest.mark.parametrize("causal", MASKS)
def test_a_block_mask_keeps_the_tolerance_rule(
    variant: Variant, causal: str | None, lead: tuple[int, int]
) -> None:
    if not variant.block_sparse:
        pytest.skip("takes no block mask: the front door refuses it")
    for dtype in variant.dtypes:
        mask = random_mask(113, 203, 24, 40, lead)
        problem = AttentionProblem(2, 3, 113, 203, 20, dtype, causal, block_mask=mask)
        assert_rule(variant, problem, ODD_TILING)


@pytest.mark.parametrize("causal", ["bottom_right", "top_left"])
@pytest.mark.parametrize("shape", [(40, 40), (30, 50), (50, 30)])
def test_changing_the_future_does_not_move_the_past(
    variant: Variant, shape: tuple[int, int], causal: str
) -> None:
    problem = AttentionProblem(1, 1, *shape, 20, "float32", causal)
    q, k, v = random_inputs(problem, "float32")
    before = variant.reference(q, k, v, problem, ODD_TILING)
    other = random_inputs(problem, "float32", seed=1)
    allowed = allowed_pairs(problem)
    for key in (1, shape[1] // 2, shape[1] - 1):
        past = ~allowed[:, key:].any(axis=1)  # rows that attend no key from `key` on
        assert past.any() or causal == "bottom_right"
        future = [np.concatenate([x[:, :, :key], y[:, :, key:]], 2)
                  for x, y in zip((k, v), other[1:], strict=True)]  # fmt: skip
        after = variant.reference(q, *future, problem, ODD_TILING)
        for x, y in zip(before, after, strict=True):
            assert x[:, :, past].tobytes() == y[:, :, past].tobytes()
            changed = ~past & allowed.any(axis=1)
            assert (x[:, :, changed] != y[:, :, changed]).any() or not changed.any()


def test_nan_keys_of_the_future_do_not_reach_the_past(variant: Variant) -> None:
    problem = AttentionProblem(1, 1, 40, 40, 20, "float32", "bottom_right")
    q, k, v = random_inputs(problem, "float32")
    before, _ = variant.reference(q, k, v, problem, ODD_TILING)
    k[:, :, 30] = np.nan
    with np.errstate(invalid="ignore"):
        after, _ = variant.reference(q, k, v, problem, ODD_TILING)
    assert before[:, :, :30].tobytes() == after[:, :, :30].tobytes()
    assert np.isnan(after[:, :, 30:]).all()


@pytest.mark.parametrize("causal", MASKS)
def test_nan_in_one_query_row_stays_in_that_row(variant: Variant, causal: str | None) -> None:
    problem = AttentionProblem(1, 2, 50, 60, 20, "float32", causal)
    q, k, v = random_inputs(problem, "float32")
    before = variant.reference(q, k, v, problem, ODD_TILING)
    q[0, 1, 7, 3] = np.nan
    with np.errstate(invalid="ignore"):
        after = variant.reference(q, k, v, problem, ODD_TILING)
    for x, y in zip(before, after, strict=True):
        assert np.isnan(y[0, 1, 7]).all()
        y[0, 1, 7] = x[0, 1, 7]
        assert x.tobytes() == y.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_fully_masked_rows_give_zero_and_minus_infinity(variant: Variant, dtype: str) -> None:
    problem = AttentionProblem(2, 1, 70, 40, 20, causal="bottom_right")
    q, k, v = random_inputs(problem, dtype)
    out, lse = variant.reference(q, k, v, problem, ODD_TILING)
    assert not out[:, :, :30].any() and (lse[:, :, :30] == -np.inf).all()
    assert out[:, :, 30:].all() and np.isfinite(lse[:, :, 30:]).all()


@pytest.mark.parametrize("causal", MASKS)
def test_out_is_linear_in_v(variant: Variant, causal: str | None) -> None:
    problem = AttentionProblem(1, 2, 33, 47, 20, causal=causal)
    q, k, v = random_inputs(problem)
    w = random_inputs(problem, seed=1)[2]

    def out(values: np.ndarray) -> np.ndarray:
        return variant.reference(q, k, values, problem, ODD_TILING)[0]

    np.testing.assert_allclose(out(3.0 * v - w), 3.0 * out(v) - out(w), rtol=0, atol=1e-12)


def test_rows_of_p_sum_to_one(variant: Variant) -> None:
    problem = AttentionProblem(1, 2, 33, 47, 20, causal="top_left")
    q, k, v = random_inputs(problem)
    out, _ = variant.reference(q, k, np.ones_like(v), problem, ODD_TILING)
    np.testing.assert_allclose(out, 1.0, rtol=0, atol=1e-14)


def test_without_a_mask_keys_have_no_order(variant: Variant) -> None:
    problem = AttentionProblem(1, 2, 33, 47, 20)
    q, k, v = random_inputs(problem)
    out, lse = variant.reference(q, k, v, problem, ODD_TILING)
    order = np.random.default_rng(3).permutation(47)
    again = variant.reference(q, k[:, :, order], v[:, :, order], problem, ODD_TILING)
    np.testing.assert_allclose(again[0], out, rtol=0, atol=1e-13)
    np.testing.assert_allclose(again[1], lse, rtol=0, atol=1e-13)


def test_query_rows_are_independent(variant: Variant) -> None:
    problem = AttentionProblem(1, 2, 33, 47, 20)
    q, k, v = random_inputs(problem)
    out, _ = variant.reference(q, k, v, problem, ODD_TILING)
    order = np.random.default_rng(3).permutation(33)
    again, _ = variant.reference(q[:, :, order], k, v, problem, ODD_TILING)
    np.testing.assert_allclose(again, out[:, :, order], rtol=0, atol=1e-13)


@pytest.mark.parametrize(("dtype", "spread"), [("float32", 100.0), ("float16", 30.0)])
def test_large_scores_do_not_overflow(variant: Variant, dtype: str, spread: float) -> None:
    """exp overflows fp32 at 89: without the running maximum these scores would give inf."""
    problem = AttentionProblem(1, 1, 64, 64, 64, dtype, softmax_scale=1.0)
    q, k, v = (spread * x for x in random_inputs(problem, "float32"))
    q, k, v = (x.astype(dtype) for x in (q, k / spread, v / spread))
    scores = np.abs(q.astype("f8") @ k.astype("f8").swapaxes(-1, -2)).max()
    assert 89 < scores < 65504
    with np.errstate(over="raise", invalid="raise"):
        out, lse = variant.reference(q, k, v, problem, ODD_TILING)
    want, want_lse = plain_attention(q, k, v, problem)
    # Rounding a score of size 1000 to fp16 may change it by 0.5: bounded, not equal.
    assert np.abs(out).max() <= np.abs(v).max()
    assert np.abs(lse - want_lse).max() < 1e-3 * scores
    if dtype == "float32":
        np.testing.assert_allclose(out, want, rtol=0, atol=5e-3)


def test_the_inputs_are_left_as_they_are(variant: Variant) -> None:
    problem = AttentionProblem(1, 2, 33, 47, 20, "float32", "top_left")
    inputs = random_inputs(problem, "float32")
    for x in inputs:
        x.setflags(write=False)  # a write would raise
    variant.reference(*inputs, problem, ODD_TILING)


def test_memory_is_what_the_sizes_say(variant: Variant) -> None:
    problem = AttentionProblem(2, 3, 113, 203, 20, "float16")
    memory = variant.memory(problem)
    q, kv, scores = 6 * 113 * 20 * 2, 6 * 203 * 20 * 2, 6 * 113 * 203 * 2
    assert memory.input_bytes == q + 2 * kv
    assert memory.output_bytes == q + 6 * 113 * 4
    assert (
        memory.workspace_bytes
        == {
            "standard_naive": 2 * scores,
            "standard_tiled": 2 * scores,
            "flash_kv_outer": 2 * q + 6 * 113 * 4,  # O in fp32, and l
            "flash_kv_outer_io": 6 * 113 * 4,
            "flash_q_outer_one_block": 0,
            "flash_q_outer": 0,
            "flash_mma": 0,
            "flash_wgmma": 0,
        }[variant.name]
    )
    assert memory.total_bytes == memory.input_bytes + memory.extra_bytes
    assert memory.extra_bytes == memory.output_bytes + memory.workspace_bytes


def test_the_registry_fits_together(variant: Variant) -> None:
    assert VARIANTS[variant.name] is variant is find_variant(variant.name)
    assert variant.kernel in kernel_names()
    stem = variant.kernel.split("_", 1)[1]
    assert variant.name == stem if variant.control_for is None else variant.name.startswith(stem)
    assert (RUNGS.get(variant.name) is variant) == (variant.control_for is None)
    once = variant.control_for is None and variant.same_algorithm is None
    assert (ALGORITHMS.get(variant.name) is variant) == once
    problem = AttentionProblem(1, 1, 64, 64, 64, wide(variant))
    assert variant.plan(problem, Tiling(64, 64)).kernel == variant.kernel
    plans = (PLANS | MMA_PLANS | WGMMA_PLANS)[variant.kernel]
    assert variant.plan in plans
    assert len(plans) == sum(v.kernel == variant.kernel for v in VARIANTS.values())
    first_line = (KERNEL_DIR / f"{variant.kernel}.cu").read_text(encoding="utf-8").split("\n")[0]
    assert first_line.startswith("// ")


def test_an_unknown_name_is_refused_with_the_known_ones(variant: Variant) -> None:
    with pytest.raises(ValueError, match=rf"variant = 'flsh' is not known: .*'{variant.name}'"):
        find_variant("flsh")


def test_a_control_differs_from_its_algorithm_in_one_way(variant: Variant) -> None:
    if variant.control_for is None:
        return
    main = VARIANTS[variant.control_for]
    assert main.control_for is None and main.kernel == variant.kernel
    problem, tiling = AttentionProblem(2, 3, 113, 203, 20, "float16"), Tiling(32, 32)
    ours, theirs = (v.plan(problem, tiling) for v in (variant, main))
    changed = {name for name in ours.macros if ours.macros[name] != theirs.macros[name]}
    # Fewer blocks are compiled for fewer on an SM: what follows from the difference, not another.
    assert changed - {"FEW_BLOCKS", "THREADS"} == {
        "flash_kv_outer_io": {"O_IO_DTYPE"}, "flash_q_outer_one_block": {"ONE_BLOCK_PER_HEAD"},
    }[variant.name]  # fmt: skip


def test_the_same_algorithm_on_other_units_is_its_partners(variant: Variant) -> None:
    if variant.same_algorithm is None:
        return
    partner = VARIANTS[variant.same_algorithm]
    assert ALGORITHMS[partner.name] is partner and partner.kernel != variant.kernel
    assert variant.control_for is None and set(variant.dtypes) <= set(partner.dtypes)
    for said in ("reference", "paper", "launched", "workspace_bytes", "law", "block_sparse"):
        # Boxes of TMA are whole: they load keys that the partner leaves out.
        own = said in ("reference", "launched") and variant.name == "flash_wgmma"
        assert (getattr(variant, said) == getattr(partner, said)) != own, said
    if variant.backward is not None:
        assert partner.backward is not None and partner.backward.kernel != variant.backward.kernel
        # 06 loads whole boxes, sums dq in whole tiles, and comes from another paper.
        others = {"flash_wgmma": ("reference", "launched", "workspace_bytes", "source")}
        for said in ("reference", "paper", "launched", "workspace_bytes", "saved", "source"):
            same = getattr(variant.backward, said) == getattr(partner.backward, said)
            assert same == (said not in others.get(variant.name, ())), said


def test_whole_boxes_give_the_same_to_the_bit(variant: Variant) -> None:
    """`reference` and `launched` are other functions for what they load, not for what they give."""
    if variant.name != "flash_wgmma":
        return
    partner = VARIANTS["flash_q_outer"]
    for fields in ({}, {"causal": "bottom_right"}, {"window": (9, 3)}):
        problem = AttentionProblem(1, 2, 113, 203, 24, "float16", **fields)
        q, k, v = random_inputs(problem, "float16")
        ours, theirs = (one.reference(q, k, v, problem, ODD_TILING) for one in (variant, partner))
        assert [x.tobytes() for x in ours] == [x.tobytes() for x in theirs]
        more, less = (one.launched(problem, ODD_TILING) for one in (variant, partner))
        assert more.of("q") == less.of("q") and more.of("out") == less.of("out")
        assert (more.of("k") > less.of("k")) == bool(fields)
        assert variant.backward is not None and partner.backward is not None
        saved = (random_inputs(problem, "float16", seed=1)[0], q, k, v, *ours)
        both = (variant.backward, partner.backward)
        gradients = [one.reference(*saved, problem, ODD_TILING) for one in both]
        assert [x.tobytes() for x in gradients[0]] == [x.tobytes() for x in gradients[1]]


@pytest.mark.parametrize("tiles", [(16, 16), (1, 1), (17, 33), (64, 64), (300, 40), (64, 4096)])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_the_nearest_tiling_is_one_that_the_kernel_can_have(
    variant: Variant, head_dim: int, tiles: tuple[int, int]
) -> None:
    problem, tiling = AttentionProblem(1, 1, 4096, 4096, head_dim, "float16"), Tiling(*tiles)
    if not variant.takes(problem):
        with pytest.raises(
            NotImplementedError, match=f"d = {head_dim} does not give: .*'flash_mma'"
        ):
            variant.nearest_tiling(problem, tiling)
        return
    found = variant.nearest_tiling(problem, tiling)
    if variant.tile_multiple == 1:
        assert found == tiling
        return
    variant.plan(problem, found)
    assert found.block_m % variant.tile_multiple == found.block_n % variant.tile_multiple == 0
    assert variant.nearest_tiling(problem, found) == found
    try:
        variant.plan(problem, tiling)
    except ValueError:
        assert found != tiling
    else:
        assert found == tiling


def test_tiles_mean_something_where_the_variant_says_so(variant: Variant) -> None:
    problem = taken(variant, AttentionProblem(2, 3, 113, 203, 20, "float16"))
    small, large = (variant.nearest_tiling(problem, t) for t in (Tiling(16, 16), Tiling(72, 128)))
    same = variant.launched(problem, small).same_as(variant.launched(problem, large))
    assert same != variant.tiled
    steps = [variant.plan(problem, tiling).steps for tiling in (small, large)]
    assert (steps[0] == steps[1]) != variant.tiled


def test_only_what_takes_a_block_mask_plans_with_one(variant: Variant) -> None:
    mask = random_mask(113, 203, 24, 40)
    problem = taken(variant, AttentionProblem(2, 3, 113, 203, 20, "float16", block_mask=mask))
    if variant.block_sparse:
        plan = variant.plan(problem, variant.nearest_tiling(problem, ODD_TILING))
        assert (plan.macros["MASK_BLOCK_M"], plan.macros["MASK_BLOCK_N"]) == (24, 40)
        return
    with pytest.raises(NotImplementedError, match=r"no block mask: use variant='flash_q_outer'"):
        variant.plan(problem, ODD_TILING)


def test_roundings_count_how_often_o_is_rounded(variant: Variant) -> None:
    """The spread of what is allowed: a 16-bit O at each of its visits, everything else once."""
    problem = AttentionProblem(1, 1, 64, 203, 64, "float16")
    visits = 7 if variant.name == "flash_kv_outer_io" else 1  # ceil(203 / 32)
    assert variant.roundings(problem, Tiling(64, 32)) == visits


# -- backward -------------------------------------------------------------------------------


def test_every_rung_but_the_naive_one_has_a_backward(variant: Variant) -> None:
    """Controls use their partner's gradients."""
    expected = variant.name in RUNGS and variant.name != "standard_naive"
    assert (variant.backward is not None) == expected
    partner = variant.control_for or variant.name
    assert with_backward(variant) is (None if partner == "standard_naive" else VARIANTS[partner])


def test_without_a_backward_of_its_own_a_variant_has_its_partners(variant: Variant) -> None:
    """Whether it is a control of the partner or runs the partner's algorithm on other units."""
    partner = VARIANTS[variant.control_for or variant.same_algorithm or variant.name]
    alone = replace(variant, backward=None)
    expected = partner if partner is not variant and partner.backward is not None else None
    assert with_backward(alone) is expected


def test_the_backward_fits_together(variant: Variant) -> None:
    backward = variant.backward
    if backward is None:
        pytest.skip("has no backward pass")
    assert backward.kernel == f"{variant.kernel}_backward" and backward.kernel in kernel_names()
    plans = BACKWARD_PLANS | MMA_BACKWARD_PLANS | WGMMA_BACKWARD_PLANS
    assert backward.plan in plans[backward.kernel]
    problem = AttentionProblem(1, 2, 64, 64, 64, wide(variant))
    tiling = backward.default_tiling(64, problem.itemsize, 99 * 1024)
    assert backward.plan(problem, tiling).kernel == backward.kernel
    assert f"kernel {backward.kernel}" in repr(backward) and backward.source in repr(backward)
    first_line = (KERNEL_DIR / f"{backward.kernel}.cu").read_text(encoding="utf-8").split("\n")[0]
    assert first_line.startswith("// ")
    named = {name.split("_", 1)[1] for name in kernel_names() if name.endswith("_backward")}
    assert f"{variant.name}_backward" in named


def test_a_backward_reads_more_than_its_forward(variant: Variant) -> None:
    """Five products instead of two, from the same tiles."""
    backward = variant.backward
    if backward is None:
        pytest.skip("has no backward pass")
    problem, tiling = AttentionProblem(2, 4, 512, 512, 64, wide(variant), nheads_kv=2), ODD_TILING
    for forward, model in (
        (variant.paper, backward.paper),
        (variant.launched, backward.launched),
    ):
        assert model(problem, tiling).total_bytes > forward(problem, tiling).total_bytes
    owned = backward.launched(problem, tiling, deterministic=True)
    atomic = backward.launched(problem, tiling)
    # 06 refuses a dq that is owned.
    assert owned.same_as(atomic) == (variant.name not in ("flash_q_outer", "flash_mma"))


def test_a_dq_that_no_build_repeats_is_refused_where_it_is_asked_for(variant: Variant) -> None:
    backward = variant.backward
    if backward is None:
        pytest.skip("has no backward pass")
    problem = AttentionProblem(1, 2, 64, 64, 64, wide(variant))
    tiling = backward.tiling_for(problem, 227 * 1024)
    builds = backward.dq_builds(problem, tiling)
    assert builds == (False, True) if True in builds else builds == (False,)
    if backward.fixes_dq:
        backward.plan(problem, tiling, deterministic=True)
        return
    assert backward.has_loose_dq(problem, tiling) and builds == (False,)
    with pytest.raises(NotImplementedError, match="not deterministic: use variant='flash_mma'"):
        backward.plan(problem, tiling, deterministic=True)


@pytest.mark.parametrize("bias", [None, "float32"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_memory_of_the_backward_is_what_the_sizes_say(
    variant: Variant, dtype: str, bias: str | None
) -> None:
    backward = variant.backward
    if backward is None:
        pytest.skip("has no backward pass")
    if dtype not in variant.dtypes:
        pytest.skip(f"does not take {dtype}: the front door refuses it")
    problem = AttentionProblem(2, 3, 113, 203, 20, dtype, bias_dtype=bias)
    q, stats, scores = 6 * 113 * 20 * 4, 6 * 113 * 4, 6 * 113 * 203 * problem.itemsize
    partial = q if dtype == "float16" else 0  # an fp32 dq is its own sum
    row_numbers = 2 * stats if bias else 0
    workspace = {
        "standard_tiled": 2 * scores + stats,  # P and dS, and the lse that comes with P
        "flash_kv_outer": partial + row_numbers,
        "flash_q_outer": partial + stats + row_numbers,
        "flash_mma": partial + stats + row_numbers,
        "flash_wgmma": 6 * 128 * 64 * 4 + stats,  # sums of whole tiles of dq; a bias is refused
    }[variant.name]
    assert backward.workspace_bytes(problem) == workspace
    kept = scores if variant.name == "standard_tiled" else problem.q_bytes + problem.lse_bytes
    assert backward.saved_bytes(problem) == kept


def test_what_is_kept_grows_with_n_squared_or_with_n(variant: Variant) -> None:
    backward = variant.backward
    if backward is None:
        pytest.skip("has no backward pass")

    def memory(n: int) -> int:
        problem = AttentionProblem(1, 1, n, n, 64, "float16")
        return backward.saved_bytes(problem) + backward.workspace_bytes(problem)

    factor = memory(2**17) / memory(2**16)
    assert factor == (2.0 if variant.keeps_scores_on_chip else pytest.approx(4.0, rel=1e-3))


@pytest.mark.parametrize("arch", [75, 80, 86, 89, 90, 100, 120])
def test_the_fastest_of_a_gpu_runs_there(variant: Variant, arch: int) -> None:
    chosen = VARIANTS[fastest(arch)]
    assert chosen.runs_on(arch)
    assert (chosen.name in FAST) == (arch >= 80), "05 needs tensor cores of that generation"
    if variant.name in FAST and variant.runs_on(arch):
        assert FAST.index(variant.name) <= FAST.index(chosen.name)
