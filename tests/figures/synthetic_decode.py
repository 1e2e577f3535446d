"""Made-up rows of pass "decode", for tests only: their times come from no GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fa_kernels.measure.records import RUN_KEYS, SCHEMA_VERSION, Row, append_rows
from fa_kernels.problem import AttentionProblem
from tests.figures.synthetic import row

#: Microseconds that any call takes, and GB/s beyond them.
FIXED_MS, GB_S = 0.008, 4000.0
SHAPES = ((1, 1024), (1, 16384), (8, 4096), (16, 8192), (64, 8192))


DECODE_ID = "20260108-h200-decode"


def write_decode_run(root: Path, run_id: str = DECODE_ID) -> Path:
    """Write run.json and rows.csv under `root`; the run's folder."""
    folder = root / run_id
    folder.mkdir(parents=True)
    about = dict.fromkeys(RUN_KEYS, "synthetic")
    about |= {"schema": SCHEMA_VERSION, "run_id": run_id, "device": "NVIDIA H200"}  # type: ignore[dict-item]
    (folder / "run.json").write_text(json.dumps({**about, "kind": "decode"}), encoding="utf-8")
    append_rows(folder, decode_rows())
    return folder


def decode_rows(fixed_ms: float = FIXED_MS, gb_s: float = GB_S) -> Iterator[Row]:
    """Ours at every shape, 32 heads on 8 of keys and values, d = 128, bf16; and a peer's."""
    for batch, seqlen in SHAPES:
        problem = AttentionProblem(batch, 32, 1, seqlen, 128, "bfloat16", nheads_kv=8)
        nbytes = 2 * batch * 8 * seqlen * 128 * 2
        ms = fixed_ms + nbytes / gb_s / 1e6
        names = (("fa_kernels", "decode_split_kv", ms), ("torch_cudnn", "sdpa", 0.9 * ms))
        for provider, variant, time in names:
            one = row(problem, provider, variant, None, "latency_ms", time)
            yield replace(one, pass_="decode", unit="ms", nheads_kv=8)
