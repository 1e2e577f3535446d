"""The calls of the published tables: every row with a shape has one, in an order that can stop."""

from __future__ import annotations

import pytest

from fa_kernels.measure.paper import load_paper, select
from fa_kernels.measure.paper_calls import (
    BLOCK,
    FIG2_LEFT,
    RIGHT_DENSITIES,
    TIME_TABLES,
    figure_2_right,
    paper_calls,
    table_density,
    table_problems,
)
from fa_kernels.measure.records import mask_text

CALLS = paper_calls()


@pytest.mark.parametrize("where", TIME_TABLES)
def test_every_row_of_time_has_a_call_with_its_dropout(where: str) -> None:
    rows = select(load_paper(), where=where)
    assert rows
    for row in rows:
        (call,) = (c for c in CALLS if c.problem == row.problem)
        assert row.dropout_p in call.dropouts and {"flash_mma"} <= set(call.variants)


def test_the_first_papers_figure_has_its_shape_and_tiles() -> None:
    left = CALLS[0]
    rows = select(load_paper(), where="fig. 2 left")
    assert {row.problem for row in rows} == {FIG2_LEFT} == {left.problem}
    middle = {row.block_n for row in select(load_paper(), where="fig. 2 middle")}
    assert {tiling.block_n for tiling in left.tilings} == middle and left.counted
    right = figure_2_right()
    found = [c.problem.block_mask for c in CALLS[1 : 1 + len(RIGHT_DENSITIES)]]
    for mask, density in zip(found, RIGHT_DENSITIES, strict=True):
        assert mask is not None and abs(mask.density - density) <= 0.5 * BLOCK / right.seqlen_q
    assert right in [c.problem for c in CALLS]


def test_no_call_twice_and_from_short_to_long() -> None:
    problems = [call.problem for call in CALLS]
    assert len(set(problems)) == len(problems)
    of_tables = [p.seqlen_q for p in problems[1 + len(RIGHT_DENSITIES) :]]
    assert of_tables == sorted(of_tables)
    assert {p.seqlen_q for p in table_problems()} == {2**e for e in range(7, 17)}


def test_block_sparse_calls_keep_what_the_times_say() -> None:
    sparse = [c.problem for c in CALLS if c.problem.block_mask is not None and 0.1 in c.dropouts]
    assert len(sparse) == 7  # N = 1024 to 65536
    for problem in sparse:
        assert problem.block_mask is not None
        assert problem.block_mask.density == table_density(problem.seqlen_q)
        assert mask_text(problem) == "butterfly 128x128"
