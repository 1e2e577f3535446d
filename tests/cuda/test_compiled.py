"""Compiled kernels: ptxas' words as numbers, and the record with its hashes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fa_kernels.cuda import compiled
from fa_kernels.cuda.compile import kernel_hash
from fa_kernels.cuda.compiled import (
    Build,
    CompiledLaunch,
    as_json,
    plan_hash,
    read_log,
    read_record,
    recorded_archs,
    recorded_build,
)
from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.cuda.sass import InstructionMix
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.variants import VARIANTS

LOG = """
ptxas info    : 112 bytes gmem, 224 bytes cmem[4]
ptxas info    : Compiling entry function 'first' for 'sm_90'
ptxas info    : Function properties for first
ptxas         .     8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 147 registers, used 1 barriers, 256 bytes smem, 532 bytes cmem[0]
ptxas info    : Compiling entry function 'second' for 'sm_90'
ptxas info    : Function properties for second
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers
"""
MIX = InstructionMix({"tensor": 4, "other": 6}, {"tensor": 4}, {"HMMA.16816.F32": 4}, 16384)


def test_the_log_entry_by_entry() -> None:
    assert read_log(LOG) == {"first": (147, 28, 256), "second": (32, 0, 0)}
    assert read_log("") == {}


def plan_of(block_m: int = 64) -> LaunchPlan:
    problem = AttentionProblem.of_tokens(4096, 64, "float16")
    return VARIANTS["flash_q_outer"].plan(problem, Tiling(block_m, 64))


def build_of(plan: LaunchPlan) -> Build:
    (step,) = plan.steps
    launch = CompiledLaunch(step.entry, step.threads, 147, 0, 0, step.smem_bytes, MIX)
    return Build("flash_q_outer", 90, "float16", 64, (64, 64), (launch,))


def write(folder: Path, plan: LaunchPlan, digest: str | None = None) -> None:
    entry = {"hash": digest or kernel_hash(plan.kernel), "builds": [as_json(build_of(plan), plan)]}
    record = {"arch": "sm_90", "nvrtc": "13.0", "kernels": {plan.kernel: entry}}
    (folder / "sm_90.json").write_text(json.dumps(record), encoding="utf-8")


def find(folder: Path, plan: LaunchPlan, **changed: Any) -> Build | None:
    asked = {"variant": "flash_q_outer", "arch": 90, "dtype": "float16", "head_dim": 64, **changed}
    return recorded_build(plan=plan, root=folder, **asked)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path, plan_of())
    found = find(tmp_path, plan_of())
    assert found is not None and found.current and found.source == "recorded, NVRTC 13.0"
    assert found.launches == build_of(plan_of()).launches
    assert found.uses_tensor_cores and found.spill_bytes == 0
    assert recorded_archs(tmp_path) == [90]


def test_another_kernel_or_launch_is_not_current(tmp_path: Path) -> None:
    write(tmp_path, plan_of(), digest="0" * 16)
    found = find(tmp_path, plan_of())
    assert found is not None and not found.current
    write(tmp_path, plan_of(32))
    found = find(tmp_path, plan_of())
    assert found is not None and not found.current
    assert plan_hash(plan_of(32)) != plan_hash(plan_of())


def test_what_was_not_recorded_is_none(tmp_path: Path) -> None:
    assert find(tmp_path, plan_of()) is None
    assert recorded_archs(tmp_path) == []
    write(tmp_path, plan_of())
    for changed in ({"dtype": "float32"}, {"head_dim": 128}, {"arch": 80}, {"variant": "x"}):
        assert find(tmp_path, plan_of(), **changed) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff", b'{"kernels": 3}', b'{"kernels": {"a": {}}}',
                b'{"kernels": {"a": {"hash": "0", "builds": [{"launches": [{"entry": 1}]}]}}}']
)  # fmt: skip
def test_a_corrupt_record_names_file_and_remedy(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "sm_90.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"^sm_90\.json is not a record of compiled kernels"):
        read_record(90, tmp_path)


def test_the_committed_records_are_small_and_complete() -> None:
    for arch in recorded_archs():
        record = read_record(arch)
        assert {"arch", "nvrtc", "nvdisasm", "command"} <= record.keys()
        path = compiled.COMPILED_DIR / f"sm_{arch}.json"
        assert path.stat().st_size < 40_000
