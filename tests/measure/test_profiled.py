"""The program under ncu: what it profiles, checks and reports; NumPy stands in for the GPU."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda import launch
from fa_kernels.measure import counted_pass, memory, paper_entries, profiled
from fa_kernels.measure.baselines import BASELINES
from fa_kernels.measure.counted_pass import TRAINED, training_contender
from fa_kernels.measure.point import our_contender, peer_contender
from fa_kernels.measure.profiled import END, Job, Outcome, profile_jobs
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.units import KIB
from fa_kernels.variant import Backward
from fa_kernels.variants import VARIANTS, Variant

PROBLEM = AttentionProblem(1, 2, 48, 48, 16, "float32")
TILING = Tiling(16, 32)


class FakeRegion:
    """Logs instead of profiling."""

    def __init__(self, numbers: list[int] | None = None) -> None:
        self.log: list[Any] = []

    def call(self, number: int, call: Callable[[], Any], with_after: bool) -> Any:
        self.log.append((number, with_after))
        return call()

    def read(self, name: str) -> None:
        self.log.append(name)

    @contextmanager
    def profiling(self) -> Iterator[None]:
        yield


def on_numpy(variant: Variant, error: float = 0.0) -> Variant:
    def run(q: Any, k: Any, v: Any, p: AttentionProblem, t: Tiling, **options: bool) -> Any:
        out, lse = variant.reference(q, k, v, p, t)
        return out + np.float32(error), lse, None

    backward = variant.backward
    if backward is not None:
        backward = replace(backward, run=gradients_of(backward), prepare=None)
    return replace(variant, run=run, prepare=None, backward=backward)


def gradients_of(backward: Backward) -> Callable[..., Any]:
    return lambda *args, p=None: (*backward.reference(*args), None)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the next calls seem to take, in ms; 2 ms once the list is empty."""
    waits: list[float] = []

    def milliseconds(call: Callable[[], Any]) -> float:
        call()
        return waits.pop(0) if waits else 2.0

    monkeypatch.setitem(sys.modules, "cupy", np)
    monkeypatch.setattr(memory, "free_pools", lambda: None)
    monkeypatch.setattr(profiled, "_milliseconds", milliseconds)
    for name, variant in VARIANTS.items():
        monkeypatch.setitem(VARIANTS, name, on_numpy(variant))

    def keeping_p(q: Any, k: Any, v: Any, p: AttentionProblem, t: Tiling) -> Any:
        return (*VARIANTS["standard_tiled"].run(q, k, v, p, t)[:2], "P")

    monkeypatch.setattr(paper_entries, "run_standard_keeping_p", keeping_p)
    for module in (launch, paper_entries, counted_pass):
        monkeypatch.setattr(module, "smem_limit_bytes", lambda: 227 * KIB)
    return waits


def job(number: int = 0, variant: str = "flash_q_outer", seqlen: int = 48) -> Job:
    problem = replace(PROBLEM, seqlen_q=seqlen, seqlen_k=seqlen)
    return Job.of(number, problem, our_contender(VARIANTS[variant], TILING, problem))


def profile(*jobs: Job, **settings: Any) -> tuple[list[Outcome], list[Any]]:
    region = FakeRegion()
    outcomes = list(profile_jobs(jobs, region, False, **settings))  # type: ignore[arg-type]
    assert outcomes[-1].number == END
    return outcomes[:-1], region.log


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_job_is_the_same_call_in_another_process(variant: str) -> None:
    contender = our_contender(VARIANTS[variant], TILING, PROBLEM)
    again = Job(**json.loads(json.dumps(asdict(Job.of(3, PROBLEM, contender)))))
    assert again.problem == PROBLEM and again.contender.key == contender.key
    peer = peer_contender(BASELINES["torch_eager"], PROBLEM)
    assert Job.of(4, PROBLEM, peer).contender.key == peer.key


# -- passes and block masks ------------------------------------------------------------------------

MASKED = replace(
    PROBLEM, dtype="float16", block_mask=BlockMask.pattern("local", 48, 48, 16, 16, 0.5)
)
TRAINABLE = [name for name, variant in VARIANTS.items() if variant.backward is not None]
SPARSE = [name for name in TRAINABLE if VARIANTS[name].block_sparse]


