"""Stepping through the memory of a KV cache."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

import fa_kernels as fa
from fa_kernels.figures.provenance import Provenance, Shown


def plain(text: str) -> str:
    return html.unescape(re.sub("<[^>]*>", "", text))


def test_the_sentence_follows_step_and_page_size() -> None:
    widget = fa.fragmentation()
    said = plain(widget.sentence.value)
    assert said.startswith("Step 24: of the memory that is taken, 46 % holds tokens")
    assert "97 % in pages of 16" in said and "external fragmentation" in said
    widget.page_size.value = 256
    larger = plain(widget.sentence.value)
    assert "in pages of 256" in larger and "97 %" not in larger
    widget.step.value = 1
    assert plain(widget.sentence.value).startswith("Step 1:")


def test_play_and_step_follow_each_other() -> None:
    widget = fa.fragmentation(step=3)
    widget.play.value = 5
    assert widget.step.value == 5 and widget.setting.step == 5
    widget.step.value = 7
    assert widget.play.value == 7 and plain(widget.sentence.value).startswith("Step 7:")


def test_other_sequences_have_other_steps() -> None:
    widget = fa.fragmentation()
    last = widget.step.values[-1]
    widget.step.value = last
    widget.seed.value = 3
    assert widget.step.values[-1] == widget.play.max != last
    assert widget.step.value <= widget.step.values[-1]
    assert plain(widget.sentence.value).startswith(f"Step {widget.step.value}:")
    widget.step.type("1000")
    assert "step = 1000 is out of range" in widget.step.error


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"page_size": 48}, "page_size = 48 is not offered"),
        ({"step": 0}, "step = 0"),
        ({"step": 400}, "step = 400"),
        ({"seed": -1}, "seed = -1"),
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fa.fragmentation(**changed)


def test_the_table_has_every_policy_and_the_export_its_parameters() -> None:
    widget = fa.fragmentation(32, step=10, seed=5)
    assert widget.table.value.count("<tr>") == 4 and "pages of 32 slots" in widget.table.value
    found = Provenance.of(Shown.of(widget))
    assert found.parameters == {"page_size": 32, "seed": 5, "step": 10}
