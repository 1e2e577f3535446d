"""A decoding step as a value: sizes, pages, bytes, splits, and refusals in words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_kernels.decode_problem import (
    DecodeProblem,
    checked_page_size,
    checked_splits,
    lowest_key,
    split_tiles,
)
from tests.reference.problems import bounded

FIELDS: dict[str, Any] = {
    "batch": 16, "nheads": 32, "nheads_kv": 8, "seqlen_q": 1, "seqlen_new": 0,
    "max_seqlen": 8192, "head_dim": 128, "dtype": "bf16",
}  # fmt: skip
PAGED = FIELDS | {"max_seqlen": None, "page_size": 64, "max_pages": 128}


def test_a_contiguous_cache() -> None:
    p = DecodeProblem(**FIELDS)
    assert (p.dtype, p.group, p.rows, p.capacity, p.paged) == ("bfloat16", 4, 4, 8192, False)
    assert p.cache_shape == (16, 8, 8192, 128)
    assert p.token_bytes == 2 * 8 * 128 * 2
    assert p.cache_bytes == 16 * 8192 * p.token_bytes == p.read_bytes([8192] * 16)
    assert p.scale == pytest.approx(128**-0.5)
    assert p.describe() == "B = 16, H = 32, H_kv = 8, N_k = 8192, d = 128, bf16"


def test_pages_imply_the_length() -> None:
    p = DecodeProblem(**PAGED)
    assert (p.capacity, p.num_pages, p.paged) == (8192, 16 * 128, True)
    assert p.cache_shape == (2048, 8, 64, 128)
    assert DecodeProblem(**PAGED | {"max_seqlen": 8192}) == p
    fewer = DecodeProblem(**PAGED | {"num_pages": 100})
    assert fewer.cache_bytes == 100 * 64 * p.token_bytes
    assert fewer.describe().endswith("bf16, pages of 64")


def test_a_window_without_a_left_side_bounds_nothing() -> None:
    none, bounded_left = (DecodeProblem(**FIELDS, window=w) for w in ((None, 3), (7, None)))
    assert (none.window, none.left) == (None, None)
    assert (bounded_left.window, bounded_left.left) == ((7, None), 7)


def test_the_workspace_of_splits() -> None:
    p = DecodeProblem(**FIELDS)
    assert (p.partial_bytes(1), p.partial_bytes(3)) == (0, 3 * 16 * 32 * 129 * 4)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"head_dim": 257}, "head_dim = 257 is out of range: it must be between 1 and 256"),
        ({"seqlen_q": 0}, "seqlen_q = 0 is out of range"),
        ({"batch": 0}, "batch = 0 is out of range"),
        ({"nheads_kv": 5}, "nheads_kv = 5 does not divide nheads = 32"),
        ({"max_seqlen": 0}, "max_seqlen = 0 is out of range"),
        ({"seqlen_new": 8193}, "seqlen_new = 8193 is out of range: it must be between 0 and 8192"),
        ({"dtype": "int8"}, "dtype = int8 is not supported"),
        ({"softmax_scale": float("nan")}, "softmax_scale = nan is not a finite number"),
        ({"window": (-1, 0)}, "window left = -1 is out of range"),
        ({"max_pages": 3}, "without a page_size"),
        ({"page_size": 64}, "max_pages = None is not a whole number"),
        ({"page_size": 64, "max_pages": 3}, "max_seqlen = 8192 with max_pages = 3 of 64 tokens"),
    ],
)
def test_sizes_that_cannot_be_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        DecodeProblem(**FIELDS | fields)


@pytest.mark.parametrize("size", [0, 8, 24, 280, 2**24 + 16])
def test_a_page_is_a_multiple_of_16_tokens(size: int) -> None:
    with pytest.raises(ValueError, match=f"page_size = {size} .*16, 32, 64, 128 or 256"):
        checked_page_size(size)
    assert [checked_page_size(n) for n in (16, 48, 272, 4096)] == [16, 48, 272, 4096]


@pytest.mark.parametrize("splits", [0, 129, 1.5])
def test_splits_have_a_limit(splits: float) -> None:
    with pytest.raises(ValueError, match=r"between 1 and 128.*Pass None"):
        checked_splits(splits)
    assert [checked_splits(n) for n in (1, 128)] == [1, 128]


@bounded
@given(
    st.integers(0, 3000), st.integers(1, 9), st.one_of(st.none(), st.integers(0, 500)),
    st.integers(1, 128),
)  # fmt: skip
def test_splits_cover_every_tile_once(total: int, rows: int, left: int | None, n: int) -> None:
    splits = split_tiles(total, rows, left, n)
    assert len(splits) == n
    tiles = [j for first, stop in splits for j in range(first, stop)]
    assert tiles == list(range(lowest_key(total, rows, left) // 16, -(-total // 16)))
    lengths = {stop - first for first, stop in splits if stop > first}
    assert len(lengths) <= 2, "equal but for the last"
