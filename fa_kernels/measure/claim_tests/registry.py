"""Which function tests a claim, and the verdict of every claim."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fa_kernels.measure.claim_tests import (
    arithmetic,
    bytes_moved,
    exactness,
    generation,
    hierarchy,
    memory,
    times,
)
from fa_kernels.measure.claim_tests.evidence import Evidence
from fa_kernels.measure.claim_tests.judged import Judged, untested
from fa_kernels.measure.claims import FILE, Claim, load_claims
from fa_kernels.measure.records import RecordError

Test = Callable[[Claim, Evidence], Judged]
_MODULES = (hierarchy, exactness, arithmetic, bytes_moved, memory, times, generation)


def _tests() -> dict[str, Test]:
    """The public functions of the modules above that take a claim and evidence."""
    found: dict[str, Test] = {}
    for module in _MODULES:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            own = function.__module__ == module.__name__ and not name.startswith("_")
            if own and list(inspect.signature(function).parameters) == ["claim", "evidence"]:
                assert name not in found
                found[name] = function
    return found


TESTS: Mapping[str, Test] = _tests()


@dataclass(frozen=True)
class Answer:
    """One claim and what its test says."""

    claim: Claim
    judged: Judged


def judge(claim: Claim, evidence: Evidence) -> Judged:
    """What the claim's test says of it, or why it has none.

    Raises:
        RecordError: a test that does not exist, or numbers that it cannot take.
    """
    if not claim.test:
        return untested(claim.reason)
    if claim.test not in TESTS:
        raise RecordError(
            f"{FILE}, claim {claim.id!r}: test = {claim.test!r} is not one of "
            f"{', '.join(sorted(TESTS))}; restore it with `git checkout data/paper`."
        )
    try:
        return TESTS[claim.test](claim, evidence)
    except (IndexError, ValueError) as error:
        raise RecordError(
            f"{FILE}, claim {claim.id!r}: {claim.test} cannot judge numbers = {claim.numbers} "
            f"({error}); restore it with `git checkout data/paper`."
        ) from error


def answers(evidence: Evidence, claims: Sequence[Claim] | None = None) -> tuple[Answer, ...]:
    """Every claim with its verdict, in the order of the file.

    Raises:
        RecordError: as `load_claims` and `judge`.
    """
    claims = load_claims() if claims is None else claims
    return tuple(Answer(claim, judge(claim, evidence)) for claim in claims)
