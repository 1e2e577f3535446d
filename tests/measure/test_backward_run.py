"""Runs of kind "backward": what they measure, how they stop and go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fa_kernels.measure import backward_run as subject
from fa_kernels.measure import records, sweep
from fa_kernels.problem import AttentionProblem
from tests.figures.synthetic_backward import rows_at


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[AttentionProblem, bool]]]:
    """Stand-ins for the GPU; the problems that were measured, and whether they were timed."""

    def describe(command: str, method: str) -> dict[str, Any]:
        about = dict.fromkeys(records.RUN_KEYS, "x") | {"schema": records.SCHEMA_VERSION}
        return about | {"run_id": "20260102-h200-", "command": command, "method": method}

    seen: list[tuple[AttentionProblem, bool]] = []

    def measure(problem: AttentionProblem, flush: Any, estimates: Any, timed: bool) -> Any:
        seen.append((problem, timed))
        return rows_at(problem)

    monkeypatch.setattr(sweep, "describe_run", describe)
    monkeypatch.setattr(subject, "measure_backward", measure)
    monkeypatch.setattr(subject, "load_in_parallel", lambda plans: 7)
    monkeypatch.setattr(subject.timing, "Flush", lambda: None)
    records.load_run.cache_clear()
    yield seen
    records.load_run.cache_clear()


def record(root: Path, **options: Any) -> tuple[Path, bool]:
    return subject.record_backward(root, "backward", "", say=lambda text: None, **options)


def test_memory_grows_with_n_alone_and_is_not_timed(
    measured: list[tuple[AttentionProblem, bool]], tmp_path: Path
) -> None:
    folder, finished = record(tmp_path)
    assert finished and [problem for problem, _ in measured] == subject.problems()
    untimed = [problem for problem, timed in measured if not timed]
    assert [p.seqlen_q for p in untimed] == [2**k for k in range(10, 17)]
    assert {(p.batch, p.nheads, p.head_dim, p.dtype) for p in untimed} == {(1, 2, 64, "float16")}
    assert records.load_run(folder.name, tmp_path).kind == "backward"


def test_a_stopped_run_goes_on_with_what_is_left(
    measured: list[tuple[AttentionProblem, bool]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(subject, "problems", lambda: subject.memory_problems()[:3])
    assert record(tmp_path, seconds=-1)[1] is False
    assert measured == []
    folder = tmp_path / "20260102-h200-backward"
    records.append_rows(folder, rows_at(subject.memory_problems()[1]))
    assert record(tmp_path, resume=folder.name) == (folder, True)
    assert [problem.seqlen_q for problem, _ in measured] == [1024, 4096]
    with pytest.raises(FileExistsError, match="append-only"):
        record(tmp_path)
