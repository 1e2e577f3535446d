"""Clocks, temperature and power of the GPU while a run measures, as nvidia-smi reads them."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fa_kernels.measure.seal import write_atomically

#: What is asked of nvidia-smi, and under which name run.json has it.
FIELDS = {
    "clocks.sm": "sm_mhz",
    "clocks.mem": "mem_mhz",
    "temperature.gpu": "temperature_c",
    "power.draw": "power_w",
    "utilization.gpu": "busy_pct",
}
#: Between two readings: seldom enough to take nothing from what is measured.
INTERVAL_MS = 1000
#: A reading counts as one of a working GPU from this share of the second before on.
BUSY_PCT = 20.0
Reading = dict[str, float]


def parse(line: str) -> Reading | None:
    """One line of nvidia-smi as numbers, without those that this GPU does not have; None if bad."""
    cells = line.strip().split(", ")
    if len(cells) != len(FIELDS):
        return None
    found: Reading = {}
    for name, cell in zip(FIELDS.values(), cells, strict=True):
        with contextlib.suppress(ValueError):
            found[name] = float(cell)  # "[N/A]" is none
    # nvidia-smi does print "nan" on some machines: JSON has no such number.
    return {name: value for name, value in found.items() if math.isfinite(value)} or None


def summarise(readings: Sequence[Reading]) -> dict[str, Any]:
    """First and last reading, and min, median and max of those of a working GPU.

    An idle GPU lowers its clocks, which says nothing about what was measured: where it worked in
    any reading, only those count. {} without readings.
    """
    if not readings:
        return {}
    working = [r for r in readings if r.get("busy_pct", 0.0) >= BUSY_PCT]
    found: dict[str, Any] = {"readings": len(readings), "working": len(working)}
    found |= {"start": readings[0], "end": readings[-1]}
    for name in FIELDS.values():
        values = [r[name] for r in working or readings if name in r]
        if values and name != "busy_pct":
            middle = statistics.median(values)
            found[name] = {"min": min(values), "median": middle, "max": max(values)}
    return found


@contextlib.contextmanager
def watching(interval_ms: int = INTERVAL_MS) -> Iterator[list[Reading]]:
    """Reads the current GPU, by default once a second, into the list.

    It stays empty where that does not work.

    nvidia-smi writes into a pipe: it ends by itself if this process is killed.
    """
    readings: list[Reading] = []
    command = _command()
    if command is None:
        yield readings
        return
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([*command, "-lms", str(interval_ms)], text=True, **pipes)

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            found = parse(line)
            if found:
                readings.append(found)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield readings
    finally:
        process.terminate()
        process.wait()
        reader.join()
        assert process.stdout is not None
        process.stdout.close()
        if not readings:  # over in less than a second: at least what it is right after
            readings += _read_once(command)


def _read_once(command: list[str]) -> list[Reading]:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        found = [parse(line) for line in done.stdout.splitlines()]
        return [reading for reading in found if reading]
    return []


def _command() -> list[str] | None:
    """What asks nvidia-smi for the current GPU once; None where there is none to ask."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        import cupy

        # By its bus: nvidia-smi numbers GPUs otherwise than CUDA does.
        command += ["-i", str(cupy.cuda.Device().pci_bus_id)]
    except Exception:  # without a GPU, or a driver that is broken in any way: nothing to watch
        return None
    return command


@contextlib.contextmanager
def recorded_state(folder: Path, interval_ms: int = INTERVAL_MS) -> Iterator[Sequence[Reading]]:
    """Adds what the GPU did meanwhile to `gpu_state` of run.json, one entry for each session.

    Gives the readings, which grow meanwhile.
    """
    begun = time.monotonic()
    readings: list[Reading] = []
    try:
        with watching(interval_ms) as readings:
            yield readings
    finally:
        found = summarise(readings)
        if found:
            path = folder / "run.json"
            about = json.loads(path.read_text(encoding="utf-8"))
            found["seconds"] = round(time.monotonic() - begun)
            about["gpu_state"] = [*about.get("gpu_state", []), found]
            write_atomically(path, json.dumps(about, indent=2) + "\n")
