"""`python -m fa_kernels figures`: what the README shows, or every figure of the suite."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fa_kernels.figures.readme import redraw
from fa_kernels.figures.shown import runs_to_show
from fa_kernels.session import session
from fa_kernels.widgets.suite import FIGURES, write_all


def redraw_readme(run_id: str | None) -> int:
    """Redraw what the README shows; exits with a sentence where that cannot be done."""
    try:
        written = redraw(run_id or next(iter(runs_to_show()), ""))
    except (ValueError, RuntimeError) as error:
        sys.exit(str(error))
    for path in written:
        print(f"wrote {path}")
    return 0


def rebuild_all(
    run_id: str | None,
    venue: str | None,
    formats: Sequence[str] | None,
    folder: Path,
    command: str,
    root: Path | None = None,
) -> int:
    """Write every figure of the suite from recorded data, a line for each; 1 if one failed.

    What cannot be drawn for want of a run says so and is skipped. `root` holds the runs; default
    data/measured. Exits with a sentence where venue, format or folder will not do.
    """
    used = session("numpy", run_id, root)  # what is recorded, also where there is a GPU
    if run_id is not None and used.run is None:
        sys.exit(" ".join(used.notes))
    if folder.exists() and not folder.is_dir():
        sys.exit(f"--out {folder} is a file: choose another folder.")
    try:
        results = write_all(used, folder, venue, formats, command)
    except ValueError as error:
        sys.exit(str(error))
    states, cramped, missing = [], [], ""
    for number, one in enumerate(results, 1):
        print(f"{number:2}/{len(FIGURES)} {one.figure.name}: {one.state}: {one.said}", flush=True)
        states.append(one.state)
        cramped += [one.figure.name] * bool(one.cramped)
        missing = one.missing or missing
    counts = ", ".join(f"{states.count(s)} {s}" for s in ("written", "skipped", "failed"))
    print(f"{folder}: {counts}.")
    if cramped:
        names = ", ".join(cramped)
        print(f"Made for more width; look for words that overlap or are cut off: {names}.")
    if missing:
        print(f"{missing} HTML was written instead.")
    return int("failed" in states)
