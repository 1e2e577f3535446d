"""Two made-up runs of the same calls, for tests only: their times come from no GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fa_kernels.measure.records import RUN_KEYS, SCHEMA_VERSION, Row, append_rows
from fa_kernels.problem import AttentionProblem
from tests.figures.synthetic import rows_at

OLD_ID, NEW_ID, A100_ID = "20260102-h200-old", "20260103-h200-new", "20260104-a100-grid"
H200, A100 = "NVIDIA H200", "NVIDIA A100-SXM4-40GB"
SEQLENS = (256, 512)


def write_pair_run(
    root: Path,
    run_id: str,
    change: Callable[[Row], Row | None] = lambda row: row,
    device: str = H200,
    seqlens: tuple[int, ...] = SEQLENS,
    **about: Any,
) -> None:
    """A run of the grid, in fp16 at d = 64, each row as `change` returns it; None: left out."""
    folder = root / run_id
    folder.mkdir(parents=True)
    said: dict[str, Any] = {**dict.fromkeys(RUN_KEYS, "synthetic"), "dirty": False}
    said |= {"schema": SCHEMA_VERSION, "run_id": run_id, "device": device, **about}
    (folder / "run.json").write_text(json.dumps(said), encoding="utf-8")
    rows = [r for n in seqlens for r in rows_at(AttentionProblem.of_tokens(n, 64, "float16"))]
    append_rows(folder, [changed for row in rows if (changed := change(row)) is not None])


def slower(row: Row, factor: float) -> Row:
    """The same call in `factor` times the time; what is no time stays."""
    if row.metric != "latency_ms" or row.median is None or row.p20 is None or row.p80 is None:
        return row
    times = {"p20": row.p20 * factor, "median": row.median * factor, "p80": row.p80 * factor}
    return replace(row, **times)  # type: ignore[arg-type]
