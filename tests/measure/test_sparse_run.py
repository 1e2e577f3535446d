"""A run over densities: the real run, a fake GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fa_kernels import __main__ as cli
from fa_kernels.cuda import launch
from fa_kernels.measure import (
    baselines,
    records,
    sparse_lists,
    sparse_run,
    special_run,
    speed_backward,
    sweep,
    timing,
)
from fa_kernels.measure.point import Contender, row_of
from fa_kernels.measure.records import Row, load_run
from fa_kernels.measure.sparse_run import DENSITIES, points
from fa_kernels.problem import AttentionProblem
from tests.measure.slow_sweep import describe

COMMAND = ["measure", "--sparse"]
RUN_ID = "20260102-h200-sparse"


class FakeGpu:
    """Stands in for what times: a row for every contender, and for every peer of a backward."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, AttentionProblem, list[str]]] = []

    def forward(
        self, problem: AttentionProblem, contenders: Sequence[Contender], flush: Any
    ) -> Iterator[Row]:
        self.seen.append(("fwd", problem, [c.provider for c in contenders]))
        for contender in contenders:
            contender.refuse(problem)
            yield replace(row_of(problem, contender, "latency_ms", value=1.0, error=1e-4), n=20)

    def backward(
        self, problem: AttentionProblem, variants: Sequence[str], peers: Sequence[str], flush: Any
    ) -> Iterator[Row]:
        self.seen.append(("bwd", problem, [*variants, *peers]))
        for name in ("fa_kernels", *peers):
            contender = Contender(name, "sdpa", None, 0, lambda *_: lambda: None, lambda _: None)
            row = row_of(problem, contender, "latency_ms", value=2.0, error=1e-4)
            yield replace(row, pass_="bwd")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """An H200 with torch."""
    fake = FakeGpu()
    monkeypatch.setattr(baselines, "_version", {"torch": "2.11.0"}.get)
    monkeypatch.setattr(sparse_run, "measure_problem", fake.forward)
    monkeypatch.setattr(sparse_run, "backward_rows", fake.backward)
    monkeypatch.setattr(sweep, "describe_run", describe)
    monkeypatch.setattr(launch, "available", lambda: True)
    monkeypatch.setattr("fa_kernels.measure.point.current_arch", lambda: "sm_90")
    monkeypatch.setattr("fa_kernels.cuda.launch.refuse_on_this_gpu", lambda *a: None)
    monkeypatch.setattr("fa_kernels.cuda.launch.refuse_old_gpu", lambda *a: None)
    monkeypatch.setattr(sparse_run, "gpu_arch", lambda: 90)
    monkeypatch.setattr("fa_kernels.cuda.launch.gpu_name", lambda: "NVIDIA H200")
    for module in (sparse_run, speed_backward, launch):
        monkeypatch.setattr(module, "smem_limit_bytes", lambda: 227 * 1024)
    monkeypatch.setattr(sparse_run, "load_in_parallel", lambda plans: len(list(plans)))
    monkeypatch.setattr(timing, "Flush", lambda: "cold")
    monkeypatch.setattr(sparse_lists, "_host_us", lambda *_: 5.0)
    monkeypatch.setattr(sparse_lists, "_device_us", lambda *_: [7.0])
    load_run.cache_clear()
    return fake


def test_the_most_important_points_come_first() -> None:
    found = points()
    stages = list(dict.fromkeys((p.problem.seqlen_q, p.pass_) for p in found))
    assert stages == [(8192, "fwd"), (8192, "bwd"), (65536, "fwd"), (65536, "bwd")]
    assert len({(p.problem, p.pass_) for p in found}) == len(found), "none twice"


def test_every_density_is_there_with_its_dense_call() -> None:
    for pass_ in ("fwd", "bwd"):
        for d in (64, 128):
            mine = [
                p for p in points()
                if (p.pass_, p.problem.head_dim, p.problem.seqlen_q) == (pass_, d, 8192)
            ]  # fmt: skip
            dense, rest = mine[0], mine[1:]
            assert dense.problem.block_mask is None and dense.peers == ("torch_cudnn",)
            masks = [p.problem.block_mask for p in rest]
            assert [m.density for m in masks[: len(DENSITIES)] if m] == list(DENSITIES)
            assert all(p.peers == ("flex",) for p in rest)
            others = [(m.name, p.problem.causal) for m, p in zip(masks, rest, strict=True) if m]
            wanted = [("global", None), ("local", "bottom_right")] if d == 128 else []
            assert others[len(DENSITIES) :] == wanted


