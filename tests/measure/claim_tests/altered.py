"""Evidence with other numbers, to see verdicts change; and claims made up for a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fa_kernels.measure.claim_tests.evidence import Evidence
from fa_kernels.measure.claim_tests.judged import Judged
from fa_kernels.measure.claim_tests.registry import judge
from fa_kernels.measure.claims import Claim, load_claims
from fa_kernels.measure.records import Row, Run

Change = Callable[[Row], Row | None]


def claim_of(test: str, *numbers: float) -> Claim:
    """The first claim with this test, with other numbers if some are given."""
    claim = next(claim for claim in load_claims() if claim.test == test)
    return replace(claim, numbers=numbers) if numbers else claim


def verdict(test: str, evidence: Evidence, *numbers: float) -> Judged:
    """What a test says of its claim."""
    return judge(claim_of(test, *numbers), evidence)


def scaled(factor: float | Callable[[Row], float]) -> Change:
    """A change that multiplies a row's number."""

    def change(row: Row) -> Row:
        if row.median is None or row.p20 is None or row.p80 is None:
            return row
        by = factor(row) if callable(factor) else factor
        return replace(row, p20=row.p20 * by, median=row.median * by, p80=row.p80 * by)

    return change


def altered(evidence: Evidence, change: Change, *series: str, **wanted: object) -> Evidence:
    """The same runs with some rows changed, or left out where `change` gives None.

    `series`: whose rows, all without any; `wanted`: columns and their values.
    """

    def rows(run: Run) -> tuple[Row, ...]:
        found = []
        for row in run.rows:
            meant = not series or row.series in series
            if meant and all(getattr(row, name) == value for name, value in wanted.items()):
                other = change(row)
                if other is not None:
                    found.append(other)
            else:
                found.append(row)
        return tuple(found)

    return replace(evidence, runs=tuple(replace(run, rows=rows(run)) for run in evidence.runs))


def with_rows(evidence: Evidence, make: Callable[[Row], Row | None]) -> Evidence:
    """The same runs with the rows that `make` gives for theirs besides."""

    def rows(run: Run) -> tuple[Row, ...]:
        more = tuple(row for old in run.rows if (row := make(old)) is not None)
        return run.rows + more

    return replace(evidence, runs=tuple(replace(run, rows=rows(run)) for run in evidence.runs))
