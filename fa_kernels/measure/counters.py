"""Hardware counters by Nsight Compute: DRAM and L2 bytes of single calls, in a run of their own.

`METHOD` says how they are read, and stands in every run's run.json.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fa_kernels.cuda.launch import load_in_parallel
from fa_kernels.measure import point, records
from fa_kernels.measure.counter_metrics import GROUPS, Group, launches_by_job, metrics_of, totals
from fa_kernels.measure.counter_passes import Say, Sets, run_jobs, single_pass_sets
from fa_kernels.measure.counter_shapes import (
    GRID,
    Call,
    Chosen,
    key_of,
    plans_of,
    plans_to_compile,
)
from fa_kernels.measure.ncu import Launch, find_ncu, ncu_version
from fa_kernels.measure.profiled import END, Job, Outcome
from fa_kernels.measure.records import Row
from fa_kernels.measure.sweep import start_run

METHOD = (
    "NVIDIA Nsight Compute around single calls (kernel replay, --clock-control none, "
    "--cache-control none). Counters are read in sets that one pass can hold, each set in a run of "
    "the program of its own, so no launch is replayed: a second pass would find the L2 warm. "
    "Before each call, after a warm-up, a kernel reads 1 GiB: the L2 is cold and, unlike after a "
    "write, holds nothing to write back. Nothing is flushed between the launches of one call: what "
    "the L2 carries from one to the next is part of the finding. The output of every profiled call "
    "is held against float64, of a backward dq, dk and dv of the first and the last head. A "
    "backward alone (bwd) starts from what a forward before it saved; both: a forward and its "
    "backward as one call. Launches are of kernels: memsets, such as that of the sums of dq, are "
    "none and not read. Bytes and times are summed over all launches of the call, "
    "percentages weighted by their times. DRAM bytes are those of the call's launches alone; "
    "dram_writeback_bytes is what it left in the L2, written back by a second 1 GiB read. L2 bytes "
    "are the 32-byte sectors that the SMs asked of the L2 (srcunit_tex), not what its halves pass "
    "to each other; l2_atomic_bytes those of atomic operations, which l2_bytes leaves out. "
    "ncu_latency_ms is gpu__time_duration under the profiler, launches one by one: not comparable "
    "with latency_ms. Random normal inputs; one call per set"
)
#: So many calls are read first by themselves: that it does not work shows in seconds.
FIRST_CALLS = 9
CRASHED = "crashed under ncu"
#: The row of a call that is not made at all.
LEAD = GROUPS[0].metrics[0]
NOT_A_LATENCY = "under the profiler, launches one by one: not comparable with latency_ms"
#: What ncu may need to start the program, and to write its table after it stopped in time.
MARGIN_S = 25.0


def measure_counters(
    root: Path,
    label: str | None,
    command: str,
    resume: str | None = None,
    commit: str | None = None,
    deadline_s: float | None = None,
    say: Say = print,
    choice: Chosen = GRID,
) -> tuple[Path, bool]:
    """Read the counters of `choice` into a new run, or finish one; its folder, and if it is.

    Without a label it has the usual one of the choice.

    Raises:
        NcuRefused: ncu is not there or may not read counters; no run is started then.
        ValueError, FileExistsError: as `start_run`.
    """
    start = time.monotonic()
    ncu, notes = find_ncu(), []

    def note(text: str) -> None:
        say(text)
        notes.append(text)

    sets = single_pass_sets(ncu, note, choice.groups)
    about: dict[str, Any] = {
        "method": METHOD,
        "kind": "counters",
        "ncu": ncu_version(ncu),
        "notes": notes,
    }
    folder = start_run(label or choice.label, command, root, resume, commit, **about)
    end = None if deadline_s is None else start + deadline_s
    return folder, run_counters(folder, ncu, sets, end, say, choice)


def run_counters(
    folder: Path,
    ncu: str,
    sets: Sets,
    end: float | None = None,
    say: Say = print,
    choice: Chosen = GRID,
) -> bool:
    """Read what is missing from the run in `folder`; True if nothing is missing any more.

    `end` is when to stop, by `time.monotonic`. A group's rows are written when it is finished, or
    before a job that crashed.
    """
    records.load_run.cache_clear()
    rows = list(records.load_run(folder.name, folder.parent).rows)
    calls = choice.calls()
    refused = list(_refusals(calls, rows))
    _record(folder, rows, refused)
    todo = _todo(calls, rows, GROUPS[0])
    compiled = load_in_parallel(plan for call in todo for plan in plans_to_compile(call))
    say(f"{len(calls)} calls, {len(refused)} of them not to be made; compiled {compiled} kernels")
    return all(_finish(folder, rows, ncu, *one, calls, end, say) for one in sets)


def _finish(
    folder: Path,
    rows: list[Row],
    ncu: str,
    group: Group,
    sets: Sequence[Sequence[str]],
    calls: Sequence[Call],
    end: float | None,
    say: Say,
) -> bool:
    """Read one group of every call that lacks it; False if it had to stop."""
    while todo := _todo(calls, rows, group):
        begun = time.monotonic()
        if end is not None and begun + MARGIN_S > end:
            say(f"deadline reached: resume with {folder.name}")
            return False
        some = todo if any(row.status == "ok" for row in rows) else todo[:FIRST_CALLS]
        say(f"reading {', '.join(group.metrics)} of {len(some)} calls")
        found, stopped = _read_group(ncu, group, sets, some, end)
        bad = [row for row in found if row.status != "ok"]
        seconds = time.monotonic() - begun
        say(f"{seconds:.0f} s: {len(found)} rows, {len(bad)} of them without a number")
        for row in bad:
            say(f"  {row.series} at {row.problem.describe()}: {row.status}, {row.detail}")
        hopeless = len(bad) == len(found) and len(found) < len(todo)
        # Where nothing could be read, the fault is ncu's, and the calls are to be tried again.
        _record(folder, rows, [r for r in found if not hopeless or r.detail.startswith(CRASHED)])
        if stopped or hopeless:
            say(f"stopped ({stopped or 'no call could be read'}): resume with {folder.name}")
            return False
    return True


def _record(folder: Path, rows: list[Row], found: Sequence[Row]) -> None:
    records.append_rows(folder, found)
    rows += found


def _refusals(calls: Sequence[Call], rows: Sequence[Row]) -> Iterator[Row]:
    """A row for every call that is not to be tried and has none yet."""
    seen = {key_of(row) for row in rows}
    for call in calls:
        why = None if call.key in seen else point.verdict_on(call.problem, call.contender)
        if why:
            yield call.row(LEAD, status=why[0], detail=why[1])


def _todo(calls: Sequence[Call], rows: Sequence[Row], group: Group) -> list[Call]:
    """Calls without a row of this group, but not those that the first group gave up."""
    done = {
        key_of(row)
        for row in rows
        if row.metric in group.metrics or (row.metric == LEAD and row.status != "ok")
    }
    return [call for call in calls if call.key not in done]


@dataclass(frozen=True)
class _Answer:
    """One call read: its counters by short name, how it was launched, its error."""

    counted: Mapping[str, float]
    detail: str
    max_abs_err: float | None


def _read_group(
    ncu: str, group: Group, sets: Sequence[Sequence[str]], calls: Sequence[Call], end: float | None
) -> tuple[list[Row], str]:
    """Rows of the calls that were answered in every set, and why it stopped early, or ""."""
    asked = [Job.of(n, call.problem, call.contender, call.pass_) for n, call in enumerate(calls)]
    answers: dict[int, _Answer] = {}
    rows: list[Row] = []
    stopped = ""
    for counters in sets:
        if stopped:  # what the set before answered lacks this one's
            return rows, stopped
        left = None if end is None else max(1.0, end - time.monotonic() - MARGIN_S)
        # Only the DRAM counters have a use for the read after the call.
        new, failures, stopped = _read_set(ncu, counters, asked, calls, group is GROUPS[0], left)
        for outcome in failures:
            call, status = calls[outcome.number], outcome.status
            rows.append(call.row(group.metrics[0], status=status, detail=outcome.detail))
        answers = {
            number: replace(answer, counted={**answer.counted, **answers[number].counted})
            if number in answers
            else answer
            for number, answer in new.items()
        }
        asked = [job for job in asked if job.number in answers]
    for number, answer in answers.items():
        rows += _rows(calls[number], group, answer)
    return rows, stopped


def _read_set(
    ncu: str,
    counters: Sequence[str],
    jobs: Sequence[Job],
    calls: Sequence[Call],
    with_after: bool,
    left_s: float | None,
) -> tuple[dict[int, _Answer], list[Outcome], str]:
    """One run of ncu: answers by job, what failed, and why the program stopped early, or ""."""
    found, outcomes = run_jobs(ncu, counters, jobs, with_after, left_s)
    by_job = launches_by_job(found.launches)
    answers, failures, stopped = {}, [], None
    for outcome in outcomes:
        if outcome.number == END:
            stopped = outcome.detail
            continue
        launches, after = by_job.get(outcome.number, ([], None))
        fault = _fault(calls[outcome.number], launches) if outcome.status == "ok" else ""
        if fault and not launches:
            fault += f": {found.complaint}"
        if fault or outcome.status != "ok":
            failures.append(replace(outcome, status="failed", detail=fault) if fault else outcome)
            continue
        counted = totals(launches, after)
        detail = f"{_launched(launches)}; {outcome.detail}"
        answers[outcome.number] = _Answer(counted, detail, outcome.max_abs_err)
    reported = {outcome.number for outcome in outcomes}
    crashed = next((job.number for job in jobs if job.number not in reported), None)
    if stopped is None and crashed is not None:
        failures.append(Outcome(crashed, "failed", f"{CRASHED}: {found.complaint}"))
    return answers, failures, stopped or ""


def _fault(call: Call, launches: Sequence[Launch]) -> str:
    """What is wrong with the launches that were profiled for a call, or ""."""
    if not launches:
        return "ncu profiled no launch of this call"
    names = Counter(_function(launch) for launch in launches)
    wanted = Counter(step.entry for plan in plans_of(call) for step in plan.steps)
    if missing := wanted - names:
        return f"ncu profiled {_launched(launches)}, without {', '.join(missing)}"
    if call.pass_ == "both" and len(launches) < 2:
        return f"ncu profiled {_launched(launches)}: a forward, or its backward, is not there"
    return ""


def _function(launch: Launch) -> str:
    """A kernel's name without its template arguments and parameters."""
    return re.split(r"[<(]", launch.kernel.removeprefix("void "), maxsplit=1)[0].strip()


def _launched(launches: Sequence[Launch]) -> str:
    """E.g. "3 launches: standard_scores, standard_softmax, standard_output"."""
    names = Counter(_function(launch)[-60:] for launch in launches)
    each = ", ".join(name if n == 1 else f"{name} ({n} times)" for name, n in names.items())
    return f"{len(launches)} launch{'es' if len(launches) > 1 else ''}: {each}"[:220]


def _rows(call: Call, group: Group, answer: _Answer) -> Iterator[Row]:
    found = metrics_of(answer.counted, group)
    if not found:
        # A row all the same, or the group would be read again and again.
        missing = set(group.counters) - set(answer.counted)
        detail = f"ncu gave no value of {', '.join(sorted(missing))}: {answer.detail}"
        yield call.row(group.metrics[0], status="refused", detail=detail)
    for metric, value in found.items():
        apart = f"{NOT_A_LATENCY}; " if metric == "ncu_latency_ms" else ""
        detail = f"{apart}{answer.detail}"
        yield call.row(metric, value=value, error=answer.max_abs_err, detail=detail)
