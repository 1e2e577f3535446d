"""Runs of kind "paper": which calls, what is tried, checked, skipped; NumPy stands in for a GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda import launch
from fa_kernels.measure import memory, paper_entries, records, sweep, timing
from fa_kernels.measure import paper_run as subject
from fa_kernels.measure.paper_calls import FIG2_LEFT, PaperCall, paper_calls
from fa_kernels.measure.records import Row, row_fault
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.model import Traffic
from fa_kernels.units import GIB, KIB
from fa_kernels.variants import VARIANTS, Variant

PROBLEM = AttentionProblem(1, 2, 40, 40, 16, "float16")
CALL = PaperCall(PROBLEM, ("standard_tiled", "flash_mma"), ("torch_eager",), (0.0, 0.1))


def on_numpy(variant: Variant) -> Variant:
    """The variant and its backward with their NumPy execution where CUDA would launch."""
    backward = variant.backward
    assert backward is not None

    def run(q: Any, k: Any, v: Any, p: Any, t: Any, *, count_traffic: bool = False) -> Any:
        return (*variant.reference(q, k, v, p, t), Traffic({"q": 5}) if count_traffic else None)

    def gradients(*args: Any, count_traffic: bool = False, p: Any = None) -> Any:
        assert backward is not None
        counted = Traffic({"q": 7}) if count_traffic else None
        return (*backward.reference(*args), counted)

    other = replace(backward, run=gradients, prepare=None)
    return replace(variant, run=run, prepare=None, backward=other)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with 1 GiB free and 227 KiB per block, on which every call takes 2 ms."""
    pytest.importorskip("torch")

    def keeping_p(q: Any, k: Any, v: Any, p: AttentionProblem, t: Tiling) -> Any:
        return (*VARIANTS["standard_tiled"].run(q, k, v, p, t)[:2], "P")

    def inputs(problem: AttentionProblem, seed: int = 0) -> list[Any]:
        rng = np.random.default_rng(seed)
        return [rng.standard_normal(problem.q_shape).astype(problem.dtype) for _ in range(3)]

    for variant in VARIANTS.values():
        if variant.backward is not None:
            monkeypatch.setitem(VARIANTS, variant.name, on_numpy(variant))
    monkeypatch.setitem(sys.modules, "cupy", np)
    monkeypatch.setattr(paper_entries, "run_standard_keeping_p", keeping_p)
    monkeypatch.setattr(subject, "random_inputs", inputs)
    for module in (launch, paper_entries):
        monkeypatch.setattr(module, "smem_limit_bytes", lambda: 227 * KIB)
        monkeypatch.setattr(module, "gpu_name", lambda: "H200")
    monkeypatch.setattr(paper_entries, "refuse_old_gpu", lambda kernel, min_arch: None)
    monkeypatch.setattr(memory, "free_pools", lambda: None)
    monkeypatch.setattr(memory, "free_bytes", lambda: GIB)
    monkeypatch.setattr(memory, "peak_extra_bytes", lambda call: (call(), 1000))
    monkeypatch.setattr(timing, "time_once", lambda call, flush: 2.0)

    def interleaved(calls: Any, flush: Any, first_ms: Any) -> list[timing.Latency]:
        assert all(call() is not None for call in calls)
        return [timing.Latency(ms, ms, ms, 3) for ms in first_ms]

    monkeypatch.setattr(timing, "time_interleaved", interleaved)


def measured(call: PaperCall, known: subject.Known | None = None) -> list[Row]:
    known = {} if known is None else known
    found = list(subject.measure_call(call, None, known, ("torch_eager",)))  # type: ignore[arg-type]
    assert [fault for fault in map(row_fault, found) if fault] == []
    return found


def latencies(found: list[Row]) -> dict[tuple[str, str, float], Row]:
    return {
        (r.series, r.pass_, r.dropout_p): r for r in found if r.metric == "latency_ms" and r.median
    }


@pytest.mark.usefixtures("gpu")
def test_every_way_and_pass_is_timed_with_and_without_dropout() -> None:
    found = measured(CALL)
    assert {row.status for row in found} == {"ok"}
    series = ("standard_tiled", "flash_mma", "torch_eager")
    passes = ("fwd", "bwd", "both")
    assert set(latencies(found)) == {(s, p, d) for s in series for p in passes for d in (0.0, 0.1)}
    assert all(row.problem == PROBLEM for row in found)
    by = latencies(found)
    assert by["torch_eager", "fwd", 0.1].detail.startswith("without dropout: 40 of 40 rows")
    assert by["flash_mma", "bwd", 0.1].detail.startswith("dq, dk, dv of 2 k/v heads checked")


