"""Bounds against counters: what holds, what does not, and what was not recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import fa_kernels as fa
from fa_kernels.session import Session, session
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.dram_check import check_dram
from fa_kernels.widgets.text import labels
from tests.figures.synthetic_counters import COUNTERS_ID, write_counters

TEXT = labels("dram_check")
#: Algorithms and controls; the same algorithm on other units has other tiles and no row.
LABELS = [variant.label for variant in VARIANTS.values() if variant.same_algorithm is None]


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Session:
    root: Path = tmp_path_factory.mktemp("counters")
    write_counters(root)
    return session("numpy", root=root)


def test_bounds_hold_and_name_their_run(counted: Session) -> None:
    check = check_dram(4096, 64, 64, device="h200", session=counted)
    assert check.recorded and check.ok
    assert COUNTERS_ID in check.caption() and COUNTERS_ID in str(check)
    assert 'data-fa-table="dram-check"' in check._repr_html_()
    assert [line.label for line in check.lines] == LABELS


def test_dram_counts_what_was_left_in_the_l2(counted: Session) -> None:
    line = check_dram(4096, 64, 64, device="h200", session=counted).lines[-1]
    assert line.ratio == pytest.approx(1.05, abs=1e-4)


def test_a_number_below_its_bound_is_said(counted: Session) -> None:
    check = check_dram(4096, 64, 64, device="h200", session=counted)
    low = replace(check.lines[0], dram_bytes=0.5 * check.lines[0].compulsory_bytes)
    broken = replace(check, lines=[low, *check.lines[1:]])
    assert not broken.ok and "please report it" in broken.caption()


def test_without_counters_the_bounds_stand_alone(bare: Session) -> None:
    check = fa.check_dram(session=bare)
    assert not check.recorded and check.ok
    assert TEXT["unrecorded"] in check.caption()
    assert all(row[6] == TEXT["not_recorded"] for row in check.cells()[1:])


def test_every_line_of_the_text_is_in_words(bare: Session) -> None:
    said = str(check_dram(4096, 64, 64, device="h200", session=bare))
    assert "K, V of 8 heads at once" in said and "S, P of all 128 heads" in said
    assert TEXT["fits"] in said and TEXT["too_large"] in said


def test_a_launch_that_the_device_refuses_is_named(bare: Session) -> None:
    said = check_dram(4096, 64, 256, device="t4", session=bare).caption()
    assert "cannot be launched" in said and "flash" in said


@pytest.mark.parametrize(
    ("sizes", "launched", "why"),
    [
        ((4096, 256, 1024), {"naive standard"}, "fp32 registers per thread"),
        ((4096, 192, 512), {"naive standard"}, "lower block_m to 160 or less"),
        (
            (16777216, 1, 1),
            {"flash, K/V outer", "flash, K/V outer, 16-bit O", "flash, one block per head"},
            "CUDA allows 2147483647",
        ),
    ],
)
def test_what_nobody_can_launch_leaves_the_rest_of_the_table(
    sizes: tuple[int, int, int], launched: set[str], why: str, bare: Session
) -> None:
    check = check_dram(*sizes, device="h200", session=bare)
    assert {line.label for line in check.lines if line.again} == launched
    rows = {row[0]: row for row in check.cells()[1:]}
    assert list(rows) == LABELS
    for label, row in rows.items():
        assert (row[1:4] == [TEXT["refused"], "", ""]) == (label not in launched)
        assert row[4] and row[5], "the models need no launch"
    assert why in check.caption() and check.caption().count(why) < 4
