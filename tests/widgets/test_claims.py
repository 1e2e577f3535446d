"""The table of claims: counted, filtered, linked; every text is the data's."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

import fa_kernels as fa
from fa_kernels.measure.claim_tests.judged import FAILS, HOLDS, LIMITED, MEANINGS, UNTESTED
from fa_kernels.measure.claims import SEEDS, load_claims
from fa_kernels.session import Session, session
from fa_kernels.widgets.claims import ALL, NO_NOTEBOOK, SIGNS, Claims, counted
from tests.measure.rows import row, write_run


@pytest.fixture(scope="module")
def recorded() -> Session:
    return session("numpy")


@pytest.fixture(scope="module")
def opened(recorded: Session) -> Claims:
    return fa.claims(session=recorded)


@pytest.fixture
def widget(opened: Claims) -> Claims:
    """Without filters; the verdicts are computed once."""
    return Claims(opened.answers, opened.device, ALL, ALL, ALL)


def plain(html: str) -> str:
    return unescape(re.sub("<[^>]*>", " ", html))


def ids(widget: Claims) -> list[str]:
    return re.findall(r'data-fa-claim="([^"]*)"', widget.table.value)


def test_every_claim_has_a_row_with_all_that_is_known(widget: Claims) -> None:
    assert ids(widget) == [claim.id for claim in load_claims()]
    table = plain(widget.table.value)
    for answer in widget.answers:
        for said in (answer.claim.claim, answer.claim.claim_ja, answer.judged.why):
            assert said in table, answer.claim.id
    assert table.count(SIGNS[FAILS]) == sum(a.judged.word == FAILS for a in widget.answers)
    assert 'role="region"' in widget.table.value and 'scope="row"' in widget.table.value


def test_the_sentence_counts_the_rows(widget: Claims) -> None:
    said = plain(widget.sentence.value).strip()
    assert said.startswith(f"{len(load_claims())} claims: ")
    numbers = [int(n) for n in re.findall(r"(\d+) (?:hold|does|do|is|are)", said)]
    assert sum(numbers) == len(load_claims())
    one = [next(a for a in widget.answers if a.judged.word == FAILS)]
    assert counted(one) == "1 claim: 1 does not hold as stated."
    assert counted([]) == "No claim is of this document, verdict and notebook."


def test_filters_work_alone_and_together(widget: Claims) -> None:
    widget.verdict.value = LIMITED
    assert {a.judged.word for a in widget.shown} == {LIMITED} and len(ids(widget)) > 5
    widget.seed.value = "explainer"
    assert all("explainer" in a.claim.seeds for a in widget.shown)
    widget.notebook.value = "06_backward"
    assert ids(widget) == ["only-statistics-saved", "recompute-pays"]
    widget.notebook.value = NO_NOTEBOOK
    assert ids(widget) == [] and "No claim is" in widget.sentence.value
    for control in (widget.verdict, widget.seed, widget.notebook):
        control.value = ALL
    assert len(ids(widget)) == len(load_claims())


def test_arguments_open_the_table_filtered(recorded: Session) -> None:
    found = fa.claims("00_start_here", HOLDS, "explainer", session=recorded)
    assert [c.value for c in (found.notebook, found.verdict, found.seed)] == [
        "00_start_here", HOLDS, "explainer",
    ]  # fmt: skip
    assert 0 < len(found.shown) < len(found.answers)


def test_links_lead_to_notebook_and_heading(widget: Claims) -> None:
    links = re.findall(r'<a href="([^"]*)" target="_blank">([^<]*)</a>', widget.table.value)
    assert len(links) == sum(bool(a.claim.cell) for a in widget.answers)
    href, words = links[0]
    assert href == "05_kernel_ladder.ipynb#What-the-instructions-are-for"
    assert words == "05 kernel ladder: What the instructions are for"
    notebooks = Path(__file__).parents[2] / "notebooks"
    assert all((notebooks / href.split("#")[0]).exists() for href, _ in links)
    assert "10 training (to come)" in plain(widget.table.value)


def test_the_words_are_explained(widget: Claims) -> None:
    for word, meaning in MEANINGS.items():
        assert word in widget.meanings.value and meaning in widget.meanings.value
    assert [value for _, value in widget.seed.options] == [ALL, *SEEDS]


def test_other_runs_give_other_verdicts(tmp_path: Path, recorded: Session) -> None:
    """A made-up run in which fused attention is the slower one."""
    eager, fused = (
        row(provider=name, variant="sdpa", block_m=None, block_n=None, p20=ms, median=ms, p80=ms)
        for name, ms in (("torch_eager", 1.0), ("torch_flash", 2.0))
    )
    write_run(tmp_path, [eager, fused])
    other = session("numpy", root=tmp_path)
    found = {a.claim.id: a.judged for a in fa.claims(session=other).answers}
    assert found["two-to-four-times"].word == FAILS
    assert "is 0.5 times as fast" in found["two-to-four-times"].why
    assert found["extra-memory-linear"].word == UNTESTED
    assert found["online-softmax-exact"].word == HOLDS


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"notebook": "99"}, "notebook = '99' is not known: use one of all, 00_start_here"),
        ({"verdict": "maybe"}, "verdict = 'maybe' is not known: use one of all, holds"),
        ({"seed": 3}, "seed = 3 is not known: use one of all, explainer, paper notes"),
        ({"device": "abacus"}, "device = 'abacus' is not known"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        fa.claims(**arguments)
