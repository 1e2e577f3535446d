"""The table of the Θ laws: numbers as attributes, text and HTML that say their source."""

from __future__ import annotations

from pathlib import Path

import pytest

import fa_kernels as fa
from fa_kernels.session import Session, session
from fa_kernels.variants import ALGORITHMS
from fa_kernels.widgets.theta_law import theta_law
from tests.figures.synthetic import RUN_ID
from tests.figures.synthetic_counters import COUNTERS_ID, write_counters


def test_it_is_at_the_front_door() -> None:
    assert fa.theta_law is theta_law


def test_numbers_are_attributes(recorded: Session) -> None:
    table = theta_law(M_kib=32, session=recorded)
    line = table.lines["flash_kv_outer"]
    assert list(table.lines) == list(ALGORITHMS)
    assert line.paper["M"].values == (16, 32, 64)
    assert line.paper["M"].exponent == pytest.approx(-1, abs=0.05)
    assert line.counted["N"].exponent == line.launched["N"].exponent


def test_text_and_page_say_law_range_and_source(recorded: Session, bare: Session) -> None:
    table = theta_law(M_kib=32, session=recorded)
    text, html = str(table), table._repr_html_()
    assert "N 1024 to 16384, d 32 to 128, M 16 to 64 KiB" in text
    assert "around N = 4096, d = 64, M = 32 KiB, fp16, H200 SXM" in text
    assert "N² d² / M" in text
    assert f"counted in the kernel ({RUN_ID})" in text
    assert "M^−1.0" in text
    assert "M<sup>−1.0" in html
    assert "^" not in html
    without = str(theta_law(M_kib=32, session=bare))
    assert "counted" not in without


def test_dram_has_a_column_of_its_own_where_it_was_counted(tmp_path: Path, bare: Session) -> None:
    assert "DRAM" not in str(theta_law(device="h200", M_kib=64, session=bare))
    write_counters(tmp_path)
    said = str(theta_law(device="h200", M_kib=64, session=session("numpy", root=tmp_path)))
    assert f"DRAM, by hardware counters ({COUNTERS_ID})" in said
    assert "(1024 to 4096)" in said


def test_fewer_recorded_points_are_named(recorded: Session) -> None:
    """At M = 192 KiB a run holds 192 alone of 96, 192, 384; at N = 32768 it ends at 65536."""
    table = theta_law(32768, M_kib=32, session=recorded)
    assert "(8192 to 65536)" in str(table)
    assert "M" not in theta_law(M_kib=192, session=recorded).lines["flash_q_outer"].counted


def test_a_pattern_adds_the_density(bare: Session) -> None:
    table = theta_law(M_kib=32, pattern="local", density=1 / 8, session=bare)
    assert table.lines["flash_kv_outer"].paper["s"].exponent == pytest.approx(1, abs=0.1)
    assert table.lines["standard_tiled"].paper["s"].exponent == 0
    assert "N d + N² d² s / M" in str(table)


def test_bad_values_are_refused(bare: Session) -> None:
    with pytest.raises(ValueError, match="d = 0 is out of range"):
        theta_law(d=0, session=bare)
