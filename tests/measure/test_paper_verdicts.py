"""Verdicts on times and memory follow from the run: another run, another word and sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fa_kernels.measure.paper import PublishedRow, load_paper, select
from fa_kernels.measure.paper_calls import TIME_TABLES
from fa_kernels.measure.paper_numbers import PaperNumbers
from fa_kernels.measure.paper_verdicts import (
    MISSING,
    left_counted,
    left_time,
    table_21_memory,
    time_table,
)
from fa_kernels.measure.records import load_run
from fa_kernels.measure.verdict import DIFFERS, NOT_COMPARED, REPRODUCES, TREND
from fa_kernels.problem import AttentionProblem
from tests.figures.synthetic_paper import PAPER_ID, time_ms, write_paper_run

NOTHING = PaperNumbers()
FLASH = select(load_paper(), paper="FlashAttention")


def of(where: str, **more: Any) -> tuple[PublishedRow, ...]:
    return select(FLASH, where=where, **more)


def numbers_of(root: Path, rate: Any = time_ms) -> PaperNumbers:
    write_paper_run(root, rate=rate)
    return PaperNumbers([load_run(PAPER_ID, root)])


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> PaperNumbers:
    return numbers_of(tmp_path_factory.mktemp("paper"))


@pytest.mark.parametrize("where", TIME_TABLES)
def test_a_table_of_times_is_judged_by_order_and_growth(where: str, measured: PaperNumbers) -> None:
    verdict = time_table(of(where), measured)
    assert verdict.word == TREND and verdict.runs == (PAPER_ID,)
    assert "times as fast as PyTorch in print and 6 times here" in verdict.why
    assert "from N = 2048 on time grows as N^2.00 for PyTorch (printed N^1.9" in verdict.why or (
        "N^2.00 for PyTorch (printed N^2.0" in verdict.why
    )
    padded = of(where)[0].mask == "key padding"
    assert ("keys were padded there" in verdict.why) == padded
    assert "min(1/8, 256/N)" in verdict.why
    algorithms = {point.row.algorithm for point in verdict.points}
    assert algorithms == {"PyTorch", "FlashAttention", "block-sparse FlashAttention"}


def test_times_of_the_dropout_that_the_table_has(tmp_path: Path) -> None:
    """Tables 9 and 12 differ in dropout alone: each is held against its own calls."""
    numbers = numbers_of(tmp_path)
    for where, dropout_p in (("table 9", 0.1), ("table 12", 0.0)):
        for point in time_table(of(where), numbers).points:
            assert point.row.dropout_p == dropout_p
    (row,) = select(of("table 9"), algorithm="FlashAttention", seqlen=1024)
    found = numbers.find("flash_mma", "fwd", row.problem, dropout_p=0.1)
    assert found is not None and found.row.dropout_p == 0.1
    assert numbers.find("flash_mma", "fwd", row.problem, dropout_p=0.2) is None


def test_another_order_does_not_reproduce(tmp_path: Path) -> None:
    def slow(series: str, pass_: str, problem: AttentionProblem) -> float:
        return time_ms(series, pass_, problem) * (20.0 if series == "flash_mma" else 1.0)

    verdict = time_table(of("table 18"), numbers_of(tmp_path, slow))
    assert verdict.word == DIFFERS
    assert "on the other side of 1 at N = 128, 256" in verdict.why


def test_another_growth_does_not_reproduce(tmp_path: Path) -> None:
    def linear(series: str, pass_: str, problem: AttentionProblem) -> float:
        return time_ms(series, pass_, problem) / problem.seqlen_q

    verdict = time_table(of("table 18"), numbers_of(tmp_path, linear))
    assert verdict.word == DIFFERS and "N^1.00 for FlashAttention (printed N^1.9" in verdict.why


def test_the_printed_times_themselves_reproduce(tmp_path: Path) -> None:
    """Were every time the printed one, the word would be the strongest."""
    rows = [r for r in of("table 18") if r.algorithm == "FlashAttention" and r.value]
    printed = {r.seqlen: r.value for r in rows}

    def equal(series: str, pass_: str, problem: AttentionProblem) -> float:
        same = series == "flash_mma" and pass_ == "fwd" and problem.block_mask is None
        known = printed.get(problem.seqlen_q) if same else None
        return known or time_ms(series, pass_, problem)

    only = tuple(rows)
    assert time_table(only, numbers_of(tmp_path, equal)).word == REPRODUCES


def test_memory_is_judged_by_its_growth(measured: PaperNumbers) -> None:
    verdict = table_21_memory(FLASH, measured)
    assert verdict.word == TREND
    assert "N^2.00 for PyTorch (printed N^1.9" in verdict.why
    assert "N^1.00 for FlashAttention (printed N^1.00)" in verdict.why


def test_figure_2_left_holds_pairs_against_each_other(measured: PaperNumbers) -> None:
    rows = of("fig. 2 left", metric="latency", version="2022-06")
    verdict = left_time(rows, measured)
    assert verdict.word == TREND
    assert "FlashAttention is 6 times as fast as standard attention of torch here" in verdict.why
    assert "5.71 times in print" in verdict.why
    assert "on CUDA cores alone, Algorithms 1 and 4 against 0 and 3, 1.5 times" in verdict.why
    counted = left_counted(of("fig. 2 left", metric="hbm", version="2022-06"), measured)
    assert "40 GB for standard (printed 40.3, ratio 0.993)" in counted.why
    assert "5 GB for FlashAttention" in counted.why and counted.word == NOT_COMPARED


def test_without_a_run_every_verdict_says_how_to_get_one() -> None:
    rows = of("fig. 2 left", metric="latency", version="2022-06")
    found = [time_table(of(where), NOTHING) for where in TIME_TABLES]
    found += [table_21_memory(FLASH, NOTHING), left_time(rows, NOTHING)]
    found.append(left_counted(of("fig. 2 left", metric="hbm", version="2022-06"), NOTHING))
    for verdict in found:
        assert verdict.word == NOT_COMPARED and MISSING in verdict.why and not verdict.points
