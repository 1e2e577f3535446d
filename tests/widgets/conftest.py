"""Sessions for the widgets: with and without a recorded run, never with a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_kernels.session import Session, session
from tests.figures.synthetic import write_run


@pytest.fixture(scope="session")
def runs_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("measured")
    write_run(root)
    return root


@pytest.fixture
def recorded(runs_root: Path) -> Session:
    return session("numpy", root=runs_root)


@pytest.fixture
def bare(tmp_path: Path) -> Session:
    return session("numpy", root=tmp_path)
