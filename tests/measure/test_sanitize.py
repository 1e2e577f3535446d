"""`sanitize` must notice findings, and a tool that says nothing: stand-ins take the tools place."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fa_kernels.measure import sanitize as subject
from fa_kernels.measure.cases import can_run, suited
from fa_kernels.measure.sanitize import TOOLS, run_tool, sanitize, small_cases
from fa_kernels.variants import VARIANTS

CLEAN = {
    "memcheck": "========= ERROR SUMMARY: 0 errors",
    "racecheck": "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
    "initcheck": "========= ERROR SUMMARY: 0 errors",
    "synccheck": "========= ERROR SUMMARY: 0 errors",
}


def tool_that_says(tmp_path: Path, text: str) -> str:
    """An executable that prints `text` whatever it is asked."""
    path = tmp_path / "compute-sanitizer"
    path.write_text(f"#!{sys.executable}\nprint({text!r})\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("tool", TOOLS)
def test_no_findings(tool: str, tmp_path: Path) -> None:
    assert run_tool(tool, tool_that_says(tmp_path, f"launches 40\n{CLEAN[tool]}")).count == 0


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("launches 40\n========= ERROR SUMMARY: 7 errors", 7),
        ("launches 40\n========= RACECHECK SUMMARY: 1 hazard displayed (1 error)", 1),
        ("Traceback ...\n========= ERROR SUMMARY: 0 errors", None),  # it did not launch everything
        ("launches 40", None),
    ],
)
def test_findings_and_silence_are_told_apart(text: str, count: int | None, tmp_path: Path) -> None:
    assert run_tool("memcheck", tool_that_says(tmp_path, text)).count == count


def test_the_number_of_tools_with_findings_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    executable = tool_that_says(tmp_path, "launches 40\n========= ERROR SUMMARY: 7 errors")
    monkeypatch.setattr(subject, "sanitizer", lambda: executable)
    assert sanitize(("memcheck", "synccheck")) == 2
    assert "memcheck: 7 findings" in capsys.readouterr().out


def test_without_the_tool_it_says_where_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(subject, "sanitizer", lambda: None)
    assert sanitize() == 1
    assert "CUDA toolkit" in capsys.readouterr().out


def test_the_small_cases_reach_every_kernel_and_every_hook() -> None:
    problems = [case.problem for case in small_cases()]
    assert {p.dtype for p in problems} == {"float16", "bfloat16", "float32"}
    for name in ("window", "masked", "bias_dtype", "seed", "packed", "block_mask"):
        assert any(getattr(p, name) for p in problems), name
    assert any(p.group > 1 for p in problems)
    for variant in VARIANTS.values():
        assert any(p.dtype in variant.dtypes and p.block_mask is None for p in problems)
        for case in (case for case in small_cases() if can_run(variant, case)):
            variant.plan(case.problem, suited(variant, case).tiling)  # none that it would refuse


def test_the_small_cases_reach_every_kind_of_warp_on_tensor_cores() -> None:
    variant = VARIANTS["flash_mma"]
    found = set()
    for case in (case for case in small_cases() if can_run(variant, case)):
        own = suited(variant, case)
        plan = variant.plan(case.problem, own.tiling)
        rows = own.tiling.block_m * 32 // plan.steps[0].threads
        found.add((rows * (1 + plan.macros["PAIRS"]), bool(plan.macros["PAIRS"])))
    assert found == {(16, False), (32, False), (32, True)}
