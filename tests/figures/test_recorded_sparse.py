"""A sparse run looked up: every curve with its own rows, and goals computed from the dense call."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_kernels.device import Device
from fa_kernels.figures.recorded_sparse import GOAL_MS, RecordedSparse
from fa_kernels.measure.records import load_run
from fa_kernels.measure.sparse_run import DENSITIES, dense_problem
from tests.figures.synthetic_sparse import (
    CUDNN,
    DEVICE_US,
    FACTOR,
    FLEX,
    HOST_US,
    OVERHEAD_MS,
    SPARSE_ID,
    dense_ms,
    write_sparse_run,
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("sparse")
    write_sparse_run(folder)
    return folder


@pytest.mark.parametrize("pass_", ["fwd", "bwd"])
def test_every_curve_has_its_own_rows(root: Path, h200: Device, pass_: str) -> None:
    recorded = RecordedSparse.on(h200, root=root)
    assert recorded.run_id == SPARSE_ID
    problem = dense_problem(8192, 128)
    curves, dense = recorded.curves(problem, pass_), dense_ms(problem, pass_)
    assert curves.dense and curves.cudnn
    assert curves.dense.ms == pytest.approx(dense, rel=1e-5)
    assert curves.cudnn.ms == pytest.approx(CUDNN * dense, rel=1e-5)
    assert list(curves.ours) == list(DENSITIES) == list(curves.flex)
    for density, timed in curves.ours.items():
        assert timed.ms == pytest.approx(FACTOR * density * dense + OVERHEAD_MS, rel=1e-5)
    assert list(curves.against(curves.flex).values()) == pytest.approx([FLEX] * 6, rel=1e-4)
    assert [mine.mask_words for mine, _ in curves.others] == ["global", "local, causal"]
    assert all(flex and flex.mask_words == mine.mask_words for mine, flex in curves.others)
    assert curves.lists["host"] == dict.fromkeys(DENSITIES, HOST_US)
    assert curves.lists["device"] == dict.fromkeys(DENSITIES, DEVICE_US)


def test_the_goal_is_looser_below_a_quarter(root: Path, h200: Device) -> None:
    curves = RecordedSparse.on(h200, root=root).curves(dense_problem(8192, 64), "fwd")
    assert curves.dense
    for density, factor in ((1.0, 1.05), (1 / 4, 1.05), (1 / 8, 1.10)):
        want = factor * density * curves.dense.ms + GOAL_MS
        assert curves.goal_ms(density) == pytest.approx(want)
        assert curves.ideal_ms(density) == density * curves.dense.ms


def test_what_was_left_out_is_absent(root: Path, h200: Device) -> None:
    recorded = RecordedSparse.on(h200, root=root)
    far = recorded.curves(dense_problem(65536, 64), "bwd")
    assert list(far.ours) == [1.0, 1 / 4, 1 / 16] and not far.flex and not far.others
    nothing = RecordedSparse().curves(dense_problem(8192, 64), "fwd")
    assert nothing.dense is None and not nothing.ours and nothing.goal_ms(0.5) is None


def test_a_run_of_another_kind_or_device_is_not_taken(
    root: Path, tmp_path: Path, h200: Device
) -> None:
    write_sparse_run(tmp_path, device="NVIDIA A100-SXM4-80GB")
    assert RecordedSparse.on(h200, root=tmp_path).run is None
    assert RecordedSparse.on(h200, load_run("20261130-h200-grid"), root).run_id == SPARSE_ID
