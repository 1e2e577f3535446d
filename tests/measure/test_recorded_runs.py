"""Every committed run reads back, and its counted bytes and memory are those of the models."""

from __future__ import annotations

import pytest

from fa_kernels.measure.records import Row, Run, list_runs, load_run
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.variants import VARIANTS

every_run = pytest.mark.parametrize("run_id", list_runs())


def predicted(row: Row) -> int | None:
    """What the models say of one row of ours, in bytes; None for a latency."""
    problem = AttentionProblem(
        row.batch, row.nheads, row.seqlen_q, row.seqlen_k, row.head_dim, row.dtype
    )
    variant = VARIANTS[row.variant]
    assert row.block_m is not None
    assert row.block_n is not None
    traffic = variant.launched(problem, Tiling(row.block_m, row.block_n))
    if row.metric == "hbm_bytes":
        return traffic.total_bytes
    if row.metric.startswith("hbm_"):
        return traffic.of(row.metric.removeprefix("hbm_").removesuffix("_bytes"))
    memory = variant.memory(problem)
    return {"extra_mem_bytes": memory.extra_bytes, "peak_mem_bytes": memory.total_bytes}.get(
        row.metric
    )


def ours(run: Run) -> list[Row]:
    return [row for row in run.select(provider="fa_kernels", status="ok") if row.causal == "none"]


def test_there_is_a_run() -> None:
    assert list_runs()


@every_run
def test_counted_bytes_and_measured_memory_are_the_predicted_ones(run_id: str) -> None:
    checked = 0
    for row in ours(load_run(run_id)):
        want = predicted(row)
        if want is not None:
            assert row.median == want, row
            checked += 1
    assert checked


@every_run
def test_every_timing_names_its_error_and_its_checked_rows(run_id: str) -> None:
    run = load_run(run_id)
    timed = run.select(metric="latency_ms", status="ok")
    assert timed
    assert all(row.n >= 3 and row.max_abs_err is not None for row in timed)
    assert not run.select(status="failed")
