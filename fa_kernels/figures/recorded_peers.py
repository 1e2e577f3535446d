"""Recorded times of kind "peers": each run a process of its own, and what was not timed in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fa_kernels.device import Device
from fa_kernels.figures.recorded import runs_on
from fa_kernels.figures.recorded_speed import Curve, Rate, RecordedSpeed
from fa_kernels.measure.records import Row, Run
from fa_kernels.variants import VARIANTS

#: Templates that say no more than that they start what they wrap.
_STARTERS = ("device_kernel", "enable_sm90_or_later")
#: A kernel's name in a table has at most so many characters.
_CHARACTERS = 40


@dataclass(frozen=True)
class Standing:
    """Our rung beside one peer, at the problems that one run timed both at.

    `ratios`: time of the peer over ours, above 1 ours is faster. A point is `level` if the two
    ranges from the 20th to the 80th percentile touch: who is faster there, the run does not say.
    """

    peer: str
    ratios: tuple[float, ...]
    faster: int
    slower: int

    @property
    def level(self) -> int:
        """Points where nobody is faster."""
        return len(self.ratios) - self.faster - self.slower


class PeersRun:
    """Forward latencies of one run of kind "peers"."""

    def __init__(self, run: Run) -> None:
        self.run, self.times = run, RecordedSpeed(run)
        self._rows = [r for r in run.rows if (r.pass_, r.metric) == ("fwd", "latency_ms")]
        timed = [r for r in self._rows if r.status == "ok"]
        self.timed = len(timed)

    @property
    def run_id(self) -> str:
        """Of the run."""
        return self.run.run_id

    @property
    def head_dims(self) -> set[int]:
        """Every d with a time."""
        return {row.head_dim for row in self._rows if row.status == "ok"}

    @property
    def dtypes(self) -> set[str]:
        """Every dtype with a time."""
        return {row.dtype for row in self._rows if row.status == "ok"}

    def curves(self, **at: Any) -> list[Curve]:
        """Every series that was timed at these attributes, our rungs first."""
        names = (*self.times.ours, *self.times.peers)
        found = (self.times.curve(name, **at) for name in names)
        return [curve for curve in found if curve.rates]

    def untimed(self, **at: Any) -> list[Row]:
        """Calls there that were refused or failed: their status and detail say why."""
        return [
            row
            for row in self._rows
            if row.status != "ok" and all(getattr(row.problem, k) == v for k, v in at.items())
        ]

    def standings(self, **at: Any) -> list[Standing]:
        """The last of our rungs beside every peer, in the peers' order."""
        curves = self.curves(**at)
        ours = [curve for curve in curves if curve.is_ours]
        found = [_standing(ours[-1], peer) for peer in curves if ours and not peer.is_ours]
        return [standing for standing in found if standing.ratios]


def _standing(ours: Curve, peer: Curve) -> Standing:
    pairs = [(mine, rate) for rate in peer.rates if (mine := ours.at(rate.seqlen))]
    return Standing(
        peer.series,
        tuple(theirs.ms / mine.ms for mine, theirs in pairs),
        sum(_is_faster(mine, theirs) for mine, theirs in pairs),
        sum(_is_faster(theirs, mine) for mine, theirs in pairs),
    )


def _is_faster(one: Rate, other: Rate) -> bool:
    return (one.row.p80 or one.ms) < (other.row.p20 or other.ms)


def peers_runs(
    device: Device, first: Run | None = None, root: Path | None = None
) -> tuple[PeersRun, ...]:
    """The runs of a device, that with most times first; of equal ones the newest.

    `first`, if it is such a run, stands before them.
    """
    found = [PeersRun(run) for run in runs_on(device, "peers", root)]
    found = [run for run in found if run.timed]
    named = first.run_id if first is not None else ""
    return tuple(sorted(found, key=lambda run: (run.run_id != named, -run.timed)))


def kernels_in(row: Row) -> tuple[str, ...]:
    """Names of the kernels that a peer's call really ran, as its row has them; of ours the file's.

    Empty where the run could not find them out.
    """
    if row.variant in VARIANTS:
        return (VARIANTS[row.variant].kernel,)
    _, said, names = row.detail.partition("kernels: ")
    return tuple(names.split("; ")) if said else ()


def short_kernel(name: str) -> str:
    """A kernel's own name, without launch count, namespaces, template and call arguments."""
    bare = re.sub(r"^\d+ x ", "", name).replace("(anonymous namespace)::", "")
    words = [word.split("::")[-1] for word in re.split(r"[<(,> ]", bare) if word]
    own = next((word for word in words if word not in _STARTERS), bare)
    return own if len(own) <= _CHARACTERS else f"{own[: _CHARACTERS - 1]}…"


def curves_by_run(runs: Sequence[PeersRun], **at: Any) -> dict[str, list[Curve]]:
    """Run id -> its curves at these attributes, of the runs that have any."""
    found = {run.run_id: run.curves(**at) for run in runs}
    return {run_id: curves for run_id, curves in found.items() if curves}
