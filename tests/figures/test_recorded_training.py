"""Steps of a training run: which rows are of one model, and which run is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fa_kernels.device import device
from fa_kernels.figures.recorded_training import RecordedTraining
from fa_kernels.measure.records import Run
from tests.figures.synthetic_training import TRAINING_ID, write_training_run


def test_the_newest_run_of_the_gpu_counts(tmp_path: Path) -> None:
    assert RecordedTraining.on(device("h200"), tmp_path).run is None
    write_training_run(tmp_path)
    newest = "20260106-h200-training"
    write_training_run(tmp_path, newest, factor=0.5)
    found = RecordedTraining.on(device("h200"), tmp_path)
    assert found.run and found.run.run_id == newest != TRAINING_ID
    assert RecordedTraining.on(device("t4"), tmp_path).steps == []


def test_rows_of_a_model_stand_together(tmp_path: Path) -> None:
    write_training_run(tmp_path)
    plain, dropped = RecordedTraining.on(device("h200"), tmp_path).steps
    assert (plain.row.dropout_p, dropped.row.dropout_p) == (0.0, 0.1)
    assert list(plain.times) == list(plain.memory) == ["flash_mma", "torch_flash"]
    assert plain.ours == "flash_mma" and plain.ratio("torch_flash") == pytest.approx(1.25)
    assert dropped.ratio("torch_flash") == pytest.approx(0.8)


def test_a_model_without_ours_is_left_out(tmp_path: Path) -> None:
    write_training_run(tmp_path)
    run = RecordedTraining.on(device("h200"), tmp_path).run
    assert isinstance(run, Run)
    failed = [
        replace(row, status="failed") if row.dropout_p and row.series == "flash_mma" else row
        for row in run.rows
    ]
    steps = RecordedTraining(replace(run, rows=tuple(failed))).steps
    assert [step.row.dropout_p for step in steps] == [0.0]
