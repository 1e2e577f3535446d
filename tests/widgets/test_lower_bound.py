"""The lower bound: a computed sentence, a table, and controls that move both."""

from __future__ import annotations

import re
from html import unescape

import pytest

import fa_kernels as fa
from fa_kernels.session import Session
from fa_kernels.widgets.lower_bound import lower_bound
from fa_kernels.widgets.text import labels

TEXT = labels("lower_bound")


def plain(html: str) -> str:
    return " ".join(unescape(re.sub("<[^>]*>", " ", html)).split())


def test_it_is_at_the_front_door() -> None:
    assert fa.lower_bound is lower_bound


def test_the_sentence_follows_from_n_d_and_the_device(bare: Session) -> None:
    view = lower_bound(device="h200", session=bare)
    said = plain(view.sentence.value)
    assert "from M = N d / 4 on (65536 elements)" in said
    assert "at 5 N d: 1.25 times the floor" in said and "has 227 KiB; N d is 2.3× that" in said
    assert view.figure.alt.startswith(said.strip())
    view.seqlen.value = 1024
    assert "(16384 elements)" in plain(view.sentence.value)
    assert view.bound.N == 1024
    # As the sentence says: with the tiles of 227 KiB.
    assert f"moves {view.bound.kv_outer(227 * 512):g} N d" in plain(view.sentence.value)


def test_the_table_has_models_and_sources(recorded: Session, bare: Session) -> None:
    table = plain(lower_bound(device="h200", session=recorded).table.value)
    assert f"{TEXT['ways']['counted']}: 2026" in table
    bare_table = plain(lower_bound(device="h200", session=bare).table.value)
    assert f"{TEXT['ways']['dram']}: {TEXT['not_recorded']}" in bare_table
    for words in TEXT["lines"].values():
        assert words in bare_table


def test_bad_values_are_refused(bare: Session) -> None:
    with pytest.raises(ValueError, match="d = 0 is out of range"):
        lower_bound(d=0, session=bare)
