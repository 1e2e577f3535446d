"""Bytes of a decoding step: the closed formula is what the NumPy tiles move; and what it says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_kernels.decode_problem import DecodeProblem
from fa_kernels.traffic.decode_model import count_decode, launched_decode
from tests.decode_steps import Step, steps
from tests.reference.problems import bounded

LONG = DecodeProblem(2, 8, 2, 1, 0, 1024, 64, "bfloat16")


@bounded
@given(steps("float32"), st.integers(1, 9), st.sampled_from((1, 8, 16)), st.booleans())
def test_the_model_is_the_count_to_the_byte(
    step: Step, num_splits: int, block_rows: int, merged_on_chip: bool
) -> None:
    rest = (step.problem, list(step.totals), num_splits, block_rows, merged_on_chip)
    counted, model = count_decode(*rest), launched_decode(*rest)
    assert model.same_as(counted), f"{step.problem}: {model} {counted}"


def test_a_row_whose_window_begins_after_a_split_leaves_nothing_there() -> None:
    """The first row attends keys 14 to 19, so tiles 0 and 1; the last three none of tile 0."""
    problem = DecodeProblem(1, 1, 1, 5, 0, 32, 8, "float32", window=(5, None))
    counted, model = (f(problem, [24], 2, 8) for f in (count_decode, launched_decode))
    assert model.same_as(counted)
    assert model.read_bytes["out"] == (2 + 5) * 8 * 4


def test_a_step_reads_the_cache_once_and_little_else() -> None:
    totals = (1000, 512)
    moved = launched_decode(LONG, totals, 1, 16)
    assert moved.of("k") + moved.of("v") == LONG.read_bytes(totals)
    assert moved.total_bytes == LONG.read_bytes(totals) + 2 * LONG.q_bytes + LONG.lse_bytes


def test_rows_that_do_not_fit_one_block_read_the_keys_again() -> None:
    many = replace(LONG, seqlen_q=4)
    once, twice = (launched_decode(many, (1024, 1024), 1, rows) for rows in (16, 8))
    assert twice.of("k") == 2 * once.of("k") and twice.of("q") == once.of("q")


def test_splits_cost_their_partial_results_alone() -> None:
    one, four = (launched_decode(LONG, (1024, 1024), n, 16) for n in (1, 4))
    assert (one.of("k"), one.of("v")) == (four.of("k"), four.of("v"))
    partial = LONG.partial_bytes(4)
    assert four.of("out") + four.of("lse") - one.of("out") - one.of("lse") == 2 * partial
    on_chip = launched_decode(LONG, (1024, 1024), 4, 16, merged_on_chip=True)
    assert on_chip.total_bytes == four.total_bytes - 2 * partial


def test_an_append_adds_its_tokens_read_and_written() -> None:
    new = replace(LONG, seqlen_new=3)
    with_, without = (launched_decode(p, (1000, 512), 2, 16) for p in (new, LONG))
    more = with_.total_bytes - without.total_bytes
    assert more == 2 * 2 * 3 * new.token_bytes  # two sequences, read and written


def test_a_page_number_per_tile() -> None:
    paged = replace(LONG, max_seqlen=None, page_size=64, max_pages=16)
    assert launched_decode(paged, (1000, 16), 1, 16).of("mask") == 4 * 2 * (63 + 1)


def test_an_append_looks_for_its_page_once_for_16_bytes() -> None:
    paged = replace(LONG, max_seqlen=None, page_size=64, max_pages=16, seqlen_new=3, head_dim=20)
    with_, without = (
        launched_decode(replace(paged, seqlen_new=n), (1000, 16), 1, 16).of("mask") for n in (3, 0)
    )
    assert with_ - without == 2 * 2 * 3 * 3 * 4  # sequences, heads, tokens, pieces of 40 bytes


def test_a_window_bounds_what_is_read() -> None:
    windowed = replace(LONG, window=(100, 0))
    read = launched_decode(windowed, (1000, 50), 3, 16).of("k")
    first = (1000 - 1 - 100) // 16 * 16
    assert read == 2 * 64 * 2 * (1000 - first + 50)
    assert windowed.read_bytes((1000, 50)) == windowed.token_bytes * (101 + 50)


@pytest.mark.parametrize("num_splits", [1, 5])
def test_an_empty_sequence_reads_no_key(num_splits: int) -> None:
    moved = launched_decode(LONG, (0, 0), num_splits, 16)
    assert (moved.of("q"), moved.of("k"), moved.of("v")) == (0, 0, 0)
    assert moved.written_bytes["out"] == LONG.q_bytes
