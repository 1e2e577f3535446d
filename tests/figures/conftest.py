"""A synthetic run, written once, and the devices the figures are drawn for."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_kernels.device import Device, device
from fa_kernels.figures.recorded import RecordedRun
from fa_kernels.measure.records import Run, load_run
from tests.figures.synthetic import RUN_ID, write_run


@pytest.fixture(scope="session")
def runs_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("measured")
    write_run(root)
    return root


@pytest.fixture(scope="session")
def run(runs_root: Path) -> RecordedRun:
    return RecordedRun(load_run(RUN_ID, runs_root))


@pytest.fixture(scope="session")
def measured_run() -> Run:
    """The H200 run in data/measured, not the made-up one."""
    return load_run("20261130-h200-grid")


@pytest.fixture
def h200() -> Device:
    return device("h200")
