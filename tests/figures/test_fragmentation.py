"""Rows of slots: every token is drawn once, in its sequence's colour."""

from __future__ import annotations

import plotly.graph_objects as go
import pytest

from fa_kernels.figures.fragmentation import (
    ROW_SLOTS,
    SEQUENCE_COLOURS,
    colour_of,
    fragmentation_spec,
    stretches,
)
from fa_kernels.paging import PAGE_SIZES, Extent
from fa_kernels.widgets.fragmentation import at_step, stories
from fa_kernels.widgets.text import labels
from tests.figures.test_explorer import sizes

TEXT = labels("fragmentation")


def test_a_stretch_is_broken_at_the_end_of_a_row() -> None:
    extent = Extent("A", 200, 400, 100)
    assert stretches([extent], True) == [("A", 0, 200, 56), ("A", 1, 0, 44)]
    assert stretches([extent], False) == [("A", 1, 44, 212), ("A", 2, 0, 88)]


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("step", [1, 24, 50, 75])
def test_every_slot_that_is_taken_is_drawn(page_size: int, step: int) -> None:
    shown = [at_step(story, step) for story in stories(page_size, 2).values()]
    spec = fragmentation_spec(shown, TEXT)
    go.Figure(spec)
    assert min(sizes(spec)) >= 12
    drawn = {trace["name"]: sum(trace["x"]) for trace in spec["data"] if trace["type"] == "bar"}
    for one in shown:
        assert drawn[f"{one.policy} tokens"] == one.tokens
        assert drawn[f"{one.policy} empty"] == one.internal_waste
    for trace in spec["data"]:
        if trace["type"] == "bar":
            ends = [b + x for b, x in zip(trace["base"], trace["x"], strict=True)]
            assert max(ends, default=0) <= ROW_SLOTS


def test_the_tables_stand_beside_the_pages() -> None:
    shown = [at_step(story, 24) for story in stories(16, 2).values()]
    notes = [note["text"] for note in fragmentation_spec(shown, TEXT)["layout"]["annotations"]]
    (tables,) = (note for note in notes if TEXT["tables"] in note)
    first, table = next(iter(shown[-1].tables.items()))
    assert f"</span> {first}: " + " ".join(map(str, table[:9])) in tables
    assert any("I waits for 480 slots: 666 are free" in note for note in notes)


@pytest.mark.parametrize("seed", [1, 2, 5, 12])
def test_no_two_sequences_of_a_memory_have_one_colour(seed: int) -> None:
    assert len(set(SEQUENCE_COLOURS)) == len(SEQUENCE_COLOURS)
    for story in stories(16, seed).values():
        for one in story:
            inside = {extent.sequence for extent in one.extents}
            assert len({colour_of(sequence) for sequence in inside}) == len(inside)
