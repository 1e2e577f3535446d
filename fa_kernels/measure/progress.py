"""Problem by problem through a run: rows on disk after each, time left, stopped in time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from fa_kernels.measure import records
from fa_kernels.measure.gpu_state import recorded_state


class Described(Protocol):
    """What progress can name and compare: a problem, or a case of one."""

    @property
    def seqlen_q(self) -> int:
        """N, by which the time left is estimated."""

    def describe(self) -> str:
        """In words."""


Work = TypeVar("Work", bound=Described)


class TimeLeft:
    """Seconds that problems will take, from the last one of the nearest N that was measured."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def learn(self, problem: Described, seconds: float) -> None:
        """Take in what a problem took."""
        self._seconds[problem.seqlen_q] = seconds

    def of(self, work: Sequence[Described]) -> float:
        """Seconds for all of `work`; nan as long as nothing was measured."""
        return sum((self._one(problem.seqlen_q) for problem in work), 0.0)

    def _one(self, seqlen: int) -> float:
        if not self._seconds:
            return math.nan
        nearest = min(self._seconds, key=lambda n: abs(math.log(n / seqlen)))
        return self._seconds[nearest]


def duration(seconds: float) -> str:
    """E.g. "45 s", "12 min", "1.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def measure_each(
    folder: Path,
    work: Sequence[Work],
    measure: Callable[[Work], list[records.Row]],
    summary: Callable[[Sequence[records.Row]], str],
    start: float,
    seconds: float | None,
    say: Callable[[str], None],
) -> bool:
    """Append what `measure` gives for every problem; False if some were left.

    A problem's rows are written together, so that a run that was stopped or killed resumes with the
    problem it was at. None is begun later than `seconds` after `start`, a time of `time.monotonic`.
    What the GPU's clocks were meanwhile goes into run.json.
    """
    left = TimeLeft()
    with recorded_state(folder):
        for number, problem in enumerate(work):
            begun = time.monotonic()
            if seconds is not None and begun - start > seconds:
                many = len(work) - number
                say(f"deadline reached with {many} problems left: resume with {folder.name}")
                return False
            found = measure(problem)
            records.append_rows(folder, found)
            now = time.monotonic()
            left.learn(problem, now - begun)
            rest = work[number + 1 :]
            eta = f", about {duration(left.of(rest))} left" if rest else ""
            said = f"[{number + 1}/{len(work)}, {duration(now - start)}{eta}] {problem.describe()}"
            say(f"{said}: {summary(found)}")
    return True
