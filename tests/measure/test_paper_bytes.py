"""Bytes of figure 2 by name: nothing stands in for another, and what is missing says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_kernels.device import device
from fa_kernels.measure.paper import load_paper, select
from fa_kernels.measure.paper_bytes import (
    LEVELS,
    NOT_READ,
    left_bytes,
    left_counters,
    moved,
    right_bytes,
    right_moved,
)
from fa_kernels.measure.paper_calls import FIG2_LEFT, IN_FIGURE, PEERS, SPARSE_IN_FIGURE
from fa_kernels.measure.paper_numbers import PaperNumbers
from fa_kernels.measure.paper_results import result
from fa_kernels.measure.records import load_run
from fa_kernels.measure.verdict import NOT_COMPARED
from tests.figures.synthetic_figure2 import FIGURE2_ID, write_figure2

H200, RECORDED = device("h200"), "20261130-h200-paper"
LEFT = select(load_paper(), where="fig. 2 left", metric="hbm")
RIGHT = select(load_paper(), where="fig. 2 right")


@pytest.fixture
def counted() -> PaperNumbers:
    return PaperNumbers([load_run(RECORDED)])


@pytest.fixture
def read(tmp_path: Path) -> PaperNumbers:
    write_figure2(tmp_path)
    return PaperNumbers([load_run(RECORDED), load_run(FIGURE2_ID, tmp_path)])


def test_what_the_kernels_counted_is_the_model_to_the_byte(counted: PaperNumbers) -> None:
    ours = [m for m in left_bytes(counted, H200) if m.series in IN_FIGURE]
    ours += right_bytes(counted, H200)
    assert len(ours) == 3 * len(IN_FIGURE) + 6 * len(SPARSE_IN_FIGURE)
    for one in ours:
        assert one.by_level["counted"] == one.by_level["launched"], one
        assert one.runs == (RECORDED,) and not {"l2", "dram"} & one.by_level.keys()


def test_forward_and_backward_add_up_to_both(counted: PaperNumbers) -> None:
    by = {(m.series, m.pass_): m.by_level["launched"] for m in left_bytes(counted, H200)}
    for name in IN_FIGURE:
        assert by[name, "both"] == by[name, "fwd"] + by[name, "bwd"]


def test_hardware_counters_are_those_of_the_call_that_they_are_of(read: PaperNumbers) -> None:
    found = {(m.series, m.pass_): m for m in left_bytes(read, H200)}
    both = found["flash_mma", "both"]
    assert both.by_level["dram"] == 1.75e9, "with what was written back"
    assert both.by_level["l2"] == 12e9, "with atomic operations"
    assert both.runs == (RECORDED, FIGURE2_ID)
    assert found["torch_flash", "bwd"].by_level == {"l2": 12e9, "dram": 1.75e9}
    assert "l2" not in found["flash_mma", "fwd"].by_level, "read in no run that is given"
    kept = [(m.kept, m.by_level["dram"]) for m in right_bytes(read, H200)]
    assert kept and all(dram == pytest.approx(1.75e9 * s) for s, dram in kept)


def test_other_tiles_than_those_that_were_counted_are_another_call(tmp_path: Path) -> None:
    """On a GPU with less shared memory the tiles are others, and no number is shown for them."""
    write_figure2(tmp_path)
    numbers = PaperNumbers([load_run(RECORDED), load_run(FIGURE2_ID, tmp_path)])
    small = device("rtx-4090")
    assert small.smem_per_block_bytes < H200.smem_per_block_bytes
    other = moved("flash_mma", "both", FIG2_LEFT, numbers, small)
    assert set(other.by_level) == {"launched"} and not other.runs


def test_forwards_that_a_run_has_read_are_shown() -> None:
    """Those in data/measured, at the tiles of the counted forward."""
    runs = [RECORDED, "20261130-h200-counters", "20261130-h200-counters-tensor"]
    numbers = PaperNumbers(load_run(run_id) for run_id in runs)
    found = {m.series: m for m in left_bytes(numbers, H200) if m.pass_ == "fwd"}
    for name in IN_FIGURE:
        assert set(found[name].by_level) == set(LEVELS)
    assert all(set(found[name].by_level) == {"l2", "dram"} for name in PEERS)


def test_the_sentences_name_each_byte_and_what_is_missing(
    read: PaperNumbers, counted: PaperNumbers, tmp_path: Path
) -> None:
    said = left_counters(LEFT, read, H200)
    assert said.word == NOT_COMPARED and "version" not in said.about
    assert "DRAM moves 1.75 GB for rung 02, 1.75 GB for torch_eager, " in said.why
    assert "12 GB for rung 05 (10.1 GB counted in the kernel), 12 GB for torch_flash" in said.why
    assert NOT_READ not in said.why
    without = left_counters(LEFT, counted, H200).why
    assert without == f"L2 and DRAM are {NOT_READ}." and "--shapes figure2" in without
    write_figure2(tmp_path / "some", ("flash_mma",))
    some = PaperNumbers([load_run(FIGURE2_ID, tmp_path / "some")])
    assert f"rung 04: {NOT_READ}" in left_counters(LEFT, some, H200).why


def test_block_sparse_bytes_are_held_against_the_kept_fraction(
    read: PaperNumbers, counted: PaperNumbers
) -> None:
    why = right_moved(RIGHT, read, H200).why
    assert all(why.count(f"({name})") == len(SPARSE_IN_FIGURE) for name in LEVELS.values())
    assert "rung 05 keeping 18.8 to 59.4 % of the blocks moves, of the bytes of the dense" in why
    assert "18.8 to 59.4 % (DRAM)" in why and "22.1 to 61.1 % (counted in the kernel)" in why
    assert NOT_READ in right_moved(RIGHT, counted, H200).why


def test_results_have_a_mark_or_a_line_for_every_way(read: PaperNumbers) -> None:
    left = result("fig. 2 left, bytes", read, H200)
    beside = [dot for dot in left.dots if dot.beside]
    assert {dot.series for dot in beside} == {*IN_FIGURE, *PEERS} and len(beside) == 7
    assert beside[0].beside == (("l2", 12.0), ("dram", 1.75))
    right = result("fig. 2 right, bytes", read, H200)
    assert [(line.series, line.level) for line in right.lines] == [
        (series, level) for series in SPARSE_IN_FIGURE for level in LEVELS
    ]
    assert right.runs == (RECORDED, FIGURE2_ID)
