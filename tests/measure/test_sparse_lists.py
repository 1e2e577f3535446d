"""What turning a mask into lists costs: really made, anew each time, on the host."""

from __future__ import annotations

from typing import Any

import pytest

from fa_kernels import masks
from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda import launch
from fa_kernels.measure import sparse_lists
from fa_kernels.measure.records import row_fault
from fa_kernels.measure.sparse_lists import ORDERS, REPEATS, list_rows
from fa_kernels.problem import AttentionProblem
from fa_kernels.variants import VARIANTS


def test_the_lists_of_both_passes_are_made_anew_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "smem_limit_bytes", lambda: 227 * 1024)
    made: list[tuple[str, bool]] = []

    def watched(pass_: str, order: Any) -> Any:
        def make(problem: Any, tiling: Any) -> Any:
            made.append((pass_, not masks._tile_map._known))
            return order(problem, tiling)

        return make

    watching = {pass_: watched(pass_, order) for pass_, order in ORDERS.items()}
    monkeypatch.setattr(sparse_lists, "ORDERS", watching)
    mask = BlockMask.pattern("butterfly", 1024, 1024, 128, 128, 0.25)
    problem = AttentionProblem(2, 2, 1024, 1024, 64, "bfloat16", block_mask=mask)
    variant = VARIANTS["flash_mma"]
    tiling = variant.default_tiling(64, 2, 227 * 1024)
    rows = list(list_rows(problem, variant, tiling, flush=None))  # type: ignore[arg-type]
    assert made == [(pass_, True) for pass_ in ORDERS for _ in range(REPEATS)]
    assert [(row.pass_, row.metric, row.n) for row in rows] == [
        (pass_, "host_lists_us", REPEATS) for pass_ in ORDERS
    ]
    for row in rows:
        assert row_fault(row) is None and row.problem == problem and row.median
