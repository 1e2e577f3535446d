"""Arguments into a problem and its extras: what is refused, in which words, and what is copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fa_kernels.cuda import arrays
from fa_kernels.options import check_saved, problem_and_extras
from fa_kernels.packed import Packed
from fa_kernels.problem import AttentionProblem
from tests.reference.problems import random_mask

RNG = np.random.default_rng(0)
q = RNG.standard_normal((2, 6, 17, 20)).astype(np.float32)
k = RNG.standard_normal((2, 3, 23, 20)).astype(np.float32)
v = RNG.standard_normal((2, 3, 23, 20)).astype(np.float32)
OVER = (2, 6, 17, 23)
mask = RNG.random(OVER) < 0.5
Options = dict[str, Any]
packed_q, packed_k = q[:1], k[:1]  # 17 and 23 rows


def torch_or_skip() -> Any:
    return pytest.importorskip("torch")


# -- what becomes of the arguments ------------------------------------------------------------


def test_defaults_are_the_plain_problem() -> None:
    problem, extras = problem_and_extras(q, k, v)
    assert problem == AttentionProblem(2, 6, 17, 23, 20, "float32", nheads_kv=3)
    assert extras.mask is extras.bias is extras.dropout_keep is None


def test_every_option_reaches_the_problem() -> None:
    problem, extras = problem_and_extras(
        q, k, v, causal="top_left", window=(3, None), mask=mask, bias=q[..., :1],
        block_mask=(blocks := random_mask(17, 23, 8, 8)), softmax_scale=-0.5, dropout_p=0.25,
        seed=7,
    )  # fmt: skip
    assert problem == AttentionProblem(
        2, 6, 17, 23, 20, "float32", "top_left", -0.5, nheads_kv=3, block_mask=blocks,
        window=(3, None), dropout_p=0.25, seed=7, masked=True, bias_dtype="float32",
    )  # fmt: skip
    assert extras.mask.shape == extras.bias.shape == OVER


def test_a_dropout_mask_needs_no_seed_and_sets_no_probability() -> None:
    problem, extras = problem_and_extras(q, k, v, dropout_keep=mask)
    assert (problem.dropout_p, problem.seed, problem.keep_given) == (0.0, None, True)
    assert extras.dropout_keep is not None
    problem, _ = problem_and_extras(q, k, v, dropout_keep=mask, dropout_p=0.5)
    assert (problem.dropout_p, problem.seed, problem.keep_given) == (0.5, None, True)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_a_bias_is_of_qs_dtype_or_fp32(dtype: str) -> None:
    own = arrays.io_dtype(dtype)
    narrow = [x.astype(own) for x in (q, k, v)]
    for bias in (np.zeros(23, own), np.zeros(23, np.float32)):
        problem, _ = problem_and_extras(*narrow, bias=bias)
        assert problem.bias_dtype == bias.dtype.name


SHAPES: list[tuple[int, ...]] = [
    (23,), (1,), (17, 23), (17, 1), (1, 23), (6, 1, 1), (6, 17, 23), (2, 1, 1, 23), (2, 6, 17, 1),
    (1, 1, 1, 1), OVER,
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("name", ["mask", "bias", "dropout_keep"])
def test_masks_broadcast_as_in_numpy_without_a_copy(
    name: str, kind: str, shape: tuple[int, ...]
) -> None:
    own: Any = RNG.standard_normal(shape).astype(np.float32)
    own = own if name == "bias" else own > 0
    inputs: tuple[Any, ...] = (q, k, v)
    given = own
    if kind == "torch":
        torch = torch_or_skip()
        inputs, given = tuple(map(torch.from_numpy, inputs)), torch.from_numpy(own)
    _, extras = problem_and_extras(*inputs, **{name: given})
    view = getattr(extras, name)
    assert type(view) is type(given)
    np.testing.assert_array_equal(np.asarray(view), np.broadcast_to(own, OVER))
    seen = arrays.to_numpy(view)
    assert np.shares_memory(seen, own)
    padded = (1,) * (4 - len(shape)) + shape
    for step, mine, full in zip(seen.strides, padded, OVER, strict=True):
        assert (step == 0) == (mine == 1 < full)


def test_windows_of_two_open_sides_are_none() -> None:
    assert problem_and_extras(q, k, v, window=(None, None))[0].window is None


@pytest.mark.parametrize(
    "bounds",
    [[0, 5, 5, 17], (0, 5, 5, 17), np.array([0, 5, 5, 17]), np.array([0, 5, 5, 17], np.int32)],
)
def test_packed_bounds_of_any_kind(bounds: Any) -> None:
    problem, _ = problem_and_extras(
        packed_q, packed_k, v[:1], cu_seqlens_q=bounds, cu_seqlens_k=[0, 0, 11, 23]
    )
    assert problem.packed == Packed((0, 5, 5, 17), (0, 0, 11, 23))
    assert (problem.batch, problem.seqlen_q, problem.seqlen_k) == (3, 12, 12)
    assert problem.q_rows == 6 * 17


def test_packed_bounds_as_torch_tensors() -> None:
    torch = torch_or_skip()
    bounds = torch.tensor([0, 5, 5, 17], dtype=torch.int32)
    problem, _ = problem_and_extras(
        packed_q, packed_k, v[:1], cu_seqlens_q=bounds, cu_seqlens_k=[0, 0, 11, 23]
    )
    assert problem.packed == Packed((0, 5, 5, 17), (0, 0, 11, 23))


def test_packed_bounds_on_a_gpu_are_copied() -> None:
    class Bounds:
        __module__ = "cupy._core.core"

        def get(self) -> np.ndarray:
            return np.array([0, 17])

    problem, _ = problem_and_extras(
        packed_q, packed_k, v[:1], cu_seqlens_q=Bounds(), cu_seqlens_k=[0, 23]
    )
    assert problem.packed == Packed((0, 17), (0, 23))


def test_masks_of_packed_sequences_lie_over_the_longest() -> None:
    packed: Options = {"cu_seqlens_q": [0, 5, 17], "cu_seqlens_k": [0, 20, 23]}
    for shape in ((2, 6, 12, 20), (2, 1, 1, 20), (12, 20), (1,)):
        _, extras = problem_and_extras(
            packed_q, packed_k, v[:1], mask=np.ones(shape, bool), **packed
        )
        assert extras.mask.shape == (2, 6, 12, 20)
    with pytest.raises(ValueError, match=r"\(17, 23\), which does not broadcast to \(sequences, "):
        problem_and_extras(packed_q, packed_k, v[:1], mask=mask[0, 0], **packed)


@pytest.mark.parametrize("cut", [np.s_[:0], np.s_[:, :0], np.s_[:, :, :0]])
def test_nothing_to_attend_is_a_problem_like_others(cut: Any) -> None:
    problem, _ = problem_and_extras(q[cut], k[cut], v[cut], mask=np.ones(1, bool))
    assert 0 in (problem.heads, problem.seqlen_q)


# -- what is refused --------------------------------------------------------------------------

REFUSED: dict[str, tuple[Options, type[Exception], str]] = {
    "window of one number": ({"window": 4}, ValueError, r"window = 4 is not a pair: pass \(left"),
    "window of three": ({"window": (1, 2, 3)}, ValueError, r"is not a pair"),
    "window as text": ({"window": "12"}, ValueError, r"window = '12' is not a pair"),
    "negative window": (
        {"window": (-1, 0)}, ValueError, r"window left = -1 is out of range.*None for an unbounded",
    ),
    "half a key": ({"window": (0, 0.5)}, ValueError, r"window right = 0\.5 is not a whole number"),
    "mask of floats": (
        {"mask": np.zeros((17, 23), np.float32)}, ValueError,
        r"^mask is float32: pass a bool array, True = keep, or pass .* as bias\.$",
    ),
    "mask of integers": ({"mask": np.ones((17, 23), np.uint8)}, ValueError, r"^mask is uint8"),
    "mask as a list": (
        {"mask": [[True]]}, TypeError,
        r"^mask is a list: .* shape that broadcasts to \(batch, nheads, seqlen_q, seqlen_k\)\.",
    ),
    "mask of another length": (
        {"mask": mask[..., :22]}, ValueError,
        r"^mask has shape \(2, 6, 17, 22\), which does not broadcast to \(batch, nheads, seqlen_q, "
        r"seqlen_k\) = \(2, 6, 17, 23\): give every axis its whole length, or 1\.$",
    ),
    "mask transposed": ({"mask": mask[0, 0].T}, ValueError, r"^mask has shape \(23, 17\)"),
    "mask per k/v head": ({"mask": mask[:, :3]}, ValueError, r"^mask has shape \(2, 3, 17, 23\)"),
    "mask of 5 axes": (
        {"mask": mask[None]}, ValueError, r"^mask has shape .*expected 1 to 4 axes, .*Drop axes",
    ),
    "mask without axes": (
        {"mask": np.array(True)}, ValueError, r"^mask has shape \(\): expected 1 to 4 axes.*Add",
    ),
    "bool bias": ({"bias": mask}, ValueError, r"^bias is bool: .*pass it as mask"),
    "integer bias": (
        {"bias": np.zeros(23, np.int64)}, ValueError, r"^bias is int64: cast it to q's dtype or to",
    ),
    "bias of float64": (
        {"bias": np.zeros(23)}, ValueError, r"^bias is float64, q is float32: cast .* to float32\.",
    ),
    "bias of another 16 bits": (
        {"bias": np.zeros(23, ml_dtypes.bfloat16)}, ValueError,
        r"^bias is bfloat16, q is float32: cast the bias to float32\.",
    ),
    "bias of another length": ({"bias": q}, ValueError, r"^bias has shape \(2, 6, 17, 20\), which"),
    "dropout without a seed": (
        {"dropout_p": 0.1}, ValueError, r"dropout_p = 0\.1 needs a seed: pass seed=0",
    ),
    "certain dropout": (
        {"dropout_p": 1.0, "seed": 0}, ValueError, r"dropout_p = 1\.0 must be at least 0 and",
    ),
    "negative dropout": ({"dropout_p": -0.1, "seed": 0}, ValueError, r"dropout_p = -0\.1 must be"),
    "NaN dropout": ({"dropout_p": float("nan"), "seed": 0}, ValueError, r"dropout_p = nan must be"),
    "text dropout": ({"dropout_p": "0"}, ValueError, r"dropout_p = '0' must be"),
    "a seed of a fraction": ({"dropout_p": 0.1, "seed": 0.5}, ValueError, r"seed = 0\.5 is not a"),
    "a negative seed": ({"dropout_p": 0.1, "seed": -1}, ValueError, r"seed = -1 is out of range"),
    "a seed of 65 bits": ({"seed": 2**64}, ValueError, r"seed = 18446744073709551616 is out of ra"),
    "seed and mask": (
        {"dropout_p": 0.1, "seed": 3, "dropout_keep": mask}, ValueError,
        r"^seed = 3 with dropout_keep: the mask is given, so none is drawn\. Pass one of them\.",
    ),
    "dropout mask of floats": (
        {"dropout_keep": q[..., :1]}, ValueError,
        r"^dropout_keep is float32: pass a bool array, True = keep\.$",
    ),
    "bounds of q alone": (
        {"cu_seqlens_q": [0, 17]}, ValueError, r"^cu_seqlens_k is missing: packed sequences need",
    ),
    "bounds of k alone": ({"cu_seqlens_k": [0, 23]}, ValueError, r"^cu_seqlens_q is missing"),
    "packed batch": (
        {"cu_seqlens_q": [0, 17], "cu_seqlens_k": [0, 23]}, ValueError,
        r"^batch = 2 with cu_seqlens: .*\(1, nheads, total, head_dim\)",
    ),
    "keep_blocks for a block mask": (
        {"block_mask": np.ones((1, 1), bool)}, TypeError, r"^block_mask is a ndarray: make one",
    ),
    "infinite scale": ({"softmax_scale": float("inf")}, ValueError, r"softmax_scale = inf is not"),
    "huge scale": ({"softmax_scale": 1e31}, ValueError, r"softmax_scale = 1e\+31 is too large"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused_in_words(what: str) -> None:
    options, error, sentence = REFUSED[what]
    with pytest.raises(error, match=sentence):
        problem_and_extras(q, k, v, **options)


@pytest.mark.parametrize(
    ("of_q", "of_k", "sentence"),
    [
        ([0, 16], [0, 23], r"^cu_seqlens_q ends at 16, q has 17 rows: the last bound must be the"),
        ([0, 17], [0, 24], r"^cu_seqlens_k ends at 24, k has 23 rows"),
        ([0, 9, 17], [0, 23], r"cu_seqlens_q names 2 sequences, cu_seqlens_k 1"),
        ([0, 9, 5, 17], [0, 1, 2, 23], r"cu_seqlens_q falls from 9 to 5 at sequence 1"),
        ([1, 17], [0, 23], r"cu_seqlens_q = \[1, 17\] must start with 0"),
        ([0], [0], r"must start with 0 and name a sequence"),
        ([], [], r"must start with 0"),
        (17, [0, 23], r"cu_seqlens_q = 17 is not a row of whole numbers"),
        ([0, 17.5], [0, 23], r"is not a row of whole numbers"),
        (np.array([0.0, 17.0]), [0, 23], r"is not a row of whole numbers"),
        (np.array([[0, 17]]), [0, 23], r"is not a row of whole numbers"),
        ("0,17", [0, 23], r"is not a row of whole numbers"),
    ],
)
def test_wrong_bounds_are_refused_in_words(of_q: Any, of_k: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        problem_and_extras(packed_q, packed_k, v[:1], cu_seqlens_q=of_q, cu_seqlens_k=of_k)


def test_a_block_mask_over_packed_sequences_is_refused() -> None:
    bounds: Options = {"cu_seqlens_q": [0, 17], "cu_seqlens_k": [0, 23]}
    with pytest.raises(NotImplementedError, match=r"block_mask with cu_seqlens: .*element mask"):
        problem_and_extras(
            packed_q, packed_k, v[:1], block_mask=random_mask(17, 23, 8, 8), **bounds
        )


@pytest.mark.parametrize("name", ["mask", "bias", "dropout_keep"])
def test_masks_are_of_qs_kind(name: str) -> None:
    torch = torch_or_skip()
    own = torch.zeros(17, 23) if name == "bias" else torch.ones(17, 23, dtype=torch.bool)
    with pytest.raises(ValueError, match=rf"^{name} is torch:cpu, q is numpy: convert it to q's"):
        problem_and_extras(q, k, v, **{name: own})
    tensors = tuple(map(torch.from_numpy, (q, k, v)))
    with pytest.raises(ValueError, match=rf"^{name} is numpy, q is torch:cpu: convert it"):
        problem_and_extras(*tensors, **{name: own.numpy()})


def test_a_bias_that_requires_grad_is_refused() -> None:
    """Its gradient would silently be missing."""
    torch = torch_or_skip()
    bias = torch.zeros(17, 23, requires_grad=True)
    with pytest.raises(NotImplementedError, match=r"^bias requires grad, and its gradient is not "):
        problem_and_extras(*map(torch.from_numpy, (q, k, v)), bias=bias)
    problem_and_extras(*map(torch.from_numpy, (q, k, v)), bias=bias.detach())


@pytest.mark.parametrize(
    ("lazy", "sentence"),
    [
        (lambda t: t.to_sparse(), r"^mask is a torch.sparse_coo tensor: pass mask.to_dense\(\)"),
        (lambda t: t.to("meta"), r"^mask lives on meta: move it to the CPU or a CUDA GPU"),
    ],
)
def test_masks_that_cannot_be_read_are_refused(lazy: Callable[[Any], Any], sentence: str) -> None:
    torch = torch_or_skip()
    given = lazy(torch.ones(17, 23, dtype=torch.bool))
    with pytest.raises(ValueError, match=sentence):
        problem_and_extras(*map(torch.from_numpy, (q, k, v)), mask=given)


# -- what the backward pass takes besides -----------------------------------------------------

d_out, out = q + 1, q + 2
lse = np.zeros(q.shape[:3], np.float32)
NOT_SAVED: dict[str, tuple[tuple[Any, Any, Any], type[Exception], str]] = {
    "d_out of another shape": (
        (d_out[:, :, 1:], out, lse), ValueError,
        r"^d_out has shape \(2, 6, 16, 20\), q has \(2, 6, 17, 20\): it must be \(2, 6, 17, 20\)\.",
    ),
    "out of k's heads": ((d_out, out[:, :3], lse), ValueError, r"^out has shape \(2, 3, 17, 20\)"),
    "lse of another length": (
        (d_out, out, lse[..., 1:]), ValueError, r"^lse has shape .*must be \(2, 6, 17\)\. Pass",
    ),
    "lse with a last axis": (
        (d_out, out, lse[..., None]), ValueError, r"^lse has shape .*expected 3 axes, .*Drop axes",
    ),
    "lse in fp16": (
        (d_out, out, lse.astype(np.float16)), ValueError, r"^lse is float16, it must be float32: ",
    ),
    "d_out in fp16": (
        (d_out.astype(np.float16), out, lse), ValueError, r"^q, d_out and out have different",
    ),
    "no lse": ((d_out, out, None), TypeError, r"^lse is a NoneType: pass .*\(batch, nheads, seq"),
    "no d_out": ((None, out, lse), TypeError, r"^d_out is a NoneType"),
}  # fmt: skip


def test_what_the_forward_pass_gave_is_taken() -> None:
    check_saved(d_out, q, out, lse)
    wide = [x.astype(np.float64) for x in (d_out, q, out, lse)]
    check_saved(*wide)
    with pytest.raises(ValueError, match=r"^lse is float32, it must be float64"):
        check_saved(wide[0], wide[1], wide[2], lse)


@pytest.mark.parametrize("what", NOT_SAVED)
def test_what_it_did_not_give_is_refused(what: str) -> None:
    (of_d_out, of_out, of_lse), error, sentence = NOT_SAVED[what]
    with pytest.raises(error, match=sentence):
        check_saved(of_d_out, q, of_out, of_lse)


def test_saved_tensors_of_another_kind_or_with_a_gradient_are_refused() -> None:
    torch = torch_or_skip()
    with pytest.raises(ValueError, match=r"^q, d_out and out are of different kinds or devices"):
        check_saved(torch.from_numpy(d_out), q, out, lse)
    with pytest.raises(ValueError, match=r"^lse is torch:cpu, q is numpy: convert it"):
        check_saved(d_out, q, out, torch.from_numpy(lse))
    tensors = [torch.from_numpy(x) for x in (d_out, q, out, lse)]
    for at, name in ((0, "d_out"), (2, "out"), (3, "lse")):
        given = list(tensors)
        given[at] = given[at].clone().requires_grad_()
        with pytest.raises(
            NotImplementedError, match=rf"^{name} requires grad.*attention_backward"
        ):
            check_saved(*given)
