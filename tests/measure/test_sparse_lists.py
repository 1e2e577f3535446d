"""What turning a mask into lists costs: really made, anew each time, on the host."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from fa_kernels import masks
from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda import block_lists, launch
from fa_kernels.measure import sparse_lists, timing
from fa_kernels.measure.records import row_fault
from fa_kernels.measure.sparse_lists import ORDERS, REPEATS, list_rows
from fa_kernels.problem import AttentionProblem
from fa_kernels.variants import VARIANTS

MASK = BlockMask.pattern("butterfly", 1024, 1024, 128, 128, 0.25)
PROBLEM = AttentionProblem(2, 2, 1024, 1024, 64, "bfloat16", block_mask=MASK)


def made_rows() -> list[Any]:
    variant = VARIANTS["flash_mma"]
    tiling = variant.default_tiling(64, 2, 227 * 1024)
    return list(list_rows(PROBLEM, variant, tiling, flush="cold"))  # type: ignore[arg-type]


def test_the_lists_of_both_passes_are_made_anew_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "smem_limit_bytes", lambda: 227 * 1024)
    made: list[tuple[str, bool]] = []

    def watched(pass_: str, order: Any) -> Any:
        def make(problem: Any, tiling: Any) -> Any:
            made.append((pass_, not masks._tile_map._known))
            return order(problem, tiling)

        return make

    watching = {name: (watched(name, order), keys) for name, (order, keys) in ORDERS.items()}
    monkeypatch.setattr(sparse_lists, "ORDERS", watching)
    monkeypatch.setattr(sparse_lists, "_device_us", lambda *call: [1.0] * REPEATS)
    rows = [row for row in made_rows() if row.metric == "host_lists_us"]
    assert made == [(pass_, True) for pass_ in ORDERS for _ in range(REPEATS)]
    assert [(row.pass_, row.metric, row.n) for row in rows] == [
        (pass_, "host_lists_us", REPEATS) for pass_ in ORDERS
    ]
    for row in rows:
        assert row_fault(row) is None and row.problem == PROBLEM and row.median


def test_lists_made_on_the_gpu_are_timed_from_a_mask_that_lies_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "smem_limit_bytes", lambda: 227 * 1024)
    monkeypatch.setitem(sys.modules, "cupy", np)
    built: list[tuple[Any, bool]] = []

    def build(keep: Any, problem: Any, tiling: Any, *, by_keys: bool) -> None:
        assert keep.dtype == np.uint8 and (keep == MASK.keep).all() and problem == PROBLEM
        built.append((tiling, by_keys))

    def time_once(call: Any, flush: Any) -> float:
        call()
        return 0.25  # ms

    monkeypatch.setattr(timing, "time_once", time_once)
    monkeypatch.setattr(block_lists, "build", build)
    rows = [row for row in made_rows() if row.metric == "device_lists_us"]
    assert [(row.pass_, row.median, row.unit) for row in rows] == [
        ("fwd", 250.0, "us"), ("bwd", 250.0, "us"),
    ]  # fmt: skip
    assert [keys for _, keys in built] == [False] * (REPEATS + 1) + [True] * (REPEATS + 1)
    for row, (tiling, _) in zip(rows, (built[0], built[-1]), strict=True):
        assert (row.block_m, row.block_n) == (tiling.block_m, tiling.block_n)
