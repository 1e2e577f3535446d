"""The ceilings of the current GPU on record: a run of kind "ceilings", a minute or two."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fa_kernels.measure import ceilings, memory, seal
from fa_kernels.measure.ceiling_records import (
    FILE,
    SEALED,
    CeilingRow,
    append_ceilings,
    begin_ceilings,
    load_ceilings,
)
from fa_kernels.measure.gpu_state import recorded_state
from fa_kernels.measure.special_run import open_run
from fa_kernels.units import significant

#: Between two readings of the clock: a ceiling takes half a second and a little.
INTERVAL_MS = 100


def record_ceilings(
    root: Path,
    label: str,
    command: str,
    resume: str | None = None,
    commit: str | None = None,
    seconds: float | None = None,
    say: Callable[[str], None] = print,
) -> tuple[Path, bool]:
    """Measure every ceiling into a run of kind "ceilings"; its folder, and whether it is whole.

    Arguments and errors as `backward_run.record_backward`. Each ceiling is written when it is
    measured, the matrix products together, and one that the run to resume has, whatever came of
    it, is not written again. What the GPU's clocks were meanwhile goes into run.json.
    """
    start = time.monotonic()
    if resume is not None and (root / resume).exists():
        begin_ceilings(root / resume)  # before run.json says that the run went on
    about: dict[str, Any] = {"method": ceilings.METHOD, SEALED: seal.file_of(FILE)}
    folder, _ = open_run("ceilings", label, command, root, resume, commit, **about)
    begin_ceilings(folder)
    done = {row.ceiling for row in load_ceilings(folder.name, root)}
    work = [names for names in ceilings.GROUPS if not done.issuperset(names)]
    gpu = ceilings.Gpu.current()
    with recorded_state(folder, INTERVAL_MS) as readings:
        for number, names in enumerate(work):
            if seconds is not None and time.monotonic() - start > seconds:
                say(f"deadline reached with {len(work) - number} left: resume {folder.name}")
                return folder, False
            found = ceilings.measure_group(names, gpu, readings)
            rows = [row for row in found if row.ceiling not in done]
            append_ceilings(folder, rows)
            memory.free_pools()  # gigabytes, which cuBLAS or the next array may want
            for row in rows:
                say(f"[{number + 1}/{len(work)}, {time.monotonic() - start:.0f} s] {said(row)}")
    return folder, True


def said(row: CeilingRow) -> str:
    """One line on a measured ceiling."""
    if row.median is None:
        return f"{row.ceiling} {row.status}: {row.detail}"
    clock = f" at {row.sm_mhz:.0f} MHz" if row.sm_mhz else ""
    return f"{row.ceiling} {significant(row.median)} {row.unit}{clock}: {row.detail}"
