"""What nvidia-smi says while a run measures, and that its absence costs nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fa_kernels.measure import gpu_state
from fa_kernels.measure.gpu_state import FIELDS, parse, recorded_state, summarise, watching
from tests.measure.rows import ROW, write_run


def test_a_line_is_numbers_under_names_with_units() -> None:
    assert parse("1980, 3201, 55, 612.34, 100\n") == {
        "sm_mhz": 1980.0, "mem_mhz": 3201.0, "temperature_c": 55.0, "power_w": 612.34,
        "busy_pct": 100.0,
    }  # fmt: skip


@pytest.mark.parametrize("line", ["", "1980, 3201", "a, b, c, d, e", "[N/A], [N/A], [N/A], nan, x"])
def test_what_is_no_reading_is_left_out(line: str) -> None:
    assert parse(line) is None


def test_what_a_gpu_does_not_say_is_left_out() -> None:
    assert parse("1980, 3201, 55, [N/A], 3") == {
        "sm_mhz": 1980.0, "mem_mhz": 3201.0, "temperature_c": 55.0, "busy_pct": 3.0,
    }  # fmt: skip


def test_only_a_working_gpus_clocks_count() -> None:
    pairs = ((345.0, 0.0), (1980.0, 90.0), (1755.0, 95.0), (1900.0, 50.0), (360.0, 1.0))
    readings = [{"sm_mhz": mhz, "busy_pct": busy} for mhz, busy in pairs]
    found = summarise(readings)
    assert found["sm_mhz"] == {"min": 1755.0, "median": 1900.0, "max": 1980.0}
    assert (found["readings"], found["working"]) == (5, 3)
    assert (found["start"]["sm_mhz"], found["end"]["sm_mhz"]) == (345.0, 360.0)
    assert "busy_pct" not in found


def test_without_any_work_all_readings_count() -> None:
    found = summarise([{"sm_mhz": 345.0}, {"sm_mhz": 360.0}])
    assert found["sm_mhz"]["median"] == 352.5 and found["working"] == 0
    assert summarise([]) == {}


def test_without_a_driver_nothing_is_watched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_state.shutil, "which", lambda name: None)
    folder = write_run(tmp_path, [ROW])
    before = (folder / "run.json").read_bytes()
    with recorded_state(folder):
        pass
    assert (folder / "run.json").read_bytes() == before


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An nvidia-smi that prints two readings and then waits to be ended."""
    path = tmp_path / "bin" / "nvidia-smi"
    path.parent.mkdir()
    lines = "1980, 3201, 55, 612.3, 100\\n1755, 3201, 60, 690.1, 100\\n"
    path.write_text(f'#!/bin/sh\necho "$@" > "{tmp_path}/asked"\nprintf "{lines}"\nexec sleep 60\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    device = SimpleNamespace(pci_bus_id="0000:1B:00.0")
    cupy = SimpleNamespace(cuda=SimpleNamespace(Device=lambda: device))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return tmp_path / "asked"


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands in for nvidia-smi")
def test_the_current_gpu_is_read_and_the_reader_ended(smi: Path, tmp_path: Path) -> None:
    import time

    with watching() as readings:
        for _ in range(200):
            if len(readings) == 2:
                break
            time.sleep(0.01)
    assert [r["sm_mhz"] for r in readings] == [1980.0, 1755.0]
    asked = smi.read_text()
    assert f"--query-gpu={','.join(FIELDS)}" in asked and "-i 0000:1B:00.0 -lms 1000" in asked
    with watching(100) as readings:
        for _ in range(200):
            if readings:
                break
            time.sleep(0.01)
    assert readings and smi.read_text().endswith("-lms 100\n")


@pytest.mark.usefixtures("smi")
@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands in for nvidia-smi")
def test_a_session_that_is_over_at_once_is_read_right_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once = ["sh", "-c", "printf '345, 3201, 40, 80.0, 0\\n'"]
    assert gpu_state._read_once(once) == [parse("345, 3201, 40, 80.0, 0")]
    assert gpu_state._read_once(["sh", "-c", "exit 9"]) == []
    assert gpu_state._read_once(["no-such-program"]) == []
    silent = ["sh", "-c", 'test "$1" = -lms && exec sleep 60; echo 345, 3201, 40, 80.0, 0', "x"]
    monkeypatch.setattr(gpu_state, "_command", lambda: silent)
    with watching() as readings:
        pass
    assert [reading["sm_mhz"] for reading in readings] == [345.0]


def test_every_session_of_a_run_has_its_entry(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = write_run(tmp_path, [ROW])
    for mhz in (1980.0, 1755.0):

        def summary(readings: object, mhz: float = mhz) -> dict[str, float]:
            return {"sm_mhz": mhz}

        monkeypatch.setattr(gpu_state, "summarise", summary)
        with recorded_state(folder):
            pass
    about = json.loads((folder / "run.json").read_text())
    assert [state["sm_mhz"] for state in about["gpu_state"]] == [1980.0, 1755.0]
    assert all(state["seconds"] >= 0 for state in about["gpu_state"])
