"""What a run says about itself: GPU, driver, versions, commit, clocks."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from fa_kernels.measure.records import SCHEMA_VERSION

ROOT = Path(__file__).parents[2]


def _output(*command: str) -> str:
    """Standard output of a command, stripped; "" if it is missing or fails."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def nvidia_smi(fields: str) -> list[list[str]]:
    """The comma-separated `fields` of every GPU as nvidia-smi prints them; [] without a driver."""
    lines = _output("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader").splitlines()
    return [line.split(", ") for line in lines]


def version(package: str) -> str | None:
    """Installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cupy_version() -> str | None:
    """Version of whichever CuPy wheel is installed, or None."""
    for name in ("cupy-cuda13x", "cupy-cuda12x", "cupy"):
        if version(name):
            return version(name)
    return None


def current_arch() -> str:
    """Compute capability of the current GPU, e.g. "sm_90"."""
    import cupy

    return f"sm_{cupy.cuda.Device().compute_capability}"


def describe_checkout() -> dict[str, Any]:
    """The commit that is checked out, and whether tracked files differ from it.

    Without git, as on a copied tree, the commit is "unknown" and `dirty` None.
    """
    commit = _output("git", "rev-parse", "HEAD")
    changed = bool(_output("git", "status", "--porcelain", "--untracked-files=no"))
    return {"commit": commit or "unknown", "dirty": changed if commit else None}


def describe_numpy_run(command: str, method: str) -> dict[str, Any]:
    """The contents of run.json for a run of the references in NumPy, which starts now."""
    now = datetime.datetime.now(datetime.UTC)
    return {
        "schema": SCHEMA_VERSION,
        "run_id": f"{now:%Y%m%d}-cpu-",
        "command": command,
        **describe_checkout(),
        "started": now.isoformat(timespec="seconds"),
        "device": f"CPU (NumPy {version('numpy')})",
        "arch": platform.machine() or "unknown",
        **dict.fromkeys(("driver", "cuda", "nvrtc"), "none"),
        **dict.fromkeys(("cupy", "torch")),
        "python": platform.python_version(),
        "clocks": {},
        "method": method,
        "cpu": _cpu_name(),
    }


def _cpu_name() -> str:
    """What the processor calls itself, where the system says so."""
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        if match := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
            return match[1].strip()
    return platform.processor() or "unknown"


def describe_run(command: str, method: str) -> dict[str, Any]:
    """The contents of run.json for a run that starts now on the current GPU."""
    import cupy
    from cupy_backends.cuda.libs import nvrtc

    from fa_kernels.cuda.launch import gpu_name

    name = gpu_name()
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("nvidia ")).strip("-")
    now = datetime.datetime.now(datetime.UTC)
    runtime = cupy.cuda.runtime.runtimeGetVersion()
    smi = nvidia_smi("driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit")
    driver, *clocks = smi[0] if smi else ["unknown"]
    return {
        "schema": SCHEMA_VERSION,
        "run_id": f"{now:%Y%m%d}-{slug}-",
        "command": command,
        **describe_checkout(),
        "started": now.isoformat(timespec="seconds"),
        "device": name,
        "arch": current_arch(),
        "driver": driver,
        "cuda": f"{runtime // 1000}.{runtime % 1000 // 10}",
        "nvrtc": ".".join(map(str, nvrtc.getVersion())),
        "cupy": cupy_version(),
        "torch": version("torch"),
        "python": platform.python_version(),
        "clocks": dict(zip(("sm", "mem", "max_sm", "power_limit"), clocks, strict=False)),
        "method": method,
    }
