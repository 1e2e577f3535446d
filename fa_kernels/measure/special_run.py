"""Runs with shapes of their own, problem by problem: begun or resumed, stopped in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from fa_kernels.measure import records
from fa_kernels.measure.sweep import Describe, start_run, write_about


class Described(Protocol):
    """What a line of progress can name: a problem, or more than one."""

    def describe(self) -> str:
        """In words."""


Work = TypeVar("Work", bound=Described)


def open_run(
    kind: str,
    label: str,
    command: str,
    root: Path,
    resume: str | None,
    commit: str | None,
    describe: Describe | None = None,
    **about: str,
) -> tuple[Path, Sequence[records.Row]]:
    """The folder of a new run of `kind`, or of the one to resume, and the rows that it has.

    `describe`: as `start_run`.
    `about`: what run.json says otherwise than other runs do, e.g. `method`.

    Raises:
        FileExistsError: a new run would have the id of one that is there.
        ValueError: a label that makes no valid run id, or a run to resume that is not valid.
    """
    folder = start_run(label, command, root, resume, commit, describe)
    records.load_run.cache_clear()
    run = records.load_run(folder.name, root)
    if resume is None:
        write_about(folder, {**run.about, "kind": kind, **about})
        records.load_run.cache_clear()
    return folder, run.rows


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

    A problem's rows are written together, so that a run that was stopped resumes with the problem
    it was at. None is begun later than `seconds` after `start`, a time of `time.monotonic`.
    """
    for number, problem in enumerate(work):
        elapsed = time.monotonic() - start
        if seconds is not None and elapsed > seconds:
            say(f"deadline reached with {len(work) - number} problems left: resume {folder.name}")
            return False
        found = measure(problem)
        records.append_rows(folder, found)
        said = f"[{number + 1}/{len(work)}, {elapsed:.0f} s] {problem.describe()}: "
        say(said + summary(found))
    return True
