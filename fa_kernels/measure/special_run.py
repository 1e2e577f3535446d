"""Runs with shapes of their own: begun or resumed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fa_kernels.measure import records, seal
from fa_kernels.measure.sweep import Describe, start_run

#: Kind of a run that is an option of `measure` -> the module and function that record it.
RECORDERS = {
    "backward": ("backward_run", "record_backward"),
    "speed": ("speed_run", "record_speed"),
    "training": ("training_run", "record_training"),
    "ceilings": ("ceilings_run", "record_ceilings"),
    "numerics": ("numerics", "record_numerics"),
    "paper": ("paper_run", "record_paper"),
    "decode": ("decode_run", "record_decode"),
    "generation": ("generation_run", "record_generation"),
    "sparse": ("sparse_run", "record_sparse"),
    "maps": ("maps_run", "record_maps"),
}


def recorder(kind: str) -> Callable[..., tuple[Path, bool]]:
    """What records a run of this kind; loaded now, since some need torch."""
    module, name = RECORDERS[kind]
    found: Callable[..., tuple[Path, bool]] = getattr(
        importlib.import_module(f"fa_kernels.measure.{module}"), name
    )
    return found


def kind_with(kind: str, l2: str) -> str:
    """The kind of a run of `kind` whose calls begin with an L2 like this."""
    return kind if l2 == "cold" else f"{kind}-{l2}"


#: How to resume a run of a kind that is no option by itself.
_RESUMED_WITH = {
    "grid": "without --counters",
    "grid-warm": "with --l2 warm",
    "peers": "with --speed and the peers and sizes of its command",
    "speed-warm": "with --speed --l2 warm",
    "peers-warm": "with --speed --l2 warm and the peers and sizes of its command",
}


def refuse_other_kind(run_id: str | None, root: Path, kind: str) -> None:
    """Refuse to go on with a run that holds something else than what is to be measured.

    Raises:
        ValueError: the run to resume, if there is one, is of another kind, or is not valid.
    """
    if run_id is None:
        return
    seal.mend(root / run_id)
    if (found := records.load_run(run_id, root).kind) != kind:
        raise ValueError(
            f"{run_id} is a run of kind {found!r}, not {kind!r}: resume it "
            f"{_RESUMED_WITH.get(found, f'with --{found}')}."
        )


def open_run(
    kind: str,
    label: str,
    command: str,
    root: Path,
    resume: str | None,
    commit: str | None,
    describe: Describe | None = None,
    **about: Any,
) -> tuple[Path, Sequence[records.Row]]:
    """The folder of a new run of `kind`, or of the one to resume, and the rows that it has.

    `describe`: as `start_run`.
    `about`: what run.json says otherwise than other runs do, e.g. `method`.

    Raises:
        FileExistsError: a new run would have the id of one that is there.
        ValueError: a label that makes no valid run id, or a run to resume that is not valid.
    """
    folder = start_run(label, command, root, resume, commit, describe, kind=kind, **about)
    records.load_run.cache_clear()
    return folder, records.load_run(folder.name, root).rows