def of_pass(variant: str, pass_: str, problem: AttentionProblem = PROBLEM, number: int = 0) -> Job:
    provider = "torch_eager" if variant == "sdpa" else "fa_kernels"
    return Job.of(number, problem, training_contender(provider, variant, problem, pass_), pass_)


def halves(problem: AttentionProblem = PROBLEM) -> AttentionProblem:
    return replace(problem, dtype="float16")


@pytest.mark.parametrize("pass_", TRAINED)
@pytest.mark.parametrize("variant", [*SPARSE, "sdpa"])
def test_a_pass_and_its_mask_come_again_in_another_process(variant: str, pass_: str) -> None:
    problem = halves() if variant == "sdpa" else MASKED
    made = of_pass(variant, pass_, problem)
    again = Job(**json.loads(json.dumps(asdict(made))))
    assert again == made and again.problem == problem and again.pass_ == pass_
    assert again.contender.key == training_contender(made.provider, variant, problem, pass_).key


def test_a_job_of_before_there_were_passes_is_a_dense_forward() -> None:
    old = asdict(job())
    for name in ("pass_", "block_mask", "density"):
        del old[name]
    assert Job(**old) == job()


@pytest.mark.parametrize("pass_", TRAINED)
def test_gradients_are_checked_and_of_a_backward_the_forward_is_made_before(
    pass_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forwards: list[str] = []
    for name in TRAINABLE:
        variant = VARIANTS[name]

        def run(*args: Any, of: Variant = variant, **options: Any) -> Any:
            forwards.append(of.name)
            return of.run(*args, **options)

        monkeypatch.setitem(VARIANTS, name, replace(variant, run=run))
    made: dict[int, int] = {}
    monkeypatch.setattr(
        FakeRegion, "call", lambda self, number, call, after: _counted(number, call, made, forwards)
    )
    outcomes, _ = profile(*(of_pass(n, pass_, halves(), i) for i, n in enumerate(TRAINABLE)))
    for outcome in outcomes:
        assert (outcome.status, outcome.detail) == ("ok", "dq, dk, dv of 2 k/v heads checked")
        assert outcome.max_abs_err is not None and 0 < outcome.max_abs_err < 0.01
    assert set(made.values()) == {1 if pass_ == "both" else 0}


def _counted(
    number: int, call: Callable[[], Any], made: dict[int, int], forwards: list[str]
) -> Any:
    before = len(forwards)
    result = call()
    made[number] = len(forwards) - before
    return result


@pytest.mark.parametrize("pass_", ("fwd", *TRAINED))
def test_block_masks_are_profiled_and_checked(pass_: str) -> None:
    jobs = [of_pass(name, pass_, MASKED, i) for i, name in enumerate(SPARSE) if pass_ in TRAINED]
    if pass_ == "fwd":
        contenders = [our_contender(VARIANTS[name], TILING, MASKED) for name in SPARSE]
        jobs = [Job.of(i, MASKED, contender) for i, contender in enumerate(contenders)]
    outcomes, log = profile(*jobs)
    assert len(log) == len(SPARSE) > 1 and {outcome.status for outcome in outcomes} == {"ok"}


def test_wrong_gradients_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    backward = VARIANTS["flash_q_outer"].backward
    assert backward is not None
    right = backward.run

    def wrong(*args: Any, **options: Any) -> Any:
        dq, dk, dv, _ = right(*args, **options)
        return dq, dk + np.float16(1), dv, None

    other = replace(VARIANTS["flash_q_outer"], backward=replace(backward, run=wrong))
    monkeypatch.setitem(VARIANTS, "flash_q_outer", other)
    (outcome,), _ = profile(of_pass("flash_q_outer", "both", halves()))
    assert outcome.status == "failed" and outcome.max_abs_err is None
    assert outcome.detail.startswith("wrong: errors of dq ") and "dk 1" in outcome.detail


def test_tiles_of_another_gpu_are_not_taken_for_these() -> None:
    made = replace(of_pass("flash_q_outer", "bwd", halves()), block_n=16)
    (outcome,), log = profile(made)
    assert outcome.status == "failed" and "not (48, 16)" in outcome.detail and not log


def test_a_peer_makes_both_passes() -> None:
    pytest.importorskip("torch")
    (first, second), _ = profile(*(of_pass("sdpa", p, halves(), i) for i, p in enumerate(TRAINED)))
    assert (first.status, second.status) == ("ok", "ok")


def test_estimates_of_one_pass_are_not_those_of_another(gpu: list[float]) -> None:
    gpu += [1000.0, 1000.0]  # a slow forward says nothing of the peer's backward
    tall = replace(halves(), seqlen_q=96, seqlen_k=96)
    peer = peer_contender(BASELINES["torch_eager"], halves())
    (first, second), _ = profile(Job.of(0, halves(), peer), of_pass("sdpa", "bwd", tall, 1))
    assert (first.status, second.status) == ("ok", "ok")


# -- what goes wrong -------------------------------------------------------------------------------


def test_every_variant_is_profiled_once_and_checked() -> None:
    outcomes, log = profile(*(job(i, name) for i, name in enumerate(VARIANTS)))
    assert log == [(i, False) for i in range(len(VARIANTS))]
    for outcome in outcomes:
        assert outcome.status == "ok" and outcome.detail == "48 of 48 rows checked"
        assert outcome.max_abs_err is not None and 0 <= outcome.max_abs_err < 1e-5


def test_a_wrong_output_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = on_numpy(VARIANTS["flash_q_outer"])
    run = wrong.run
    monkeypatch.setitem(
        VARIANTS,
        "flash_q_outer",
        replace(wrong, run=lambda *a, **o: (run(*a, **o)[0] + np.float32(0.1), *run(*a, **o)[1:])),
    )
    (outcome,), _ = profile(job())
    assert outcome.status == "failed" and outcome.detail.startswith("wrong: error 0.1")
    assert outcome.max_abs_err is None


def test_a_call_that_raises_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **options: Any) -> Any:
        raise RuntimeError("no\nkernel")

    name = next(name for name in VARIANTS if name != "flash_q_outer")
    monkeypatch.setitem(VARIANTS, name, replace(VARIANTS[name], run=broken))
    (first, second), _ = profile(job(0, name), job(1))
    assert (first.status, first.detail) == ("failed", "RuntimeError: no kernel")
    assert second.status == "ok"


