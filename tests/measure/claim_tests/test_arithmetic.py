"""FLOPs are counted, not assumed; verdicts on them turn with the counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fa_kernels.measure.claim_tests import arithmetic
from fa_kernels.measure.claim_tests.arithmetic import count_flops
from fa_kernels.measure.claim_tests.evidence import Evidence
from fa_kernels.measure.claim_tests.judged import FAILS, HOLDS, LIMITED
from fa_kernels.variants import RUNGS
from tests.measure.claim_tests.altered import verdict


@pytest.mark.parametrize(
    ("name", "products"),
    [("standard_tiled", (2, 4)), ("flash_q_outer", (2, 5)), ("flash_kv_outer", (2, 5))],
)
def test_products_are_counted(name: str, products: tuple[int, int]) -> None:
    for n, d in ((32, 16), (50, 24)):
        assert count_flops(name, n, d) == tuple(2 * n * n * d * number for number in products)


def test_the_law_of_flops(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict("flops_law", evidence).word == HOLDS
    assert verdict("flops_law", evidence, 2, 2).word == LIMITED
    monkeypatch.setattr(arithmetic, "count_flops", lambda name, n, d: (n * d * d, n**3))
    assert verdict("flops_law", evidence).word == FAILS


@pytest.mark.parametrize(
    ("rebuilds", "word"), [((2, 5), HOLDS), ((2, 4), FAILS), ((2, 6), LIMITED), ((2, 9), FAILS)]
)
def test_a_slight_increase(
    rebuilds: tuple[int, int], word: str, evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"standard_tiled": (2, 4), "flash_q_outer": rebuilds}
    monkeypatch.setattr(arithmetic, "count_flops", lambda name, n, d: counts[name])
    assert verdict("recompute_flops", evidence).word == word


def test_one_launch(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    found = verdict("fused_launch", evidence)
    assert found.word == HOLDS and "flash_q_outer takes one launch" in found.why
    for name, variant in list(RUNGS.items()):
        fused = not variant.keeps_scores_on_chip
        monkeypatch.setitem(RUNGS, name, replace(variant, keeps_scores_on_chip=fused))
    assert verdict("fused_launch", evidence).word == FAILS
