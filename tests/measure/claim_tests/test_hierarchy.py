"""Verdicts on SRAM and HBM turn with the data sheets and with the claim's numbers."""

from __future__ import annotations

from dataclasses import replace

from fa_kernels.measure.claim_tests.evidence import Evidence
from fa_kernels.measure.claim_tests.judged import FAILS, HOLDS, LIMITED, UNTESTED
from fa_kernels.units import GIB
from tests.measure.claim_tests.altered import verdict


def sheets(evidence: Evidence, **changed: object) -> Evidence:
    other = tuple(replace(sheet, **changed) for sheet in evidence.sheets)  # type: ignore[arg-type]
    return replace(evidence, sheets=other)


def test_about_ten_times(evidence: Evidence) -> None:
    found = verdict("sram_bandwidth", evidence)
    assert found.word == HOLDS and "H200" in found.why and "4090" not in found.why
    unmeasured = replace(evidence, ceilings=())
    assert verdict("sram_bandwidth", sheets(unmeasured, hbm_bandwidth_gb_s=100.0)).word == FAILS
    assert verdict("sram_bandwidth", evidence, 1000).word == FAILS
    assert "Measured on the H200" in found.why and evidence.ceilings_run in found.source
    slow = [replace(c, median=100.0) if c.ceiling == "hbm_read" else c for c in evidence.ceilings]
    assert verdict("sram_bandwidth", replace(evidence, ceilings=tuple(slow))).word == LIMITED
    alone = verdict("sram_bandwidth", unmeasured)
    assert alone.word == HOLDS and "Measured" not in alone.why
    assert verdict("sram_bandwidth", sheets(evidence, memory_type="GDDR6")).word == UNTESTED


def test_tens_of_thousands_of_times(evidence: Evidence) -> None:
    found = verdict("sram_capacity", evidence)
    assert found.word == FAILS and "0 of 8" in found.why
    assert verdict("sram_capacity", evidence, 1000, 1e6).word == HOLDS
    assert verdict("sram_capacity", evidence, 1000, 1e4).word == LIMITED


def test_scores_and_one_block(evidence: Evidence) -> None:
    assert verdict("scores_and_sram", evidence).word == HOLDS
    assert verdict("scores_and_sram", evidence, 64).word == FAILS
    assert verdict("scores_and_sram", evidence, 200).word == LIMITED


def test_the_a100(evidence: Evidence) -> None:
    assert verdict("a100_memory", evidence).word == HOLDS
    assert verdict("a100_memory", sheets(evidence, hbm_capacity_bytes=64 * GIB)).word == LIMITED
    assert verdict("a100_memory", evidence, 1, 1, 1, 1, 1, 1).word == FAILS
