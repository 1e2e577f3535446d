"""The grid's history: strokes, undo, redo, reset, and what is no mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fa_kernels.widgets import mask_grid
from fa_kernels.widgets.mask_grid import MAX_VIEWS, MaskGrid, keep_of, rows_of


@pytest.fixture
def grid() -> MaskGrid:
    return MaskGrid(np.eye(3, 4, dtype=bool), {})


def test_text_and_back() -> None:
    keep = np.array([[True, False], [False, False]])
    assert rows_of(keep) == ["#.", ".."]
    np.testing.assert_array_equal(keep_of(rows_of(keep), (2, 2)), keep)


def test_a_stroke_is_one_step(grid: MaskGrid) -> None:
    first = grid.rows
    assert not (grid.can_undo or grid.can_redo)
    grid.receive({"rows": ["####", "....", "...."]})
    grid.receive({"rows": ["####", "....", "...."]})  # the same again is none
    grid.receive({"rows": ["####", "####", "...."]})
    assert grid.can_undo and not grid.can_redo
    grid.receive({"do": "undo"})
    assert grid.rows == ["####", "....", "...."] and grid.can_undo and grid.can_redo
    grid.receive({"do": "undo"})
    assert grid.rows == first and not grid.can_undo
    grid.receive({"do": "undo"})
    assert grid.rows == first, "before the first there is nothing"
    grid.receive({"do": "redo"})
    grid.receive({"do": "redo"})
    grid.receive({"do": "redo"})
    assert grid.rows == ["####", "####", "...."] and not grid.can_redo


def test_a_new_stroke_forgets_what_was_undone(grid: MaskGrid) -> None:
    grid.receive({"rows": ["####", "....", "...."]})
    grid.undo()
    grid.receive({"rows": ["....", "....", "...."]})
    grid.redo()
    assert grid.rows == ["...."] * 3 and not grid.can_redo


def test_reset_goes_back_to_the_start_and_can_be_undone(grid: MaskGrid) -> None:
    first = grid.rows
    grid.receive({"rows": ["...."] * 3})
    grid.receive({"do": "reset"})
    assert grid.rows == first
    grid.undo()
    assert grid.rows == ["...."] * 3
    grid.start(np.ones((3, 4), bool))
    grid.receive({"rows": ["...."] * 3})
    grid.reset()
    assert grid.rows == ["####"] * 3


def test_the_history_ends_somewhere(monkeypatch: pytest.MonkeyPatch, grid: MaskGrid) -> None:
    monkeypatch.setattr(mask_grid, "MAX_HISTORY", 3)
    for i in range(6):
        grid.put(np.arange(12).reshape(3, 4) < i)
    for _ in range(9):
        grid.undo()
    assert grid.keep.sum() == 3, "of 3, 4 and 5"


@pytest.mark.parametrize(
    "rows", [None, 7, [], ["...."], ["...", "...", "..."], ["....", "....", "..x."], [1, 2, 3]]
)
def test_what_is_no_mask_is_refused_in_words(rows: Any, grid: MaskGrid) -> None:
    before = grid.rows
    with pytest.raises(ValueError, match="is no mask: give 3 rows of 4 letters, # to keep"):
        keep_of(rows, (3, 4))
    with pytest.raises(ValueError, match="is no mask"):
        grid.receive({"rows": rows})
    assert grid.rows == before
    for other in ("undo", {"do": "format"}, {}, None):
        grid.receive(other)
    assert grid.rows == before


def test_every_message_of_a_page_is_answered_with_its_number(grid: MaskGrid) -> None:
    """Until then the page keeps what it shows: a busy kernel must not undo newer strokes."""
    grid.receive({"rows": ["####", "....", "...."], "view": "a", "stroke": 1})
    grid.receive({"do": "undo", "view": "b", "stroke": 7})
    assert grid.seen == {"a": 1, "b": 7}
    with pytest.raises(ValueError, match="is no mask"):
        grid.receive({"rows": ["?"], "view": "a", "stroke": 2})
    assert grid.seen == {"b": 7, "a": 2}, "also one that was refused"
    for number in range(100):
        grid.receive({"do": "redo", "view": f"v{number}", "stroke": 1})
    assert len(grid.seen) == MAX_VIEWS and grid.seen["v99"] == 1
    grid.receive({"do": "redo", "view": 3, "stroke": "x"})
    assert "3" not in grid.seen
