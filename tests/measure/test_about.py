"""What a run says about itself, on machines that lack git, a driver or packages."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest

from fa_kernels.measure import about


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program is found."""
    monkeypatch.setattr(shutil, "which", lambda name: None)


def smi(monkeypatch: pytest.MonkeyPatch, printed: str, code: int = 0) -> None:
    def run(command: Any, **options: Any) -> Any:
        return subprocess.CompletedProcess(command, code, printed, "")

    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(subprocess, "run", run)


@pytest.mark.usefixtures("bare")
def test_without_a_driver_there_are_no_gpus() -> None:
    assert about.nvidia_smi("name") == []


def test_a_failing_nvidia_smi_means_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is installed and prints "NVIDIA-SMI has failed ..." where the driver is broken."""
    smi(monkeypatch, "NVIDIA-SMI has failed because it couldn't communicate", code=9)
    assert about.nvidia_smi("name") == []


def test_every_gpu_is_one_list(monkeypatch: pytest.MonkeyPatch) -> None:
    smi(monkeypatch, "NVIDIA H200, 143771 MiB\nNVIDIA T4, 15360 MiB\n")
    assert about.nvidia_smi("name,memory.total") == [
        ["NVIDIA H200", "143771 MiB"], ["NVIDIA T4", "15360 MiB"],
    ]  # fmt: skip


def test_versions() -> None:
    assert re.match(r"\d+\.\d+", about.version("numpy") or "")
    assert about.version("no-such-distribution") is None


@pytest.mark.parametrize(
    ("installed", "found"),
    [({}, None), ({"cupy": "13.0"}, "13.0"), ({"cupy-cuda12x": "13.6", "cupy": "13.0"}, "13.6")],
)
def test_any_cupy_wheel_counts(
    installed: dict[str, str], found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(about, "version", installed.get)
    assert about.cupy_version() == found
