"""Verdicts on traffic turn with the counted bytes, and with the models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fa_kernels.measure.claim_tests import bytes_moved
from fa_kernels.measure.claim_tests.evidence import Evidence
from fa_kernels.measure.claim_tests.judged import FAILS, HOLDS, LIMITED
from fa_kernels.measure.records import Row
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.model import Traffic
from fa_kernels.variants import VARIANTS
from tests.measure.claim_tests.altered import altered, scaled, verdict


def test_standard_attention_writes_and_reads_its_scores(evidence: Evidence) -> None:
    found = verdict("standard_writes_scores", evidence)
    assert found.word == HOLDS and found.made == found.met > 100
    once = altered(evidence, scaled(0.4), metric="hbm_s_bytes")
    assert verdict("standard_writes_scores", once).word == LIMITED
    fewer = altered(once, scaled(1e-3), metric="hbm_p_bytes")
    assert verdict("standard_writes_scores", fewer).word == FAILS


def test_fused_kernels_move_no_scores(evidence: Evidence) -> None:
    assert verdict("scores_stay_on_chip", evidence).word == HOLDS
    more = altered(evidence, scaled(1.5), metric="hbm_bytes")
    assert verdict("scores_stay_on_chip", more).word == FAILS
    one = altered(evidence, scaled(1.5), "flash_q_outer", metric="hbm_bytes")
    assert verdict("scores_stay_on_chip", one).word == LIMITED

    def fused(row: Row) -> Row:
        return replace(row, variant="flash_q_outer")

    written = altered(evidence, fused, "standard_tiled", metric="hbm_s_bytes")
    assert verdict("scores_stay_on_chip", written).word == LIMITED


def test_what_is_written(evidence: Evidence) -> None:
    found = verdict("only_output_written", evidence)
    assert found.word == LIMITED and "2.8 % of the bytes of O" in found.why
    nothing_else = altered(evidence, scaled(0), metric="hbm_lse_bytes")
    assert verdict("only_output_written", nothing_else).word == HOLDS
    again = altered(evidence, scaled(2), metric="hbm_out_bytes")
    assert verdict("only_output_written", again).word == FAILS


def test_fewer_bytes(evidence: Evidence) -> None:
    found = verdict("fewer_bytes", evidence)
    assert found.word == LIMITED and "DRAM moves" in found.why
    more = altered(evidence, scaled(1e4), "flash_q_outer")
    assert verdict("fewer_bytes", more).word == FAILS
    assert verdict("fewer_bytes", altered(evidence, scaled(2), "standard_tiled")).word == HOLDS


def test_the_law_of_standard_attention(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    found = verdict("standard_law", evidence)
    assert (found.word, found.met, found.made) == (LIMITED, 3, 4)

    def cubic(problem: AttentionProblem, tiling: Tiling) -> Traffic:
        return Traffic({"q": problem.seqlen_q**3 * problem.head_dim**2})

    other = replace(VARIANTS["standard_tiled"], paper=cubic, launched=cubic)
    monkeypatch.setitem(VARIANTS, "standard_tiled", other)
    assert verdict("standard_law", evidence).word == FAILS


def test_the_law_of_flashattention(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    found = verdict("flash_law", evidence)
    assert (found.word, found.met, found.made) == (LIMITED, 4, 6)
    assert verdict("flash_law", evidence, 3, 3, 3).word == FAILS
    kv_outer = VARIANTS["flash_kv_outer"].paper
    other = replace(VARIANTS["flash_q_outer"], paper=kv_outer)
    monkeypatch.setitem(VARIANTS, "flash_q_outer", other)
    assert verdict("flash_law", evidence).word == HOLDS


def test_the_law_of_block_sparse_attention(evidence: Evidence) -> None:
    found = verdict("sparse_law", evidence)
    assert found.word == LIMITED and "time as s^" in found.why
    assert "that of dense attention: holds with a limit" in found.why
    squared = altered(evidence, scaled(lambda row: row.density))
    assert verdict("sparse_law", squared).word == FAILS
    bytes_alone = altered(evidence, scaled(lambda row: row.density), metric="latency_ms")
    assert verdict("sparse_law", bytes_alone).word == LIMITED


def test_tiles_of_the_rule(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    found = verdict("tile_rule", evidence)
    assert (found.word, found.met, found.made) == (LIMITED, 9, 18)
    monkeypatch.setattr(bytes_moved, "paper_smem_bytes", lambda *sizes: 1)
    assert verdict("tile_rule", evidence).word == HOLDS
