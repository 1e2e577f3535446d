"""The recorded grid: which problems and contenders, estimates, and a run that can be resumed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fa_kernels.masks import matmul_flops
from fa_kernels.measure import records, seal, sweep
from fa_kernels.measure.baselines import GRID_PEERS
from fa_kernels.measure.point import Contender
from fa_kernels.measure.records import RecordError, Row
from fa_kernels.measure.sweep import Estimates, Grid, contenders, run_sweep, start_run
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.units import KIB
from fa_kernels.variants import VARIANTS
from tests.measure.rows import ROW, row, write_run

SMALL = Grid((128, 256), (64,), ("float16",), (64,), (64,), peers=("torch_flash",))


def test_the_default_grid_is_the_explorers() -> None:
    problems = [p for p in Grid().problems() if p.block_mask is None]
    assert len(problems) == 3 * 3 * 10 == len(set(problems))
    assert {p.dtype for p in problems} == {"float32", "float16", "bfloat16"}
    assert {p.seqlen_q for p in problems} == {2**e for e in range(7, 17)}
    for p in problems:
        assert p.nheads * p.head_dim == 2048 and p.seqlen_q == p.seqlen_k
        assert p.batch == max(1, 16384 // p.seqlen_q) and p.causal is None


def test_every_curve_starts_short_so_that_estimates_come_from_the_point_before() -> None:
    every = [p for p in Grid().problems() if p.block_mask is None]
    order = [(p.dtype, p.head_dim, p.seqlen_q) for p in every]
    for curve in {key[:2] for key in order}:
        lengths = [n for dtype, d, n in order if (dtype, d) == curve]
        assert lengths == sorted(lengths)


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        ({"seqlens": (128, 0)}, "N = 0 is out of range: .*between 1 and"),
        ({"seqlens": (10**9,)}, "N = 1000000000 is out of range"),
        ({"head_dims": (257,)}, "d = 257 is out of range: .*between 1 and 256"),
        ({"dtypes": ("float64",)}, "dtype = float64 is not supported"),
        ({"sram_kib": (64, -1)}, "sram_bytes = -1024 is out of range"),
        ({"control_sram_kib": (0,)}, "sram_bytes = 0 is out of range"),
        ({"mask_sram_kib": -64}, "sram_bytes = -65536 is out of range"),
        ({"peers": ("torch_flash", "fa9")}, r"peers \['fa9'\] are not known: name any of torch_e"),
    ],
)
def test_a_grid_that_cannot_be_measured_is_refused(chosen: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Grid(**chosen)


def test_contenders_are_every_tiling_once_and_the_peers() -> None:
    problem = AttentionProblem.of_tokens(4096, 64)
    grid = Grid(sram_kib=(16, 64, 192))
    field = contenders(problem, grid)
    ours = [c for c in field if c.provider == "fa_kernels"]
    tilings = {Tiling.from_sram(kib * KIB, 64, "float16") for kib in grid.sram_kib}
    wanted = {
        (n, t)
        for n, v in VARIANTS.items()
        if v.same_algorithm is None
        for t in (tilings if v.tiled else [None])
    }
    # Their own at d = 64, whatever M is.
    wanted |= {("flash_mma", Tiling(128, 128)), ("flash_wgmma", Tiling(192, 128))}
    assert {(c.variant, c.tiling) for c in ours} == wanted
    assert len(ours) == len(wanted)
    assert [c.provider for c in field if c.provider != "fa_kernels"] == list(GRID_PEERS)


def test_budgets_that_give_the_same_clipped_tiles_are_measured_once() -> None:
    problem = AttentionProblem.of_tokens(128, 64)  # 64, 128 and 192 KiB all reach 64 x 128
    ours = [c for c in contenders(problem, Grid()) if c.provider == "fa_kernels"]
    keys = [(c.variant, c.tiling) for c in ours]
    assert len(keys) == len(set(keys)) < len(VARIANTS) * 5
    assert all(c.tiling is None or c.tiling.block_n <= 128 for c in ours)
    assert all((c.tiling is None) != VARIANTS[c.variant].tiled for c in ours)


def test_controls_are_measured_at_fewer_budgets() -> None:
    problem = AttentionProblem.of_tokens(4096, 64)
    grid = Grid(sram_kib=(16, 64, 192), control_sram_kib=(64,))
    ours = [c for c in contenders(problem, grid) if c.provider == "fa_kernels"]
    tilings = {name: {c.tiling for c in ours if c.variant == name} for name in VARIANTS}
    for name, variant in VARIANTS.items():
        if variant.control_for is not None:
            assert tilings[name] == {Tiling.from_sram(64 * KIB, 64, "float16")}
            assert tilings[name] < tilings[variant.control_for]


def test_no_variant_contends_in_a_dtype_that_it_does_not_take() -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        field = contenders(AttentionProblem.of_tokens(4096, 64, dtype), Grid())
        ours = {c.variant for c in field if c.provider == "fa_kernels"}
        assert ours == {name for name, v in VARIANTS.items() if dtype in v.dtypes}


def test_no_block_mask_is_measured_twice() -> None:
    """A density that no mask of few blocks has is that of its neighbour."""
    masked = [p for p in Grid().problems() if p.block_mask is not None]
    seen = [(p.seqlen_q, p.block_mask.name, p.block_mask.density) for p in masked if p.block_mask]
    assert len(seen) == len(set(seen))


def test_block_masks_are_measured_with_their_blocks_as_tiles() -> None:
    grid = Grid(seqlens=(512, 1024, 4096))
    masked = [p for p in grid.problems() if p.block_mask is not None]
    assert {p.block_mask.name for p in masked if p.block_mask} == {"local", "butterfly"}
    for p in masked:
        mask = p.block_mask
        assert mask is not None and mask.density < 1.0
        assert (p.dtype, p.head_dim) == ("float16", 64) and p.seqlen_q >= 1024
        field = contenders(p, grid)
        assert {c.variant for c in field} == {"flash_kv_outer", "flash_q_outer"}
        assert {c.tiling for c in field} == {Tiling(mask.block_m, mask.block_n)}


def test_workspace_is_predicted_for_every_contender() -> None:
    problem = AttentionProblem.of_tokens(4096, 64)
    scores = 2 * problem.heads * 4096 * 4096 * 2
    need = {c.variant + c.provider: c.workspace_bytes for c in contenders(problem, Grid())}
    assert need["standard_tiledfa_kernels"] == need["sdpatorch_eager"] == scores
    assert need["flash_q_outerfa_kernels"] == need["sdpatorch_flash"] == 0


# -- estimates ------------------------------------------------------------------------------


def contender(tiling: Tiling | None, variant: str = "flash_q_outer") -> Contender:
    nothing: Callable[..., Any] = lambda *a: None  # noqa: E731
    return Contender("fa_kernels", variant, tiling, 0, nothing, nothing)


def measured(n: int, ms: float, **changed: Any) -> Row:
    p = AttentionProblem.of_tokens(n, 64)
    return row(batch=p.batch, seqlen_q=n, seqlen_k=n, median=ms, p20=ms, p80=ms, **changed)


def test_estimates_scale_with_flops() -> None:
    estimates = Estimates([measured(16384, 10.0)])
    same = contender(Tiling(64, 128))
    assert estimates.of(AttentionProblem.of_tokens(16384, 64), same) == pytest.approx(10.0)
    # Beyond 16384 tokens the batch stays 1: FLOPs grow with N^2.
    assert estimates.of(AttentionProblem.of_tokens(65536, 64), same) == pytest.approx(160.0)
    before, after = (AttentionProblem.of_tokens(n, 64) for n in (4096, 8192))
    estimates = Estimates([measured(4096, 3.0)])
    ratio = matmul_flops(after) / matmul_flops(before)
    assert ratio == 2.0 and estimates.of(after, same) == pytest.approx(6.0)


def test_estimates_come_from_the_same_contender_alone() -> None:
    estimates = Estimates([measured(128, 1.0)])
    problem = AttentionProblem.of_tokens(128, 64)
    assert estimates.of(problem, contender(Tiling(64, 128))) == pytest.approx(1.0)
    assert estimates.of(problem, contender(Tiling(64, 64))) is None
    assert estimates.of(problem, contender(Tiling(64, 128), "standard_tiled")) is None
    assert estimates.of(problem, contender(None)) is None
    assert estimates.of(AttentionProblem.of_tokens(128, 32), contender(Tiling(64, 128))) is None
    fp32 = AttentionProblem.of_tokens(128, 64, "float32")
    assert estimates.of(fp32, contender(Tiling(64, 128))) is None


def test_only_measured_latencies_teach() -> None:
    problem = AttentionProblem.of_tokens(128, 64)
    memory = measured(128, 9e9, metric="peak_mem_bytes", unit="B")
    refused = replace(measured(128, 1.0), median=None, status="refused")
    assert Estimates([memory, refused]).of(problem, contender(Tiling(64, 128))) is None
    latest = Estimates([measured(128, 1.0), measured(256, 7.0)])
    assert latest.of(AttentionProblem.of_tokens(256, 64), contender(Tiling(64, 128))) == 7.0


# -- runs -----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    records.load_run.cache_clear()
    yield
    records.load_run.cache_clear()


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an H200 would say about itself."""

    def describe(command: str, method: str) -> dict[str, Any]:
        about = dict.fromkeys(records.RUN_KEYS, "x") | {"schema": records.SCHEMA_VERSION}
        return about | {"run_id": "20260102-h200-", "command": command, "method": method}

    monkeypatch.setattr(sweep, "describe_run", describe)


