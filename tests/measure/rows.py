"""A valid row and a valid run on disk, for the tests to spoil."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from fa_kernels.measure.records import RUN_KEYS, SCHEMA_VERSION, Row, append_rows

RUN_ID = "20260102-h200-test"
ROW = Row(
    provider="fa_kernels",
    variant="flash_q_outer",
    pass_="fwd",
    dtype="float16",
    batch=4,
    nheads=32,
    nheads_kv=32,
    seqlen_q=4096,
    seqlen_k=4096,
    head_dim=64,
    causal="none",
    dropout_p=0.0,
    density=1.0,
    block_m=64,
    block_n=128,
    metric="latency_ms",
    unit="ms",
    p20=1.25,
    median=1.5,
    p80=2.0,
    n=20,
    status="ok",
    detail="64 of 4096 rows checked",
    max_abs_err=0.000125,
)
REFUSED = replace(
    ROW, p20=None, median=None, p80=None, n=0, status="refused", detail="no, and why",
    max_abs_err=None,
)  # fmt: skip


def row(**changed: Any) -> Row:
    return replace(ROW, **changed)


def write_run(root: Path, rows: list[Row], run_id: str = RUN_ID, **about: Any) -> Path:
    """A run folder under `root`; `about` changes run.json."""
    folder = root / run_id
    folder.mkdir(parents=True)
    said: dict[str, Any] = dict.fromkeys(RUN_KEYS, "x")
    said |= {"schema": SCHEMA_VERSION, "run_id": run_id, "device": "NVIDIA H200", **about}
    (folder / "run.json").write_text(json.dumps(said), encoding="utf-8")
    append_rows(folder, rows)
    return folder
