"""What a test of a claim says: one of four words, and a sentence with the numbers behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

HOLDS = "holds"
LIMITED = "holds with a limit"
FAILS = "does not hold as stated"
UNTESTED = "not tested here"
#: The words, and what each means: a test is a list of comparisons, and the word counts them.
MEANINGS: Mapping[str, str] = {
    HOLDS: "every comparison that was made agrees with the claim",
    LIMITED: "some comparisons agree with the claim and some do not: the sentence says which",
    FAILS: "no comparison that was made agrees with the claim as it is worded",
    UNTESTED: "nothing here can be compared with it: the sentence says why",
}


@dataclass(frozen=True)
class Judged:
    """A verdict: `word` of `MEANINGS`, `why` in one sentence, `source` of its numbers.

    `met` of `made` comparisons agree with the claim; the word follows from them.
    """

    word: str
    why: str
    source: str
    met: int = 0
    made: int = 0


def judged(checks: Sequence[bool], why: str, source: str) -> Judged:
    """The verdict of these comparisons; of none at all it is `UNTESTED`."""
    met, made = sum(map(bool, checks)), len(checks)
    if not made:
        return untested(why, source)
    word = HOLDS if met == made else LIMITED if met else FAILS
    return Judged(word, why, source, met, made)


def untested(why: str, source: str = "") -> Judged:
    """No verdict, and why not."""
    return Judged(UNTESTED, why, source)


def nothing_recorded(what: str) -> Judged:
    """No verdict where a run is missing: `what` it would have to hold."""
    return untested(f"No recorded run of this GPU holds {what}.")


def share(checks: Sequence[bool]) -> str:
    """ "12 of 60"."""
    return f"{sum(map(bool, checks))} of {len(checks)}"
