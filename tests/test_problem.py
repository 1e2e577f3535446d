"""One attention call as a value: every size is checked in words, nothing is allocated."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fa_kernels.block_mask import BlockMask
from fa_kernels.problem import (
    MAX_SEQLEN,
    AttentionProblem,
    causal_name,
    checked_int,
    dtype_name,
)

SIZES = {"batch": 2, "nheads": 4, "seqlen_q": 113, "seqlen_k": 203, "head_dim": 64}


def problem(**changed: Any) -> AttentionProblem:
    return AttentionProblem(**{**SIZES, **changed})


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("head_dim", 0, "256"), ("head_dim", 257, "256"), ("head_dim", -1, "256"),
        ("seqlen_q", -1, str(MAX_SEQLEN)), ("seqlen_k", 10**9, str(MAX_SEQLEN)),
        ("batch", -1, "16777216"), ("nheads", 0, "65536"), ("nheads", 10**6, "65536"),
        ("nheads_kv", 5, "4"), ("nheads_kv", 0, "4"),
    ],
)  # fmt: skip
def test_a_size_out_of_range_is_refused_by_name_value_and_limit(
    name: str, value: int, limit: str
) -> None:
    with pytest.raises(ValueError, match=rf"^{name} = {value} is out of range: .*{limit}\. \w"):
        problem(**{name: value})


@pytest.mark.parametrize("name", [*SIZES, "nheads_kv"])
@pytest.mark.parametrize("value", ["64", math.nan, math.inf, 0.5, True, [64], 64j])
def test_a_size_that_is_no_whole_number_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{name} = .* is not a whole number: .*between"):
        problem(**{name: value})


@pytest.mark.parametrize("value", [64, 64.0, np.int32(64), np.int64(64), np.float64(64.0)])
def test_whole_numbers_of_any_type_become_ints(value: object) -> None:
    number = checked_int("d", value, 1, 256, "")
    assert number == 64 and type(number) is int
    assert problem(head_dim=value) == problem()


def test_the_remedy_ends_the_sentence() -> None:
    with pytest.raises(ValueError, match=r"Choose d\.$"):
        checked_int("d", 257, 1, 256, "Choose d.")


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("fp16", "float16"), ("fp32", "float32"), ("bf16", "bfloat16"), ("float16", "float16"),
        (np.float16, "float16"), (np.dtype("float32"), "float32"), (np.dtype(">f2"), "float16"),
        (ml_dtypes.bfloat16, "bfloat16"), (np.dtype(ml_dtypes.bfloat16), "bfloat16"),
    ],
)  # fmt: skip
def test_dtype_names(dtype: object, name: str) -> None:
    assert dtype_name(dtype) == name


def test_torch_dtype_names() -> None:
    torch = pytest.importorskip("torch")
    names = [dtype_name(t) for t in (torch.float16, torch.float32, torch.bfloat16)]
    assert names == ["float16", "float32", "bfloat16"]
    with pytest.raises(ValueError, match="float64 is not supported"):
        dtype_name(torch.float64)


@pytest.mark.parametrize("dtype", [np.float64, np.int8, "fp8", "", None, 16, bool, np.complex64])
def test_other_dtypes_are_refused_with_what_to_cast_to(dtype: object) -> None:
    with pytest.raises(
        ValueError, match=r"is not supported: use one of .*float16.*cast q, k and v"
    ):
        dtype_name(dtype)


def test_causal_names() -> None:
    given = (False, True, "bottom_right", "top_left")
    assert [causal_name(c) for c in given] == [None, "bottom_right", "bottom_right", "top_left"]
    assert problem(causal=True).causal == "bottom_right"
    assert problem(causal=False).causal is None is problem(causal=None).causal


@pytest.mark.parametrize("causal", ["upper", "", 1, 0, 1.0, None, np.zeros(2), ["top_left"]])
def test_other_causal_values_are_refused(causal: object) -> None:
    with pytest.raises(ValueError, match=r"^causal = .* is not known: use False, True"):
        causal_name(causal)


def test_the_default_scale_is_filled_in() -> None:
    assert problem().scale == 1 / 8
    assert problem(softmax_scale=0.5).scale == 0.5
    assert problem(softmax_scale=0).scale == 0.0


@pytest.mark.parametrize(
    "scale", [math.nan, math.inf, -math.inf, "text", [1.0], 1j, 10**400, "0.5"]
)
def test_a_scale_that_is_no_finite_number_is_refused_with_the_default(scale: object) -> None:
    with pytest.raises(ValueError, match=r"^softmax_scale = .* is not a finite number: .*0\.125"):
        problem(softmax_scale=scale)


def test_grouped_heads_must_divide() -> None:
    assert problem(nheads_kv=2).kv_bytes == problem().kv_bytes // 2
    with pytest.raises(ValueError, match="nheads_kv = 3 does not divide nheads = 4"):
        problem(nheads_kv=3)


def test_bytes() -> None:
    p = problem(dtype="fp16")
    assert (p.itemsize, p.heads) == (2, 8)
    assert p.q_bytes == 2 * 4 * 113 * 64 * 2
    assert p.kv_bytes == 2 * 4 * 203 * 64 * 2
    assert p.lse_bytes == 2 * 4 * 113 * 4
    assert problem(dtype="fp32").q_bytes == 2 * p.q_bytes
    bf16 = problem(dtype="bf16")
    assert (bf16.itemsize, bf16.q_bytes, bf16.lse_bytes) == (2, p.q_bytes, p.lse_bytes)


def test_a_problem_is_a_value() -> None:
    assert problem() == problem() and hash(problem()) == hash(problem())
    assert problem(causal=True) != problem()
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem().batch = 3  # type: ignore[misc]


def butterfly() -> BlockMask:
    return BlockMask.pattern("butterfly", 113, 203, 16, 32, 0.5)


def test_a_problem_with_a_block_mask_is_a_value() -> None:
    """It is the key of caches: equal masks give equal problems, whatever array holds them."""
    masked = problem(block_mask=butterfly())
    assert masked == problem(block_mask=BlockMask(butterfly().keep.copy(), 16, 32))
    assert hash(masked) == hash(problem(block_mask=butterfly()))
    assert masked != problem()
    other = BlockMask.pattern("local", 113, 203, 16, 32, 0.5)
    assert masked != problem(block_mask=other)


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"seqlen_q": 129}, r"has 8 x 7 blocks of 16 x 32; seqlen_q = 129, .* needs 9 x 7\. Build"),
        ({"seqlen_q": 112}, r"needs 7 x 7"),
        ({"seqlen_k": 225}, r"seqlen_k = 225 needs 8 x 8"),
        ({"seqlen_k": 192}, r"needs 8 x 6"),
    ],
)
def test_a_block_mask_of_other_lengths_is_refused(sizes: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        problem(**sizes, block_mask=butterfly())
    # What ends in the same last blocks fits.
    assert problem(seqlen_q=128, seqlen_k=224, block_mask=butterfly()).block_mask is not None


@pytest.mark.parametrize("lead", [(1, 1), (2, 1), (1, 4), (2, 4)])
def test_a_block_mask_is_for_all_heads_or_for_each(lead: tuple[int, int]) -> None:
    keep = np.ones((*lead, 8, 7), bool)
    assert problem(block_mask=BlockMask.from_dense(keep, 16, 32)).block_mask is not None
    sentence = (
        r"block_mask is for \(batch, nheads\) = .*, the call has \(3, 5\): each must be equal"
    )
    if lead != (1, 1):
        with pytest.raises(ValueError, match=sentence):
            problem(batch=3, nheads=5, block_mask=BlockMask.from_dense(keep, 16, 32))


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"seqlen_q": 0}, {"seqlen_k": 0}])
def test_zero_rows_are_a_valid_problem(sizes: dict[str, int]) -> None:
    p = problem(**sizes)
    assert p.q_bytes * p.kv_bytes == 0


@pytest.mark.parametrize(
    ("n", "d", "batch", "nheads"),
    [(128, 64, 128, 32), (16384, 128, 1, 16), (65536, 32, 1, 64), (1, 256, 16384, 8),
     (20000, 96, 1, 21)],
)  # fmt: skip
def test_of_tokens_keeps_tokens_and_width(n: int, d: int, batch: int, nheads: int) -> None:
    p = AttentionProblem.of_tokens(n, d)
    assert (p.batch, p.nheads, p.seqlen_q, p.seqlen_k, p.head_dim) == (batch, nheads, n, n, d)


@pytest.mark.parametrize("n", [0, 10**9, -5, math.nan, "many", None])
def test_of_tokens_names_the_knob(n: object) -> None:
    with pytest.raises(ValueError, match=r"^N = .*between 1 and \d+\. Choose a sequence length"):
        AttentionProblem.of_tokens(n, 64)
    with pytest.raises(ValueError, match=r"^d = .*between 1 and 256\. Choose a head dimension"):
        AttentionProblem.of_tokens(64, n)


def test_describe() -> None:
    square = AttentionProblem(4, 32, 4096, 4096, 64, "fp16")
    assert square.describe() == "B = 4, H = 32, N = 4096, d = 64, fp16"
    text = problem(causal="top_left", dtype="fp32").describe()
    assert text == "B = 2, H = 4, N_q = 113, N_k = 203, d = 64, fp32, causal (top_left)"
    text = problem(causal=True, dtype="bf16", block_mask=butterfly()).describe()
    assert text.endswith("bf16, causal (bottom_right), butterfly block mask 16 x 32, s = 0.571")
