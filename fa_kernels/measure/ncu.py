"""NVIDIA Nsight Compute: find `ncu`, profile one program, read the CSV, say refusals in words."""

from __future__ import annotations

import csv
import functools
import glob
import math
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Looked at after PATH and CUDA_HOME, each newest first.
PLACES = (
    "/usr/local/cuda/bin/ncu",
    "/usr/local/cuda-*/bin/ncu",
    "/opt/nvidia/nsight-compute/*/ncu",
    "/usr/local/NVIDIA-Nsight-Compute*/ncu",
)
#: No flush and no clock lock: what a call finds in the L2 is the program's business, and the
#: clocks of a GPU that others share are not ours to set.
OPTIONS = (
    "--csv", "--page", "raw", "--print-units", "base", "--profile-from-start", "off",
    "--clock-control", "none", "--cache-control", "none", "--replay-mode", "kernel",
    "--target-processes", "all",
)  # fmt: skip
NO_COUNTERS = (
    "Bytes counted inside the kernels need no profiler: `python -m fa_kernels measure` has them."
)
NOT_FOUND = (
    "ncu (NVIDIA Nsight Compute) was not found on PATH, in CUDA_HOME, /usr/local/cuda* or "
    "/opt/nvidia/nsight-compute, so no hardware counters are read: install it with the CUDA "
    f"toolkit, or put its folder on PATH. {NO_COUNTERS}"
)
#: What ncu says, and what to do about it; the first that is found counts.
REFUSALS = (
    (
        "ERR_NVGPUCTRPERM|permission to access NVIDIA GPU Performance Counters",
        "the driver lets only administrators read hardware counters (ERR_NVGPUCTRPERM): run as "
        "root, or have the driver module loaded with NVreg_RestrictProfilingToAdminUsers=0",
    ),
    (
        "LibraryNotLoaded|Failed to initialize the profiler",
        "ncu cannot reach the driver's profiler here, as in some containers: use a machine or a "
        "virtual machine that passes the GPU's counters through",
    ),
    (
        "driver resource was unavailable",
        "another profiler or monitor (DCGM, say) holds the counters: stop it, or pause it with "
        "`dcgmi profile --pause`",
    ),
)
_PASSES = re.compile(r"- (\d+) pass(?:es)?\b")
_UNIT = re.compile(r"(n|u|m)?(?:sec(?:ond)?s?|s)$|([KMGT]?)(i?)(byte|sector|inst|cycle|warp)s?$")
_SECONDS_IN_MS = {"n": 1e-6, "u": 1e-3, "m": 1.0, None: 1e3}
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


class NcuRefused(RuntimeError):
    """ncu is not there or may not read the counters; the message says why and what to do."""


