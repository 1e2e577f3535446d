"""What claims are held against: recorded runs of one GPU, all data sheets, published numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fa_kernels.device import Device, readable_devices
from fa_kernels.measure.ceiling_records import CeilingRow, load_ceilings
from fa_kernels.measure.paper import PublishedRow, load_paper
from fa_kernels.measure.records import RecordError, Row, Run, list_runs, load_run
from fa_kernels.problem import AttentionProblem

#: A problem as a row has it, cheap to compare: dtype, batch, heads, N, d.
Sizes = tuple[str, int, int, int, int]
Tiles = tuple[int | None, int | None]


@dataclass(frozen=True)
class Found:
    """Rows of one run; `run_id` is "" and `rows` empty where no run has any."""

    run_id: str = ""
    rows: tuple[Row, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rows)

    @property
    def source(self) -> str:
        """ "recorded 20261130-h200-grid"."""
        return f"recorded {self.run_id}" if self.run_id else ""

    def of(self, *series: str) -> Found:
        """Those of some variants or peers."""
        return Found(self.run_id, tuple(row for row in self.rows if row.series in series))

    def by_sizes(self, tiles: bool = True) -> dict[tuple[Sizes, Tiles], Row]:
        """One row per problem and, unless told otherwise, tiles; the first of several."""
        found: dict[tuple[Sizes, Tiles], Row] = {}
        for row in self.rows:
            found.setdefault((sizes_of(row), tiles_of(row) if tiles else (None, None)), row)
        return found


@dataclass(frozen=True)
class Evidence:
    """`runs` are those of `device`, newest first; `sheets` those of every GPU."""

    device: Device
    runs: tuple[Run, ...]
    sheets: tuple[Device, ...]
    published: tuple[PublishedRow, ...]
    ceilings_run: str = ""
    ceilings: tuple[CeilingRow, ...] = ()

    @classmethod
    def on(cls, device: Device, root: Path | None = None) -> Evidence:
        """All that is at hand about one GPU; a run that cannot be read is passed over."""
        runs = tuple(run for run in _readable(root) if device.is_called(run.device))
        newest = next((run.run_id for run in runs if run.kind == "ceilings"), "")
        try:
            ceilings = load_ceilings(newest, root) if newest else ()
        except RecordError:
            newest, ceilings = "", ()
        return cls(device, runs, tuple(readable_devices()), load_paper(), newest, ceilings)

    def ceiling(self, name: str) -> float | None:
        """The measured rate of that name, in its unit; None where it was not measured."""
        return next((row.median for row in self.ceilings if row.ceiling == name), None)

    def rows(self, kind: str, dense: bool = True, **wanted: Any) -> Found:
        """Rows with a number, `wanted` as `Run.select`, of the newest run of a kind with any.

        `dense`: without causal mask, dropout and block mask.
        """
        for run in self.runs:
            if run.kind != kind:
                continue
            rows = run.select(**{"status": "ok", **wanted})
            if found := tuple(row for row in rows if not dense or is_dense(row)):
                return Found(run.run_id, found)
        return Found()

    def sheet(self, slug: str) -> Device | None:
        """The data sheet of another GPU."""
        return next((sheet for sheet in self.sheets if sheet.slug == slug), None)


def _readable(root: Path | None) -> Iterator[Run]:
    for run_id in list_runs(root):
        try:
            yield load_run(run_id, root)
        except RecordError:
            continue


def is_dense(row: Row) -> bool:
    """Neither masked nor dropped."""
    return row.causal == "none" and not row.dropout_p and not row.block_mask


def sizes_of(row: Row) -> Sizes:
    """The problem of a row."""
    return row.dtype, row.batch, row.nheads, row.seqlen_q, row.head_dim


def tiles_of(row: Row) -> Tiles:
    """Its tile sizes."""
    return row.block_m, row.block_n


def value(row: Row) -> float:
    """The median of a row that has one."""
    assert row.median is not None
    return row.median


def pairs(first: Found, second: Found, tiles: bool = True) -> list[tuple[Row, Row]]:
    """Rows of both at the same problem and, unless told otherwise, the same tiles."""
    others = second.by_sizes(tiles)
    return [(row, others[at]) for at, row in first.by_sizes(tiles).items() if at in others]


def lines(rows: Iterable[Row], least: int = 1) -> Mapping[tuple[object, ...], list[Row]]:
    """Rows that differ in N alone, from `least` on, by series, dtype, d and tiles; three or more.

    Short sequences cut tiles, so a line holds only what was really run with its tiles.
    """
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row.seqlen_q >= least:
            at = (row.series, row.dtype, row.head_dim, *tiles_of(row))
            found.setdefault(at, []).append(row)
    return {at: line for at, line in found.items() if len({r.seqlen_q for r in line}) >= 3}


def at_words(sizes: Sizes) -> str:
    """ "N = 4096, d = 64, fp16" of a problem."""
    dtype, batch, heads, n, d = sizes
    return AttentionProblem(batch, heads, n, n, d, dtype).describe()
