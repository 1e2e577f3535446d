"""`doctor` on a bare machine: what is missing, what that costs, and a remedy for each."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from fa_kernels.cuda import verified
from fa_kernels.measure import baselines, doctor, records
from fa_kernels.measure.doctor import Finding, report
from tests.measure.rows import ROW, RUN_ID, write_run

TOPICS = (
    "GPU and driver", "CuPy", "NVRTC (compiler)", "torch", "Notebooks", "Browser for export",
    "Recorded runs", "Verified kernels",
)  # fmt: skip


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """NumPy and nothing else; no driver, no browser, no data."""
    monkeypatch.setattr(doctor, "nvidia_smi", lambda fields: [])
    monkeypatch.setattr(doctor, "version", lambda package: None)
    monkeypatch.setattr(doctor, "cupy_version", lambda: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("BROWSER_PATH", raising=False)
    for name in ("cupy", "cupy_backends", "cupy_backends.cuda.libs", "torch"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(records, "MEASURED_DIR", tmp_path / "measured")
    monkeypatch.setattr(verified, "VERIFIED_DIR", tmp_path / "verified")
    records.load_run.cache_clear()
    return tmp_path


def absent(text: str) -> dict[str, tuple[str, str]]:
    """topic -> (cost, remedy) of everything the report calls lacking."""
    lines, found = text.split("\n"), {}
    for i, line in enumerate(lines):
        if line.startswith("lacking "):
            topic = line.removeprefix("lacking ").split(": ")[0]
            found[topic] = (lines[i + 1].split("costs:")[1], lines[i + 2].split("remedy:")[1])
    return found


@pytest.mark.usefixtures("bare")
def test_a_bare_machine_is_told_what_each_absence_costs_and_the_remedy() -> None:
    text = report()
    found = absent(text)
    assert tuple(found) == TOPICS
    for topic, (cost, remedy) in found.items():
        assert len(cost.split()) >= 3, topic
        assert any(word in remedy for word in ("`", "pip", "install", "run on")), topic
    assert text.endswith("8 lacking; the rest works.")


def test_this_machine_has_a_report_too() -> None:
    text = report()
    assert all(f"{topic}: " in text for topic in TOPICS)
    assert text.startswith("Python 3.")


def test_peers_are_named_and_those_that_are_not_here_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(baselines, "_version", {"torch": "2.11.0", "flash-attn-4": "4.0"}.get)
    finding = doctor._peers()
    assert finding.ok, "a peer that is not there is left out, and costs nothing"
    assert finding.found == (
        "torch_eager, torch_flash, torch_cudnn, torch_math, torch_efficient, flex, fa4 can be "
        "measured beside our kernels; not installed: fa3 (fa3-fwd): pip install -e '.[peers]'"
    )


def test_a_complete_machine_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (lambda: Finding("torch", "2.9"),))
    assert report().endswith("ok      torch: 2.9\nEverything is here.")


def test_what_is_there_is_named(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "nvidia_smi", lambda fields: [["NVIDIA H200", "143771 MiB", "580"]])
    monkeypatch.setenv("BROWSER_PATH", "/opt/chromium")
    write_run(bare / "measured", [ROW])
    text = report()
    assert "ok      GPU and driver: NVIDIA H200, 143771 MiB, 580" in text
    assert "ok      Browser for export: chromium" in text
    assert f"ok      Recorded runs: {RUN_ID} (NVIDIA H200, 1 rows)" in text


def test_damaged_data_is_reported_and_not_raised(bare: Path) -> None:
    folder = write_run(bare / "measured", [ROW])
    (folder / "rows.csv").write_text("x")
    (bare / "verified").mkdir()
    (bare / "verified" / "sm_90.json").write_text("{")
    found = absent(report())
    assert "rows.csv has other columns" in found["Recorded runs"][0]
    assert "sm_90.json is not a verification record" in found["Verified kernels"][0]
    assert "git checkout" in found["Recorded runs"][0] + found["Recorded runs"][1]


@pytest.mark.usefixtures("bare")
def test_a_cupy_that_sees_no_gpu_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    class Runtime:
        @staticmethod
        def getDeviceCount() -> int:
            raise RuntimeError("cudaErrorInsufficientDriver:\n driver too old")

    fake: Any = type(sys)("cupy")
    fake.cuda = type("cuda", (), {"runtime": Runtime})
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(doctor, "cupy_version", lambda: "13.6.0")
    text = report()
    assert "13.6.0, sees no GPU (cudaErrorInsufficientDriver: driver too old)" in text
    assert "driver 580 or later" in absent(text)["CuPy"][1]
