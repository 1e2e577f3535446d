"""Faults that users of other attention libraries have reported, each as a class of inputs here.

The reports are named beside the test. Every variant is held to them on every backend, forward and
backward, with shapes and dtypes beyond those of the report.
"""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fa_kernels as fa
from fa_kernels.block_mask import BlockMask
from fa_kernels.masks import matmul_flops
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from tests.reported_cases import (
    BACKENDS,
    SPARSE,
    Case,
    Result,
    backward_of,
    dense_mask,
    dtypes_of,
    judge,
    random_case,
    run,
)

every_backend = pytest.mark.parametrize("backend", BACKENDS)
every_variant = pytest.mark.parametrize("variant", fa.VARIANTS)
#: Every variant with fp32 and fp16, or fp16 alone if it takes no fp32.
EACH = [(v, dtype) for v in fa.VARIANTS for dtype in dtypes_of(v, "float32", "float16")]
each = pytest.mark.parametrize(("variant", "dtype"), EACH)
WITH_BF16 = [*EACH, *((v, "bfloat16") for v in fa.VARIANTS)]


def assert_right(case: Case, variant: str, backend: str) -> Result:
    """Run a case and hold it to the formula; gradients both ways where there are two."""
    results = [run(case, variant, backend)]
    if case.d_out is not None and backward_of(variant) == "flash_q_outer":
        results.append(run(case, variant, backend, deterministic=True))
    assert not (faults := judge(case, variant, *results)), "\n".join(faults)
    return results[0]


# -- causal alignment -------------------------------------------------------------------------
# pytorch/pytorch#108108, #103082 and flash-attention's README, "2.1: Change behavior of causal
# flag"; pytorch/pytorch#126873 for torch's own alignment.


@every_backend
@pytest.mark.parametrize(("nq", "nk"), [(2, 5), (5, 2), (1, 9), (3, 7), (40, 41), (33, 70)])
@pytest.mark.parametrize("causal", [True, "bottom_right", "top_left"])
@each
def test_causal_in_both_alignments(
    variant: str, dtype: str, causal: bool | str, nq: int, nk: int, backend: str
) -> None:
    assert_right(random_case(dtype, nq, nk, 8, causal=causal), variant, backend)


@every_backend
@each
def test_the_last_query_sees_every_key_or_the_first_few(
    variant: str, dtype: str, backend: str
) -> None:
    """With zero scores a row is the mean of what it sees, and lse the log of how much that is."""
    case = random_case(dtype, 2, 5, 8, gradients=False, softmax_scale=0.0)
    for causal, seen in (("bottom_right", (4, 5)), ("top_left", (1, 2))):
        given = Case(case.inputs, {**case.options, "causal": causal})
        result = run(given, variant, backend)
        np.testing.assert_allclose(result.lse, np.broadcast_to(np.log(seen), (1, 2, 2)), atol=1e-6)
        for row, n in enumerate(seen):
            mean = case.inputs[2][:, :, :n].astype(np.float64).mean(axis=2)
            np.testing.assert_allclose(result.out[:, :, row], mean, atol=2e-3)


# -- rows that attend nothing -----------------------------------------------------------------
# Dao-AILab/flash-attention#1778; pytorch/pytorch#100318, #109517.


@every_backend
@pytest.mark.parametrize(("nq", "nk"), [(20, 9), (70, 3), (33, 32)])
@each
def test_more_queries_than_keys_leave_rows_empty(
    variant: str, dtype: str, nq: int, nk: int, backend: str
) -> None:
    result = assert_right(random_case(dtype, nq, nk, causal=True), variant, backend)
    empty = slice(0, nq - nk)
    assert result.gradients is not None
    assert not result.out[:, :, empty].any() and np.isneginf(result.lse[:, :, empty]).all()
    assert not result.gradients[0][:, :, empty].any()
    assert all(np.isfinite(x).all() for x in (result.out, *result.gradients))


def drop_rows(kind: str, nq: int, nk: int, rows: tuple[int, ...], dtype: str) -> dict[str, Any]:
    """Rows that attend nothing, said in each of the ways there are."""
    mask = np.ones((nq, nk), bool)
    mask[list(rows)] = False
    if kind == "mask":
        return {"mask": mask}
    if kind == "bias of -inf":
        return {"bias": np.where(mask, 0.0, -np.inf).astype(np.float32)}
    if kind == "bias of -inf in q's dtype":
        wide = np.where(mask, 0.0, -np.inf)
        return {"bias": wide.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)}
    return {"block_mask": BlockMask.from_dense(mask[:, :1], 1, nk)}


