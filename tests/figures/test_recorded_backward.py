"""Recorded backward passes: found at their point alone, and never mixed with forwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_kernels.device import Device
from fa_kernels.figures.recorded_backward import TRAINED, BackwardAt, RecordedBackward, slope
from fa_kernels.figures.recorded_numbers import RecordedNumbers
from fa_kernels.measure.records import load_run
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.variants import FAST
from tests.figures.synthetic_backward import FITS_UP_TO, RUN_ID, write_backward_run

POINT = AttentionProblem.of_tokens(4096, 64)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("backward")
    write_backward_run(root)
    return root


@pytest.fixture
def runs(root: Path, h200: Device) -> RecordedBackward:
    return RecordedBackward.on(h200, root)


def test_every_algorithm_with_a_backward_is_found(runs: RecordedBackward) -> None:
    assert runs.run_id == RUN_ID
    assert set(TRAINED) == {"standard_tiled", "flash_kv_outer", "flash_q_outer"}
    for name in TRAINED:
        both = [runs.value(name, pass_, "latency_ms", POINT) for pass_ in ("fwd", "bwd")]
        assert both[0] and both[1] and both[0] < both[1]


def test_an_algorithm_on_other_units_is_no_algorithm_of_its_own(
    root: Path, runs: RecordedBackward
) -> None:
    """The run holds its rows; pages that compare algorithms never take them."""
    recorded = {row.variant for row in load_run(RUN_ID, root).rows}
    assert recorded == {*TRAINED, *FAST}
    for name in FAST:
        assert runs.row(name, "bwd", "latency_ms", POINT) is None
        assert not list(runs.problems(name, "latency_ms"))


def test_nothing_is_interpolated(runs: RecordedBackward) -> None:
    for problem in (AttentionProblem.of_tokens(4095, 64), AttentionProblem.of_tokens(4096, 32)):
        assert runs.row("flash_q_outer", "bwd", "latency_ms", problem) is None
    causal = AttentionProblem.of_tokens(4096, 64, causal="bottom_right")
    assert runs.value("flash_q_outer", "bwd", "latency_ms", causal) is None


def test_other_tiles_are_another_call(runs: RecordedBackward, h200: Device) -> None:
    at = BackwardAt.of("flash_q_outer", POINT, h200)
    assert runs.value_at(at, "bwd", "latency_ms")
    other = BackwardAt(at.variant, POINT, Tiling(at.tiling.block_m // 2, at.tiling.block_n))
    assert runs.value_at(other, "bwd", "latency_ms") is None


def test_what_was_not_run_says_why(runs: RecordedBackward) -> None:
    long = AttentionProblem(1, 2, 2 * FITS_UP_TO, 2 * FITS_UP_TO, 64, "float16")
    assert "does not fit" in (runs.refused("standard_tiled", long) or "")
    assert runs.value("standard_tiled", "bwd", "latency_ms", long) is None
    assert runs.refused("flash_q_outer", long) is None
    assert runs.refused("standard_tiled", AttentionProblem.of_tokens(333, 64)) is None


def test_no_run_is_no_number(tmp_path: Path, h200: Device) -> None:
    runs = RecordedBackward.on(h200, tmp_path)
    assert runs.run_id is None
    assert runs.value("flash_q_outer", "bwd", "latency_ms", POINT) is None


def test_forward_figures_never_take_these_rows(root: Path, h200: Device) -> None:
    """The standard forward of a training step keeps P: it is another call."""
    numbers = RecordedNumbers.on(h200, None, root)
    assert numbers.run_ids == [] and not list(numbers.rows("latency_ms"))
    assert load_run(RUN_ID, root).kind == "backward"


def test_slopes_are_powers() -> None:
    assert slope([(n, 3 * n**2) for n in (2, 4, 32)]) == pytest.approx(2)
    assert slope([(8, 5.0), (8, 6.0)]) is None and slope([]) is None
