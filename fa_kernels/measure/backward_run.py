"""Backward passes on record: time, counted bytes and memory, of saving P and of rebuilding it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fa_kernels.cuda.launch import (
    gpu_name,
    load_in_parallel,
    refuse_old_gpu,
    refuse_on_this_gpu,
    smem_limit_bytes,
)
from fa_kernels.cuda.run import run_standard_keeping_p
from fa_kernels.measure import memory, records, timing
from fa_kernels.measure.check import Truth
from fa_kernels.measure.check_backward import BackwardTruth
from fa_kernels.measure.point import FILL, Contender, our_contender, random_inputs, row_of, too_slow
from fa_kernels.measure.progress import measure_each
from fa_kernels.measure.special_run import open_run
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import HOPPER_SMEM_PER_BLOCK, Tiling
from fa_kernels.traffic.model import ALL_TENSORS
from fa_kernels.units import GIB
from fa_kernels.variants import VARIANTS, Variant

#: A pass estimated to take longer is recorded as skipped.
MAX_PASS_MS = 2000.0
#: Keeps batch and heads, so that memory over N shows its own growth: two heads of one sequence.
MEMORY_SHAPE = {"batch": 1, "nheads": 2, "head_dim": 64, "dtype": "float16"}


def memory_problems() -> list[AttentionProblem]:
    """N alone grows: for memory, not timed (two heads leave most of a GPU idle)."""
    sizes = [2**exponent for exponent in range(10, 17)]
    return [AttentionProblem(seqlen_q=n, seqlen_k=n, **MEMORY_SHAPE) for n in sizes]  # type: ignore[arg-type]


def problems() -> list[AttentionProblem]:
    """`memory_problems`; then the explorer's shapes at d = 64 in two dtypes, and at d = 128."""
    return memory_problems() + [
        AttentionProblem.of_tokens(n, d, dtype)
        for dtype, d in (("float16", 64), ("float32", 64), ("float16", 128))
        for n in (512, 1024, 2048, 4096, 8192, 16384)
    ]


@dataclass
class _Training:
    """One algorithm at one problem: its forward, and its backward from what that saved."""

    variant: Variant
    tiling: Tiling
    forward_tiling: Tiling
    inputs: list[Any]
    d_out: Any

    @classmethod
    def of(cls, variant: Variant, problem: AttentionProblem, inputs: list[Any], d_out: Any) -> Any:
        """With the backward's own default tiles, for both passes where the forward has them."""
        return cls(variant, *_tilings(variant, problem), inputs, d_out)

    def contender(self, problem: AttentionProblem, pass_: str) -> Contender:
        """Whose rows those of a pass are: a forward alone is one with its own tiles."""
        tiling = self.forward_tiling if pass_ == "fwd" else self.tiling
        return our_contender(self.variant, tiling, problem)

    def forward(self, problem: AttentionProblem) -> tuple[Any, Any, Any]:
        """out, lse and P, which is None for all but the algorithm that keeps it."""
        if "p" in self.variant.backward.saved:  # type: ignore[union-attr]
            q, k, v = self.inputs
            return run_standard_keeping_p(q, k, v, problem, self.forward_tiling)
        out, lse, _ = self.variant.run(*self.inputs, problem, self.forward_tiling)
        return out, lse, None

    def backward(
        self, problem: AttentionProblem, saved: tuple[Any, Any, Any], **options: bool
    ) -> Any:
        """dq, dk, dv and, if asked for, the counters."""
        out, lse, p = saved
        if p is not None:
            options = options | {"p": p}
        run = self.variant.backward.run  # type: ignore[union-attr]
        return run(self.d_out, *self.inputs, out, lse, problem, self.tiling, **options)

    def both(self, problem: AttentionProblem) -> Any:
        """Forward and backward in one, as a training step makes them."""
        return self.backward(problem, self.forward(problem))


def _tilings(variant: Variant, problem: AttentionProblem) -> tuple[Tiling, Tiling]:
    """The backward's default tiles, and the nearest to them that the forward can have."""
    assert variant.backward is not None
    tiling = variant.backward.tiling_for(problem, smem_limit_bytes())
    return tiling, variant.nearest_tiling(problem, tiling)