@dataclass(frozen=True)
class Launch:
    """One profiled launch: the kernel's name, and its counters by ncu's names.

    Values are in bytes, milliseconds, percent or counts. What ncu had no value for is not there.
    """

    kernel: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class Profile:
    """What came of one run of ncu: launches in their order, and all that was printed."""

    launches: tuple[Launch, ...]
    passes: int
    returncode: int
    text: str

    @property
    def refusal(self) -> str | None:
        """A sentence if ncu was refused the counters, else None."""
        for pattern, sentence in REFUSALS:
            if re.search(pattern, self.text):
                return f"No hardware counters: {sentence}. {NO_COUNTERS}"
        return None

    @property
    def complaint(self) -> str:
        """The last error that was printed, in one line of at most 300 characters."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        lines = [line for line in lines if "application returned an error code" not in line]
        marked = [line for line in lines if re.search(r"==ERROR==|Error", line)]
        said = (marked or lines or [f"ncu printed nothing, exit status {self.returncode}"])[-1]
        return said.removeprefix("==ERROR==").strip()[:300]


def find_ncu() -> str:
    """The path of `ncu`.

    Raises:
        NcuRefused: it is in none of the usual places.
    """
    on_path = shutil.which("ncu")
    if on_path:
        return on_path
    home = os.environ.get("CUDA_HOME")
    for pattern in ((f"{home}/bin/ncu",) if home else ()) + PLACES:
        found = [path for path in glob.glob(pattern) if os.access(path, os.X_OK)]
        if found:
            return max(found, key=_version_in)
    raise NcuRefused(NOT_FOUND)


def _version_in(path: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path)]


def ncu_version(ncu: str) -> str:
    """The version `ncu` gives itself, e.g. "2025.3.1.0", or "unknown"."""
    found = re.search(r"Version ([\d.]+)", _output(ncu, "--version"))
    return found[1] if found else "unknown"


@functools.cache
def known_counters(ncu: str) -> frozenset[str]:
    """Base names ("dram__bytes_read") that `ncu` knows on this GPU; empty if it won't say."""
    listed = _output(ncu, "--query-metrics")
    return frozenset(re.findall(r"^([a-z]\w*__\w+)", listed, re.MULTILINE))


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def profile(
    ncu: str,
    metrics: Sequence[str],
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> Profile:
    """Run `command` under ncu and collect `metrics` of every launch it profiles.

    Launches are profiled where `command` asks for it, between cudaProfilerStart and -Stop. What was
    read before a program died, or was ended after `timeout_s`, is kept; nothing is raised for it.
    """
    with tempfile.TemporaryDirectory() as folder:
        # A file of its own: what the program prints would come between the lines of the table.
        log = Path(folder) / "ncu.log"
        options = [*OPTIONS, "--metrics", ",".join(metrics), "--log-file", str(log)]
        status, said = _run([ncu, *options, *command], env, timeout_s)
        table = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    text = "\n".join([table, said])
    passes = max(map(int, _PASSES.findall("\n".join(_tool_lines(text)))), default=1)
    return Profile(tuple(parse_csv(text)), passes, status, text)


def _run(
    command: Sequence[str], env: Mapping[str, str] | None, timeout_s: float | None
) -> tuple[int, str]:
    """Exit status and everything printed; -1 for a program that was ended after `timeout_s`."""
    options: dict[str, Any] = {"text": True, "errors": "replace", "env": env}
    try:
        done = subprocess.run(
            command, capture_output=True, check=False, timeout=timeout_s, **options
        )
    except subprocess.TimeoutExpired as late:
        parts = [
            p.decode(errors="replace") if isinstance(p, bytes) else p or ""
            for p in (late.stdout, late.stderr)
        ]
        return -1, "\n".join([*parts, f"ended after {timeout_s:.0f} s without an answer"])
    return done.returncode, f"{done.stdout}\n{done.stderr}"


def _tool_lines(text: str) -> Iterator[str]:
    return (line for line in text.splitlines() if line.startswith("=="))


def parse_csv(text: str) -> list[Launch]:
    """The launches in ncu's CSV, in order, whatever stands around the table.

    Reads both layouts: one line a launch with a line of units (`--page raw`), and one line a
    number with the columns Metric Name, Metric Unit, Metric Value (`--page details`).
    """
    kernels: dict[str, str] = {}
    values: dict[str, dict[str, float]] = {}
    for row, units in _table(text):
        launch = f"{row.get('Process ID', '')} {row['ID']}"
        kernels.setdefault(launch, row.get("Kernel Name", ""))
        found = values.setdefault(launch, {})
        if "Metric Name" in row:
            cells = [(row["Metric Name"], row["Metric Value"], row["Metric Unit"])]
        else:
            cells = [
                (name, cell, units.get(name, "")) for name, cell in row.items() if "__" in name
            ]
        for name, cell, unit in cells:
            number = _number(cell, unit)
            if number is not None:
                found[name] = number
    return [Launch(kernel, values[launch]) for launch, kernel in kernels.items()]


def _table(text: str) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """(row, units) for every line of every table; units is empty in the layout that has none."""
    header: list[str] = []
    units: dict[str, str] | None = None
    lines = (line for line in text.splitlines() if line.startswith(('"', "ID,")))
    for cells in csv.reader(lines):
        if cells[0] == "ID":
            header, units = cells, {} if "Metric Name" in cells else None
        elif len(cells) == len(header):
            row = dict(zip(header, cells, strict=True))
            if row["ID"] == "":
                units = row
            elif units is not None:  # a number without its unit may be anything
                yield row, units


def _number(cell: str, unit: str) -> float | None:
    """A cell in bytes, ms, % or counts; None for "n/a" and for a unit that is not known."""
    try:
        number = float(cell.replace(",", ""))
    except ValueError:
        return None
    scale = _scale(unit.strip())
    if scale is None or not math.isfinite(number):
        return None
    return number * scale


def _scale(unit: str) -> float | None:
    if unit in ("", "%"):
        return 1.0
    match = _UNIT.fullmatch(unit)
    if match is None:
        return None
    if match[4] is None:
        return _SECONDS_IN_MS[match[1]]
    return float((1024 if match[3] else 1000) ** _POWER[match[2]])