@every_backend
@pytest.mark.parametrize("rows", [(0, 17, 39), tuple(range(16, 40)), tuple(range(40))])
@pytest.mark.parametrize("kind", ["mask", "bias of -inf", "bias of -inf in q's dtype", "blocks"])
@pytest.mark.parametrize(("variant", "dtype"), WITH_BF16)
def test_a_row_of_an_all_false_mask(
    variant: str, dtype: str, kind: str, rows: tuple[int, ...], backend: str
) -> None:
    if kind == "blocks" and variant not in SPARSE:
        pytest.skip("takes no block mask")
    case = random_case(dtype, 40, 40, 32, **drop_rows(kind, 40, 40, rows, dtype))
    result = assert_right(case, variant, backend)
    assert result.gradients is not None
    assert all(np.isfinite(x.astype("f4")).all() for x in (result.out, *result.gradients))


@every_backend
@each
def test_a_key_that_no_row_attends_has_no_gradient(variant: str, dtype: str, backend: str) -> None:
    mask = np.ones((40, 40), bool)
    mask[:, [0, 21]] = False
    result = assert_right(random_case(dtype, 40, 40, mask=mask), variant, backend)
    assert result.gradients is not None
    for gradient in result.gradients[1:]:
        assert not gradient[:, :, [0, 21]].any()


# -- biases of finfo.min ----------------------------------------------------------------------
# pytorch/pytorch#109517: with the first 128 keys at finfo.min the result was NaN.


def coarse_scores(variant: str, dtype: str) -> bool:
    """S in 16 bits holds neither finfo.min of fp32 nor a score beside finfo.min of fp16."""
    return dtype != "float32" and not fa.VARIANTS[variant].keeps_scores_on_chip


@every_backend
@pytest.mark.parametrize("of", ["float32", "q"])
@pytest.mark.parametrize("tiling", [None, Tiling(16, 16), Tiling(16, 128)])
@pytest.mark.parametrize(("variant", "dtype"), WITH_BF16)
def test_leading_keys_at_finfo_min(
    variant: str, dtype: str, tiling: Tiling | None, of: str, backend: str
) -> None:
    """Those keys weigh nothing beside others; a row of nothing else is the mean of V."""
    io = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    of_bias = io if of == "q" else np.dtype(np.float32)
    lowest = ml_dtypes.finfo(of_bias).min
    bias = np.zeros((33, 160), of_bias)
    bias[:, :128] = lowest
    bias[7] = lowest
    case = random_case(dtype, 33, 160, 32, bias=bias, tiling=tiling)
    coarse = coarse_scores(variant, dtype)
    result = run(case, variant, backend) if coarse else assert_right(case, variant, backend)
    assert result.gradients is not None
    for x in (result.out, result.lse, *result.gradients):
        assert np.isfinite(x.astype("f4")).all()
    if coarse or of == "float32" or dtype == "bfloat16":
        mean = case.inputs[2].astype(np.float64).mean(axis=2)
        np.testing.assert_allclose(result.out[:, :, 7].astype("f8"), mean, atol=1e-2)


@every_backend
@each
def test_finfo_min_and_a_negative_score_do_not_overflow_to_a_mask(
    variant: str, dtype: str, backend: str
) -> None:
    q = np.full((1, 1, 20, 16), 100.0, dtype)
    v = np.random.default_rng(0).standard_normal((1, 1, 24, 16)).astype(dtype)
    k = np.full((1, 1, 24, 16), -100.0, dtype)
    bias = np.full((20, 24), np.finfo(np.float32).min, np.float32)
    result = run(Case((q, k, v), {"bias": bias}), variant, backend)
    mean = np.broadcast_to(v.astype(np.float64).mean(axis=2, keepdims=True), q.shape)
    np.testing.assert_allclose(result.out, mean, atol=2e-3)
    lowest = -6e4 if coarse_scores(variant, dtype) else -3e38
    assert (result.lse < lowest).all() and np.isfinite(result.lse).all()


# -- scores beyond fp16 -----------------------------------------------------------------------
# philipturner/metal-flash-attention#8, ultralytics/ultralytics#24990.


