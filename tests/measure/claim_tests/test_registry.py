"""Every claim gets a verdict, every test is used, and no data at all gives no verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fa_kernels.measure.claim_tests.evidence import Evidence
from fa_kernels.measure.claim_tests.judged import FAILS, HOLDS, LIMITED, MEANINGS, UNTESTED
from fa_kernels.measure.claim_tests.registry import TESTS, answers, judge
from fa_kernels.measure.claims import load_claims
from fa_kernels.measure.records import RecordError
from tests.measure.claim_tests.altered import claim_of

#: What needs no run and no data sheet: NumPy, models, plans.
WITHOUT_DATA = {
    "flops_law", "recompute_flops", "fused_launch", "online_softmax", "merge_rule",
    "normalised_update", "whole_row_needed", "stable_softmax", "tiles_exact",
    "gradients_from_statistics", "standard_law", "flash_law", "tile_rule", "like_checkpointing",
}  # fmt: skip


def test_every_test_is_used_and_every_name_is_known() -> None:
    assert {claim.test for claim in load_claims()} - {""} == set(TESTS)


def test_every_claim_gets_a_verdict_and_a_sentence(evidence: Evidence) -> None:
    found = answers(evidence)
    assert [answer.claim for answer in found] == list(load_claims())
    for answer in found:
        judged = answer.judged
        assert judged.word in MEANINGS
        assert judged.why[0].isupper() and judged.why.endswith("."), answer.claim.id
        assert bool(judged.made) == (judged.word != UNTESTED)
        if judged.word != UNTESTED:
            assert judged.source and any(char.isdigit() for char in judged.why), answer.claim.id
    assert {answer.judged.word for answer in found} == {HOLDS, LIMITED, FAILS, UNTESTED}


def test_without_data_only_numpy_and_models_judge(nothing: Evidence) -> None:
    for answer in answers(nothing):
        tested = answer.claim.test in WITHOUT_DATA
        assert (answer.judged.word != UNTESTED) == tested, answer.claim.id
        assert answer.judged.why


def test_an_unknown_test_and_missing_numbers_are_named(evidence: Evidence) -> None:
    claim = claim_of("speedup")
    with pytest.raises(RecordError, match=r"claim 'two-to-four-times': test = 'guess' is not one"):
        judge(replace(claim, test="guess"), evidence)
    with pytest.raises(RecordError, match=r"speedup cannot judge numbers = \(\) .*git checkout"):
        judge(replace(claim, numbers=()), evidence)
