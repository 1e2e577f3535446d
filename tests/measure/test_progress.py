"""A loop over problems: what is said, what is left, and when it stops."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fa_kernels.measure import progress, records
from fa_kernels.measure.progress import TimeLeft, duration, measure_each
from fa_kernels.problem import AttentionProblem
from tests.measure.rows import row, write_run

WORK = [AttentionProblem.of_tokens(n, 64) for n in (128, 1024, 128, 1024)]


def test_time_left_comes_from_the_problem_of_the_nearest_n() -> None:
    left = TimeLeft()
    assert math.isnan(left.of(WORK)) and left.of([]) == 0
    left.learn(WORK[0], 2.0)
    assert left.of(WORK) == 8.0
    left.learn(WORK[1], 10.0)
    assert left.of(WORK) == 24.0
    between = [AttentionProblem.of_tokens(n, 64) for n in (256, 512, 65536)]
    assert left.of(between) == 2.0 + 10.0 + 10.0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (120, "2 min"), (7200, "2.0 h")]
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_every_problem_is_recorded_and_the_time_left_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10_000, 30))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    folder, said = write_run(tmp_path, []), list[str]()

    def measure(problem: AttentionProblem) -> list[records.Row]:
        return [row(seqlen_q=problem.seqlen_q)]

    def summary(rows: Sequence[records.Row]) -> str:
        return f"{len(rows)} row"

    assert measure_each(folder, WORK, measure, summary, 0.0, None, said.append)
    assert said[0].startswith("[1/4, 60 s, about 2 min left] ")  # a problem takes 30 s here
    assert said[0].endswith(f"{WORK[0].describe()}: 1 row")
    assert "left" not in said[-1] and said[-1].startswith("[4/4,")
    records.load_run.cache_clear()
    rows = records.load_run(folder.name, tmp_path).rows
    assert [r.seqlen_q for r in rows] == [p.seqlen_q for p in WORK]


def test_the_state_of_the_gpu_is_noted_also_when_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import contextmanager

    from fa_kernels.measure import gpu_state

    @contextmanager
    def watching(interval_ms: int) -> Any:
        yield [{"sm_mhz": 1980.0, "busy_pct": 90.0}]

    monkeypatch.setattr(gpu_state, "watching", watching)
    folder = write_run(tmp_path, [])

    def interrupted(problem: AttentionProblem) -> list[records.Row]:
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            measure_each(folder, WORK, interrupted, str, 0.0, None, lambda text: None)
    about = json.loads((folder / "run.json").read_text())
    assert [state["sm_mhz"]["max"] for state in about["gpu_state"]] == [1980.0, 1980.0]