@pytest.mark.usefixtures("described")
def test_a_new_run_is_valid_and_empty(tmp_path: Path) -> None:
    folder = start_run("grid", "make measure", tmp_path, commit="abc")
    run = records.load_run(folder.name, tmp_path)
    assert (folder.name, run.rows) == ("20260102-h200-grid", ())
    assert (run.about["command"], run.about["commit"]) == ("make measure", "abc")


@pytest.mark.usefixtures("described")
def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    folder = start_run("grid", "", tmp_path)
    records.append_rows(folder, [ROW])
    with pytest.raises(FileExistsError, match=r"append-only\. Continue it with --resume 20260102-"):
        start_run("grid", "", tmp_path)
    assert records.load_run(folder.name, tmp_path).rows == (ROW,)
    assert start_run("grid", "", tmp_path, resume=folder.name) == folder
    assert records.load_run(folder.name, tmp_path).rows == (ROW,)


@pytest.mark.usefixtures("described")
@pytest.mark.parametrize("label", ["", "Grid", "a b", "../x", "a--b", "-", "grid-"])
def test_a_label_that_makes_no_run_id_is_refused(label: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"label = .*use lower-case letters, digits and single"):
        start_run(label, "", tmp_path)
    assert not list(tmp_path.iterdir())


def test_resuming_a_damaged_run_is_refused_and_leaves_it_alone(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [ROW])
    (folder / "run.json").write_text("{")
    with pytest.raises(RecordError, match=r"run\.json is not valid JSON"):
        start_run("grid", "", tmp_path, resume=folder.name)
    assert (folder / "run.json").read_text() == "{"


