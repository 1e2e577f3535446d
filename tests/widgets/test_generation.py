"""Text by four ways: what is said follows from the run, and without one nothing is claimed."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

import fa_kernels as fa
from fa_kernels.figures.provenance import Provenance, Shown
from fa_kernels.figures.recorded_generation import WAYS
from fa_kernels.session import Session, session
from tests.figures.synthetic_generation import (
    GENERATION_ID,
    generation_rows,
    write_generation_run,
)


def plain(text: str) -> str:
    return html.unescape(re.sub("<[^>]*>", "", text))


@pytest.fixture
def written(tmp_path: Path) -> Session:
    write_generation_run(tmp_path)
    return session("numpy", root=tmp_path)


def test_without_a_run_it_says_how_to_record_one(bare: Session) -> None:
    widget = fa.generation(session=bare)
    said = plain(widget.sentence.value)
    assert "make measure ARGS=--generation" in said and not any(widget.figure.spec["data"][0]["y"])
    assert "Nothing recorded" in plain(widget.table.value)


def test_the_sentence_follows_the_prompt(written: Session) -> None:
    widget = fa.generation(session=written)
    said = plain(widget.sentence.value)
    assert said.startswith("16 sequences at a time after prompts of 4096 tokens")
    assert "800 tokens a second" in said and "100 ms with eager attention" in said
    assert "alone gives 2.0× as many, the cache alone 2.5×, both together 5.0×" in said
    assert "Together they give 2.0× of what the better one gives alone" in said
    widget.prompt.value = 512
    said = plain(widget.sentence.value)
    assert "after prompts of 512 tokens" in said and "30 ms with eager attention" in said
    assert GENERATION_ID in widget.table.value and "256\N{NO-BREAK SPACE}MiB" in widget.table.value
    found = Provenance.of(Shown.of(widget))
    assert found.parameters == {"prompt": 512} and found.run_ids == [GENERATION_ID]


def test_a_way_without_a_time_is_named(tmp_path: Path) -> None:
    rows = [row for row in generation_rows() if (row.provider, row.variant) != WAYS["cache"]]
    write_generation_run(tmp_path, rows)
    widget = fa.generation(session=session("numpy", root=tmp_path))
    assert "have no recorded time: the KV cache alone." in plain(widget.sentence.value)


def test_what_was_not_recorded_is_refused(written: Session) -> None:
    with pytest.raises(ValueError, match="prompt = 3 was not recorded: use one of 512, 4096"):
        fa.generation(3, session=written)
    with pytest.raises(ValueError, match="device = 'h300'"):
        fa.generation(device="h300", session=written)
