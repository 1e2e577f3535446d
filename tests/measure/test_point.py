"""What is tried, refused, skipped or failed at one problem: NumPy stands in for the GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda import launch
from fa_kernels.measure import memory, point, timing
from fa_kernels.measure.baselines import BASELINES
from fa_kernels.measure.live import measure_point
from fa_kernels.measure.point import (
    MAX_LATENCY_MS,
    Contender,
    measure_problem,
    our_contender,
    peer_contender,
)
from fa_kernels.measure.records import Row, row_fault
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.counter import count_traffic
from fa_kernels.traffic.model import TENSORS
from fa_kernels.units import GIB
from fa_kernels.variants import ALGORITHMS, VARIANTS, Variant
from tests.taken import taken_with_tiles

PROBLEM = AttentionProblem(2, 3, 33, 47, 20, "float32", "bottom_right")
TILING = Tiling(16, 32)
MASK = BlockMask.pattern("local", 33, 47, 16, 32, 0.5)


def on_numpy(variant: Variant) -> Variant:
    """The variant with its NumPy execution where the CUDA launch would be."""

    def run(
        q: Any, k: Any, v: Any, p: AttentionProblem, t: Tiling, *, count_traffic: bool = False
    ) -> Any:
        counted = count(variant.reference, p, t) if count_traffic else None
        return *variant.reference(q, k, v, p, t), counted

    return replace(variant, run=run, prepare=None)


count = count_traffic


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A GPU with 1 GiB free and 227 KiB per block, on which every call takes 2 ms."""
    log: list[str] = []

    def peak_extra_bytes(call: Callable[[], Any]) -> tuple[Any, int]:
        log.append("run")
        return call(), 1000

    def device_bytes(call: Callable[[], Any]) -> int:
        log.append("device")
        return 2**21

    def time_once(call: Callable[[], Any], flush: Any) -> float:
        log.append("time")
        return 2.0

    monkeypatch.setitem(sys.modules, "cupy", np)
    monkeypatch.setattr(memory, "free_pools", lambda: None)
    monkeypatch.setattr(memory, "free_bytes", lambda: GIB)
    monkeypatch.setattr(point, "kernels_of", lambda call: "kernels: of a peer")
    monkeypatch.setattr(memory, "peak_extra_bytes", peak_extra_bytes)
    monkeypatch.setattr(memory, "device_bytes", device_bytes)
    monkeypatch.setattr(timing, "time_once", time_once)
    monkeypatch.setattr(launch, "smem_limit_bytes", lambda: 227 * 1024)
    monkeypatch.setattr(launch, "gpu_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(launch, "refuse_old_gpu", lambda kernel, min_arch: None)
    for name, variant in VARIANTS.items():
        monkeypatch.setitem(VARIANTS, name, on_numpy(variant))
        if name in ALGORITHMS:
            monkeypatch.setitem(ALGORITHMS, name, VARIANTS[name])
    return log


def flash(problem: AttentionProblem = PROBLEM, tiling: Tiling = TILING) -> Contender:
    return our_contender(VARIANTS["flash_q_outer"], tiling, problem)


def measure(*contenders: Contender, problem: AttentionProblem = PROBLEM) -> list[Row]:
    rows = list(measure_problem(problem, contenders, None))  # type: ignore[arg-type]
    assert [row_fault(row) for row in rows] == [None] * len(rows), "every row can be recorded"
    return rows


def only(rows: list[Row]) -> Row:
    assert len(rows) == 1
    return rows[0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_correct_contender_is_counted_and_timed(variant: str, gpu: list[str]) -> None:
    wide = replace(PROBLEM, dtype=VARIANTS[variant].dtypes[0])
    problem, tiling = taken_with_tiles(VARIANTS[variant], wide, TILING)
    contender = our_contender(VARIANTS[variant], tiling, problem)
    rows = {r.metric: r for r in measure(contender, problem=problem)}
    latency = rows["latency_ms"]
    assert (latency.status, latency.median, latency.n) == ("ok", 2.0, 20)
    own = (64, 64) if variant == "flash_wgmma" else (16, 32)
    tiles = own if VARIANTS[variant].tiled else (None, None)
    assert (latency.variant, latency.block_m, latency.block_n) == (variant, *tiles)
    limit = {"float32": 1e-5, "float16": 5e-3}[problem.dtype]
    assert latency.max_abs_err is not None and 0 < latency.max_abs_err < limit
    assert (latency.seqlen_q, latency.seqlen_k, latency.causal) == (33, 47, "bottom_right")
    inputs = problem.q_bytes + 2 * problem.kv_bytes
    assert rows["extra_mem_bytes"].median == 1000
    assert rows["peak_mem_bytes"].median == 1000 + inputs
    model = VARIANTS[variant].launched(problem, tiling)
    assert rows["hbm_bytes"].median == model.total_bytes
    assert {m: r.median for m, r in rows.items() if m.startswith("hbm_") and m != "hbm_bytes"} == {
        f"hbm_{t}_bytes": model.of(t) for t in TENSORS if model.of(t)
    }
    assert gpu.count("time") == 21  # the first timing sets the repetitions, then 20


def test_tiles_are_clipped_as_in_every_launch() -> None:
    assert flash(tiling=Tiling(64, 4096)).tiling == Tiling(48, 48)


def test_a_wrong_output_is_never_timed(gpu: list[str]) -> None:
    good = flash()

    def prepare(*args: Any) -> Callable[[], Any]:
        out, lse = good.prepare(*args)()
        return lambda: (out + np.float32(0.01), lse)

    row = only(measure(replace(good, prepare=prepare)))
    assert (row.status, row.median, row.metric) == ("failed", None, "latency_ms")
    assert row.detail.startswith("wrong: error 0.01")
    assert gpu.count("time") == 0


def test_a_wrong_lse_is_a_wrong_output() -> None:
    good = flash()

    def prepare(*args: Any) -> Callable[[], Any]:
        out, lse = good.prepare(*args)()
        return lambda: (out, lse * np.float32(1.01))

    assert only(measure(replace(good, prepare=prepare))).status == "failed"


def test_a_contender_that_raises_does_not_stop_the_others() -> None:
    class OutOfMemoryError(Exception):
        pass

    def broken(error: Exception) -> Contender:
        def prepare(*args: Any) -> Callable[[], Any]:
            raise error

        return replace(flash(), variant="standard_tiled", prepare=prepare)

    rows = measure(
        broken(RuntimeError("no\nkernel " + "x" * 999)), broken(OutOfMemoryError()), flash()
    )
    assert [r.status for r in rows[:2]] == ["failed", "failed"]
    assert rows[0].detail.startswith("RuntimeError: no kernel x") and len(rows[0].detail) == 300
    assert [(r.status, r.metric) for r in rows[-2:]] == [
        ("ok", "latency_ms"), ("ok", "device_mem_bytes"),
    ]  # fmt: skip


def test_workspaces_that_do_not_fit_together_are_timed_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    freed: list[None] = []
    monkeypatch.setattr(memory, "free_pools", lambda: freed.append(None))
    ours = replace(flash(), workspace_bytes=600 * 2**20)
    peer = replace(
        flash(), provider="torch_eager", variant="sdpa", tiling=None, workspace_bytes=600 * 2**20
    )
    rows = [r for r in measure(ours, peer) if r.metric == "latency_ms"]
    assert [(r.provider, r.status) for r in rows] == [("fa_kernels", "ok"), ("torch_eager", "ok")]
    assert all(r.detail.startswith(point.APART) for r in rows)
    assert len(freed) == 3, "before the problem and before each group: timed calls find warm pools"
    together = [r for r in measure(ours) if r.metric == "latency_ms"]
    assert together[0].detail == ""


def test_too_much_shared_memory_is_refused_in_words(gpu: list[str]) -> None:
    problem = AttentionProblem(1, 1, 4096, 4096, 128, "float32")
    contender = flash(problem, Tiling(128, 384))
    row = only(measure(contender, problem=problem))
    assert (row.status, row.median, row.n) == ("refused", None, 0)
    assert "NVIDIA H200 allows 227 KiB: lower M to" in row.detail
    assert not gpu, "nothing was run"


def test_too_many_registers_are_refused_in_words() -> None:
    problem = AttentionProblem(1, 1, 4096, 4096, 256, "float16")
    row = only(measure(flash(problem, Tiling(512, 1)), problem=problem))
    assert row.status == "refused" and "lower block_m to" in row.detail


def test_what_does_not_fit_is_not_tried(gpu: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    problem = AttentionProblem.of_tokens(65536, 64)
    standard = our_contender(VARIANTS["standard_tiled"], Tiling(64, 64), problem)
    need = problem.q_bytes * 2 + problem.kv_bytes * 2 + problem.lse_bytes
    need += 2 * problem.heads * 65536**2 * 2
    monkeypatch.setattr(memory, "free_bytes", lambda: 139 * GIB)
    row = only(measure(standard, problem=problem))
    assert row.status == "does not fit"
    assert row.detail == f"does not fit (estimated {need / GIB:.3g} GiB)"
    assert not gpu
    # The same problem with enough memory is not refused for memory.
    monkeypatch.setattr(memory, "free_bytes", lambda: 2 * need)
    standard.estimate_ms = MAX_LATENCY_MS + 500
    row = only(measure(standard, problem=problem))
    assert (row.status, row.detail) == (
        "skipped (estimated)", "estimated 3.5 s per launch, limit 3 s",
    )  # fmt: skip
    assert not gpu


def test_a_long_but_bearable_estimate_is_measured() -> None:
    contender = flash()
    contender.estimate_ms = MAX_LATENCY_MS
    assert measure(contender)[-1].status == "ok"


def test_a_peer_refuses_a_dtype_it_has_no_kernel_for() -> None:
    row = only(measure(peer_contender(BASELINES["torch_flash"], PROBLEM)))
    assert (row.provider, row.status, row.block_m) == ("torch_flash", "refused", None)
    assert row.detail == "torch_flash has no float32 kernel"


def test_a_peer_without_lse_is_checked_by_its_output() -> None:
    def prepare(q: Any, k: Any, v: Any, p: AttentionProblem) -> Callable[[], Any]:
        return lambda: VARIANTS["flash_q_outer"].reference(q, k, v, p, TILING)[0]

    baseline = replace(BASELINES["torch_eager"], prepare=prepare)
    rows = measure(peer_contender(baseline, PROBLEM))
    metrics = ["extra_mem_bytes", "peak_mem_bytes", "latency_ms", "device_mem_bytes"]
    assert [r.metric for r in rows] == metrics


@pytest.mark.parametrize(
    ("name", "changed", "sentence"),
    [
        ("torch_flash", {"block_mask": MASK}, "torch_flash takes no block mask"),
        ("fa3", {"dtype": "float16"}, "fa3 has no float16 kernel"),
        ("fa3", {"dtype": "bfloat16"}, "fa3 is for sm_90, this GPU is sm_80"),
        ("fa4", {"dtype": "float16"}, "fa4 is for sm_90, sm_100, sm_103, this GPU is sm_80"),
    ],
)
def test_a_peer_refuses_what_it_is_not_for(
    name: str, changed: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(point, "current_arch", lambda: "sm_80")
    problem = replace(PROBLEM, **({"dtype": "float16", "causal": None} | changed))
    row = only(measure(peer_contender(BASELINES[name], problem), problem=problem))
    assert (row.status, row.detail) == ("refused", sentence)


def test_a_peers_timing_names_the_kernels_that_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(point, "kernels_of", lambda call: "kernels: gemm; softmax")
    rows = {r.metric: r for r in measure(peer_contender(BASELINES["torch_eager"], PROBLEM))}
    assert rows["latency_ms"].detail == "kernels: gemm; softmax"
    assert rows["latency_ms"].variant == "sdpa" and rows["device_mem_bytes"].median == 2**21


def test_what_is_not_timing_comes_after_all_timing(gpu: list[str]) -> None:
    """Device memory is read with empty pools, from which no timed call may be served."""
    second = replace(flash(), provider="torch_eager", variant="sdpa", tiling=None)
    measure(flash(), second)
    assert gpu.index("device") > len(gpu) - 1 - gpu[::-1].index("time")
    assert gpu.count("device") == 2


def test_cancelling_keeps_what_was_measured() -> None:
    able = [v for v in VARIANTS.values() if PROBLEM.dtype in v.dtypes]
    both = [our_contender(variant, TILING, PROBLEM) for variant in able]
    polls = iter([False, *[True] * 99])
    rows = list(
        measure_problem(PROBLEM, both, None, cancelled=lambda: next(polls))  # type: ignore[arg-type]
    )
    assert {r.variant for r in rows} == {both[0].variant}
    assert "hbm_bytes" in {r.metric for r in rows}
    assert "latency_ms" not in {r.metric for r in rows}, "it went on timing after the cancel"


def test_progress_runs_from_nought_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[float, str]] = []
    monkeypatch.setattr("fa_kernels.measure.live.Flush", lambda: None)
    monkeypatch.setattr("fa_kernels.measure.live.free_pools", lambda: None)
    rows = list(measure_point(PROBLEM, TILING, lambda share, text: told.append((share, text))))
    measured = {r.variant for r in rows if r.metric == "latency_ms" and r.status == "ok"}
    assert set(ALGORITHMS) == measured
    # fp32 is not what a 16-bit variant is for: it says so, or is left out.
    assert all(PROBLEM.dtype in VARIANTS[name].dtypes for name in measured)
    shares = [share for share, _ in told]
    assert shares == sorted(shares) and shares[0] == 0.0 and shares[-1] == 1.0
    assert told[0][1] == "checking fa_kernels standard_naive"


def test_inputs_are_normal_rounded_and_the_same_every_time() -> None:
    problem = AttentionProblem(2, 3, 200, 100, 32, "float16")
    q, k, v = point.random_inputs(problem)
    assert (q.shape, k.shape, v.shape) == ((2, 3, 200, 32), (2, 3, 100, 32), (2, 3, 100, 32))
    assert q.dtype == k.dtype == v.dtype == np.float16
    assert abs(float(q.astype("f4").mean())) < 0.02 < 0.95 < float(q.astype("f4").std()) < 1.05
    np.testing.assert_array_equal(q, point.random_inputs(problem)[0])
    assert (k != v).any()
