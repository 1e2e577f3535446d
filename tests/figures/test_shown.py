"""A run that somebody adds from another GPU can be chosen, and changes no page by itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fa_kernels.figures import shown
from fa_kernels.figures.shown import readme_device, runs_to_show
from fa_kernels.measure import records
from fa_kernels.session import session
from tests.measure.rows import ROW, write_run

OLD, NEW, OTHER = "20260101-h200-grid", "20260201-h200-grid", "20260301-rtx4090-grid"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The README shows the older run of an H200; the newest run is of another GPU."""
    monkeypatch.setattr(records, "MEASURED_DIR", tmp_path / "measured")
    monkeypatch.setattr(shown, "SIDECAR", tmp_path / "story.json")
    (tmp_path / "story.json").write_text(json.dumps({"run_id": OLD}))
    for run_id in (OLD, NEW):
        write_run(tmp_path / "measured", [ROW], run_id)
    write_run(tmp_path / "measured", [ROW], OTHER, device="NVIDIA GeForce RTX 4090")
    write_run(tmp_path / "measured", [ROW], "20260401-h200-speed", kind="speed")
    records.load_run.cache_clear()
    return tmp_path


@pytest.mark.usefixtures("runs")
def test_the_newest_of_the_readmes_gpu_is_shown() -> None:
    assert readme_device() == "NVIDIA H200"
    assert runs_to_show() == [NEW, OLD, OTHER]
    made = session("numpy")
    assert made.run is not None and made.run.run_id == NEW


@pytest.mark.usefixtures("runs")
def test_the_gpu_at_hand_comes_first() -> None:
    assert runs_to_show("NVIDIA GeForce RTX 4090") == [OTHER, NEW, OLD]
    assert runs_to_show("NVIDIA T4") == [NEW, OLD, OTHER]


@pytest.mark.usefixtures("runs")
def test_any_run_can_be_chosen() -> None:
    made = session("numpy", run_id=OTHER)
    assert made.run is not None and made.run.device == "NVIDIA GeForce RTX 4090"


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"run_id": "gone"}'])
def test_without_a_picture_the_newest_is_shown(text: str, runs: Path) -> None:
    (runs / "story.json").write_text(text)
    assert readme_device() == ""
    assert runs_to_show() == [OTHER, NEW, OLD]
