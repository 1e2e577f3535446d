"""`measure --ui`: what a reader waits for, in a real browser, beside the time it may take."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fa_kernels.measure.about import ROOT, describe_checkout, version

UI_DIR = ROOT / "data" / "ui"
#: The browser tests that time something add it to the file this variable names.
VARIABLE = "FA_UI_RECORD"
#: Their names contain one of these.
TESTS = ("redraws_are_quick", "steps_are_quick", "first_figure")
_PACKAGES = ("jupyterlab", "ipywidgets", "anywidget", "plotly", "voila", "playwright")


@dataclass(frozen=True)
class Budget:
    """Something a reader waits for: key of its measured value(s), in words, and the goal.

    Of several values the median counts.
    """

    key: str
    what: str
    unit: str
    goal: float

    def told(self, measured: Mapping[str, Any]) -> dict[str, Any]:
        """Value, longest, goal and whether it was met.

        Raises:
            KeyError: the tests did not measure it.
        """
        values = measured[self.key]
        several = values if isinstance(values, list) else [values]
        value = statistics.median(several)
        return {
            "what": self.what, "unit": self.unit, "value": round(value, 2), "n": len(several),
            "longest": max(several), "goal": self.goal, "met": value <= self.goal,
        }  # fmt: skip


BUDGETS = (
    Budget("first_figure_00_s", "Run All of 00 to its first figure", "s", 8),
    Budget("first_figure_03_s", "Run All of 03 to its first figure", "s", 8),
    Budget("app_first_figure_s", "opening the app's page to its first figure", "s", 8),
    Budget(
        "slider_to_redraw_ms",
        "a move of the N slider to the finished redraw of the explorer's four panels", "ms", 50,
    ),
    Budget("step_ms", "a step of the stepper: drawing and layout", "ms", 16),
)  # fmt: skip


def measure_ui(folder: Path = UI_DIR) -> Path:
    """Run the browser tests that time something, and write <folder>/<time>.json.

    Raises:
        RuntimeError: a test failed or wrote nothing; the message ends with its output.
    """
    load = [_load()]
    with tempfile.TemporaryDirectory() as scratch:
        raw = Path(scratch) / "times.json"
        command = [sys.executable, "-m", "pytest", "-q", "tests/browser", "-k", " or ".join(TESTS)]
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | {VARIABLE: str(raw)}, capture_output=True, text=True
        )
        measured = json.loads(raw.read_text(encoding="utf-8")) if raw.exists() else {}
        missing = [budget.key for budget in BUDGETS if budget.key not in measured]
        if done.returncode or missing:
            tail = (done.stdout + done.stderr)[-2000:]
            said = f"nothing of {', '.join(missing)}" if missing else "a test failed"
            raise RuntimeError(f"{said}; the tests need what `make test` does:\n{tail}")
    record = _record(measured, [*load, _load()])
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.fromisoformat(record["when"])
    path = folder / f"{now:%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return path


def add_measured(**values: Any) -> None:
    """For the tests: add what they measured to the record, where one is being made."""
    path = os.environ.get(VARIABLE)
    if path:
        file = Path(path)
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        file.write_text(json.dumps(known | values), encoding="utf-8")


def _record(measured: Mapping[str, Any], load: list[float | None]) -> dict[str, Any]:
    """The whole record; `load` is the machine's before and after, and tells what else ran."""
    times = measured["slider_to_redraw_ms"]
    now = datetime.datetime.now(datetime.UTC)
    return {
        "when": now.isoformat(timespec="seconds"),
        "budgets": {budget.key: budget.told(measured) for budget in BUDGETS},
        "median_ms": round(statistics.median(times), 1),
        "longest_ms": max(times),
        "goal_ms": 50,
        **measured,
        **describe_checkout(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "loop_ms": _loop_ms(),
        "load_before_and_after": load,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in _PACKAGES},
        "command": "python -m fa_kernels measure --ui",
    }


def _loop_ms() -> float:
    """A million additions in Python, the least of five: how fast this machine is on this day."""
    times = []
    for _ in range(5):
        start, total = time.perf_counter(), 0
        for number in range(1_000_000):
            total += number
        times.append(1e3 * (time.perf_counter() - start))
    return round(min(times), 1)


def _load() -> float | None:
    """Processes that wanted a core in the last minute; None where the system does not say."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
