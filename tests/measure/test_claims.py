"""The list of claims: read whole, damaged files named, and every cell it points to is there."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fa_kernels.device import device
from fa_kernels.measure import claims
from fa_kernels.measure.claim_tests.evidence import Evidence
from fa_kernels.measure.claim_tests.judged import UNTESTED
from fa_kernels.measure.claim_tests.registry import answers
from fa_kernels.measure.claims import (
    BOTH,
    COLUMNS,
    FILE,
    SEEDS,
    Claim,
    claim_fault,
    load_claims,
)
from fa_kernels.measure.paper import PAPER_DIR
from fa_kernels.measure.records import RecordError

ROOT = PAPER_DIR.parents[1]
REMEDY = r"restore it with `git checkout data/paper`\.$"
WHOLE = (PAPER_DIR / FILE).read_bytes()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    load_claims.cache_clear()
    yield
    load_claims.cache_clear()


def headings(notebook: str) -> list[str] | None:
    """Those of a notebook, or None where there is no such notebook yet."""
    path = ROOT / "notebooks" / f"{notebook}.ipynb"
    if not path.exists():
        return None
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    lines = [line for c in cells if c["cell_type"] == "markdown" for line in _lines(c["source"])]
    return [match[1].strip() for line in lines if (match := re.match(r"#+ (.*)", line))]


def _lines(source: str | list[str]) -> list[str]:
    return "".join(source).splitlines()


def test_both_documents_are_covered() -> None:
    found = load_claims()
    for seed in (*SEEDS, BOTH):
        assert sum(claim.seed == seed for claim in found) >= 5
    assert len({claim.id for claim in found}) == len({c.claim for c in found}) == len(found) > 40
    for name in ("sram-faster", "sram-smaller", "two-to-four-times", "recompute-pays"):
        assert name in {claim.id for claim in found}
    assert [claim.numbers for claim in found if claim.id == "gpt2-megatron"] == [(1.8,)]


#: Whose numbers are said in words ("quadratic", "about ten times") or as exponents.
IN_WORDS = {
    "flops-quadratic", "time-quadratic", "sram-faster", "sram-smaller", "scores-exceed-sram",
    "extra-memory-linear", "orders-of-magnitude", "flash-law",
}  # fmt: skip


def test_the_numbers_of_a_claim_stand_in_it() -> None:
    elsewhere = set()
    for claim in load_claims():
        said = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", claim.claim)}
        if not said.issuperset(claim.numbers):
            elsewhere.add(claim.id)
    assert elsewhere == IN_WORDS


def test_every_notebook_and_heading_exists_or_nothing_is_tested_there() -> None:
    for answer in answers(Evidence.on(device("h200"))):
        claim, untested = answer.claim, answer.judged.word == UNTESTED
        if not claim.notebook:
            assert untested, claim.id
            continue
        found = headings(claim.notebook)
        if found is None:
            assert untested and not claim.cell, f"{claim.id}: {claim.notebook} is not there"
        elif claim.cell:
            # Once and not more, or a reader would not know which is meant.
            assert found.count(claim.cell) == 1, f"{claim.id}: {claim.notebook}, {claim.cell!r}"
        else:
            assert untested, f"{claim.id} names no cell of {claim.notebook}"


def test_headings_are_found() -> None:
    assert headings("99_nothing") is None
    assert "Why bytes matter" in (headings("00_start_here") or [])


def test_the_schema_says_what_the_loader_reads() -> None:
    text = (PAPER_DIR.parent / "schema/claims.schema.json").read_text(encoding="utf-8")
    fields = {field["name"]: field for field in json.loads(text)["fields"]}
    assert tuple(fields) == COLUMNS
    limits = {name: field.get("constraints", {}) for name, field in fields.items()}
    assert limits["seed"]["enum"] == [*SEEDS, BOTH]
    for name in ("id", "notebook", "test"):
        assert limits[name]["pattern"] == getattr(claims, name.upper()).pattern
    required = [name for name in fields if limits[name].get("required")]
    assert all(getattr(claim, name) for claim in load_claims() for name in required)


def test_seeds_of_a_claim() -> None:
    found = {claim.seed: claim.seeds for claim in load_claims()}
    assert found == {**{seed: (seed,) for seed in SEEDS}, BOTH: tuple(SEEDS)}


# -- damaged files ---------------------------------------------------------------------------------


def damaged(tmp_path: Path, text: bytes | None) -> str:
    folder = tmp_path / "paper"
    folder.mkdir()
    if text is not None:
        (folder / FILE).write_bytes(text)
    with pytest.raises(RecordError) as error:
        load_claims(folder)
    message = str(error.value)
    assert message.startswith("paper/claims.csv") and re.search(REMEDY, message), message
    return message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"),
        (b"", "has other columns than id, seed, claim"),
        (b"\xff\xfe" + WHOLE, "cannot be read"),
        (WHOLE.splitlines(keepends=True)[0], "holds no claims"),
        (WHOLE.replace(b"claim_ja", b"words", 1), "has other columns"),
        (WHOLE.replace(b",2;1,", b",2;1,x,", 1), "line 2: 10 cells instead of 9"),
        (WHOLE.replace(b",2;1,", b",2;-1,", 1), "line 2: numbers = '2;-1' are not numbers"),
        (WHOLE.replace(b",2;1,", b",2;1e999,", 1), "line 2: numbers = '2;1e999'"),
        (WHOLE.replace(b"time-quadratic", b"flops-quadratic"), "line 3: id = .* that of line 2"),
        (WHOLE.replace(b"05_kernel_ladder", b"ladder", 1), "line 2: notebook = 'ladder' is not"),
        (WHOLE.replace(b",both,", b",all,", 1), "line 2: seed = 'all' is not one of"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, text: bytes | None, says: str) -> None:
    assert re.search(says, damaged(tmp_path, text))


def test_a_copy_is_read(tmp_path: Path) -> None:
    shutil.copy(PAPER_DIR / FILE, tmp_path / FILE)
    assert load_claims(tmp_path) == load_claims()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": "Two words"}, "id = 'Two words' is not like 'recompute-pays'"),
        ({"test": "Speedup()"}, "test = 'Speedup()' is not like"),
        ({"test": ""}, "test = '' and reason = '': exactly one"),
        ({"reason": "Too long."}, "exactly one of them is given"),
        ({"claim_ja": " "}, "claim_ja is empty"),
        ({"notebook": ""}, "a claim with a test names where"),
        ({"notebook": "", "test": "", "reason": "No."}, "without a notebook"),
    ],
)
def test_a_wrong_claim_is_refused(change: dict[str, str], says: str) -> None:
    claim = load_claims()[0]
    assert claim_fault(claim) is None
    wrong: Claim = replace(claim, **change)  # type: ignore[arg-type]
    assert says in (claim_fault(wrong) or "")
