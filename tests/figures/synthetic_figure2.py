"""A made-up run of hardware counters of figure 2's passes, for tests only: no GPU counted these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fa_kernels.device import device
from fa_kernels.measure.paper_calls import (
    FIG2_LEFT,
    IN_FIGURE,
    PEERS,
    RIGHT_DENSITIES,
    SPARSE_IN_FIGURE,
    figure_2_right,
    masked,
)
from fa_kernels.measure.records import COUNTER_UNITS, Row, mask_text
from fa_kernels.problem import AttentionProblem
from fa_kernels.variants import VARIANTS
from tests.measure.rows import ROW, write_run

FIGURE2_ID = "20260106-h200-counters-figure2"
#: GB of a call by metric, of a dense one; of a masked one those that its kept blocks have.
GIGABYTES = {
    "dram_bytes": 1.5, "dram_read_bytes": 1.0, "dram_write_bytes": 0.5,
    "dram_writeback_bytes": 0.25,
    "l2_bytes": 8.0, "l2_read_bytes": 6.0, "l2_write_bytes": 2.0, "l2_atomic_bytes": 4.0,
}  # fmt: skip


def write_figure2(root: Path, series: tuple[str, ...] = (*IN_FIGURE, *PEERS)) -> Path:
    """The run under `root`; on the left of these series alone."""
    calls = [(FIG2_LEFT, one, pass_) for pass_ in ("both", "bwd") for one in series]
    right = figure_2_right()
    for problem in (right, *(masked(right, density) for density in RIGHT_DENSITIES)):
        calls += [(problem, one, "both") for one in SPARSE_IN_FIGURE if one in series]
    rows = [row for call in calls for row in _rows(*call)]
    return write_run(root, rows, FIGURE2_ID, kind="counters")


def _rows(problem: AttentionProblem, series: str, pass_: str) -> Iterator[Row]:
    ours, mask = series in VARIANTS, problem.block_mask
    backward = VARIANTS[series].backward if ours else None
    limit = device("h200").smem_per_block_bytes
    tiling = backward.tiling_for(problem, limit) if backward else None
    kept = mask.density if mask else 1.0
    for metric, gigabytes in GIGABYTES.items():
        value = gigabytes * 1e9 * kept
        yield replace(
            ROW, provider="fa_kernels" if ours else series, variant=series if ours else "sdpa",
            pass_=pass_, batch=problem.batch, nheads=problem.nheads, nheads_kv=problem.nheads,
            seqlen_q=problem.seqlen_q, seqlen_k=problem.seqlen_k, head_dim=problem.head_dim,
            density=kept, block_mask=mask_text(problem), metric=metric, unit=COUNTER_UNITS[metric],
            block_m=tiling.block_m if tiling else None, block_n=tiling.block_n if tiling else None,
            p20=value, median=value, p80=value, n=1,
        )  # fmt: skip
