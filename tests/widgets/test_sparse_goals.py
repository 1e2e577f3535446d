"""Goals: met, missed and by how much, from the rows of a run; nothing is claimed without one."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from fa_kernels.device import Device, device
from fa_kernels.figures.recorded_sparse import RecordedSparse, SparseCurves, Timed
from fa_kernels.figures.sparse_speed import Shown
from fa_kernels.measure.sparse_run import PASSES, dense_problem
from fa_kernels.traffic.floor import fixed_backward_bytes
from fa_kernels.units import duration
from fa_kernels.widgets import sparse_goals
from fa_kernels.widgets.sparse_goals import goals_table, verdict
from fa_kernels.widgets.sparse_speed import _beside_cudnn
from tests.figures import synthetic_sparse
from tests.figures.synthetic_sparse import SPARSE_ID, write_sparse_run


@pytest.fixture
def h200() -> Device:
    return device("h200")


def plain(html: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub("<[^>]*>", " ", html)))


def test_a_verdict_says_where_and_by_how_much() -> None:
    assert verdict({1.0: 0.9, 0.5: 1.0}, 2) == "met at 2 of 2 densities"
    words = verdict({1.0: 0.9, 0.25: 1.05, 0.125: 1.3}, 6)
    assert words == "met at 1 of 3 densities; missed at s = 1/4: +5 %, 1/8: +30 %; 3 not recorded"
    assert verdict({}, 6) == "not recorded"


def shown(root: Path, sheet: Device, n: int) -> list[Shown]:
    recorded, problem = RecordedSparse.on(sheet, root=root), dense_problem(n, 128)
    return [Shown(name, recorded.curves(problem, name), 0.1) for name in PASSES]


def test_a_run_that_meets_all_and_one_that_does_not(
    tmp_path: Path, h200: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sparse_run(tmp_path / "good")
    problem = dense_problem(65536, 128)
    good = plain(goals_table(shown(tmp_path / "good", h200, 65536), problem, h200, SPARSE_ID))
    assert SPARSE_ID in good and "missed at" not in good and "lists of the mask" in good
    monkeypatch.setattr(synthetic_sparse, "OVERHEAD_MS", 0.5)
    monkeypatch.setattr(synthetic_sparse, "FLEX", 0.8)
    write_sparse_run(tmp_path / "bad")
    problem = dense_problem(8192, 128)
    bad = plain(goals_table(shown(tmp_path / "bad", h200, 8192), problem, h200, SPARSE_ID))
    assert "met at 0 of 4 densities; missed at s = 1/4: +25 %" in bad
    assert "lists of the mask" not in bad, "asked for at N = 65536 alone"
    fixed = fixed_backward_bytes(problem) / h200.hbm_bandwidth_gb_s / 1e6
    assert f"account for {duration(31 / 32 * fixed)}: delta" in bad and "471 MB" in bad


def test_a_run_with_two_rungs_names_both(tmp_path: Path, h200: Device) -> None:
    write_sparse_run(tmp_path)
    first, second = shown(tmp_path, h200, 8192)
    both = [replace(first, curves=replace(first.curves, series="flash_wgmma")), second]
    table = plain(goals_table(both, dense_problem(8192, 128), h200, SPARSE_ID))
    assert "asked of rung 06 and rung 05 at" in table
    assert sparse_goals.rung_numbers(both) == "06, 05"


def test_without_rows_there_is_no_table(h200: Device) -> None:
    curves = SparseCurves({}, {}, None, None, (), {})
    panels = [Shown(name, curves, 0.1) for name in PASSES]
    assert goals_table(panels, dense_problem(8192, 128), h200, "") == ""
    assert sparse_goals.over_cudnn(curves) == {}


def test_cudnn_is_passed_from_a_density_down_only_where_that_holds(
    tmp_path: Path, h200: Device
) -> None:
    write_sparse_run(tmp_path)
    curves = shown(tmp_path, h200, 8192)[0].curves
    assert curves.cudnn is not None
    slow = {s: _took(t, 2 * curves.cudnn.ms) if s == 1 / 8 else t for s, t in curves.ours.items()}
    said = _beside_cudnn(replace(curves, ours=slow), curves.cudnn.ms)
    assert said == "Faster than dense cuDNN at s = 1/4, 1/16, 1/32."


def _took(timed: Timed, ms: float) -> Timed:
    return Timed(replace(timed.row, p20=ms, median=ms, p80=ms))