@every_backend
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [64, 128])
@every_variant
def test_raw_scores_above_65504(variant: str, d: int, causal: bool, backend: str) -> None:
    """q.k reaches 64 x 45 x 45 = 129600, which fp16 cannot hold; scaled it can."""
    case = random_case("float16", 24, 24, d, causal=causal)
    q, k, v = case.inputs
    q, k = (np.sign(x) * np.float16(45) for x in (q, k))
    assert np.abs(q.astype("f4") @ k.astype("f4").swapaxes(-1, -2)).max() > 65504 / 2
    peaks = q.copy()
    peaks[:, :, 3] = k[:, :, 3]  # its score with itself is the largest there can be
    result = assert_right(Case((peaks, k, v), case.options, case.d_out), variant, backend)
    assert result.gradients is not None
    assert all(np.isfinite(x).all() for x in (result.out, result.lse, *result.gradients))


@every_backend
@pytest.mark.parametrize(("variant", "dtype"), WITH_BF16)
def test_scores_far_apart_pick_one_key(variant: str, dtype: str, backend: str) -> None:
    """exp of their difference is 0 or would overflow without the running maximum."""
    case = random_case(dtype, 40, 40, 64)
    q, k, v = case.inputs
    q, k = ((x.astype("f4") * 12).astype(x.dtype) for x in (q, k))
    assert_right(Case((q, k, v), {}, case.d_out, Tiling(16, 16)), variant, backend)


# -- shapes -----------------------------------------------------------------------------------
# 66RING/tiny-flash-attention#12 (lengths and head dimensions that are no multiple of a tile);
# tspeterkim/flash-attention-minimal#2 (wrong below 32 rows); triton-lang/triton#621 (the upper
# half of head_dim = 128 was ignored).


@every_backend
@pytest.mark.parametrize(
    ("n", "d"), [(100, 63), (65, 20), (129, 40), (257, 96), (97, 1), (31, 3), (63, 65), (18, 256)]
)
@pytest.mark.parametrize("causal", [False, True])
@each
def test_odd_lengths_and_head_dimensions(
    variant: str, dtype: str, causal: bool, n: int, d: int, backend: str
) -> None:
    assert_right(random_case(dtype, n, n, d, nheads=1, causal=causal), variant, backend)


@every_backend
@pytest.mark.parametrize(
    ("nq", "nk"), [(1, 1), (2, 2), (5, 5), (17, 17), (31, 31), (1, 31), (31, 1)]
)
@each
def test_tiny_lengths(variant: str, dtype: str, nq: int, nk: int, backend: str) -> None:
    case = random_case(dtype, nq, nk, 32, batch=2, nheads=3)
    result = assert_right(case, variant, backend)
    if nk == 1:  # one key has all the weight
        np.testing.assert_array_equal(result.out, np.broadcast_to(case.inputs[2], result.out.shape))


