"""Verdicts on SRAM and HBM turn with the data sheets and with the claim's numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fa_kernels.device import device
from fa_kernels.measure.claim_tests.evidence import Evidence
from fa_kernels.measure.claim_tests.hierarchy import sram_bandwidth_tb_s
from fa_kernels.measure.claim_tests.judged import FAILS, HOLDS, LIMITED, UNTESTED
from fa_kernels.units import GIB
from tests.measure.claim_tests.altered import verdict


def test_the_rate_of_shared_memory() -> None:
    """The 19 TB/s that the papers give for an A100: 108 SMs, 128 bytes, 1.41 GHz."""
    assert sram_bandwidth_tb_s(device("a100-40gb")) == pytest.approx(19.49, abs=0.005)


def sheets(evidence: Evidence, **changed: object) -> Evidence:
    other = tuple(replace(sheet, **changed) for sheet in evidence.sheets)  # type: ignore[arg-type]
    return replace(evidence, sheets=other)


def test_about_ten_times(evidence: Evidence) -> None:
    found = verdict("sram_bandwidth", evidence)
    assert found.word == HOLDS and "H200" in found.why and "4090" not in found.why
    assert verdict("sram_bandwidth", sheets(evidence, hbm_bandwidth_gb_s=100.0)).word == FAILS
    assert verdict("sram_bandwidth", evidence, 1000).word == FAILS
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