@pytest.mark.usefixtures("gpu")
def test_memory_is_of_the_forward_and_of_a_step() -> None:
    found = [r for r in measured(CALL) if r.metric == "peak_mem_bytes" and not r.dropout_p]
    assert {(r.series, r.pass_) for r in found} == {
        (s, p) for s in ("standard_tiled", "flash_mma", "torch_eager") for p in ("fwd", "both")
    }
    assert {r.median for r in found} == {1000 + 4 * PROBLEM.q_bytes}


@pytest.mark.usefixtures("gpu")
def test_bytes_are_counted_in_both_passes_of_a_figure_without_dropout() -> None:
    found = [r for r in measured(replace(CALL, counted=True)) if r.metric == "hbm_bytes"]
    assert {(r.series, r.pass_, r.dropout_p, r.median) for r in found} == {
        (s, p, 0.0, n) for s in CALL.variants for p, n in (("fwd", 5.0), ("bwd", 7.0))
    }


@pytest.mark.usefixtures("gpu")
def test_a_block_mask_is_in_its_rows() -> None:
    mask = BlockMask.pattern("butterfly", 40, 40, 8, 8, 0.4)
    found = measured(PaperCall(replace(PROBLEM, block_mask=mask), ("flash_q_outer",)))
    assert {(r.block_mask, r.density, r.status) for r in found} == {("butterfly 8x8", 0.4, "ok")}
    assert all(r.problem.block_mask == mask for r in found)


@pytest.mark.usefixtures("gpu")
def test_the_tiles_of_the_figure_are_measured_and_what_is_too_large_is_refused() -> None:
    call = PaperCall(
        AttentionProblem(1, 1, 600, 600, 64, "float16"),
        ("flash_kv_outer",),
        tilings=(Tiling(64, 64), Tiling(64, 256), Tiling(64, 512)),
    )
    found = [r for r in measured(call) if r.metric == "latency_ms" and r.pass_ == "fwd"]
    status = {r.block_n: r.status for r in found}
    assert status[64] == status[256] == "ok" and status[512] == "refused"
    assert "shared memory per block" in next(r.detail for r in found if r.block_n == 512)


@pytest.mark.usefixtures("gpu")
def test_what_does_not_fit_or_takes_too_long_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    known: subject.Known = {}
    measured(CALL, known)
    long = replace(CALL, problem=replace(PROBLEM, seqlen_q=480, seqlen_k=480))
    found = measured(long, {key: (ms * 20, n, kept) for key, (ms, n, kept) in known.items()})
    status = {(r.series, r.status) for r in found if r.metric == "latency_ms"}
    # 2 ms x 20 x 12^2 = 5.76 s is beyond both limits
    assert status == {(s, "skipped (estimated)") for s, _ in status}
    slow = measured(long, known)
    status = {(r.series, r.status) for r in slow if r.metric == "latency_ms"}
    assert status == {
        ("standard_tiled", "skipped (estimated)"), ("flash_mma", "ok"), ("torch_eager", "ok"),
    }  # fmt: skip
    monkeypatch.setattr(memory, "free_bytes", lambda: 4 * PROBLEM.q_bytes)
    none = measured(CALL)
    assert {r.status for r in none} == {"does not fit"}
    assert len(none) == 18 and "does not fit (estimated" in none[0].detail


@pytest.mark.usefixtures("gpu")
def test_a_wrong_result_is_not_timed_nor_the_same_with_dropout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mma = VARIANTS["flash_mma"]

    def wrong(*args: Any, **options: Any) -> Any:
        out, lse, counted = mma.run(*args, **options)
        return out * np.float16(1.5), lse, counted

    monkeypatch.setitem(VARIANTS, "flash_mma", replace(mma, run=wrong))
    monkeypatch.setattr(subject, "MAX_DROPPED_SEQLEN", 8)
    found = measured(CALL)
    failed = [r for r in found if r.status == "failed"]
    # The backward reads out, too.
    passes = {(r.series, r.pass_, r.dropout_p) for r in failed}
    assert {("flash_mma", "fwd", 0.0), ("flash_mma", "fwd", 0.1)} <= passes
    assert {series for series, _, _ in passes} == {"flash_mma"}
    assert not {key for key in latencies(found) if key in passes}


