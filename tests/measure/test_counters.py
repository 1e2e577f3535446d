"""Counters of a run, with a stand-in for ncu: single passes, mapping, refusals, resumed runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fa_kernels import __main__ as cli
from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda import launch
from fa_kernels.device import device
from fa_kernels.measure import (
    counted_pass,
    counter_shapes,
    counters,
    memory,
    ncu,
    paper_entries,
    records,
    sweep,
)
from fa_kernels.measure.counter_metrics import (
    COUNTERS,
    GROUPS,
    L2_WITH_ATOMICS,
    launches_by_job,
    metrics_of,
    name_for_ncu,
    totals,
)
from fa_kernels.measure.counter_shapes import (
    FIGURE_2,
    SHAPES,
    Call,
    Chosen,
    Shape,
    choose_shapes,
    chosen,
    figure_2_calls,
    plans_of,
    plans_to_compile,
    shape_calls,
)
from fa_kernels.measure.counters import FIRST_CALLS
from fa_kernels.measure.ncu import Launch, NcuRefused
from fa_kernels.measure.paper_bytes import left_bytes
from fa_kernels.measure.paper_calls import (
    IN_FIGURE,
    PATTERN,
    PEERS,
    RIGHT_DENSITIES,
    SPARSE_IN_FIGURE,
)
from fa_kernels.measure.paper_numbers import PaperNumbers
from fa_kernels.measure.records import COUNTER_UNITS, Row, list_runs, load_run
from fa_kernels.measure.speed_backward import FIG2_LEFT
from fa_kernels.problem import AttentionProblem
from fa_kernels.session import session
from fa_kernels.tiling import HOPPER_SMEM_PER_BLOCK, Tiling
from fa_kernels.units import GIB, KIB
from fa_kernels.variants import VARIANTS
from tests.measure.rows import ROW, row, write_run

FAKE = Path(__file__).with_name("fake_ncu.py")
SMALL = Shape(AttentionProblem(1, 2, 64, 64, 32), tilings=(Tiling(16, 32),))
OF_GRID = [metric for group in GROUPS for metric in group.metrics]
LARGE = Shape(AttentionProblem(1, 2, 128, 128, 32), tilings=(Tiling(16, 32),))


# -- from launches to metrics ----------------------------------------------------------------------


def launched(kernel: str, **short: float) -> Launch:
    return Launch(kernel, {COUNTERS[name][0]: value for name, value in short.items()})


def test_launches_are_told_apart_by_the_marks_between_them() -> None:
    names = ["fa_calibrate", "fa_before_2", "a", "b", "fa_after", "c", "fa_before_10", "a"]
    names += ["fa_before_3", "fa_after"]
    found = launches_by_job([Launch(name, {}) for name in names])
    kernels = {job: [la.kernel for la in of_call] for job, (of_call, _) in found.items()}
    assert kernels == {2: ["a", "b"], 10: ["a"], 3: []}
    assert [after is not None for _, after in found.values()] == [True, False, True]


def test_bytes_are_summed_and_percentages_weighted_by_time() -> None:
    calls = [
        launched("a", time=1, dram_read=10, dram_write=1, l2_hit=3, l2_miss=1, fma=80),
        launched("b", time=3, dram_read=20, dram_write=2, l2_hit=0, l2_miss=4, fma=40),
    ]
    counted = totals(calls, launched("fa_after", dram_read=2**30, dram_write=7))
    dram = metrics_of(counted, GROUPS[0])
    assert dram == {
        "dram_bytes": 33, "dram_read_bytes": 30, "dram_write_bytes": 3,
        "dram_writeback_bytes": 7, "ncu_latency_ms": 4,
    }  # fmt: skip
    assert metrics_of(counted, GROUPS[1]) == {"l2_hit_pct": 37.5}
    assert metrics_of(counted, GROUPS[2]) == {"fma_pct": 50}


def test_l2_bytes_are_sectors_of_32() -> None:
    counted = totals([launched("a", l2_read=5, l2_write=2, l2_hit=0, l2_miss=0)])
    assert metrics_of(counted, GROUPS[1]) == {
        "l2_bytes": 224, "l2_read_bytes": 160, "l2_write_bytes": 64,
    }  # fmt: skip


def test_what_one_launch_lacks_the_call_lacks() -> None:
    calls = [launched("a", time=1, dram_read=10, dram_write=1), launched("b", time=1, dram_read=1)]
    assert metrics_of(totals(calls), GROUPS[0]) == {"dram_read_bytes": 11, "ncu_latency_ms": 2}
    assert totals([]) == {}


def test_a_percentage_is_at_most_100() -> None:
    assert metrics_of({"warps": 100.02}, GROUPS[2]) == {"occupancy_pct": 100}


def test_every_metric_has_a_unit_and_one_group_and_every_counter_is_used() -> None:
    metrics = [metric for group in GROUPS for metric in group.metrics]
    assert sorted([*metrics, "l2_atomic_bytes"]) == sorted(COUNTER_UNITS)
    used = {c for group in (*GROUPS, L2_WITH_ATOMICS) for c in group.counters}
    assert used == set(COUNTERS) - {"time"}


def test_atomic_additions_are_what_is_neither_read_nor_written() -> None:
    counted = totals([launched("a", l2_read=5, l2_write=2, l2_all=10)])
    assert metrics_of(counted, L2_WITH_ATOMICS)["l2_atomic_bytes"] == 3 * 32


def test_names_are_those_this_gpu_knows() -> None:
    usual, other = COUNTERS["dram_read"]
    assert name_for_ncu("dram_read", frozenset({"dram__bytes_op_read"})) == other
    assert name_for_ncu("dram_read", frozenset()) == usual


# -- the shapes ------------------------------------------------------------------------------------


def test_the_shapes_are_figure_2_and_a_dozen_of_the_grid() -> None:
    assert len(SHAPES) == 13
    figure = next(s for s in SHAPES if s.tilings)
    p = figure.problem
    assert (p.batch, p.nheads, p.seqlen_q, p.head_dim, p.dtype) == (64, 16, 1024, 64, "float16")
    assert [(t.block_m, t.block_n) for t in figure.all_tilings] == [
        (64, 64), (64, 128), (64, 256), (64, 512),
    ]  # fmt: skip
    rest = [s.problem for s in SHAPES if not s.tilings]
    assert all(p.batch * p.seqlen_q == 16384 and p.nheads * p.head_dim == 2048 for p in rest)
    assert {p.seqlen_q for p in rest} == {512, 1024, 2048, 4096, 8192, 16384}
    assert {p.dtype for p in rest} == {"float16", "float32", "bfloat16"}


def test_each_distinct_launch_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counter_shapes, "installed_peers", lambda: ("torch_flash",))
    shape = next(s for s in SHAPES if s.problem.seqlen_q == 4096)
    calls = shape_calls(shape)
    assert [c.contender.provider for c in calls if c.contender.provider != "fa_kernels"] == [
        "torch_flash"
    ]
    for name, variant in VARIANTS.items():
        ours = [c.contender for c in calls if c.contender.variant == name]
        tilings: tuple[Tiling, ...] = shape.all_tilings
        if variant.same_algorithm:  # with the tiles of a call, whatever M is
            tilings = (variant.default_tiling(64, 2, HOPPER_SMEM_PER_BLOCK),)
        own = {variant.nearest_tiling(shape.problem, tiling) for tiling in tilings}
        assert {c.tiling for c in ours} == own if variant.tiled else {None}
        plans = [variant.plan(shape.problem, tiling) for tiling in own]
        distinct = {(tuple(plan.macros.items()), plan.steps) for plan in plans}
        assert len(ours) == len(distinct), name


def test_shapes_are_chosen_by_size_and_budget() -> None:
    assert choose_shapes() == SHAPES
    found = choose_shapes((1024, 4096), (64, 128), ("float16",), (64,))
    assert [(s.problem.seqlen_q, s.problem.head_dim) for s in found] == [
        (1024, 64), (1024, 64), (4096, 64), (1024, 128), (4096, 128),
    ]  # fmt: skip
    assert all(len(s.all_tilings) == 1 for s in found)
    assert found[0].all_tilings == found[1].all_tilings == (Tiling(64, 128),)
    assert len(choose_shapes((1024,), sram_kib=(16,))) == 2, "none of figure 2's tiles has 16 KiB"
    assert len(choose_shapes((1024,))) == 3
    with pytest.raises(ValueError, match="no shape has counters read .* N = 4096"):
        choose_shapes((4095,))


def test_tensor_cores_are_counted_where_the_gpu_has_a_name_for_them() -> None:
    first, *others = COUNTERS["tensor"]
    for name in (first, *others):
        assert name_for_ncu("tensor", frozenset({name.split(".")[0]})) == name
    assert metrics_of({"tensor": 48.5}, GROUPS[2]) == {"tensor_pct": 48.5}


# -- figure 2 --------------------------------------------------------------------------------------


@pytest.fixture
def figure(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Its calls where torch and its peers are, on a GPU with 227 KiB per block."""
    for module in (launch, paper_entries, counted_pass):
        monkeypatch.setattr(module, "smem_limit_bytes", lambda: 227 * KIB)
    monkeypatch.setattr(counter_shapes, "installed_peers", lambda: ("torch_cudnn", "fa4"))
    return figure_2_calls()