def _trained(problem: AttentionProblem) -> list[Variant]:
    """Every variant with a backward pass that takes the problem."""
    return [
        variant
        for variant in VARIANTS.values()
        if variant.takes(problem)
        and variant.backward is not None
        and variant.backward.takes(problem, HOPPER_SMEM_PER_BLOCK)
    ]


def measure_backward(
    problem: AttentionProblem,
    flush: timing.Flush,
    estimates: dict[tuple[Any, ...], float],
    timed: bool = True,
) -> Iterator[records.Row]:
    """Rows of every algorithm with a backward pass at one problem; checked before they are timed.

    Passes: "fwd" and "bwd" have latencies, "bwd" also counted bytes and, where it is another
    launch, the latency of a deterministic dq; "both" has the memory of a step beside its inputs.
    Without `timed` only that memory and the bytes. `estimates` holds milliseconds per score of
    earlier problems, and learns.
    """
    memory.free_pools()
    q, k, v = random_inputs(problem)
    d_out = random_inputs(problem, seed=1)[0]
    truths: dict[str, Any] = {}
    steps = [_Training.of(variant, problem, [q, k, v], d_out) for variant in _trained(problem)]
    to_time: list[tuple[_Training, str, str, Callable[[], Any], float, float]] = []
    for step in steps:
        key = (problem.dtype, problem.head_dim, problem.heads, step.variant.name)
        verdict = _verdict(problem, step, estimates.get(key))
        if verdict is not None:
            status, detail = verdict
            contender = step.contender(problem, "bwd")
            row = row_of(problem, contender, "latency_ms", status=status, detail=detail)
            yield replace(row, pass_="bwd")
            continue
        if not truths:
            truths["out"] = Truth([q, k, v], problem)
            truths["gradients"] = BackwardTruth([q, k, v], d_out, problem)
        found, entries = _check(problem, step, truths, flush)
        yield from found
        to_time += entries if timed else []
        for _, pass_, metric, _, first_ms, _ in entries:
            if (pass_, metric) == ("bwd", "latency_ms"):
                estimates[key] = first_ms / (problem.seqlen_q * problem.seqlen_k)
    latencies = timing.time_interleaved([e[3] for e in to_time], flush, [e[4] for e in to_time])
    for (step, pass_, metric, _, _, error), latency in zip(to_time, latencies, strict=True):
        assert latency is not None
        contender = step.contender(problem, pass_)
        row = row_of(problem, contender, metric, value=latency.median, error=error)
        yield replace(row, pass_=pass_, p20=latency.p20, p80=latency.p80, n=latency.n)


def _verdict(
    problem: AttentionProblem, step: _Training, ms_per_score: float | None
) -> tuple[str, str] | None:
    """(status, sentence) if the algorithm is not to be tried here, else None."""
    backward = step.variant.backward
    assert backward is not None
    try:
        refuse_old_gpu(backward.kernel, step.variant.min_arch)
        for plan, tiling in (
            (step.variant.plan(problem, step.forward_tiling), step.forward_tiling),
            (backward.plan(problem, step.tiling), step.tiling),
        ):
            refuse_on_this_gpu(plan, problem, tiling, gpu_name())
    except (ValueError, NotImplementedError) as error:
        return "refused", str(error)
    need = step.variant.step_bytes(problem) + 3 * (problem.q_bytes + problem.kv_bytes)
    if need > FILL * memory.free_bytes():
        return "does not fit", f"does not fit (estimated {need / GIB:.3g} GiB)"
    if ms_per_score is not None:
        estimate = ms_per_score * problem.seqlen_q * problem.seqlen_k
        if estimate > MAX_PASS_MS:
            return "skipped (estimated)", too_slow(estimate, MAX_PASS_MS)
    return None


