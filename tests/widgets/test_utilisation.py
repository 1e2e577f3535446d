"""How busy the units are: the sentence and the table say what was counted, and what was not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fa_kernels as fa
from fa_kernels.session import Session, session
from fa_kernels.widgets.text import labels
from fa_kernels.widgets.utilisation import told, utilisation
from tests.figures.test_utilisation import rows
from tests.measure.rows import write_run

TEXT = labels("utilisation")


def plain(html: str) -> str:
    return " ".join(re.sub("<[^>]*>", " ", html).split())


@pytest.fixture
def counted(tmp_path: Path) -> Session:
    write_run(tmp_path, rows("flash_q_outer"), "20260103-h200-counters", kind="counters")
    return session("numpy", root=tmp_path)


def test_it_is_at_the_front_door() -> None:
    assert fa.utilisation is utilisation


def test_the_sentence_names_the_busiest_unit_and_what_is_missing(counted: Session) -> None:
    view = utilisation(device="h200", session=counted)
    said = plain(view.sentence.value)
    assert "Rung 04: nothing is busier than the issue slots, at 70 % of the peak" in said
    assert "DRAM delivers 1 % of its 4.8 TB/s" in said
    assert "Not counted here: rung 01, rung 02, rung 03, rung 05, rung 06." in said
    table = plain(view.table.value)
    assert "20260103-h200-counters" in table and TEXT["not_counted"] in table
    assert view.figure.alt.startswith(said.strip())


def test_a_tensor_pipe_that_was_not_counted_is_said(tmp_path: Path) -> None:
    some = [r for r in rows("flash_mma") if r.metric != "tensor_pct"]
    write_run(tmp_path, some, "20260103-h200-counters", kind="counters")
    view = utilisation(device="h200", session=session("numpy", root=tmp_path))
    assert TEXT["said_without_tensor"] in plain(view.sentence.value)


def test_of_a_run_that_was_stopped_early_only_the_bytes_are_said(tmp_path: Path) -> None:
    busy = ("tensor_pct", "fma_pct", "sm_pct", "occupancy_pct")
    some = [r for r in rows("flash_wgmma") if r.metric not in busy]
    write_run(tmp_path, [*rows("flash_mma"), *some], "20260103-h200-counters", kind="counters")
    view = utilisation(device="h200", session=session("numpy", root=tmp_path))
    said = plain(view.sentence.value)
    assert "Rung 05: nothing is busier than the issue slots" in said
    assert "Of rung 06 only the bytes were counted: DRAM delivers 1 % of its 4.8 TB/s." in said
    assert "rung 06" not in said.partition("Not counted here:")[2] and "Rung 06" not in said
    assert [one.series for one in told(view.used)] == ["flash_mma"]


def test_elsewhere_it_says_where_there_are_counters(counted: Session) -> None:
    view = utilisation(device="h200", session=counted)
    view.seqlen.value = 8192
    assert "counted in fp16: N = 4096 at d = 64" in plain(view.sentence.value)


def test_without_a_run_it_says_so(bare: Session) -> None:
    said = plain(utilisation(device="h200", session=bare).sentence.value)
    assert f"counted in fp16: {TEXT['none']}" in said
    with pytest.raises(ValueError, match="d = 0 is out of range"):
        utilisation(d=0, session=bare)


def test_what_is_compared_with_a_pin_is_what_the_sentence_is_about(counted: Session) -> None:
    widget = fa.utilisation(session=counted)
    found = widget.headline()
    about = told(widget.used)
    assert about and len(found) == 2 * len(about)
    for one in about:
        assert one.busiest
        share = labels("utilisation")["panels"][one.busiest[0]]
        assert found[f"{one.name}, time"] == (one.ms, "ms")
        assert found[f"{one.name}, {share}"] == (one.busiest[1], "%")