def test_figure_2_is_both_passes_left_and_right_and_the_backward_left(figure: list[Call]) -> None:
    left = [c for c in figure if c.problem == FIG2_LEFT]
    series = [*IN_FIGURE, "sdpa"]
    assert [(c.contender.variant, c.pass_) for c in left] == [
        (name, pass_) for pass_ in ("both", "bwd") for name in series
    ]
    right = [c for c in figure if c.problem != FIG2_LEFT]
    masks = [c.problem.block_mask for c in right]
    assert {c.pass_ for c in right} == {"both"}
    assert {mask.name for mask in masks if mask} == {PATTERN} and masks.count(None) == 2
    densities = sorted({mask.density for mask in masks if mask})
    assert len(densities) == len(RIGHT_DENSITIES) and len(right) == 2 * (1 + len(RIGHT_DENSITIES))
    assert [c.contender.variant for c in right] == list(SPARSE_IN_FIGURE) * (len(right) // 2)
    assert len({c.key for c in figure}) == len(figure) <= 26
    assert FIGURE_2.groups == (GROUPS[0], L2_WITH_ATOMICS)


def test_a_call_of_figure_2_has_the_tiles_of_the_paper_run(figure: list[Call]) -> None:
    """So that bytes asked of L2 and DRAM stand beside bytes that the same build counted."""
    recorded = load_run("20261130-h200-paper").select(metric="hbm_bytes", pass_="bwd", status="ok")
    tiles = {(r.series, r.problem): (r.block_m, r.block_n) for r in recorded}
    ours = [c for c in figure if c.contender.provider == "fa_kernels"]
    assert ours
    for call in ours:
        _, variant, *own = call.contender.key
        assert tuple(own) == tiles[variant, call.problem]


def test_a_backward_is_several_launches_and_both_has_the_forward_first(figure: list[Call]) -> None:
    names = {
        (c.contender.variant, c.pass_): [s.entry for plan in plans_of(c) for s in plan.steps]
        for c in figure
        if c.problem == FIG2_LEFT
    }
    assert names["sdpa", "both"] == []  # nobody knows what a library launches
    assert len(names["flash_mma", "bwd"]) == 3 and len(names["standard_tiled", "bwd"]) == 5
    for name in IN_FIGURE:
        forward = [s.entry for s in VARIANTS[name].plan(FIG2_LEFT, Tiling(64, 64)).steps]
        assert names[name, "both"] == [*forward, *names[name, "bwd"]]
    backward = next(c for c in figure if (c.contender.variant, c.pass_) == ("flash_mma", "bwd"))
    assert len(plans_to_compile(backward)) == 2  # and what it starts from


def test_the_choice_is_the_grid_or_the_figure() -> None:
    assert chosen("figure2", None, None, None, None) is FIGURE_2
    assert (chosen(None).label, FIGURE_2.label) == ("counters", "counters-figure2")
    with pytest.raises(ValueError, match="leave out --seqlens, .* or --shapes"):
        chosen("figure2", (1024,), None, None, None)


# -- a run -----------------------------------------------------------------------------------------


def entries() -> dict[str, list[str]]:
    found = {}
    for call in shape_calls(SMALL):
        for plan in plans_of(call):
            found[call.contender.variant] = [step.entry for step in plan.steps]
    return found


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """ncu on PATH, a GPU with 1 GiB free, two small shapes, and no peers; ncu's log."""
    records.load_run.cache_clear()
    ncu.known_counters.cache_clear()
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    script = bin_ / "ncu"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    script.chmod(0o755)
    log = tmp_path / "ncu.jsonl"
    monkeypatch.setenv("PATH", f"{bin_}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_NCU", "")
    monkeypatch.setenv("FAKE_NCU_LOG", str(log))
    monkeypatch.setattr(counter_shapes, "installed_peers", lambda: ())
    monkeypatch.setenv("FAKE_NCU_ENTRIES", json.dumps(entries()))
    monkeypatch.setattr(launch, "available", lambda: True)
    monkeypatch.setattr(launch, "smem_limit_bytes", lambda: 227 * 1024)
    monkeypatch.setattr(launch, "gpu_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(launch, "refuse_old_gpu", lambda kernel, min_arch: None)
    monkeypatch.setattr(memory, "free_bytes", lambda: GIB)
    monkeypatch.setattr(counters, "load_in_parallel", lambda plans: len(list(plans)))
    calls = counter_shapes.all_calls
    monkeypatch.setattr(counter_shapes, "all_calls", lambda shapes: calls((SMALL, LARGE)))

    def describe(command: str, method: str) -> dict[str, Any]:
        about = dict.fromkeys(records.RUN_KEYS, "x") | {"schema": records.SCHEMA_VERSION}
        return about | {"run_id": "20260102-h200-", "command": command, "method": method}

    monkeypatch.setattr(sweep, "describe_run", describe)
    yield log
    records.load_run.cache_clear()


def runs_of(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def measure(root: Path, said: list[str], **changed: Any) -> tuple[list[Row], bool]:
    settings: dict[str, Any] = {"label": "counters", "command": "measure --counters", **changed}
    folder, finished = counters.measure_counters(root / "runs", say=said.append, **settings)
    records.load_run.cache_clear()
    return list(load_run(folder.name, folder.parent).rows), finished


@pytest.mark.usefixtures("fake")
def test_a_run_has_every_metric_of_every_call(tmp_path: Path, said: list[str], fake: Path) -> None:
    rows, finished = measure(tmp_path, said)
    assert finished
    assert len(rows) == 2 * len(VARIANTS) * len(OF_GRID)
    for variant in VARIANTS:
        steps = len(entries()[variant])
        of = {r.metric: r for r in rows if r.variant == variant and r.seqlen_q == 64}
        assert of["dram_read_bytes"].median == 3_000_000 * steps
        assert of["dram_bytes"].median == 4_000_000 * steps
        assert of["dram_writeback_bytes"].median == 1_000_000
        assert of["l2_bytes"].median == 32 * 500_000 * steps
        assert of["l2_hit_pct"].median == 75 and of["occupancy_pct"].median == 40
        assert of["ncu_latency_ms"].median == pytest.approx(0.25 * steps)
        assert "not comparable with latency_ms" in of["ncu_latency_ms"].detail
        assert of["dram_bytes"].detail.startswith(f"{steps} launch")
        assert all(r.max_abs_err == 0.0005 and r.n == 1 for r in of.values())
    run = load_run("20260102-h200-counters", tmp_path / "runs")
    assert (run.kind, run.about["ncu"], run.about["method"]) == (
        "counters", "2025.3.1.0", counters.METHOD,
    )  # fmt: skip
    assert any("dram__bytes_read.sum = 3000000" in note for note in run.about["notes"])
    runs = runs_of(fake)
    both = 2 * len(VARIANTS)
    assert [r["jobs"] for r in runs] == [0, 0, 0, FIRST_CALLS, both - FIRST_CALLS, both, both]
    assert all("gpu__time_duration.sum" in r["metrics"] for r in runs)
    for option in ("--clock-control none", "--cache-control none", "--profile-from-start off"):
        assert all(option in " ".join(r["all"]) for r in runs), option
    # The name that this "GPU" knows was taken.
    assert "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed" in runs[2]["metrics"]


def test_counters_that_need_two_passes_are_read_apart(
    tmp_path: Path, said: list[str], fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NCU", "narrow")
    rows, finished = measure(tmp_path, said)
    assert finished and len(rows) == 2 * len(VARIANTS) * len(OF_GRID)
    assert {len(r["metrics"]) for r in runs_of(fake) if r["jobs"]} == {3}  # time included
    sums = {r.metric: r.median for r in rows if r.variant == "flash_q_outer"}
    assert sums["l2_hit_pct"] == 75 and sums["ncu_latency_ms"] == pytest.approx(0.25)


def test_a_counter_that_this_gpu_lacks_is_left_out_and_named(
    tmp_path: Path, said: list[str], fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = "lts__t_sectors_srcunit_tex_op_write.sum"
    monkeypatch.setenv("FAKE_NCU", f"lacks:{gone}")
    rows, finished = measure(tmp_path, said)
    assert finished and any(text.startswith(f"{gone} is left out") for text in said)
    metrics = {r.metric for r in rows}
    assert set(OF_GRID) - metrics == {"l2_bytes", "l2_write_bytes"}
    assert {r.status for r in rows} == {"ok"}


def test_a_refused_profiler_starts_no_run(
    tmp_path: Path, said: list[str], fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NCU", "denied")
    with pytest.raises(NcuRefused, match="ERR_NVGPUCTRPERM.*run as root"):
        measure(tmp_path, said)
    assert not (tmp_path / "runs").exists() and len(runs_of(fake)) == 1


def test_a_wrong_output_has_no_counters(
    tmp_path: Path, said: list[str], fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NCU", "wrong:1")
    rows, finished = measure(tmp_path, said)
    bad = [r for r in rows if r.status != "ok"]
    assert finished and ("failed", "dram_bytes") in {(r.status, r.metric) for r in bad}
    first = next(r for r in bad if r.metric == "dram_bytes")
    assert first.detail == "wrong: error 1 (limit 0.1)"
    assert not [r for r in rows if r.contender == first.contender and r.problem == first.problem
                and r is not first]  # fmt: skip


def test_a_crash_costs_one_call_and_the_others_are_read_after_it(
    tmp_path: Path, said: list[str], fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NCU", "crash:2")
    rows, _ = measure(tmp_path, said)
    crashed = [r for r in rows if r.status == "failed"]
    assert crashed[0].detail == "crashed under ncu: CUDARuntimeError: illegal address"
    assert crashed[0].metric == "dram_bytes"
    monkeypatch.setenv("FAKE_NCU", "")
    rows, finished = measure(tmp_path, said, resume="20260102-h200-counters")
    assert finished
    keys = [(r.problem, r.contender, r.metric) for r in rows]
    assert len(keys) == len(set(keys)), "no point is recorded twice"


def test_a_stopped_run_is_resumed_with_what_is_missing(
    tmp_path: Path, said: list[str], fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NCU", "deadline:3")
    rows, finished = measure(tmp_path, said)
    assert not finished and "resume with 20260102-h200-counters" in said[-1]
    assert len(rows) == 3 * len(GROUPS[0].metrics)
    monkeypatch.setenv("FAKE_NCU", "")
    before = len(runs_of(fake))
    rows, finished = measure(tmp_path, said, resume="20260102-h200-counters")
    assert finished and len(rows) == 2 * len(VARIANTS) * len(OF_GRID)
    jobs = [r["jobs"] for r in runs_of(fake)[before:] if r["jobs"]]
    assert jobs == [2 * len(VARIANTS) - 3, 2 * len(VARIANTS), 2 * len(VARIANTS)]
    asked = len(runs_of(fake))
    assert measure(tmp_path, said, resume="20260102-h200-counters") == (rows, True)
    assert not [r for r in runs_of(fake)[asked:] if r["jobs"]], "nothing is missing"


def test_a_deadline_that_is_over_profiles_nothing(
    tmp_path: Path, said: list[str], fake: Path
) -> None:
    rows, finished = measure(tmp_path, said, deadline_s=0.0)
    assert (rows, finished) == ([], False) and "deadline reached" in said[-1]


def test_a_missing_launch_is_a_failure_not_a_smaller_sum(
    tmp_path: Path, said: list[str], fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {**entries(), "standard_tiled": entries()["standard_tiled"][1:]}
    monkeypatch.setenv("FAKE_NCU_ENTRIES", json.dumps(short))
    rows, finished = measure(tmp_path, said)
    bad = [r for r in rows if r.status != "ok"]
    assert finished and [(r.status, r.variant) for r in bad] == [("failed", "standard_tiled")] * 2
    gone = entries()["standard_tiled"][0]
    assert bad[0].detail.startswith("ncu profiled 2 launches: ")
    assert bad[0].detail.endswith(f"without {gone}")


def test_where_nothing_can_be_read_nothing_is_given_up(
    tmp_path: Path, said: list[str], fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = json.dumps(entries())
    monkeypatch.setenv("FAKE_NCU_ENTRIES", json.dumps({name: [] for name in entries()}))
    rows, finished = measure(tmp_path, said)
    assert (rows, finished) == ([], False) and "no call could be read" in said[-1]
    assert any("ncu profiled no launch of this call: " in text for text in said)
    monkeypatch.setenv("FAKE_NCU_ENTRIES", right)
    rows, finished = measure(tmp_path, said, resume="20260102-h200-counters")
    assert finished and len(rows) == 2 * len(VARIANTS) * len(OF_GRID)


def test_what_does_not_fit_or_is_refused_is_recorded_and_not_profiled(
    tmp_path: Path, said: list[str], fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 1000)
    rows, finished = measure(tmp_path, said)
    assert finished and {r.status for r in rows} == {"does not fit"}
    assert len(rows) == 2 * len(VARIANTS) and {r.metric for r in rows} == {"dram_bytes"}
    assert not [r for r in runs_of(fake) if r["jobs"]]


# -- a run of passes and block masks ---------------------------------------------------------------

MASKED = replace(
    SMALL.problem, block_mask=BlockMask.pattern("butterfly", 64, 64, 16, 16, density=0.5)
)


def trained(problem: AttentionProblem, variant: str, pass_: str) -> Call:
    provider = "torch_eager" if variant == "sdpa" else "fa_kernels"
    contender = counted_pass.training_contender(provider, variant, problem, pass_)
    return Call(problem, contender, pass_)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch, fake: Path) -> Chosen:
    """Backwards and steps of one kernel and a peer, dense and masked, with their launches."""
    for module in (launch, paper_entries, counted_pass):
        monkeypatch.setattr(module, "smem_limit_bytes", lambda: 227 * KIB)
    for name in ("refuse_on_this_gpu", "refuse_old_gpu"):
        monkeypatch.setattr(paper_entries, name, lambda *args: None)
    monkeypatch.setattr(paper_entries, "gpu_name", lambda: "NVIDIA H200")
    wanted = ((SMALL.problem, "both"), (MASKED, "both"), (SMALL.problem, "bwd"))
    calls = [trained(problem, "flash_mma", pass_) for problem, pass_ in wanted]
    calls.append(trained(SMALL.problem, "sdpa", "both"))
    by_pass = {
        f"{call.contender.variant} {call.pass_}": [
            step.entry for plan in plans_of(call) for step in plan.steps
        ]
        for call in calls
    }
    by_pass["sdpa both"] = ["void pytorch_flash::flash_fwd_kernel<1>(x)", "backward", "convert"]
    monkeypatch.setenv("FAKE_NCU_ENTRIES", json.dumps(by_pass))
    return Chosen("counters-figure2", lambda: calls, FIGURE_2.groups)


def test_launches_of_a_pass_are_summed_under_its_pass_and_mask(
    tmp_path: Path, said: list[str], fake: Path, passes: Chosen
) -> None:
    rows, finished = measure(tmp_path, said, choice=passes, label=None)
    assert finished and {r.status for r in rows} == {"ok"}
    metrics = [metric for group in FIGURE_2.groups for metric in group.metrics]
    assert len(rows) == 4 * len(metrics) and {r.metric for r in rows} == set(metrics)
    read = {
        (r.series, r.pass_, r.block_mask, r.density): r for r in rows if r.metric == "dram_bytes"
    }
    launches = {key: (r.median or 0) / 4_000_000 for key, r in read.items()}
    assert launches == {
        ("flash_mma", "both", "", 1.0): 4,
        ("flash_mma", "both", "butterfly 16x16", 0.5): 4,
        ("flash_mma", "bwd", "", 1.0): 3,
        ("torch_eager", "both", "", 1.0): 3,
    }
    assert {(r.problem, r.pass_) for r in rows} == {(c.problem, c.pass_) for c in passes.calls()}
    jobs = [r["jobs"] for r in runs_of(fake)]
    assert jobs == [0, 0, 4, 4]  # and no third group


def test_a_stopped_run_of_passes_lacks_what_was_not_read_and_only_that(
    tmp_path: Path,
    said: list[str],
    fake: Path,
    passes: Chosen,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Same problem and tiles, another pass or mask: another call."""
    monkeypatch.setenv("FAKE_NCU", "deadline:1")
    rows, finished = measure(tmp_path, said, choice=passes, label=None)
    assert not finished and {r.pass_ for r in rows} == {"both"}
    monkeypatch.setenv("FAKE_NCU", "")
    before = len(runs_of(fake))
    run_id = "20260102-h200-counters-figure2"
    rows, finished = measure(tmp_path, said, choice=passes, resume=run_id)
    assert finished and [r["jobs"] for r in runs_of(fake)[before:] if r["jobs"]] == [3, 4]
    keys = [(counter_shapes.key_of(r), r.metric) for r in rows]
    assert len(keys) == len(set(keys)) == 4 * sum(len(g.metrics) for g in FIGURE_2.groups)


@pytest.mark.parametrize(
    ("which", "launched", "fault"),
    [
        ("flash_mma bwd", slice(1, None), "without flash_mma_backward_delta"),
        ("flash_mma both", slice(1, None), "without flash_mma"),
        ("sdpa both", slice(0, 1), "a forward, or its backward, is not there"),
    ],
)
def test_a_pass_without_one_of_its_launches_is_a_failure(
    which: str,
    launched: slice,
    fault: str,
    tmp_path: Path,
    said: list[str],
    passes: Chosen,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = json.loads(os.environ["FAKE_NCU_ENTRIES"])
    names[which] = names[which][launched]
    monkeypatch.setenv("FAKE_NCU_ENTRIES", json.dumps(names))
    rows, finished = measure(tmp_path, said, choice=passes)
    bad = [r for r in rows if r.status != "ok"]
    assert finished and bad and all(r.detail.endswith(fault) for r in bad)
    variant, pass_ = which.split()
    assert {(r.variant, r.pass_, r.metric) for r in bad} == {(variant, pass_, "dram_bytes")}


def test_a_pass_that_does_not_fit_is_recorded_under_its_pass(
    tmp_path: Path, said: list[str], passes: Chosen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 1000)
    rows, finished = measure(tmp_path, said, choice=passes)
    assert finished and {r.status for r in rows} == {"does not fit"}
    assert [(r.pass_, r.density) for r in rows] == [
        ("both", 1.0), ("both", 0.5), ("bwd", 1.0), ("both", 1.0),
    ]  # fmt: skip


# -- the command line ------------------------------------------------------------------------------


def text_of(call: Callable[[], Any]) -> str:
    with pytest.raises(SystemExit) as stop:
        call()
    return str(stop.value.code)


@pytest.mark.usefixtures("fake")
def test_the_command_records_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "runs"
    assert cli.main(["measure", "--counters", "--out", str(out), "--commit", "abc"]) == 0
    assert capsys.readouterr().out.endswith(f"finished: {out}/20260102-h200-counters\n")
    assert load_run("20260102-h200-counters", out).about["commit"] == "abc"


def test_the_command_reads_figure_2(
    tmp_path: Path, fake: Path, figure: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 140 * GIB)
    for name in ("refuse_on_this_gpu", "refuse_old_gpu"):
        monkeypatch.setattr(paper_entries, name, lambda *args: None)
    monkeypatch.setattr(paper_entries, "gpu_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(counter_shapes, "installed_peers", lambda: PEERS)
    launched = {
        f"{call.contender.variant} {call.pass_}": [
            step.entry for plan in plans_of(call) for step in plan.steps
        ]
        for call in figure
    }
    launched |= {f"sdpa {pass_}": ["forward", "backward"] for pass_ in counted_pass.TRAINED}
    monkeypatch.setenv("FAKE_NCU_ENTRIES", json.dumps(launched))
    out = tmp_path / "runs"
    assert cli.main(["measure", "--counters", "--shapes", "figure2", "--out", str(out)]) == 0
    run = load_run("20260102-h200-counters-figure2", out)
    calls = {counter_shapes.key_of(row) for row in run.select(status="ok")}
    assert len(calls) == 2 * 7 + 2 * 6 and not [r for r in run.rows if r.status != "ok"]
    found = {m.series: set(m.by_level) for m in left_bytes(PaperNumbers([run]), device("h200"))
             if m.pass_ == "both"}  # fmt: skip
    assert found == {
        **{key: {"launched", "l2", "dram"} for key in IN_FIGURE},
        **{key: {"l2", "dram"} for key in PEERS},
    }
    asked = [r["jobs"] for r in runs_of(fake)]
    assert asked == [0, 0, FIRST_CALLS, 26 - FIRST_CALLS, 26]


def test_the_command_says_why_there_are_no_counters_and_does_not_fail(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_NCU", "denied")
    assert cli.main(["measure", "--counters", "--out", str(tmp_path / "runs")]) == 0
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ncu, "PLACES", ())
    monkeypatch.delenv("CUDA_HOME", raising=False)
    assert cli.main(["measure", "--counters", "--out", str(tmp_path / "runs")]) == 0
    denied, missing = capsys.readouterr().out.splitlines()
    assert "ERR_NVGPUCTRPERM" in denied and "was not found" in missing


@pytest.mark.usefixtures("fake")
def test_the_command_takes_no_grid_and_resumes_no_other_kind(tmp_path: Path) -> None:
    text = text_of(lambda: cli.main(["measure", "--counters", "--head-dims", "64", "--peers"]))
    assert "takes no --peers" in text
    text = text_of(lambda: cli.main(["measure", "--counters", "--head-dims", "65"]))
    assert "no shape has counters read at these sizes" in text
    text = text_of(
        lambda: cli.main(["measure", "--counters", "--shapes", "figure2", "--seqlens", "9"])
    )
    assert "--shapes figure2 is of that figure's sizes" in text
    text = text_of(lambda: cli.main(["measure", "--shapes", "figure2"]))
    assert "--shapes says what --counters reads" in text
    root = tmp_path / "runs"
    write_run(root, [ROW], "20260102-h200-grid")
    write_run(root, [], "20260103-h200-counters", kind="counters")
    resume = ["measure", "--out", str(root), "--resume"]
    text = text_of(lambda: cli.main([*resume, "20260102-h200-grid", "--counters"]))
    assert "is a run of kind 'grid', not 'counters': resume it without --counters" in text
    text = text_of(lambda: cli.main([*resume, "20260103-h200-counters"]))
    assert "is a run of kind 'counters', not 'grid': resume it with --counters" in text


# -- the record ------------------------------------------------------------------------------------


def test_a_counters_run_is_never_the_default(tmp_path: Path) -> None:
    write_run(tmp_path, [ROW], "20260102-h200-grid")
    counted = row(metric="dram_bytes", unit="B", p20=5, median=5, p80=5, n=1)
    write_run(tmp_path, [counted], "20260103-h200-counters", kind="counters")
    assert list_runs(tmp_path) == ["20260103-h200-counters", "20260102-h200-grid"]
    assert list_runs(tmp_path, kind="grid") == ["20260102-h200-grid"]
    assert list_runs(tmp_path, kind="counters") == ["20260103-h200-counters"]
    made = session("numpy", root=tmp_path)
    assert made.run is not None and made.run.run_id == "20260102-h200-grid"


def test_a_run_that_cannot_be_read_counts_as_the_grid(tmp_path: Path) -> None:
    """So that the session's banner says what is wrong with it."""
    for i, text in enumerate(["{", "[]", '{"kind": 5}']):
        folder = tmp_path / f"2026010{i + 1}-h200-grid"
        folder.mkdir()
        (folder / "run.json").write_text(text)
    assert list_runs(tmp_path, kind="grid") == ["20260102-h200-grid", "20260101-h200-grid"]
