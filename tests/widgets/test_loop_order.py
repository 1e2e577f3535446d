"""The widget of the loop order: both effects, or an honest empty state."""

from __future__ import annotations

from pathlib import Path

import pytest

import fa_kernels as fa
from fa_kernels.session import Session, session
from fa_kernels.widgets.loop_order import loop_order
from fa_kernels.widgets.text import labels
from tests.figures.synthetic import RUN_ID, write_run

TEXT = labels("loop_order")


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Session:
    root: Path = tmp_path_factory.mktemp("grid")
    write_run(root, head_dims=(64,), dtypes=("float16",))
    return session("numpy", root=root)


def test_the_sentence_has_both_effects(timed: Session) -> None:
    widget = loop_order(session=timed)
    assert "Swapping the loops alone" in widget.sentence.value
    assert RUN_ID in widget.table.value and TEXT["not_recorded"] not in widget.table.value


def test_nothing_recorded_is_said_and_the_model_stays(bare: Session) -> None:
    widget = fa.loop_order(session=bare)
    assert "Not recorded at this d, M and dtype" in widget.sentence.value
    assert "GB of requested bytes into" in widget.sentence.value
    assert TEXT["no_source"] in widget.table.value


def test_the_knobs_move_it(timed: Session) -> None:
    widget = loop_order(session=timed)
    before = widget.table.value
    widget.sram.value = 128
    assert widget.table.value != before and "M = 128 KiB" in widget.table.value
    widget.head_dim.value = 96  # not recorded
    assert "Not recorded at this d, M and dtype" in widget.sentence.value
    widget.dtype.value = "fp32"
    assert not widget.figure.stale and widget.message.value == ""


def test_what_is_missing_is_named(bare: Session) -> None:
    widget = loop_order(session=bare)
    notes = " ".join(note["text"] for note in widget.figure.spec["layout"]["annotations"])
    for label in ("flash, K/V outer", "flash, one block per head"):
        assert label in widget.sentence.value and label in notes


def test_a_single_recorded_length_is_not_called_a_range() -> None:
    """At M = 100 KiB the tiles are those of a recorded budget only where N cuts them."""
    view = loop_order(64, 100, session=session("numpy"))
    assert "Recorded at N = 128 alone" in view.sentence.value
    assert " to " not in view.sentence.value.split("Choose")[0].split("At N")[0]
