"""Split-KV decoding in NumPy against the formula: splits, pages, lengths, windows, groups, rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_kernels.decode_problem import DecodeProblem
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.decode import append, flash_decode, merge
from fa_kernels.reference.standard import standard_tiled
from fa_kernels.tiling import Tiling
from tests.decode_steps import Step, formula, gathered, make, steps
from tests.reference.problems import bounded


def run(step: Step, num_splits: int, block_rows: int | None = None) -> tuple[np.ndarray, ...]:
    """Append and decode, on copies of the caches."""
    p, k, v = step.problem, step.k.copy(), step.v.copy()
    if p.seqlen_new:
        assert step.k_new is not None and step.v_new is not None
        lengths = list(step.cache_seqlens)
        append(k, v, step.k_new, step.v_new, lengths, p, step.block_table)
    options: dict[str, Any] = {"block_table": step.block_table, "block_rows": block_rows}
    return flash_decode(step.q, k, v, list(step.totals), p, num_splits, **options)


@bounded
@given(steps(), st.integers(1, 9), st.sampled_from((None, 1, 8, 16)))
def test_it_is_the_formula(step: Step, num_splits: int, block_rows: int | None) -> None:
    out, lse = run(step, num_splits, block_rows)
    want_out, want_lse = formula(step)
    np.testing.assert_allclose(out, want_out, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("num_splits", [1, 2, 3, 7, 128])
@pytest.mark.parametrize("page_size", [None, 16, 64, 256])
def test_every_split_and_page_size_gives_the_same(page_size: int | None, num_splits: int) -> None:
    pages = None if page_size is None else 512 // page_size
    problem = DecodeProblem(3, 4, 2, 2, 1, 512, 16, "float32", page_size, pages)
    step = make(problem, (1, 333, 512))
    out, lse = run(step, num_splits)
    want_out, want_lse = formula(step)
    np.testing.assert_allclose(out, want_out, rtol=0, atol=2e-6)
    np.testing.assert_allclose(lse, want_lse, rtol=0, atol=4e-6)
    assert (out.dtype, lse.dtype) == (np.float32, np.float32)


@pytest.mark.parametrize("num_splits", [1, 4])
def test_a_row_without_a_key_is_zero_and_minus_infinity(num_splits: int) -> None:
    """An empty sequence; and rows that would stand before the first token."""
    step = make(DecodeProblem(2, 2, 1, 3, 0, 40, 8, "float32"), (0, 2))
    out, lse = run(step, num_splits)
    empty = np.array([[True] * 3, [True, False, False]])[:, None].repeat(2, axis=1)
    np.testing.assert_array_equal(lse == -np.inf, empty)
    assert not out[empty].any() and np.isfinite(out[~empty]).all()


@pytest.mark.parametrize("num_splits", [1, 4])
def test_a_row_without_a_key_is_zero_also_where_v_holds_nan(num_splits: int) -> None:
    """Those with a key take it in, as on the GPU."""
    step = make(DecodeProblem(2, 2, 1, 3, 0, 40, 8, "float32"), (1, 33))
    step.v[0, :, 0] = np.nan
    out, lse = run(step, num_splits)
    assert (out[0, :, :2] == 0).all() and (lse[0, :, :2] == -np.inf).all()
    assert np.isnan(out[0, :, 2]).all() and np.isfinite(out[1]).all()
    assert out.dtype == np.float32


@bounded
@given(steps())
def test_append_writes_the_new_tokens_and_nothing_else(step: Step) -> None:
    p = step.problem
    if not p.seqlen_new:
        return
    assert step.k_new is not None and step.v_new is not None
    k, v = step.k.copy(), step.v.copy()
    append(k, v, step.k_new, step.v_new, list(step.cache_seqlens), p, step.block_table)
    for cache, before, new in ((k, step.k, step.k_new), (v, step.v, step.v_new)):
        want = before.copy()
        for b, length in enumerate(step.cache_seqlens):
            for i in range(p.seqlen_new):
                at = (b, slice(None), length + i)
                if step.block_table is not None:
                    page, slot = divmod(int(length) + i, p.page_size or 1)
                    at = (step.block_table[b, page], slice(None), slot)
                want[at] = new[b, :, i]
        np.testing.assert_array_equal(cache, want)


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("page_size", [None, 16])
def test_decode_after_append_is_the_end_of_attention(
    page_size: int | None, num_splits: int
) -> None:
    """Rows computed token by token are the last rows of attention over the whole sequence."""
    pages = None if page_size is None else 6
    problem = DecodeProblem(2, 4, 2, 3, 3, 96, 8, "float64", page_size, pages)
    step = make(problem, (70, 70))
    out, lse = run(step, num_splits)
    k, v = (np.stack(x) for x in zip(*(step.sequence(b) for b in range(2)), strict=True))
    whole = AttentionProblem(2, 4, 70, 70, 8, "float64", "bottom_right", nheads_kv=2)
    q = np.random.default_rng(9).standard_normal(whole.q_shape)
    q[:, :, -3:] = step.q
    want, want_lse = standard_tiled(q, k, v, whole, Tiling(16, 16))
    np.testing.assert_allclose(out, want[:, :, -3:], rtol=1e-10)
    np.testing.assert_allclose(lse, want_lse[:, :, -3:], rtol=1e-10)


@bounded
@given(steps(), st.integers(0, 2**31))
def test_it_does_not_matter_where_pages_lie(step: Step, seed: int) -> None:
    if step.block_table is None:
        return
    order = np.random.default_rng(seed).permutation(len(step.k))
    table = np.argsort(order)[step.block_table].astype(np.int32)
    other = replace(step, k=step.k[order], v=step.v[order], block_table=table)
    for b in range(step.problem.batch):
        np.testing.assert_array_equal(
            gathered(other.k, table[b]), gathered(step.k, step.block_table[b])
        )
    for mine, theirs in zip(run(other, 2), run(step, 2), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_what_lies_behind_the_last_token_does_not_matter() -> None:
    step = make(DecodeProblem(1, 2, 2, 1, 0, 64, 8, "float32"), (33,))
    assert np.isnan(step.k[0, :, 33:]).all(), "or this shows nothing"
    assert all(np.isfinite(x).all() for x in run(step, 2))


def test_nan_in_a_query_row_stays_in_that_row() -> None:
    step = make(DecodeProblem(1, 4, 1, 2, 0, 64, 8, "float32"), (64,))
    clean = run(step, 3)
    step.q[0, 2, 1, 0] = np.nan
    dirty = run(step, 3)
    others = np.ones((1, 4, 2), bool)
    others[0, 2, 1] = False
    for before, after in zip(clean, dirty, strict=True):
        np.testing.assert_array_equal(after[others], before[others])
        assert np.isnan(after[~others]).all()


def test_a_merge_of_nothing_is_nothing() -> None:
    out, lse = merge(np.full((3, 2, 4), np.nan, np.float32), np.full((3, 2), -np.inf, np.float32))
    assert not out.any() and bool((lse == -np.inf).all())