def test_flex_is_left_out_where_it_would_take_long() -> None:
    far = [p for p in points() if p.problem.seqlen_q == 65536 and "flex" in p.peers]
    assert far
    for point in far:
        assert point.problem.block_mask is not None
        assert point.problem.block_mask.density <= 1 / 4 and point.problem.head_dim == 128


def test_a_run_holds_every_point(
    gpu: FakeGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*COMMAND, "--out", str(tmp_path)]) == 0
    run = load_run(RUN_ID, tmp_path)
    assert run.kind == "sparse" and run.about["method"] == timing.METHODS["cold"]
    assert [(pass_, problem) for pass_, problem, _ in gpu.seen] == [
        (p.pass_, p.problem) for p in points()
    ]
    for point in points():
        rows = [
            r for r in run.select(metric="latency_ms", pass_=point.pass_)
            if r.problem == point.problem
        ]  # fmt: skip
        assert [r.provider for r in rows] == ["fa_kernels", *point.peers], point.describe()
        density = getattr(point.problem.block_mask, "density", 1.0)
        assert rows[0].density == pytest.approx(density, rel=1e-5)
    assert "finished" in capsys.readouterr().out


def test_a_mask_has_the_cost_of_its_lists(gpu: FakeGpu, tmp_path: Path) -> None:
    cli.main([*COMMAND, "--out", str(tmp_path)])
    run = load_run(RUN_ID, tmp_path)
    masked = [p for p in points() if p.pass_ == "fwd" and p.problem.block_mask is not None]
    for pass_ in ("fwd", "bwd"):
        rows = run.select(metric="host_lists_us", pass_=pass_)
        assert [row.problem for row in rows] == [p.problem for p in masked]
        assert all(row.unit == "us" and row.median and row.n >= 3 for row in rows)


def test_it_goes_on_where_it_stopped(gpu: FakeGpu, tmp_path: Path) -> None:
    assert cli.main([*COMMAND, "--out", str(tmp_path), "--minutes", "0"]) == 0
    assert not gpu.seen
    for _ in range(2):
        cli.main([*COMMAND, "--out", str(tmp_path), "--resume", RUN_ID])
    assert len(gpu.seen) == len(points()), "and nothing is measured twice"
    about = json.loads((tmp_path / RUN_ID / "run.json").read_text())
    assert len(about["resumed"]) == 2


def test_without_torch_ours_is_timed_alone(
    gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(baselines, "_version", lambda name: None)
    cli.main([*COMMAND, "--out", str(tmp_path)])
    assert {row.provider for row in load_run(RUN_ID, tmp_path).rows} == {"fa_kernels"}
    assert "not installed: flex, torch_cudnn" in capsys.readouterr().out


def test_other_options_are_refused(gpu: FakeGpu) -> None:
    with pytest.raises(SystemExit, match="takes no .*peers"):
        cli.main([*COMMAND, "--peers", "flex"])
    with pytest.raises(SystemExit, match="--speed and --sparse are runs of different kinds"):
        cli.main([*COMMAND, "--speed"])


def test_everything_that_is_timed_is_compiled_ahead(gpu: FakeGpu) -> None:
    plans = list(sparse_run._plans(points()))
    assert {plan.kernel for plan in plans} == {"06_flash_wgmma", "06_flash_wgmma_backward"}
    assert {plan.macros["HEAD_DIM"] for plan in plans} == {64, 128}


def test_a_gpu_without_warpgroups_times_05(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_run, "gpu_arch", lambda: 80)
    plans = list(sparse_run._plans(points()))
    assert {plan.kernel for plan in plans} == {"05_flash_mma", "05_flash_mma_backward"}


def test_every_kind_has_what_records_it() -> None:
    assert set(special_run.RECORDERS) == set(cli.SPECIAL_KINDS)
    assert set(special_run.RECORDERS) - {"maps"} <= set(records.RUN_KINDS)
    for kind in special_run.RECORDERS:
        assert callable(special_run.recorder(kind))
