"""Figures over blocks, density and N: each quantity by its own name, from the run that has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fa_kernels.device import device
from fa_kernels.measure.paper import load_paper, select
from fa_kernels.measure.paper_figures import (
    block_sizes,
    by_mask,
    fa2_rates,
    fa3_number,
    fa3_rates,
    middle,
    not_stated,
    right,
    sparse_curve,
    tflops,
)
from fa_kernels.measure.paper_numbers import PaperNumbers
from fa_kernels.measure.records import load_run
from fa_kernels.measure.verdict import DIFFERS, NOT_COMPARED, REPRODUCES, TREND, Compared, judge
from fa_kernels.units import significant
from tests.figures.synthetic_paper import BY_BLOCK, PAPER_ID, write_paper_run
from tests.figures.synthetic_peers import PEERS_ID, write_peers_run
from tests.figures.synthetic_speed import SPEED_ID, write_speed_run

ROWS = load_paper()
MIDDLE = select(ROWS, where="fig. 2 middle")
RIGHT = select(ROWS, where="fig. 2 right")
FA2 = select(ROWS, where="figs. 4-7")
FA3 = select(ROWS, where="figs. 5-7")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> PaperNumbers:
    root: Path = tmp_path_factory.mktemp("paper")
    write_paper_run(root)
    write_speed_run(root)
    return PaperNumbers([load_run(PAPER_ID, root), load_run(SPEED_ID, root)])


def test_block_sizes_have_models_always_and_the_rest_where_recorded(
    measured: PaperNumbers,
) -> None:
    bare = block_sizes(MIDDLE, PaperNumbers())
    assert [one.block_n for one in bare] == [64, 128, 256, 512]
    assert [significant(one.paper_bytes / 1e9) for one in bare] == ["6.98", "3.62", "1.95", "1.11"]
    assert all(one.latency is one.counted is one.dram is None for one in bare)
    for one in block_sizes(MIDDLE, measured):
        ms = one.latency.value if one.latency else None
        assert ms == BY_BLOCK.get(one.block_n)
        assert bool(one.refused) == (one.block_n == 512) and one.dram is None


def test_the_middle_says_which_block_is_fastest(measured: PaperNumbers) -> None:
    verdict = middle(MIDDLE, measured)
    assert verdict.word == NOT_COMPARED  # the figure's values are not held
    assert "at B_c = 64, 128, 256 it takes 12, 9, 10 ms, least at 128" in verdict.why
    assert "bytes counted in the kernel go as B_c^-1.00" in verdict.why
    assert "B_c = 512: no room" in verdict.why and verdict.runs == (PAPER_ID,)
    assert "run `python -m fa_kernels measure --paper`" in middle(MIDDLE, PaperNumbers()).why


def test_the_recorded_counters_of_figure_2_are_shown() -> None:
    """The run in data/measured: L2 and DRAM at this shape, and no time that is a latency."""
    found = block_sizes(MIDDLE, PaperNumbers([load_run("20261130-h200-counters")]))
    for one in found[:3]:
        assert one.l2 and one.dram and one.dram_bytes and one.profiled and one.latency is None
        assert one.dram_bytes > one.dram.value  # with what was written back later
    assert "265 KiB of shared memory" in found[3].refused


def test_sparse_speed_is_held_against_one_over_s(measured: PaperNumbers) -> None:
    curve = sparse_curve("flash_mma", measured)
    assert [round(s, 3) for s, _ in curve] == [0.188, 0.312, 0.406, 0.5, 0.594, 1.0]
    verdict = right(RIGHT, measured)
    assert "rung 05 keeping 0.188 of the blocks is 5.33 times as fast as dense" in verdict.why
    assert "over all densities 100 % of 1/s" in verdict.why
    assert right(RIGHT, PaperNumbers()).word == NOT_COMPARED


def test_a_rate_is_judged_on_the_same_architecture(measured: PaperNumbers) -> None:
    verdict = fa2_rates(FA2, measured, device("h200"))
    assert verdict.word == TREND  # 240 made up, 335 read off for an H100
    assert "reaches at most 240 TFLOP/s" in verdict.why and "335 on an H100" in verdict.why
    assert "rung 05 reaches 300" in verdict.why and verdict.runs == (SPEED_ID,)
    elsewhere = fa2_rates(FA2, measured, device("rtx-4090"))
    assert elsewhere.word == NOT_COMPARED
    assert "--speed" in fa2_rates(FA2, PaperNumbers(), device("h200")).why


def test_the_rates_of_flashattention_3(measured: PaperNumbers) -> None:
    verdict = fa3_rates(FA3, measured)
    assert "240 for FlashAttention-2 (read off 370, ratio 0.649)" in verdict.why
    assert "FlashAttention-3 is not measured here" in verdict.why and "bf16" not in verdict.why
    assert len(verdict.points) == 4


def _with_peers(root: Path, **rates: float) -> PaperNumbers:
    """Peers of FlashAttention-2 and cuDNN in fp16 from a run of their own, fa3 beside ours."""
    write_speed_run(root)
    write_peers_run(root, rates={"flash_mma": 320.0, **rates})
    return PaperNumbers([load_run(PEERS_ID, root), load_run(SPEED_ID, root)])


def test_flashattention_3_is_read_in_the_dtype_that_its_package_has(tmp_path: Path) -> None:
    verdict = fa3_rates(FA3, _with_peers(tmp_path, fa3=700.0, torch_flash=111.0))
    assert "700 for FlashAttention-3 in bf16 (read off 648, ratio 1.08)" in verdict.why
    assert "240 for FlashAttention-2 (read off 370" in verdict.why  # fp16, as the figure
    assert "rung 05 reaches 320 and 320, causal in that run and dtype" in verdict.why  # not 300
    assert "not measured" not in verdict.why and len(verdict.points) == 6
    assert verdict.runs == (SPEED_ID, PEERS_ID) and verdict.word == TREND


def test_the_rung_that_follows_the_paper_stands_beside_it_from_another_run(tmp_path: Path) -> None:
    write_speed_run(tmp_path)
    write_peers_run(tmp_path, rates={"flash_mma": 320.0, "fa3": 700.0})
    speed = load_run(SPEED_ID, tmp_path)
    ours = [replace(r, variant="flash_wgmma") for r in speed.rows if r.series == "flash_mma"]
    runs = [load_run(PEERS_ID, tmp_path), replace(speed, rows=(*speed.rows, *ours))]
    numbers = PaperNumbers(runs)
    verdict, where = fa3_rates(FA3, numbers), "in fp16 and a run without FlashAttention-3"
    assert "rung 05 reaches 320 and 320, causal in that run and dtype" in verdict.why
    assert f"rung 06 reaches 300 and 300, causal {where}" in verdict.why
    assert "rung 05 reaches 300" in fa2_rates(FA2, numbers, device("h200")).why
    assert "rung 06 reaches 300" in fa2_rates(FA2, numbers, device("h200")).why


def test_algorithms_are_ordered_under_one_mask_at_a_time(tmp_path: Path) -> None:
    """cuDNN's call without a mask may pass FlashAttention-3's with one, but not the one beside."""
    of = ("FlashAttention-2", "cuDNN", "FlashAttention-3")
    assert [row.algorithm for row in FA3] == [*of, *of]

    def points(*rates: float) -> list[Compared]:
        return [Compared(row, rate) for row, rate in zip(FA3, rates, strict=True)]

    crossed = points(331, 661, 706, 304, 604, 623)
    assert judge(crossed) == DIFFERS and by_mask(crossed) == TREND
    assert by_mask(points(331, 661, 706, 304, 604, 603)) == DIFFERS
    assert by_mask(points(370, 595, 648, 335, 539, 616)) == REPRODUCES
    slow = _with_peers(tmp_path, fa3=390.0)  # below the made-up 400 of cuDNN
    assert fa3_rates(FA3, slow).word == DIFFERS


def test_beside_is_the_same_call_in_the_same_run(tmp_path: Path) -> None:
    numbers = _with_peers(tmp_path, fa3=700.0)
    number = fa3_number(next(r for r in FA3 if r.algorithm == "FlashAttention-3"), numbers)
    assert number and number.row.dtype == "bfloat16"
    ours = numbers.beside(number, "flash_mma")
    assert ours and (ours.run_id, ours.row.problem) == (PEERS_ID, number.row.problem)
    assert numbers.beside(number, "torch_cudnn") is None  # timed, but in another run


def test_a_causal_call_counts_its_pairs_alone(measured: PaperNumbers) -> None:
    """The made-up run has the same rate with and without a mask."""
    rates = {row.causal: fa3 for row in FA3 if (fa3 := _rate(row, measured))}
    assert rates["causal"] == pytest.approx(rates["none"], rel=1e-4)


def _rate(row: object, numbers: PaperNumbers) -> float | None:
    number = fa3_number(row, numbers)  # type: ignore[arg-type]
    return tflops(number) if number and number.row.provider == "torch_flash" else None


def test_the_recorded_run_reaches_the_rate_of_the_paper() -> None:
    """Notebook 09 says so: the run in data/measured, against the H100 of the figure."""
    runs = [load_run(f"20261130-h200-{name}") for name in ("speed", "peers")]
    numbers = PaperNumbers(runs)
    assert fa2_rates(FA2, numbers, device("h200")).word == REPRODUCES
    verdict = fa3_rates(FA3, numbers)
    assert verdict.word in (REPRODUCES, TREND) and len(verdict.points) == len(FA3)
    assert verdict.runs == tuple(run.run_id for run in runs)
    for row in (row for row in FA3 if row.algorithm == "FlashAttention-3"):
        theirs = fa3_number(row, numbers)
        ours = numbers.beside(theirs, "flash_mma") if theirs else None
        assert theirs and ours and tflops(ours) < tflops(theirs)


def test_what_states_no_shape_is_not_compared() -> None:
    verdict = not_stated(select(ROWS, where="fig. 1 right"), "speedup")
    assert verdict.word == NOT_COMPARED and "7.6 x for FlashAttention printed" in verdict.why