@every_backend
@pytest.mark.parametrize("d", [128, 256, 96])
@each
def test_all_of_the_signal_in_the_upper_half_of_head_dim(
    variant: str, dtype: str, d: int, backend: str
) -> None:
    case = random_case(dtype, 48, 48, d)
    q, k, v = (x.copy() for x in case.inputs)
    q[..., : d // 2] = k[..., : d // 2] = 0
    assert_right(Case((q, k, v), {}, case.d_out), variant, backend)


# -- tiles ------------------------------------------------------------------------------------
# triton-lang/triton#8853: with BLOCK_M < BLOCK_N the causal bound of a tile was wrong.

TILES = [
    *itertools.product((16, 32, 64, 128), repeat=2),
    (32, 192), (192, 32), (48, 80), (80, 48), (20, 100), (8, 64), (64, 8),
]  # fmt: skip


@every_backend
@pytest.mark.parametrize("causal", ["bottom_right", "top_left"])
@pytest.mark.parametrize("nk", [192, 150])
@pytest.mark.parametrize(("block_m", "block_n"), TILES)
@pytest.mark.parametrize("variant", [name for name, v in fa.VARIANTS.items() if v.tiled])
def test_every_pair_of_tile_sizes(
    variant: str, block_m: int, block_n: int, nk: int, causal: str, backend: str
) -> None:
    (dtype,) = dtypes_of(variant, "float32")
    tiling = Tiling(block_m, block_n)
    case = random_case(dtype, 192, nk, 32, nheads=1, causal=causal, tiling=tiling)
    assert not (faults := judge(case, variant, run(case, variant, backend))), "\n".join(faults)


# -- views ------------------------------------------------------------------------------------
# cupy/cupy#7267, #9275; NVIDIA/TransformerEngine#1195; ROCm/pytorch#3230; pytorch/pytorch#187506:
# a kernel that is given a pointer does not see strides.


def as_views(arrays: list[Any], name: str, xp: Any) -> list[Any]:
    """The same values at other places of memory."""
    seen = []
    for x in arrays:
        batch, nheads, n, d = x.shape
        if name == "transposed":
            view = xp.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
        elif name == "every other element":
            view = xp.zeros((batch, nheads, n, 2 * d), x.dtype)[..., ::2]
        elif name == "every other row":
            view = xp.zeros((batch, nheads, 2 * n, d), x.dtype)[:, :, ::2]
        elif name == "part of a longer buffer":
            view = xp.zeros((batch, nheads + 1, n + 3, d + 5), x.dtype)[:, 1:, 2:-1, 3:-2]
        else:
            view = xp.zeros((batch, nheads, n, d), x.dtype)[:, :, ::-1]
        view[...] = x
        seen.append(view)
    return seen


@every_backend
@pytest.mark.filterwarnings("ignore:.*last axis is not contiguous")
@pytest.mark.parametrize(
    "name",
    ["transposed", "every other element", "every other row", "part of a longer buffer", "reversed"],
)
@each
def test_views_are_read_by_their_strides(variant: str, dtype: str, name: str, backend: str) -> None:
    case = random_case(dtype, 30, 34, 24, batch=2, nheads=3, causal=True)
    xp: Any = np if backend == "numpy" else pytest.importorskip("cupy")
    assert case.d_out is not None
    plain = [xp.asarray(x) for x in (*case.inputs, case.d_out)]
    q, k, v, d_out = as_views(plain, name, xp)
    out, lse = fa.attention(q, k, v, variant=variant, return_lse=True, **case.options)
    out_view = as_views([out], name, xp)[0]
    own = backward_of(variant)
    gradients = fa.attention_backward(d_out, q, k, v, out_view, lse, variant=own, **case.options)
    host = [x if xp is np else x.get() for x in (out, lse, *gradients)]
    result = Result(host[0], host[1], (host[2], host[3], host[4]))
    assert not (faults := judge(case, variant, result)), "\n".join(faults)


@every_backend
@each
def test_masks_that_are_views_are_read_by_their_strides(
    variant: str, dtype: str, backend: str
) -> None:
    rng = np.random.default_rng(5)
    mask = (rng.random((34, 60, 2)) < 0.6).transpose(2, 1, 0)[:, ::2]  # (heads, rows, keys)
    bias = rng.standard_normal((1, 2, 34, 30)).astype(np.float32).swapaxes(-1, -2)
    options: dict[str, Any] = {"mask": mask, "bias": bias}
    options |= {"dropout_keep": mask[:1, ::-1], "dropout_p": 0.4}
    assert_right(random_case(dtype, 30, 34, 24, batch=2, **options), variant, backend)


# -- grouped heads ----------------------------------------------------------------------------
# onnx/onnx#7274: heads were tiled where they had to be repeated.


@every_backend
@pytest.mark.parametrize(("nheads", "nheads_kv"), [(4, 2), (4, 1), (6, 3), (6, 2)])
@each
def test_query_head_h_uses_key_head_h_over_group(
    variant: str, dtype: str, nheads: int, nheads_kv: int, backend: str
) -> None:
    case = random_case(
        dtype,
        6,
        20,
        8,
        batch=2,
        nheads=nheads,
        nheads_kv=nheads_kv,
        causal=True,
        tiling=Tiling(4, 8),
    )
    assert_right(case, variant, backend)
    q, k, v = case.inputs
    v = np.broadcast_to(np.arange(1.0, nheads_kv + 1).reshape(1, -1, 1, 1), v.shape).astype(dtype)
    result = run(Case((q, k, v)), variant, backend)
    mine = np.arange(nheads) // (nheads // nheads_kv) + 1.0
    np.testing.assert_allclose(result.out[1, :, 0, 0], mine, atol=4e-3)


# -- dropout ----------------------------------------------------------------------------------
# Dao-AILab/flash-attention#93, NVIDIA/apex#816: the scale of what is kept, and the same mask in
# both directions.


@every_backend
@pytest.mark.parametrize("dropout_p", [0.25, 0.9])
@pytest.mark.parametrize("given", [True, False])
@each
def test_dropout_scales_what_it_keeps_in_both_directions(
    variant: str, dtype: str, given: bool, dropout_p: float, backend: str
) -> None:
    options: dict[str, Any] = {"dropout_p": dropout_p}
    if given:
        options["dropout_keep"] = np.random.default_rng(3).random((1, 2, 32, 40)) >= dropout_p
    else:
        options["seed"] = 1234567890123
    case = random_case(dtype, 32, 40, 16, tiling=Tiling(16, 16), **options)
    result = assert_right(case, variant, backend)
    plain = run(Case(case.inputs, tiling=case.tiling), variant, backend)
    np.testing.assert_array_equal(result.lse, plain.lse)  # of the row before dropout


@every_backend
@each
def test_dropping_everything_or_nothing(variant: str, dtype: str, backend: str) -> None:
    case = random_case(dtype, 20, 20, gradients=False)
    plain = run(case, variant, backend).out
    nothing = Case(case.inputs, {"dropout_p": 0.5, "dropout_keep": np.zeros(20, bool)})
    assert not run(nothing, variant, backend).out.any()
    every = Case(case.inputs, {"dropout_p": 0.5, "dropout_keep": np.ones((20, 20), bool)})
    doubled = 2 * plain.astype(np.float64)
    np.testing.assert_allclose(run(every, variant, backend).out, doubled, rtol=2e-3, atol=1e-6)


# -- arguments by value -----------------------------------------------------------------------
# cupy/cupy#8485, #6940: a Python float reaches a raw kernel as a double.


@every_backend
@pytest.mark.parametrize(
    "scale", [0.37, np.float64(0.37), np.float16(0.37), 1, 0, -0.8, np.int64(2), 1e-30]
)
@each
def test_softmax_scale_of_any_type_and_sign(
    variant: str, dtype: str, scale: Any, backend: str
) -> None:
    assert_right(random_case(dtype, 20, 24, softmax_scale=scale), variant, backend)


# -- block masks ------------------------------------------------------------------------------
# Dao-AILab/flash-attention#2623 (gradients wrong where the output was right), pytorch#141126.


@every_backend
@pytest.mark.parametrize("causal", [False, "bottom_right"])
@pytest.mark.parametrize("blocks", [(32, 32), (16, 64), (64, 16), (24, 40)])
@pytest.mark.parametrize("tiling", [Tiling(32, 32), Tiling(16, 48)])
@pytest.mark.parametrize(("variant", "dtype"), [(v, d) for v, d in EACH if v in SPARSE])
def test_blocks_of_the_causal_triangle_are_causal_attention(
    variant: str,
    dtype: str,
    tiling: Tiling | None,
    blocks: tuple[int, int],
    causal: bool | str,
    backend: str,
) -> None:
    block_m, block_n = blocks
    rows, keys = (np.arange(-(-112 // b)) * b for b in blocks)
    keep = rows[:, None] + block_m - 1 >= keys[None, :]
    mask = BlockMask.from_dense(keep, block_m, block_n)
    case = random_case(dtype, 112, 112, 32, causal=causal, block_mask=mask, tiling=tiling)
    result = assert_right(case, variant, backend)
    if causal:
        dense = Case(case.inputs, {"causal": causal}, case.d_out, tiling)
        assert not (faults := judge(dense, variant, result)), "\n".join(faults)


@every_backend
@pytest.mark.parametrize(("variant", "dtype"), [(v, d) for v, d in EACH if v in SPARSE])
def test_gradients_under_sparse_blocks_that_differ_per_head(
    variant: str, dtype: str, backend: str
) -> None:
    """With grouped heads, whose key gradients are sums over heads of different masks."""
    keep = np.random.default_rng(7).random((2, 4, 5, 6)) < 0.4
    mask = BlockMask.from_dense(keep, 16, 16)
    case = random_case(
        dtype, 70, 90, 16, batch=2, nheads=4, nheads_kv=2, block_mask=mask, causal=True
    )
    assert_right(case, variant, backend)


# -- windows ----------------------------------------------------------------------------------
# vllm-project/vllm#3385, huggingface/transformers#29623: off by one, and aligned elsewhere.


@every_backend
@pytest.mark.parametrize("window", [(4, 2), (0, 0), (3, None), (None, 3), (0, 100), (100, 0)])
@pytest.mark.parametrize(("nq", "nk"), [(37, 37), (20, 50), (50, 20)])
@each
def test_windows_are_inclusive_and_count_from_the_bottom_right(
    variant: str,
    dtype: str,
    nq: int,
    nk: int,
    window: tuple[int | None, int | None],
    backend: str,
) -> None:
    assert_right(random_case(dtype, nq, nk, window=window, tiling=Tiling(16, 16)), variant, backend)


@every_backend
@each
def test_a_window_of_seven_holds_seven_keys(variant: str, dtype: str, backend: str) -> None:
    case = random_case(dtype, 37, 37, gradients=False, window=(4, 2), softmax_scale=0.0)
    seen = np.exp(run(case, variant, backend).lse[0, 0])
    np.testing.assert_allclose(seen[4:35], 7.0, rtol=1e-6)
    np.testing.assert_allclose(seen[[0, 1, 35, 36]], [3.0, 4.0, 6.0, 5.0], rtol=1e-6)


# -- counting ---------------------------------------------------------------------------------
# modular/modular#5557, flashinfer-ai/flashinfer#2069: TFLOP/s of masked attention were those of
# pairs that nobody computes, or of half of them whatever the mask.


@pytest.mark.parametrize(
    "options",
    [{}, {"causal": "bottom_right"}, {"causal": "top_left"}, {"window": (9, 3)},
     {"causal": "bottom_right", "window": (20, None)},
     {"block_mask": BlockMask.from_dense(np.tri(8, 6, dtype=bool), 32, 32)},
     {"block_mask": BlockMask.from_dense(np.tri(8, 6, dtype=bool), 32, 32), "window": (40, 3)}],
)  # fmt: skip
@pytest.mark.parametrize(("nq", "nk"), [(256, 192), (250, 180)])
def test_flops_are_those_of_attended_pairs(nq: int, nk: int, options: dict[str, Any]) -> None:
    problem = AttentionProblem(2, 4, nq, nk, 64, **options)
    q, k, v = (np.broadcast_to(np.float32(0), (2, 4, n, 64)) for n in (nq, nk, nk))
    kept = np.broadcast_to(dense_mask(Case((q, k, v), options)), (2, 4, nq, nk))
    assert matmul_flops(problem) == 4 * 64 * int(kept.sum())


def test_the_square_causal_convention_is_the_exact_one() -> None:
    n = 256
    causal = AttentionProblem(2, 4, n, n, 64, causal="bottom_right")
    assert matmul_flops(causal) == 4 * 64 * 8 * n * (n + 1) // 2
    assert matmul_flops(AttentionProblem(2, 4, n, n, 64)) == 4 * 64 * 8 * n * n


# -- the judge itself -------------------------------------------------------------------------

MASK = np.random.default_rng(1).random((40, 30)) < 0.7
BIAS = np.random.default_rng(2).standard_normal((40, 30)).astype(np.float32)
#: What was asked for, and what a faulty library would have computed.
TAKEN_FOR: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the other alignment": ({"causal": "bottom_right"}, {"causal": "top_left"}),
    "a window off by one": ({"window": (4, 2)}, {"window": (3, 2)}),
    "no mask": ({"mask": MASK}, {}),
    "the opposite mask": ({"mask": MASK}, {"mask": ~MASK}),
    "no bias": ({"bias": BIAS}, {}),
    "no scale": ({"softmax_scale": 0.37}, {}),
    "unscaled dropout": (
        {"dropout_keep": MASK, "dropout_p": 0.3}, {"dropout_keep": MASK, "dropout_p": 0.0},
    ),
    "another seed": ({"seed": 1, "dropout_p": 0.3}, {"seed": 2, "dropout_p": 0.3}),
    "a mask in place of dropout": (
        {"dropout_keep": MASK, "dropout_p": 0.3}, {"mask": MASK},
    ),
    "dense blocks": ({"block_mask": BlockMask.from_dense(np.eye(5, 4, dtype=bool), 8, 8)}, {}),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("what", TAKEN_FOR)
def test_the_judge_sees_an_option_that_is_taken_for_another(what: str, dtype: str) -> None:
    asked, computed = TAKEN_FOR[what]
    case = random_case(dtype, 40, 30, **asked)
    wrong = run(Case(case.inputs, computed, case.d_out), "flash_q_outer", "numpy")
    right = run(case, "flash_q_outer", "numpy")
    assert not judge(case, "flash_q_outer", right)
    assert any("not the formula" in fault for fault in judge(case, "flash_q_outer", wrong))
    forward_alone = Result(right.out, right.lse, wrong.gradients)
    assert any("chain rule" in fault for fault in judge(case, "flash_q_outer", forward_alone))


def test_the_judge_sees_rows_that_should_be_zero() -> None:
    case = random_case("float32", 40, 30, causal=True)
    right = run(case, "flash_q_outer", "numpy")
    out = right.out.copy()
    out[0, 0, 3, 0] = 1e-30
    wrong = Result(out, right.lse, right.gradients)
    assert any("attends nothing" in fault for fault in judge(case, "flash_q_outer", wrong))
