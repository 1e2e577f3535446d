"""In which order blocks of 05 begin: heads whose K and V share L2, long lists of a mask first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda.plan_mma import (
    LONG_LIST,
    SECTION_BYTES,
    heads_in_section,
    kv_heads_in_section,
    longest_list,
)
from fa_kernels.problem import AttentionProblem

DENSE = AttentionProblem(2, 16, 8192, 8192, 128, "bfloat16")


def masked(keep: np.ndarray, problem: AttentionProblem = DENSE) -> AttentionProblem:
    return replace(problem, block_mask=BlockMask.from_dense(keep, 128, 128))


def even() -> np.ndarray:
    return BlockMask.pattern("local", 8192, 8192, 128, 128, 0.125).keep


def with_a_long(row: bool) -> np.ndarray:
    keep = even().copy()
    keep[..., 0, :] |= row
    keep[..., :, 0] |= not row
    return keep


def test_rows_of_one_length_are_launched_head_by_head() -> None:
    assert heads_in_section(DENSE) == 1


@pytest.mark.parametrize("group", [1, 4])
def test_what_shares_l2_is_launched_together(group: int) -> None:
    problem = replace(DENSE, causal="bottom_right", nheads_kv=16 // group)
    heads = heads_in_section(problem)
    kv_bytes = 2 * 8192 * 128 * 2
    assert heads * kv_bytes <= SECTION_BYTES * group < (heads + 1) * kv_bytes or heads == 32
    assert heads_in_section(masked(even(), problem)) == heads
    q_bytes = kv_bytes * group
    heads = kv_heads_in_section(masked(even(), problem))
    assert heads * q_bytes <= SECTION_BYTES < (heads + 1) * q_bytes


def test_a_long_list_of_any_head_begins_before_all_others() -> None:
    """A global row is long for blocks of Q tiles, a global column for those of K/V tiles."""
    assert longest_list(BlockMask(even(), 128, 128), False) == pytest.approx(1.0)
    long_row, long_column = masked(with_a_long(row=True)), masked(with_a_long(row=False))
    assert longest_list(BlockMask(with_a_long(row=True), 128, 128), False) > LONG_LIST
    assert heads_in_section(long_row) == 32 and kv_heads_in_section(long_row) < 32
    assert heads_in_section(long_column) < 32 and kv_heads_in_section(long_column) == 32


def test_a_mask_that_keeps_nothing_has_no_long_list() -> None:
    nothing = masked(np.zeros((64, 64), bool))
    assert longest_list(BlockMask(np.zeros((64, 64), bool), 128, 128), True) == 0.0
    assert heads_in_section(nothing) >= 1
