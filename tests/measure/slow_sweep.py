"""The real sweep in a process of its own, to be killed: only the GPU is fake, and writes are slow.

`python -m tests.measure.slow_sweep ROOT new|RUN_ID`
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fa_kernels.measure import progress, records, seal, sweep
from fa_kernels.measure.point import Contender, row_of
from fa_kernels.problem import AttentionProblem

GRID = sweep.Grid(
    seqlens=(128, 256, 512, 1024), head_dims=(32, 64), dtypes=("float16", "float32"),
    sram_kib=(64,), control_sram_kib=(64,), masks=(("local", 0.25),), peers=("torch_flash",),
)  # fmt: skip
PROBLEM_S, PIECE_S, PIECE_BYTES = 0.005, 0.002, 150


def describe(command: str, method: str) -> dict[str, Any]:
    about = dict.fromkeys(records.RUN_KEYS, "x") | {"schema": records.SCHEMA_VERSION}
    return about | {"run_id": "20260102-h200-", "command": command, "method": method}


def measure_problem(
    problem: AttentionProblem, contenders: Sequence[Contender], flush: Any
) -> Iterator[records.Row]:
    """Rows as a GPU would give them, the same ones every time; some do not fit."""
    for contender in contenders:
        time.sleep(PROBLEM_S / len(contenders))
        if contender.workspace_bytes > 10**9:
            detail = "does not fit (estimated)"
            yield row_of(problem, contender, "latency_ms", status="does not fit", detail=detail)
            continue
        ms = 0.5 + problem.seqlen_q / 1000 + len(contender.label) / 100
        yield row_of(problem, contender, "extra_mem_bytes", value=1000, error=1e-4)
        yield replace(row_of(problem, contender, "latency_ms", value=ms, error=1e-4), n=20)


def write_slowly(path: Path, data: bytes) -> None:
    """As `seal.append_bytes`, but a kill is likely to meet a half-written line."""
    with path.open("ab") as file:
        for begin in range(0, len(data), PIECE_BYTES):
            file.write(data[begin : begin + PIECE_BYTES])
            file.flush()
            time.sleep(PIECE_S)


def main(root: Path, what: str) -> int:
    sweep.describe_run = describe
    sweep.measure_problem = measure_problem  # type: ignore[assignment]
    sweep.precompile = lambda work: 0
    sweep.Flush = object  # type: ignore[assignment,misc]
    seal.append_bytes = write_slowly
    progress.duration = lambda seconds: "some time"
    folder = sweep.start_run("grid", "", root, None if what == "new" else what)
    print(folder.name, flush=True)
    return 0 if sweep.run_sweep(folder, GRID, say=lambda text: print(text, flush=True)) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
