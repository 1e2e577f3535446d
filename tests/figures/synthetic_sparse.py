"""A made-up run of kind "sparse", for tests only: its times come from no GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fa_kernels.measure.point import Contender, row_of
from fa_kernels.measure.records import RUN_KEYS, SCHEMA_VERSION, Row, append_rows
from fa_kernels.measure.sparse_run import SparsePoint, points
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling

SPARSE_ID = "20260105-h200-sparse"
TILES = Tiling(128, 128)
#: Which of ours.
OURS = "flash_mma"
#: Ours: this times s times dense plus so many ms; FlexAttention and cuDNN: times ours and dense.
FACTOR, OVERHEAD_MS, FLEX, CUDNN = 1.02, 0.01, 1.25, 0.5
HOST_US, DEVICE_US = 8000.0, 40.0


def write_sparse_run(root: Path, run_id: str = SPARSE_ID, device: str = "NVIDIA H200") -> Path:
    """Write run.json and rows.csv under `root` and return the run's folder."""
    folder = root / run_id
    folder.mkdir(parents=True)
    about = dict.fromkeys(RUN_KEYS, "synthetic")
    about |= {"schema": SCHEMA_VERSION, "run_id": run_id, "device": device}  # type: ignore[dict-item]
    (folder / "run.json").write_text(json.dumps({**about, "kind": "sparse"}), encoding="utf-8")
    append_rows(folder, [row for point in points() for row in rows_at(point)])
    return folder


def dense_ms(problem: AttentionProblem, pass_: str) -> float:
    """Of ours without a mask: 300 TFLOP/s."""
    products = 2 if pass_ == "fwd" else 5
    flop = products * 2 * problem.heads * problem.seqlen_q**2 * problem.head_dim
    return flop / 300e9


def rows_at(point: SparsePoint) -> Iterator[Row]:
    """Ours, then the point's peers; of a forward under a mask what its lists cost."""
    problem, dense = point.problem, dense_ms(point.problem, point.pass_)
    mask = problem.block_mask
    ours = dense if mask is None else FACTOR * mask.density * dense + OVERHEAD_MS
    times = {"fa_kernels": ours, "flex": FLEX * ours, "torch_cudnn": CUDNN * dense}
    for provider in ("fa_kernels", *point.peers):
        mine = provider == "fa_kernels"
        contender = _contender(provider, OURS if mine else "sdpa", TILES if mine else None)
        row = row_of(problem, contender, "latency_ms", value=times[provider], error=1e-4)
        yield replace(row, pass_=point.pass_)
    if mask is not None and point.pass_ == "fwd":
        for pass_ in ("fwd", "bwd"):
            for metric, us in (("host_lists_us", HOST_US), ("device_lists_us", DEVICE_US)):
                row = row_of(problem, _contender("fa_kernels", OURS, TILES), metric, value=us)
                yield replace(row, pass_=pass_)


def _contender(provider: str, variant: str, tiling: Tiling | None) -> Contender:
    return Contender(provider, variant, tiling, 0, lambda *_: lambda: None, lambda _: None)