@pytest.mark.usefixtures("gpu")
def test_libraries_that_do_not_fit_together_are_timed_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every = paper_entries.entries(CALL, None)
    ours = max(e.need_bytes for e in every if paper_entries.is_ours(e))
    peers = max(e.need_bytes for e in every if not paper_entries.is_ours(e))
    room = max(ours, peers) + min(ours, peers) // 2 + 4 * PROBLEM.q_bytes
    monkeypatch.setattr(memory, "free_bytes", lambda: room / subject.FILL)
    found = measured(CALL)
    assert {r.status for r in found} == {"ok"} and len(latencies(found)) == 18
    assert all(subject.APART in row.detail for row in latencies(found).values())


# -- the run ---------------------------------------------------------------------------------------


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[AttentionProblem]]:
    """Stand-ins for the GPU; the problems that were measured."""

    def describe(command: str, method: str) -> dict[str, Any]:
        about = dict.fromkeys(records.RUN_KEYS, "x") | {"schema": records.SCHEMA_VERSION}
        return about | {"run_id": "20260102-h200-", "command": command, "method": method}

    seen: list[AttentionProblem] = []

    def measure(call: PaperCall, flush: Any, known: Any, peers: Any) -> list[Row]:
        seen.append(call.problem)
        entry = paper_entries.entries(replace(call, peers=()), None)[0]
        return [
            subject._row(call.problem, entry, "latency_ms", status="failed", detail="made up"),
        ]

    monkeypatch.setattr(sweep, "describe_run", describe)
    monkeypatch.setattr(subject, "measure_call", measure)
    monkeypatch.setattr(subject, "load_in_parallel", lambda plans: len(list(plans)))
    monkeypatch.setattr(subject.timing, "Flush", lambda: None)
    for module in (launch, paper_entries):
        monkeypatch.setattr(module, "smem_limit_bytes", lambda: 227 * KIB)
    records.load_run.cache_clear()
    yield seen
    records.load_run.cache_clear()


def record(root: Path, **options: Any) -> tuple[Path, bool]:
    return subject.record_paper(root, "paper", "", say=lambda text: None, **options)


def test_a_stopped_run_goes_on_with_what_is_left(
    recorded: list[AttentionProblem], tmp_path: Path
) -> None:
    assert record(tmp_path, seconds=-1)[1] is False and recorded == []
    folder = tmp_path / "20260102-h200-paper"
    assert record(tmp_path, resume=folder.name) == (folder, True)
    assert recorded == [call.problem for call in paper_calls()]
    assert records.load_run(folder.name, tmp_path).kind == "paper"
    assert "gradients of the first and the last head" in str(
        records.load_run(folder.name, tmp_path).about["method"]
    )
    recorded.clear()
    assert record(tmp_path, resume=folder.name) == (folder, True) and recorded == []


def test_a_resumed_run_knows_how_long_calls_took() -> None:
    entry = paper_entries.Entry(
        contender=paper_entries.peer_contender(paper_entries.BASELINES["torch_flash"], FIG2_LEFT),
        pass_="bwd",
        dropout_p=0.1,
        make=lambda: lambda: None,
        refuse=lambda: None,
        need_bytes=0,
    )
    row = subject._row(FIG2_LEFT, entry, "latency_ms", value=3.0, error=0.1)
    known = subject._learn([row])
    longer = replace(FIG2_LEFT, seqlen_q=4096, seqlen_k=4096)
    assert subject._estimate(longer, entry, known) == 48.0
    assert subject._estimate(replace(longer, nheads=8, nheads_kv=8), entry, known) is None


def test_every_build_is_one_that_the_gpu_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper_entries, "smem_limit_bytes", lambda: 227 * KIB)
    made = [plan for call in paper_calls() for plan in paper_entries.plans(call)]
    assert made and all(plan.smem_bytes <= 227 * KIB for plan in made)
    assert {plan.kernel for plan in made} >= {
        "02_standard_tiled_backward", "03_flash_kv_outer", "05_flash_mma", "05_flash_mma_backward",
    }  # fmt: skip
