"""What `make compile-all` compiles, and what it calls a fault."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from fa_kernels.cuda.compile import CompileReport, kernel_names
from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.measure import compile_all as subject
from fa_kernels.measure.compile_all import SMEM_PER_BLOCK, architectures, compile_all, faults, jobs
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.variants import VARIANTS


def plan_of(count_traffic: bool = False) -> LaunchPlan:
    problem = AttentionProblem(1, 1, 4096, 4096, 64)
    return VARIANTS["standard_tiled"].plan(problem, Tiling(64, 64), count_traffic=count_traffic)


def report_of(plan: LaunchPlan, **changed: object) -> CompileReport:
    registers = {step.entry: 100 for step in plan.steps}
    report = CompileReport(plan.kernel, "sm_90", plan.macros, registers, 0, 0.5, "")
    return replace(report, **changed)  # type: ignore[arg-type]


def test_a_clean_build_has_no_fault() -> None:
    assert faults(plan_of(), report_of(plan_of()), 90) == []


def test_spills_are_a_fault_where_time_is_measured() -> None:
    plan, counting = plan_of(), plan_of(count_traffic=True)
    assert faults(plan, report_of(plan, spill_bytes=8), 90) == ["8 bytes of spills"]
    assert faults(counting, report_of(counting, spill_bytes=8), 90) == []


def test_a_missing_entry_is_a_fault() -> None:
    plan = plan_of()
    registers = {"standard_tiled_scores": 90, "standard_tiled_softmax": 31}
    found = faults(plan, report_of(plan, registers=registers), 90)
    assert found == ["missing entries ['standard_tiled_output']"]


def test_too_much_shared_memory_is_a_fault() -> None:
    plan = plan_of()
    steps = tuple(replace(step, smem_bytes=100 * 1024) for step in plan.steps)
    plan = replace(plan, steps=steps)
    assert faults(plan, report_of(plan), 90) == []
    (fault,) = faults(plan, report_of(plan), 75)
    assert str(plan.smem_bytes) in fault and "sm_75 has 65536" in fault


def test_every_kernel_is_compiled_for_every_architecture_of_its_header() -> None:
    done = Counter((p.kernel, arch) for p, arch in jobs() if not p.macros["COUNT_TRAFFIC"])
    for name in kernel_names():
        assert architectures(name) == [75, 80, 86, 89, 90, 100, 120]
        for arch in architectures(name):
            assert done[name, arch] == 4  # two dtypes, d = 64 and 128
    assert any(plan.macros["COUNT_TRAFFIC"] for plan, _ in jobs())


def test_what_is_shipped_fits_every_gpu() -> None:
    too_large = [(p.kernel, arch) for p, arch in jobs() if p.smem_bytes > SMEM_PER_BLOCK[arch]]
    assert not too_large


def test_a_header_without_architectures_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "KERNEL_DIR", tmp_path)
    (tmp_path / "09_new.cu").write_text("// New.\n// Architectures: all of them\n")
    with pytest.raises(ValueError, match=r"09_new\.cu: its header names no architectures"):
        architectures("09_new")
    (tmp_path / "09_new.cu").write_text("// New.\n// Architectures: sm_90 and later.\n")
    assert architectures("09_new") == [90, 100, 120]


def test_failures_are_counted_and_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of()

    def fake_report(name: str, macros: dict[str, int], arch: str) -> CompileReport:
        if arch == "sm_80":
            raise RuntimeError("02 does not compile for sm_80: log")
        return report_of(plan, spill_bytes=16 if arch == "sm_86" else 0)

    monkeypatch.setattr(subject, "compile_report", fake_report)
    monkeypatch.setattr(subject, "jobs", lambda: iter([(plan, 75), (plan, 80), (plan, 86)]))
    monkeypatch.setattr(subject, "kernel_names", lambda: ["02_standard_tiled", "09_orphan"])
    assert compile_all(verbose=True) == 3
    printed = capsys.readouterr().out
    assert "FAIL 09_orphan.cu belongs to no variant" in printed
    assert "does not compile for sm_80: log" in printed and "16 bytes of spills" in printed
    assert "compiled 3 builds" in printed and "3 failures" in printed