def _check(
    problem: AttentionProblem, step: _Training, truths: dict[str, Any], flush: timing.Flush
) -> tuple[list[records.Row], list[Any]]:
    """Rows of memory and counted bytes, and what is to be timed; a wrong result is not."""
    step.both(problem)  # compiles
    _, peak = memory.peak_extra_bytes(partial(step.both, problem))
    saved = step.forward(problem)
    dq, dk, dv, counted = step.backward(problem, saved, count_traffic=True)
    out = truths["out"].check(saved[0], saved[1], 1, not step.variant.keeps_scores_on_chip)
    gradients = truths["gradients"].check(dq, dk, dv)
    error = max(gradients.errors.values())
    if not (out.ok and gradients.ok):
        detail = f"wrong: out {out.out_err:.3g}, gradients {gradients.errors}"
        contender = step.contender(problem, "bwd")
        row = row_of(problem, contender, "latency_ms", status="failed", detail=detail)
        return [replace(row, pass_="bwd")], []
    detail = f"dq, dk, dv of {gradients.heads} k/v heads checked"
    inputs_bytes = sum(array.nbytes for array in (*step.inputs, step.d_out))
    values = {("both", "extra_mem_bytes"): peak, ("both", "peak_mem_bytes"): inputs_bytes + peak}
    values[("bwd", "hbm_bytes")] = counted.total_bytes
    for tensor in ALL_TENSORS:
        if counted.of(tensor):
            values[("bwd", f"hbm_{tensor}_bytes")] = counted.of(tensor)
    found, contender = [], step.contender(problem, "both")
    for (pass_, metric), value in values.items():
        row = row_of(problem, contender, metric, value=value, error=error, detail=detail)
        found.append(replace(row, pass_=pass_))
    calls = {
        ("fwd", "latency_ms"): (partial(step.forward, problem), out.out_err),
        ("bwd", "latency_ms"): (partial(step.backward, problem, saved), error),
    }
    if True in step.variant.backward.dq_builds(problem, step.tiling):  # type: ignore[union-attr]
        call = partial(step.backward, problem, saved, deterministic=True)
        calls[("bwd", "deterministic_latency_ms")] = (call, error)
    entries = []
    for (pass_, metric), (call, err) in calls.items():
        call()
        first_ms = timing.time_once(call, flush)
        entries.append((step, pass_, metric, call, first_ms, err))
    return found, entries


def _plans(work: list[AttentionProblem]) -> Iterator[Any]:
    for problem in work:
        for variant in _trained(problem):
            backward, (tiling, forward_tiling) = variant.backward, _tilings(variant, problem)
            assert backward is not None
            yield variant.plan(problem, forward_tiling)
            yield backward.plan(problem, tiling, count_traffic=True)
            for deterministic in backward.dq_builds(problem, tiling):
                yield backward.plan(problem, tiling, deterministic=deterministic)


def _left(problem: AttentionProblem, rows: Sequence[records.Row]) -> bool:
    """True if a run with `rows` lacks this problem; its rows are written all at once."""
    return not any(row.problem == problem for row in rows)


def record_backward(
    root: Path,
    label: str,
    command: str,
    resume: str | None = None,
    commit: str | None = None,
    seconds: float | None = None,
    say: Callable[[str], None] = print,
) -> tuple[Path, bool]:
    """Measure every problem into a run of kind "backward"; its folder, and whether it is whole.

    A problem's rows are written together, so that a run that was stopped resumes with the problem
    it was at. None is begun after `seconds`.

    Raises:
        FileExistsError: a new run would have the id of one that is there.
        ValueError: a label that makes no valid run id, or a run to resume that is not valid.
    """
    start = time.monotonic()
    folder, rows = open_run("backward", label, command, root, resume, commit)
    work = [problem for problem in problems() if _left(problem, rows)]
    say(f"{len(rows)} rows recorded, {len(work)} problems to do")
    say(f"compiled {load_in_parallel(_plans(work))} kernels in {time.monotonic() - start:.0f} s")
    flush, estimates = timing.Flush(), dict[tuple[Any, ...], float]()
    untimed = memory_problems()

    def measure(problem: AttentionProblem) -> list[records.Row]:
        return list(measure_backward(problem, flush, estimates, problem not in untimed))

    return folder, measure_each(folder, work, measure, _summary, start, seconds, say)


def _summary(rows: Sequence[records.Row]) -> str:
    parts = [
        f"{row.variant} {row.pass_} {row.median:.3g} ms"
        for row in rows
        if row.metric == "latency_ms" and row.median is not None
    ]
    parts += [
        f"{row.variant} {row.median / GIB:.3g} GiB"
        for row in rows
        if row.metric == "extra_mem_bytes" and row.median is not None
    ]
    parts += [f"{row.variant} {row.status}" for row in rows if row.status != "ok"]
    return ", ".join(parts)
