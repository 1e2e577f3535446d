"""The claims of the two documents that the suite began with, data/paper/claims.csv: one a row.

No verdict stands in the file: `claim_tests` computes it from runs, models and data sheets.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from fa_kernels.measure.paper import PAPER_DIR, REMEDY, lines_of
from fa_kernels.measure.records import RecordError

FILE = "claims.csv"
#: The two documents: an explanation of FlashAttention, and notes on its first paper.
SEEDS: Mapping[str, str] = {
    "explainer": "FlashAttention：メモリ効率的なアテンション計算",
    "paper notes": "FlashAttention: IOを意識した高速かつメモリ効率の高い厳密なアテンション",
}
BOTH = "both"
ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
NOTEBOOK = re.compile(r"\d\d_[a-z0-9_]+")
TEST = re.compile(r"[a-z][a-z0-9_]*")
NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)


@dataclass(frozen=True)
class Claim:
    """One claim; columns in order.

    `seed` is a key of `SEEDS`, or "both". `claim_ja` are the document's own words, of the first
    one where both say it, with formulas as text. `numbers` are those of the claim, which its test
    takes as limits. `notebook` (without .ipynb) and `cell` (a heading in it, as it stands there)
    are where a reader can test it; a notebook that is to come has no cell yet. `test` names a
    function of `claim_tests`; where there is none, `reason` says why the claim is not tested here.
    """

    id: str
    seed: str
    claim: str
    claim_ja: str
    numbers: tuple[float, ...]
    notebook: str
    cell: str
    test: str
    reason: str

    @property
    def seeds(self) -> tuple[str, ...]:
        """The documents that make it."""
        return tuple(SEEDS) if self.seed == BOTH else (self.seed,)


COLUMNS = tuple(field.name for field in fields(Claim))


@functools.lru_cache(maxsize=8)
def load_claims(folder: Path | None = None) -> tuple[Claim, ...]:
    """All claims, in the order of the file.

    Raises:
        RecordError: a missing or unreadable file, other columns, or a row that `claim_fault`
            refuses; the message names file, line, column and remedy.
    """
    path = (folder or PAPER_DIR) / FILE
    where = f"{path.parent.name}/{FILE}"
    claims: list[Claim] = []
    lines: dict[str, int] = {}
    for line, cells in lines_of(path, COLUMNS):
        at = f"{where} line {line}"
        claim = _parse(cells, at)
        fault = claim_fault(claim)
        if claim.id in lines:
            fault = f"id = {claim.id!r} is that of line {lines[claim.id]}"
        if fault:
            raise RecordError(f"{at}: {fault}; {REMEDY}.")
        lines[claim.id] = line
        claims.append(claim)
    if not claims:
        raise RecordError(f"{where} holds no claims; {REMEDY}.")
    return tuple(claims)


def _parse(cells: Sequence[str], at: str) -> Claim:
    if len(cells) != len(COLUMNS):
        raise RecordError(f"{at}: {len(cells)} cells instead of {len(COLUMNS)}; {REMEDY}.")
    text = dict(zip(COLUMNS, cells, strict=True))
    parts = text["numbers"].split(";") if text["numbers"] else []
    numbers = [float(part) for part in parts if NUMBER.fullmatch(part)]
    if len(numbers) < len(parts) or not all(map(math.isfinite, numbers)):
        raise RecordError(
            f"{at}: numbers = {text['numbers']!r} are not numbers with ';' between; {REMEDY}."
        )
    return Claim(**{**text, "numbers": tuple(numbers)})  # type: ignore[arg-type]


def claim_fault(claim: Claim) -> str | None:
    """What is wrong with a claim, in words, or None."""
    for column, pattern, like in (
        ("id", ID, "recompute-pays"),
        ("notebook", NOTEBOOK, "04_hbm_traffic"),
        ("test", TEST, "recompute_pays"),
    ):
        value = getattr(claim, column)
        if (value or column == "id") and not pattern.fullmatch(value):
            return f"{column} = {value!r} is not like {like!r}"
    if claim.seed not in (*SEEDS, BOTH):
        return f"seed = {claim.seed!r} is not one of {(*SEEDS, BOTH)}"
    for column in ("claim", "claim_ja"):
        if not getattr(claim, column).strip():
            return f"{column} is empty"
    if bool(claim.test) == bool(claim.reason):
        return f"test = {claim.test!r} and reason = {claim.reason!r}: exactly one of them is given"
    if claim.test and not claim.notebook:
        return (
            f"notebook = {claim.notebook!r}: a claim with a test names where a reader can test it"
        )
    if claim.cell and not claim.notebook:
        return f"cell = {claim.cell!r} without a notebook"
    return None
