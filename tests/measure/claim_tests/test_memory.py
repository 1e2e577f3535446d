"""Verdicts on device memory turn with what was allocated, kept and counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fa_kernels.measure.claim_tests.evidence import Evidence
from fa_kernels.measure.claim_tests.judged import FAILS, HOLDS, LIMITED, UNTESTED
from fa_kernels.measure.records import Row
from fa_kernels.variants import VARIANTS
from tests.measure.claim_tests.altered import altered, scaled, verdict, with_rows


def test_extra_memory(evidence: Evidence) -> None:
    found = verdict("extra_memory", evidence)
    assert found.word == HOLDS and "standard as N^1.99" in found.why
    growing = altered(evidence, scaled(lambda row: row.seqlen_q), "flash_q_outer")
    assert verdict("extra_memory", growing).word == LIMITED
    assert verdict("extra_memory", evidence, 3, 2).word == FAILS


def test_what_does_not_fit(evidence: Evidence) -> None:
    assert verdict("context_limit", evidence).word == HOLDS

    def too_large(row: Row) -> Row:
        return replace(row, status="does not fit", p20=None, median=None, p80=None)

    fused = altered(evidence, too_large, "flash_q_outer", "torch_flash", metric="latency_ms")
    assert verdict("context_limit", fused).word == FAILS
    fits = altered(evidence, lambda row: None, status="does not fit")
    assert verdict("context_limit", fits).word == UNTESTED


def test_what_the_backward_reads_of_the_forward(evidence: Evidence) -> None:
    found = verdict("only_statistics_saved", evidence)
    assert found.word == LIMITED and "without O" in found.why
    without = altered(evidence, scaled(0), metric="hbm_out_bytes", pass_="bwd")
    assert verdict("only_statistics_saved", without).word == HOLDS
    neither = altered(evidence, scaled(0), metric="hbm_lse_bytes", pass_="bwd")
    assert verdict("only_statistics_saved", neither).word == FAILS


def test_a_backward_that_rebuilds_moves_no_scores(evidence: Evidence) -> None:
    assert verdict("scores_rebuilt", evidence).word == HOLDS

    def moved(row: Row) -> Row | None:
        counted = (row.pass_, row.metric) == ("bwd", "hbm_bytes")
        return replace(row, metric="hbm_p_bytes") if counted else None

    assert verdict("scores_rebuilt", with_rows(evidence, moved)).word == FAILS


def test_like_checkpointing(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict("like_checkpointing", evidence).word == HOLDS
    variant = VARIANTS["flash_q_outer"]
    assert variant.backward is not None
    greedy = replace(variant, backward=replace(variant.backward, saved=("p", "p", "out")))
    monkeypatch.setitem(VARIANTS, "flash_q_outer", greedy)
    assert verdict("like_checkpointing", evidence).word == LIMITED
