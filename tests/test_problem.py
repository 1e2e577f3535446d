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


@pytest.mark.parametrize(
    ("window", "kept"),
    [
        (None, None), ((None, None), None), ((3, 0), (3, 0)), ([3, None], (3, None)),
        ((np.int64(3), 4.0), (3, 4)), ((0, 2**31), (0, 2**31)),
    ],
)  # fmt: skip
def test_a_window_is_a_pair_of_sides(window: Any, kept: object) -> None:
    assert problem(window=window).window == kept


@pytest.mark.parametrize("window", [5, (5,), (1, 2, 3), "12", "1", object(), True])
def test_a_window_that_is_no_pair_is_refused(window: object) -> None:
    with pytest.raises(
        ValueError, match=r"^window = .* is not a pair: .* e\.g\. window=\(128, 0\)"
    ):
        problem(window=window)


@pytest.mark.parametrize("side", [-1, 0.5, "1", True, 2**31 + 1])
def test_a_side_that_is_no_number_of_keys_is_refused_by_name(side: object) -> None:
    for name, window in (("left", (side, 0)), ("right", (0, side))):
        with pytest.raises(ValueError, match=rf"^window {name} = .* Use None for an unbounded"):
            problem(window=window)


def test_dropout_needs_a_seed_or_a_mask() -> None:
    assert problem(dropout_p=0.1, seed=np.uint64(2**64 - 1)).seed == 2**64 - 1
    assert problem(dropout_p=0.1, keep_given=True).seed is None
    assert problem(dropout_p=0).dropout_p == 0.0
    with pytest.raises(ValueError, match=r"dropout_p = 0\.1 needs a seed: pass seed=0"):
        problem(dropout_p=0.1)
    for value in (1.0, -0.1, math.nan, "0.1", True, None):
        with pytest.raises(ValueError, match=r"^dropout_p = .* must be at least 0 and below 1"):
            problem(dropout_p=value, seed=0)
    for seed in (-1, 2**64, 0.5, "1"):
        with pytest.raises(ValueError, match=r"^seed = .* between 0 and 18446744073709551615"):
            problem(dropout_p=0.1, seed=seed)


def test_a_bias_is_of_the_io_dtype_or_fp32() -> None:
    assert problem(dtype="fp16", bias_dtype="fp16").bias_dtype == "float16"
    assert problem(dtype="bf16", bias_dtype=np.float32).bias_dtype == "float32"
    with pytest.raises(ValueError, match=r"bias is float16, q is bfloat16: cast the bias to bf"):
        problem(dtype="bf16", bias_dtype="float16")
    with pytest.raises(ValueError, match=r"float64.*cast"):
        problem(bias_dtype=np.float64)


def test_heads_of_a_group() -> None:
    assert (problem().group, problem(nheads_kv=2).group, problem(nheads_kv=1).group) == (1, 2, 4)
    grouped = problem(nheads_kv=2)
    assert (grouped.q_rows, grouped.kv_rows) == (2 * 4 * 113, 2 * 2 * 203)


def test_options_make_another_problem() -> None:
    """Problems are keys of caches: every option has to tell them apart."""
    options: list[dict[str, Any]] = [
        {}, {"window": (1, 0)}, {"dropout_p": 0.1, "seed": 0}, {"dropout_p": 0.1, "seed": 1},
        {"dropout_p": 0.2, "seed": 0}, {"masked": True}, {"bias_dtype": "float32"},
        {"dropout_p": 0.1, "keep_given": True}, {"nheads_kv": 2},
    ]  # fmt: skip
    assert len({problem(**one) for one in options}) == len(options)


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
    text = problem(window=(3, None), dropout_p=0.1, seed=0, masked=True, nheads_kv=2).describe()
    assert text == (
        "B = 2, H = 4, H_kv = 2, N_q = 113, N_k = 203, d = 64, fp16, window (3, ∞), mask, dropout"
    )
    assert problem(bias_dtype="fp32").describe().endswith("fp16, bias")
