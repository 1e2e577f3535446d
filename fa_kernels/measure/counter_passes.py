"""One run of the profiled program under ncu, and which counters one pass can hold."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from fa_kernels.measure.about import ROOT
from fa_kernels.measure.counter_metrics import COUNTERS, GROUPS, Group, name_for_ncu
from fa_kernels.measure.ncu import NcuRefused, Profile, known_counters, profile
from fa_kernels.measure.profiled import CALIBRATE, Job, Outcome
from fa_kernels.measure.timing import FLUSH_BYTES

Say = Callable[[str], None]
#: Groups with their counters, by ncu's names, in sets that one pass can hold.
Sets = Sequence[tuple[Group, Sequence[Sequence[str]]]]


def single_pass_sets(ncu: str, say: Say, groups: Sequence[Group] = GROUPS) -> Sets:
    """Each group's counters, divided until ncu needs one pass for each set; tried on a known read.

    Raises:
        NcuRefused: ncu may not read the counters at all, or reads none of them.
    """
    known = known_counters(ncu)
    found = []
    for group in groups:
        wanted = [name_for_ncu(counter, known) for counter in group.counters]
        sets = list(_divided(ncu, wanted, say))
        if sets:
            found.append((group, sets))
    if not found:
        raise NcuRefused("No hardware counters: ncu read none of them, for the reasons above.")
    return found


def _divided(ncu: str, counters: list[str], say: Say) -> Iterator[list[str]]:
    found, _ = run_jobs(ncu, counters, ())
    if found.refusal:
        raise NcuRefused(found.refusal)
    read: Mapping[str, float] = {}
    for launch in found.launches:
        if re.match(rf"{CALIBRATE}\b", launch.kernel):
            read = launch.values
    missing = [name for name in counters if name not in read]
    if found.passes == 1 and not missing:
        numbers = ", ".join(f"{name} = {read[name]:.10g}" for name in counters)
        say(f"a read of {FLUSH_BYTES} B: {numbers}")
        yield counters
    elif len(counters) > 1:
        middle = len(counters) // 2
        yield from _divided(ncu, counters[:middle], say)
        yield from _divided(ncu, counters[middle:], say)
    else:
        why = found.complaint if missing else f"it takes {found.passes} passes"
        say(f"{counters[0]} is left out: {why}")


#: How long after its deadline a profiled program may still take to finish its last call.
HANGING_S = 120.0


def run_jobs(
    ncu: str,
    counters: Sequence[str],
    jobs: Sequence[Job],
    with_after: bool = False,
    deadline_s: float | None = None,
) -> tuple[Profile, list[Outcome]]:
    """Profile `jobs` in a program of their own: its launches, and what it said of each job."""
    with tempfile.TemporaryDirectory() as folder:
        asked, report = Path(folder) / "jobs.json", Path(folder) / "report.jsonl"
        text = {"jobs": [asdict(job) for job in jobs], "with_after": with_after}
        asked.write_text(json.dumps({**text, "deadline_s": deadline_s}), encoding="utf-8")
        command = (sys.executable, "-m", "fa_kernels.measure.profiled", str(asked), str(report))
        paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        # The program stops by itself at the deadline; this is for one that hangs.
        limit = None if deadline_s is None else deadline_s + HANGING_S
        found = profile(ncu, [*counters, *COUNTERS["time"]], command, env, limit)
        lines = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
    return found, [Outcome(**json.loads(line)) for line in lines]