def unseal(folder: Path) -> None:
    """As runs were recorded before there were seals."""
    about = json.loads((folder / "run.json").read_text())
    del about["seal"]
    (folder / "run.json").write_text(json.dumps(about))
    (folder / "seal.csv").unlink()


class FakeGpu:
    """Stands in for measure_problem: notes problems and estimates, gives one row for each."""

    def __init__(self) -> None:
        self.problems: list[AttentionProblem] = []
        self.estimates: list[dict[str, float | None]] = []
        self.fails_at: int | None = None

    def __call__(
        self, problem: AttentionProblem, field: Sequence[Contender], flush: Any
    ) -> Iterator[Row]:
        if len(self.problems) == self.fails_at:
            raise KeyboardInterrupt
        self.problems.append(problem)
        self.estimates.append({c.label: c.estimate_ms for c in field})
        for c in field:
            tiles = (c.tiling.block_m, c.tiling.block_n) if c.tiling else (None, None)
            yield measured(
                problem.seqlen_q, 1.0, nheads=problem.nheads, head_dim=problem.head_dim,
                dtype=problem.dtype, block_m=tiles[0], block_n=tiles[1],
                provider=c.provider, variant=c.variant,
            )  # fmt: skip


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    fake = FakeGpu()
    monkeypatch.setattr(sweep, "measure_problem", fake)
    monkeypatch.setattr(sweep, "precompile", lambda *a: 7)
    monkeypatch.setattr(sweep, "Flush", lambda: None)
    return fake


@pytest.mark.usefixtures("described")
def test_a_sweep_measures_every_problem_and_learns_from_the_one_before(
    gpu: FakeGpu, tmp_path: Path
) -> None:
    folder = start_run("grid", "", tmp_path)
    said: list[str] = []
    assert run_sweep(folder, SMALL, say=said.append)
    assert gpu.problems == list(SMALL.problems())
    assert all(estimate is None for estimate in gpu.estimates[0].values())
    assert gpu.estimates[1]["fa_kernels flash_q_outer 64x128"] == pytest.approx(2.0)
    records.load_run.cache_clear()
    rows = records.load_run(folder.name, tmp_path).rows
    each = len(VARIANTS) + 1  # one budget, one peer
    assert [r.seqlen_q for r in rows] == [128] * each + [256] * each
    assert (
        said[0] == "0 rows recorded, 2 problems to do or to finish"
        and "compiled 7 kernels" in said[1]
    )
    assert "flash_q_outer 1 ms" in said[-1]