def test_a_call_that_would_take_too_long_is_not_made(gpu: list[float]) -> None:
    gpu += [1000.0, 1000.0]  # slow even the second time: not a library setting itself up
    (first, second), log = profile(job(0), job(1, seqlen=96))
    assert (first.status, second.status) == ("ok", "skipped (estimated)")
    assert second.detail == "estimated 4 s per launch, limit 3 s"
    assert [number for number, _ in log] == [0]


def test_a_library_that_sets_itself_up_is_not_a_slow_call(gpu: list[float]) -> None:
    gpu += [2000.0, 1.0]
    outcomes, _ = profile(job(0), job(1, seqlen=96))
    assert [outcome.status for outcome in outcomes] == ["ok", "ok"]


def test_the_deadline_ends_before_the_next_job() -> None:
    region = FakeRegion()
    outcomes = list(profile_jobs([job()], region, True, deadline_s=-1.0))  # type: ignore[arg-type]
    assert outcomes == [Outcome(END, "end", "deadline")] and not region.log
    assert math.isinf(profile_jobs.__defaults__[0])  # type: ignore[index]


def test_the_report_has_a_line_per_job_and_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiled, "Region", FakeRegion)
    asked = {"jobs": [asdict(job(7))], "with_after": True, "deadline_s": None}
    (tmp_path / "jobs.json").write_text(json.dumps(asked))
    assert profiled.main(str(tmp_path / "jobs.json"), str(tmp_path / "report.jsonl")) == 0
    lines = [json.loads(line) for line in (tmp_path / "report.jsonl").read_text().splitlines()]
    assert [line["number"] for line in lines] == [7, END]


def test_the_marking_kernels_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # NVRTC comes with the real CuPy
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc")
    source = profiled.reader_source([profiled.CALIBRATE, f"{profiled.BEFORE}12", profiled.AFTER])
    program = nvrtc.createProgram(source, "readers.cu", (), ())
    nvrtc.compileProgram(program, ("--std=c++17", "-arch=sm_90"))
    nvrtc.destroyProgram(program)
