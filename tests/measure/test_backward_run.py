"""Runs of kind "backward": what they measure, how they stop and go on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fa_kernels.cuda import launch
from fa_kernels.measure import backward_run as subject
from fa_kernels.measure import records, sweep
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.units import KIB
from fa_kernels.variants import VARIANTS, Variant
from tests.figures.synthetic_backward import rows_at


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[AttentionProblem, bool]]]:
    """Stand-ins for the GPU; the problems that were measured, and whether they were timed."""

    def describe(command: str, method: str) -> dict[str, Any]:
        about = dict.fromkeys(records.RUN_KEYS, "x") | {"schema": records.SCHEMA_VERSION}
        return about | {"run_id": "20260102-h200-", "command": command, "method": method}

    seen: list[tuple[AttentionProblem, bool]] = []

    def measure(problem: AttentionProblem, flush: Any, estimates: Any, timed: bool) -> Any:
        seen.append((problem, timed))
        return rows_at(problem)

    monkeypatch.setattr(sweep, "describe_run", describe)
    monkeypatch.setattr(subject, "measure_backward", measure)
    monkeypatch.setattr(subject, "load_in_parallel", lambda plans: 7)
    monkeypatch.setattr(subject.timing, "Flush", lambda: None)
    records.load_run.cache_clear()
    yield seen
    records.load_run.cache_clear()


def record(root: Path, **options: Any) -> tuple[Path, bool]:
    return subject.record_backward(root, "backward", "", say=lambda text: None, **options)


def test_memory_grows_with_n_alone_and_is_not_timed(
    measured: list[tuple[AttentionProblem, bool]], tmp_path: Path
) -> None:
    folder, finished = record(tmp_path)
    assert finished and [problem for problem, _ in measured] == subject.problems()
    untimed = [problem for problem, timed in measured if not timed]
    assert [p.seqlen_q for p in untimed] == [2**k for k in range(10, 17)]
    assert {(p.batch, p.nheads, p.head_dim, p.dtype) for p in untimed} == {(1, 2, 64, "float16")}
    assert records.load_run(folder.name, tmp_path).kind == "backward"


def test_a_stopped_run_goes_on_with_what_is_left(
    measured: list[tuple[AttentionProblem, bool]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(subject, "problems", lambda: subject.memory_problems()[:3])
    assert record(tmp_path, seconds=-1)[1] is False
    assert measured == []
    folder = tmp_path / "20260102-h200-backward"
    records.append_rows(folder, rows_at(subject.memory_problems()[1]))
    assert record(tmp_path, resume=folder.name) == (folder, True)
    assert [problem.seqlen_q for problem, _ in measured] == [1024, 4096]
    with pytest.raises(FileExistsError, match="append-only"):
        record(tmp_path)


# -- both passes of a variant -----------------------------------------------------------------


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of the GPU: how much shared memory a block may have, and how old it is."""
    for module in (subject, launch):
        monkeypatch.setattr(module, "smem_limit_bytes", lambda: 227 * KIB)
    monkeypatch.setattr(subject, "refuse_old_gpu", lambda kernel, min_arch: None)
    monkeypatch.setattr(subject, "gpu_name", lambda: "H200")
    monkeypatch.setattr(subject.memory, "free_bytes", lambda: 2**37)


def with_tiles(monkeypatch: pytest.MonkeyPatch, tiling: Tiling) -> list[Tiling]:
    """Gives flash_mma's backward these default tiles; what its forward is then run with."""
    seen: list[Tiling] = []

    def run(q: Any, k: Any, v: Any, problem: Any, tiling: Tiling, **options: Any) -> Any:
        seen.append(tiling)
        return q, k, None

    mma = VARIANTS["flash_mma"]
    assert mma.backward is not None
    backward = replace(mma.backward, default_tiling=lambda *sizes: tiling)
    monkeypatch.setitem(VARIANTS, mma.name, replace(mma, backward=backward, run=run))
    return seen


def training_of(variant: Variant, problem: AttentionProblem) -> Any:
    return subject._Training.of(variant, problem, [1, 2, 3], 4)


def test_every_variant_with_a_backward_is_measured_in_the_dtypes_it_takes() -> None:
    half, single = (
        [variant.name for variant in subject._trained(AttentionProblem.of_tokens(512, 64, dtype))]
        for dtype in ("float16", "float32")
    )
    assert single == ["standard_tiled", "flash_kv_outer", "flash_q_outer"]
    assert half == [*single, "flash_mma", "flash_wgmma"]
    (wide,) = [AttentionProblem.of_tokens(512, 256, "float16")]
    assert [variant.name for variant in subject._trained(wide)] == [*single, "flash_mma"]


@pytest.mark.usefixtures("h200")
def test_every_build_of_a_run_is_one_that_the_gpu_can_have() -> None:
    plans = list(subject._plans(subject.problems()))
    assert {plan.kernel for plan in plans} >= {"05_flash_mma", "05_flash_mma_backward"}
    assert all(plan.smem_bytes <= 227 * KIB for plan in plans)


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(
    ("own", "forward"), [(Tiling(64, 128), Tiling(64, 128)), (Tiling(256, 192), Tiling(256, 96))]
)
def test_the_forward_has_the_tiles_of_the_backward_or_the_nearest(
    own: Tiling, forward: Tiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row names the tiles of its own pass."""
    seen = with_tiles(monkeypatch, own)
    problem = AttentionProblem.of_tokens(512, 64)
    step = training_of(VARIANTS["flash_mma"], problem)
    assert (step.tiling, step.forward_tiling) == (own, forward)
    assert step.forward(problem) == (1, 2, None) and seen == [forward]
    assert [step.contender(problem, pass_).tiling for pass_ in ("fwd", "bwd", "both")] == [
        forward, own, own,
    ]  # fmt: skip
    built = [
        Tiling(plan.macros["BLOCK_M"], plan.macros["BLOCK_N"])
        for plan in subject._plans([problem])
        if plan.kernel == "05_flash_mma"
    ]
    assert built == [forward]


@pytest.mark.usefixtures("h200")
def test_what_the_gpu_cannot_have_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = AttentionProblem.of_tokens(512, 64)
    assert subject._verdict(problem, training_of(VARIANTS["flash_mma"], problem), None) is None
    with_tiles(monkeypatch, Tiling(256, 192))
    step = training_of(VARIANTS["flash_mma"], problem)
    status, detail = subject._verdict(problem, step, None) or ("", "")
    assert status == "refused" and "of shared memory per block, H200 allows" in detail

    def old(kernel: str, min_arch: int) -> None:
        raise NotImplementedError(f"{kernel} needs sm_{min_arch}")

    monkeypatch.setattr(subject, "refuse_old_gpu", old)
    found = subject._verdict(problem, step, None)
    assert found == ("refused", "05_flash_mma_backward needs sm_80")
