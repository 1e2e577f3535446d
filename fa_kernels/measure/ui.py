"""`measure --ui`: how long from a move of a slider to the redrawn explorer, in a real browser."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from fa_kernels.measure.about import ROOT, describe_checkout, version

UI_DIR = ROOT / "data" / "ui"
#: The browser test that moves the slider writes its milliseconds to the file this variable names.
VARIABLE = "FA_UI_RECORD"
_PACKAGES = ("jupyterlab", "ipywidgets", "anywidget", "plotly", "playwright")


def measure_ui(folder: Path = UI_DIR) -> Path:
    """Run the browser test that times redraws, and write <folder>/<time>.json.

    Raises:
        RuntimeError: the test failed or wrote nothing; the message ends with its output.
    """
    with tempfile.TemporaryDirectory() as scratch:
        raw = Path(scratch) / "times.json"
        command = [sys.executable, "-m", "pytest", "-q", "tests/browser", "-k", "redraws"]
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | {VARIABLE: str(raw)}, capture_output=True, text=True
        )
        if done.returncode or not raw.exists():
            tail = (done.stdout + done.stderr)[-2000:]
            raise RuntimeError(f"the redraw test failed; it needs what `make test` does:\n{tail}")
        measured = json.loads(raw.read_text(encoding="utf-8"))
    now = datetime.datetime.now(datetime.UTC)
    times = measured["slider_to_redraw_ms"]
    record = {
        "when": now.isoformat(timespec="seconds"),
        "what": "a move of the N slider to the finished redraw of the explorer's four panels",
        "median_ms": round(statistics.median(times), 1),
        "longest_ms": max(times),
        "goal_ms": 50,
        **measured,
        **describe_checkout(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in _PACKAGES},
        "command": "python -m fa_kernels measure --ui",
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{now:%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return path