@pytest.mark.usefixtures("described")
def test_an_interrupted_sweep_resumes_where_it_was(gpu: FakeGpu, tmp_path: Path) -> None:
    folder = start_run("grid", "", tmp_path)
    gpu.fails_at = 1
    with pytest.raises(KeyboardInterrupt):
        run_sweep(folder, SMALL, say=lambda text: None)
    gpu.fails_at = None
    assert run_sweep(folder, SMALL, say=lambda text: None)
    assert [p.seqlen_q for p in gpu.problems] == [128, 256]
    assert gpu.estimates[1]["fa_kernels flash_q_outer 64x128"] is not None, "learned from disk"
    assert run_sweep(folder, SMALL, say=lambda text: None)
    assert len(gpu.problems) == 2, "nothing left to do"


@pytest.mark.usefixtures("described")
def test_a_contender_without_its_latency_is_measured_again(gpu: FakeGpu, tmp_path: Path) -> None:
    folder = start_run("grid", "", tmp_path)
    assert run_sweep(folder, SMALL, say=lambda text: None)
    lines = (folder / "rows.csv").read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith("torch_flash,sdpa,fwd,float16,64")]
    assert len(kept) == len(lines) - 1
    unseal(folder)  # a sealed run would be refused
    (folder / "rows.csv").write_text("".join(kept))
    assert run_sweep(folder, SMALL, say=lambda text: None)
    assert list(gpu.estimates[-1]) == ["torch_flash sdpa"]
    records.load_run.cache_clear()
    assert len(records.load_run(folder.name, tmp_path).rows) == 2 * (len(VARIANTS) + 1)


@pytest.mark.usefixtures("described")
def test_a_deadline_stops_between_problems(gpu: FakeGpu, tmp_path: Path) -> None:
    folder = start_run("grid", "", tmp_path)
    said: list[str] = []
    assert not run_sweep(folder, SMALL, deadline_s=0.0, say=said.append)
    assert not gpu.problems and f"resume with {folder.name}" in said[-1]


@pytest.mark.usefixtures("gpu")
def test_a_damaged_run_is_not_appended_to(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [ROW])
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(about | {"schema": 2}))
    before = (folder / "rows.csv").read_bytes()
    with pytest.raises(RecordError, match="has schema 2"):
        run_sweep(folder, SMALL, say=lambda text: None)
    assert (folder / "rows.csv").read_bytes() == before


# -- killed ---------------------------------------------------------------------------------


def start_sweep(root: Path, what: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.measure.slow_sweep", str(root), what]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=pipe, text=True)


def rows_of(root: Path, run_id: str) -> list[Row]:
    records.load_run.cache_clear()
    return list(records.load_run(run_id, root).rows)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_sweep_killed_three_times_has_the_rows_of_an_undisturbed_one(tmp_path: Path) -> None:
    """At moments that differ every time, most of them in the middle of a line that is written."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    undisturbed = start_sweep(whole, "new")
    seed = random.SystemRandom().randrange(2**32)
    moments = [random.Random(seed + i).uniform(0.0, 0.15) for i in range(3)]
    what, counts = "new", []
    for moment in moments:
        process = start_sweep(killed, what)
        assert process.stdout is not None
        what = process.stdout.readline().strip()  # from here on it is a run
        time.sleep(moment)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL, f"it was done before {moments} (seed {seed})"
        counts.append((killed / what / "rows.csv").read_bytes().count(b"\n"))
    last = start_sweep(killed, what)
    assert last.communicate() and last.returncode == 0
    assert undisturbed.communicate() and undisturbed.returncode == 0
    found, wanted = rows_of(killed, what), rows_of(whole, what)
    assert len(wanted) > 100 and {r.status for r in wanted} == {"ok", "does not fit"}
    assert len(found) == len(wanted), f"seed {seed}: killed after {moments} s, lines {counts}"
    assert set(found) == set(wanted) and found == wanted
    about = records.load_run(what, killed).about
    assert len(about["resumed"]) == 3


@pytest.mark.usefixtures("described")
def test_a_run_killed_before_it_was_one_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file that `start_run` writes may be the last one."""
    real, left = seal.write_atomically, [0]

    def killed(path: Path, text: str) -> None:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        real(path, text)

    for survive in range(3):
        left[0] = survive
        monkeypatch.setattr(seal, "write_atomically", killed)
        with pytest.raises(KeyboardInterrupt):
            start_run("grid", "", tmp_path)
        assert records.list_runs(tmp_path) == []
        monkeypatch.setattr(seal, "write_atomically", real)
    folder = start_run("grid", "", tmp_path)
    assert rows_of(tmp_path, folder.name) == []


@pytest.mark.usefixtures("described")
def test_rows_without_a_run_json_are_not_written_over(tmp_path: Path) -> None:
    folder = start_run("grid", "", tmp_path)
    records.append_rows(folder, [ROW])
    (folder / "run.json").unlink()
    with pytest.raises(FileExistsError, match="append-only"):
        start_run("grid", "", tmp_path)
