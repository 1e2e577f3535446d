"""The record of what a reader waits for: budgets, and what the browser tests hand over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fa_kernels.measure import ui

MEASURED = {
    "first_figure_00_s": 3.0,
    "first_figure_03_s": 9.0,
    "app_first_figure_s": 5.0,
    "slider_to_redraw_ms": [40, 60, 41],
    "step_ms": 2.5,
}


def test_a_budget_says_the_median_and_whether_it_was_met() -> None:
    record = ui._record(MEASURED, [0.5, 1.5])
    assert record["budgets"].keys() == {budget.key for budget in ui.BUDGETS}
    redraw = record["budgets"]["slider_to_redraw_ms"]
    assert (redraw["value"], redraw["longest"], redraw["n"], redraw["met"]) == (41, 60, 3, True)
    assert not record["budgets"]["first_figure_03_s"]["met"]
    assert record["load_before_and_after"] == [0.5, 1.5]
    assert 1 < record["loop_ms"] < 10_000, "of a million additions"
    json.dumps(record)


def test_what_is_not_measured_is_not_recorded() -> None:
    with pytest.raises(KeyError, match="step_ms"):
        ui._record({k: v for k, v in MEASURED.items() if k != "step_ms"}, [])


def test_tests_hand_over_what_they_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ui.VARIABLE, raising=False)
    ui.add_measured(step_ms=1)  # nobody asked: nothing is written
    file = tmp_path / "times.json"
    monkeypatch.setenv(ui.VARIABLE, str(file))
    ui.add_measured(step_ms=1)
    ui.add_measured(browser="Chromium 1")
    assert json.loads(file.read_text(encoding="utf-8")) == {"step_ms": 1, "browser": "Chromium 1"}


def test_the_tests_that_time_something_exist() -> None:
    folder = ui.ROOT / "tests" / "browser"
    code = "".join(path.read_text(encoding="utf-8") for path in folder.glob("test_*.py"))
    for name in ui.TESTS:
        assert name in code
    for budget in ui.BUDGETS:
        name = "first_figure_{" if budget.key.startswith("first") else f"{budget.key}="
        assert name in code, budget.key
