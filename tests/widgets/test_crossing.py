"""The widget of the crossing: its sentence follows what was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

import fa_kernels as fa
from fa_kernels.session import Session, session
from fa_kernels.widgets.crossing import crossing
from fa_kernels.widgets.text import labels
from tests.figures.synthetic import RUN_ID, write_run

TEXT = labels("crossing")


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Session:
    root: Path = tmp_path_factory.mktemp("grid")
    write_run(root, head_dims=(64,), dtypes=("float16",), seqlens=(4096,))
    return session("numpy", root=root)


def titles(widget: object) -> str:
    spec = widget.figure.spec  # type: ignore[attr-defined]
    return " ".join(note["text"] for note in spec["layout"]["annotations"])


def test_recorded_times_are_in_the_sentence(timed: Session) -> None:
    widget = crossing(4096, 64, session=timed)
    assert "from M = 82 KiB on" in widget.sentence.value
    assert "At M = 192 KiB its time is" in widget.sentence.value
    assert RUN_ID in titles(widget)


def test_without_times_it_says_so(bare: Session) -> None:
    widget = fa.crossing(session=bare)
    assert TEXT["said_no_time"] in widget.sentence.value
    assert TEXT["not_recorded"] in titles(widget)


def test_a_crossing_out_of_reach_is_named(bare: Session) -> None:
    widget = crossing(4096, 64, device="h200", session=bare)
    widget.head_dim.value = 128
    assert "more than a block can have (227 KiB)" in widget.sentence.value


def test_the_table_holds_the_law_beside_the_search(bare: Session) -> None:
    table = crossing(4096, 64, session=bare).table.value
    assert 'data-fa-table="crossing"' in table
    assert "<td>82</td><td>80</td><td>1.02</td>" in table
