"""The memory widget: a sentence that only says what was recorded, and knobs that move it."""

from __future__ import annotations

from pathlib import Path

import pytest

import fa_kernels as fa
from fa_kernels.session import Session, session
from fa_kernels.widgets.text import labels
from tests.figures.synthetic_backward import RUN_ID, write_backward_run

TEXT = labels("saved_memory")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Session:
    root: Path = tmp_path_factory.mktemp("backward")
    write_backward_run(root)
    return session("numpy", root=root)


def test_the_sentence_holds_recorded_powers_and_what_did_not_fit(trained: Session) -> None:
    widget = fa.saved_memory(session=trained)
    said = widget.sentence.value
    assert "The recorded peak of both passes grows like N^" in said
    assert "Not run with standard from N = 65536 on: does not fit" in said
    assert "model N^1.00" in said and RUN_ID in widget.table.value
    assert "993" in said and widget.figure.alt.startswith("At N = 65536")


def test_without_a_run_it_says_so_and_keeps_the_model(bare: Session) -> None:
    widget = fa.saved_memory(session=bare)
    assert TEXT["said_model"] in widget.sentence.value
    assert "16 GiB" in widget.sentence.value and TEXT["no_source"] in widget.table.value
    assert TEXT["not_recorded"] in widget.table.value


def test_knobs_leave_the_recorded_shape_and_come_back(trained: Session) -> None:
    widget = fa.saved_memory(session=trained)
    first = widget.sentence.value
    widget.heads.value = 8
    assert TEXT["said_model"] in widget.sentence.value and "64 GiB" in widget.sentence.value
    widget.head_dim.value = 128
    widget.dtype.value = "fp32"
    assert not widget.figure.stale and widget.message.value == ""
    widget.heads.value, widget.head_dim.value, widget.dtype.value = 2, 64, "fp16"
    assert widget.sentence.value == first


@pytest.mark.parametrize("bad", [{"heads": 0}, {"heads": 1.5}, {"d": 300}, {"dtype": "int8"}])
def test_bad_values_are_refused_in_words(bare: Session, bad: dict) -> None:
    with pytest.raises((ValueError, NotImplementedError), match=next(iter(bad))):
        fa.saved_memory(**bad, session=bare)


def test_typing_a_bad_number_of_heads(bare: Session) -> None:
    widget = fa.saved_memory(session=bare)
    widget.heads.type("0")
    assert "heads = 0" in widget.heads.error and widget.heads.value == 2
