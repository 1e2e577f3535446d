"""A run of the fast kernels beside peers that were asked for: the real run, a fake GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fa_kernels import __main__ as cli
from fa_kernels.cuda import launch
from fa_kernels.measure import baselines, records, speed_backward, speed_run, sweep, timing
from fa_kernels.measure.baselines import BASELINES
from fa_kernels.measure.point import Contender, row_of
from fa_kernels.measure.records import Row, load_run
from fa_kernels.measure.speed_run import DTYPES, HEAD_DIMS, PEERS, SEQLENS, SpeedGrid, problems
from fa_kernels.problem import AttentionProblem
from fa_kernels.variants import FAST
from tests.measure.slow_sweep import describe

#: The side-by-side run of all peers.
ALL = [name for name in BASELINES if name != "torch_eager"]
COMMAND = [
    "measure", "--speed", "--pass", "fwd", "--peers", "torch_eager", *ALL,
    "--head-dims", "64", "128", "--seqlens", "2048", "4096", "8192", "16384",
]  # fmt: skip


class FakeGpu:
    """Stands in for `measure_problem`: a row for every contender that does not refuse."""

    def __init__(self) -> None:
        self.seen: list[tuple[AttentionProblem, list[str]]] = []
        self.flushes: list[Any] = []

    def __call__(
        self, problem: AttentionProblem, contenders: Sequence[Contender], flush: Any
    ) -> Iterator[Row]:
        self.seen.append((problem, [c.provider for c in contenders]))
        self.flushes.append(flush)
        for contender in contenders:
            try:
                contender.refuse(problem)
            except NotImplementedError as why:
                row = row_of(problem, contender, "latency_ms", status="refused", detail=str(why))
                yield row
                continue
            yield replace(row_of(problem, contender, "latency_ms", value=1.0, error=1e-4), n=20)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """An H200 with every package but flash-attn-4."""
    fake, versions = FakeGpu(), {"torch": "2.11.0", "fa3-fwd": "0.0.3"}
    monkeypatch.setattr(baselines, "_version", versions.get)
    monkeypatch.setattr(speed_run, "measure_problem", fake)
    monkeypatch.setattr(sweep, "describe_run", describe)
    monkeypatch.setattr(launch, "available", lambda: True)
    monkeypatch.setattr("fa_kernels.measure.point.current_arch", lambda: "sm_90")
    monkeypatch.setattr("fa_kernels.cuda.launch.refuse_on_this_gpu", lambda *a: None)
    monkeypatch.setattr("fa_kernels.cuda.launch.refuse_old_gpu", lambda *a: None)
    monkeypatch.setattr(speed_run, "gpu_arch", lambda: 90)
    monkeypatch.setattr("fa_kernels.cuda.launch.gpu_name", lambda: "NVIDIA H200")
    for module in (speed_run, speed_backward):
        monkeypatch.setattr(module, "smem_limit_bytes", lambda: 227 * 1024)
    monkeypatch.setattr(speed_run, "load_in_parallel", lambda plans: len(list(plans)))
    monkeypatch.setattr(speed_run, "launch_rows", lambda say: iter(()))
    monkeypatch.setattr(timing, "Flush", lambda: "cold")
    monkeypatch.setattr(timing, "WarmL2", lambda: "warm")
    load_run.cache_clear()
    return fake


def read(root: Path, kind: str) -> records.Run:
    load_run.cache_clear()
    return load_run(f"20260102-h200-{kind}", root)


def test_the_default_grid_is_that_of_the_recorded_runs() -> None:
    grid = SpeedGrid()
    assert (grid.seqlens, grid.head_dims, grid.dtypes, grid.peers) == (
        SEQLENS, HEAD_DIMS, DTYPES, PEERS,
    )  # fmt: skip
    assert grid.kind == "speed" == SpeedGrid(passes=("bwd",)).kind
    assert grid.problems() == problems()
    assert {replace(grid, peers=("fa3",)).kind, replace(grid, seqlens=(512,)).kind} == {"peers"}


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        ({"peers": ("fa9",)}, r"peers \['fa9'\] are not known"),
        ({"seqlens": (0,)}, "N = 0 is out of range"),
        ({"head_dims": (257,)}, "d = 257 is out of range"),
        ({"dtypes": ("fp64",)}, "dtype = fp64 is not supported"),
    ],
)
def test_what_cannot_be_measured_is_refused(chosen: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SpeedGrid(**chosen)


def test_peers_side_by_side(
    gpu: FakeGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*COMMAND, "--out", str(tmp_path)]) == 0
    run = read(tmp_path, "peers")
    assert run.kind == "peers" and run.about["packages"] == {"fa3-fwd": "0.0.3"}
    assert run.about["method"] == timing.METHODS["cold"]
    assert len(gpu.seen) == 2 * 2 * 2 * 4 == len({problem for problem, _ in gpu.seen})
    installed = [
        *["fa_kernels"] * len(FAST),
        "torch_eager",
        *(name for name in ALL if name != "fa4"),
    ]
    assert all(providers == installed for _, providers in gpu.seen)
    assert {row.status for row in run.select(provider="fa3", dtype="float16")} == {"refused"}
    assert len(run.select(provider="fa3", dtype="bfloat16", status="ok")) == 16
    assert {row.variant for row in run.select(provider="flex")} == {"flex_attention"}
    assert not run.select(metric="launch_us"), "of the recorded grid alone"
    assert "not installed: fa4" in capsys.readouterr().out


def test_it_goes_on_where_it_stopped(gpu: FakeGpu, tmp_path: Path) -> None:
    assert cli.main([*COMMAND, "--out", str(tmp_path), "--minutes", "0"]) == 0
    assert not gpu.seen
    assert cli.main([*COMMAND, "--out", str(tmp_path), "--resume", "20260102-h200-peers"]) == 0
    assert cli.main([*COMMAND, "--out", str(tmp_path), "--resume", "20260102-h200-peers"]) == 0
    assert len(gpu.seen) == 32
    about = json.loads((tmp_path / "20260102-h200-peers" / "run.json").read_text())
    assert len(about["resumed"]) == 2


def test_other_options_are_another_kind_and_do_not_go_into_one_run(
    gpu: FakeGpu, tmp_path: Path
) -> None:
    out = ["--out", str(tmp_path), "--minutes", "0"]
    cli.main([*COMMAND, *out])
    for other in (["--speed"], ["--speed", "--l2", "warm"], ["--l2", "warm"], []):
        with pytest.raises(SystemExit, match="is a run of kind 'peers', not"):
            cli.main(["measure", *other, *out, "--resume", "20260102-h200-peers"])
    assert not gpu.seen


def test_a_warm_l2_is_a_run_of_its_own_kind_that_says_so(gpu: FakeGpu, tmp_path: Path) -> None:
    small = ["--head-dims", "64", "--seqlens", "512", "--out", str(tmp_path)]
    cli.main(["measure", "--speed", "--pass", "fwd", *small, "--l2", "warm"])
    run = read(tmp_path, "peers-warm")
    assert run.kind == "peers-warm" and run.about["method"] == timing.METHODS["warm"]
    assert set(gpu.flushes) == {"warm"}
    cli.main(["measure", "--speed", "--pass", "fwd", *small])
    assert gpu.flushes[-1] == "cold"
    assert records.list_runs(tmp_path, kind="speed") == [], "no page takes them for the grid's"


@pytest.mark.parametrize("kind", ["--backward", "--training", "--counters"])
def test_kinds_that_have_no_warm_l2_refuse_it(kind: str, gpu: FakeGpu) -> None:
    with pytest.raises(SystemExit, match="takes no .*l2"):
        cli.main(["measure", kind, "--l2", "warm"])
