"""The bytes that no mask takes away, against the closed formulas of the kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fa_kernels.block_mask import BlockMask
from fa_kernels.device import device
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.backward import launched_flash_q_outer_backward
from fa_kernels.traffic.floor import fixed_backward_bytes, floor_bytes, floor_ms
from fa_kernels.traffic.model import launched_flash_q_outer

PROBLEM = AttentionProblem(2, 4, 96, 160, 64, "bfloat16", nheads_kv=2)
EMPTY = replace(PROBLEM, block_mask=BlockMask.from_dense(np.zeros((6, 10), bool), 16, 16))
TILES = Tiling(16, 16)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_backward_that_keeps_nothing_moves_what_is_fixed(dtype: str) -> None:
    empty = replace(EMPTY, dtype=dtype)
    moved = launched_flash_q_outer_backward(empty, TILES)
    left = sum(moved.of(name) for name in ("d_out", "out", "delta", "dq"))
    cleared = 4 * empty.q_rows * 64  # no kernel counts it: a memset
    assert fixed_backward_bytes(empty) == left + cleared
    assert moved.total_bytes == left + moved.of("dk") + moved.of("dv") + moved.of("mask")


def test_the_floor_is_every_tensor_once() -> None:
    whole = Tiling(96, 160)  # one visit: nothing is read twice
    moved = launched_flash_q_outer(replace(PROBLEM, nheads_kv=4), whole)
    assert floor_bytes(replace(PROBLEM, nheads_kv=4), "fwd") == moved.total_bytes
    q, kv, lse = 2 * 4 * 96 * 64 * 2, 2 * 2 * 160 * 64 * 2, 2 * 4 * 96 * 4
    assert floor_bytes(PROBLEM, "bwd") == 4 * q + 4 * kv + lse
    assert floor_ms(PROBLEM, "bwd", device("h200")) == pytest.approx((4 * q + 4 * kv + lse) / 4.8e9)
    with pytest.raises(ValueError, match="pass_ = 'both' is not known: use 'fwd' or 'bwd'"):
        floor_bytes(PROBLEM, "both")
