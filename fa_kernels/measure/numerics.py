"""Errors against float64 by algorithm, dtype, N, d and what the inputs are: "is it exact?".

On a GPU our kernels and their peers, everywhere the references in NumPy. FlashAttention is the
formula of standard attention in another order; what differs is where numbers are rounded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.cuda.launch import load_in_parallel, smem_limit_bytes
from fa_kernels.measure import memory, point, records
from fa_kernels.measure.about import describe_numpy_run
from fa_kernels.measure.baselines import BASELINES
from fa_kernels.measure.check import Truth
from fa_kernels.measure.point import Contender, our_contender, peer_contender
from fa_kernels.measure.progress import measure_each
from fa_kernels.measure.special_run import open_run
from fa_kernels.measure.sweep import installed_peers
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.online_softmax import OnlineSoftmax
from fa_kernels.tiling import HOPPER_SMEM_PER_BLOCK, Tiling
from fa_kernels.variants import VARIANTS, Variant

Array = np.ndarray
Rng = np.random.Generator
#: Keys of a problem, head dimensions and dtypes; queries on a GPU are as many as keys.
SEQLENS = (128, 256, 512, 1024, 2048, 4096, 8192)
HEAD_DIMS = (64, 128)
DTYPES = ("float16", "bfloat16", "float32")
NHEADS = 8
#: Queries of a problem in NumPy: rows never mix, so any number of them gives the same errors.
NUMPY_ROWS = 64
#: FlashAttention-3, section 4.3: N(0, 1) + N(0, 100) with this probability, 100 a variance.
OUTLIER_PROBABILITY, OUTLIER_SCALE = 0.001, 10.0
#: By how much the scores of a row rise from its first key to its last, and their spread around it.
RISE, RISE_SPREAD = 64.0, 0.25
#: Stands for the exact result rounded once to the dtype: no result in that dtype can be nearer.
EXACT, ROUNDED = "float64", "rounded"
METHOD = (
    "one call on q, k, v drawn in float64 by NumPy's default_rng(seed 0) and rounded to the dtype; "
    "rmse and max_abs_err over the checked rows of all heads against the formula in float64 on the "
    "same rounded inputs; rms: root mean square of that float64 result; provider float64, variant "
    "rounded: the float64 result rounded once to the dtype. inputs: normal, N(0, 1); outliers, "
    f"N(0, 1) + N(0, 100) with probability {OUTLIER_PROBABILITY}, as in FlashAttention-3; rising, "
    f"scores that rise by {RISE:g} from the first key to the last with a spread of {RISE_SPREAD:g}"
)
NUMPY_METHOD = (
    f"{METHOD}. Executed in NumPy by the package's references, {NUMPY_ROWS} queries; flash_mma is "
    "the reference of flash_q_outer with every tile of P rounded to the dtype before P V, as "
    "tensor cores take it"
)


def _normal(problem: AttentionProblem, rng: Rng) -> list[Array]:
    return [rng.standard_normal(shape) for shape in _shapes(problem)]


def _outliers(problem: AttentionProblem, rng: Rng) -> list[Array]:
    found = []
    for x in _normal(problem, rng):
        hit = rng.random(x.shape) < OUTLIER_PROBABILITY
        x[hit] += OUTLIER_SCALE * rng.standard_normal(int(hit.sum()))
        found.append(x)
    return found


def _rising(problem: AttentionProblem, rng: Rng) -> list[Array]:
    """The first component of q and k makes the rise, the others what spreads around it."""
    q, k, v = _normal(problem, rng)
    each = math.sqrt(RISE / problem.scale)
    q *= RISE_SPREAD
    q[..., 0] = each
    k[..., 0] = each * np.arange(problem.seqlen_k) / max(1, problem.seqlen_k - 1)
    return [q, k, v]


#: Name -> q, k, v in float64 of a problem.
INPUTS: Mapping[str, Callable[[AttentionProblem, Rng], list[Array]]] = {
    "normal": _normal,
    "outliers": _outliers,
    "rising": _rising,
}


def _shapes(problem: AttentionProblem) -> list[tuple[int, ...]]:
    rows = (problem.seqlen_q, problem.seqlen_k, problem.seqlen_k)
    return [(problem.batch, problem.nheads, n, problem.head_dim) for n in rows]


@dataclass(frozen=True)
class Case:
    """One problem and the name of what its inputs are."""

    problem: AttentionProblem
    inputs: str

    @property
    def seqlen_q(self) -> int:
        """Rows of q, by which the time left is estimated."""
        return self.problem.seqlen_q

    def describe(self) -> str:
        """The problem in words, and the inputs."""
        return f"{self.problem.describe()}, {self.inputs} inputs"

    def draw(self, seed: int = 0) -> list[Array]:
        """q, k, v in the problem's dtype, the same on every machine.

        Raises:
            ModuleNotFoundError: bfloat16 without ml_dtypes.
        """
        drawn = INPUTS[self.inputs](self.problem, np.random.default_rng(seed))
        return [x.astype(io_dtype(self.problem.dtype)) for x in drawn]


def cases(backend: str) -> list[Case]:
    """What is measured, smallest problems first; "numpy" takes `NUMPY_ROWS` queries of each."""
    found = []
    for n in SEQLENS:
        rows = n if backend == "cuda" else NUMPY_ROWS
        for d in HEAD_DIMS:
            for dtype in DTYPES:
                problem = AttentionProblem(1, NHEADS, rows, n, d, dtype)
                found += [Case(problem, inputs) for inputs in INPUTS]
    return found


def flash_on_tensor_cores(
    q: Array, k: Array, v: Array, problem: AttentionProblem, tiling: Tiling
) -> tuple[Array, Array]:
    """05's rounding in NumPy: every tile of P is rounded to the io dtype before it meets V.

    l sums P as it was before. Dense calls only; shapes and results as `flash_q_outer`.
    """
    wide = [x.astype(np.float32) for x in (q, k, v)]
    state = OnlineSoftmax.empty(q.shape[:2], q.shape[2], q.shape[3], np.dtype(np.float32))
    for start in range(0, problem.seqlen_k, tiling.block_n):
        cols = slice(start, start + tiling.block_n)
        s = np.float32(problem.scale) * (wide[0] @ np.swapaxes(wide[1][..., cols, :], -1, -2))
        m_new = np.maximum(state.m_i, s.max(axis=-1))
        p = np.exp(s - m_new[..., None])
        rounded = p.astype(q.dtype).astype(p.dtype)
        # What rounding changed multiplies P as dropout would: on its way to acc alone.
        factor = np.divide(rounded, p, out=np.zeros_like(p), where=p > 0)
        state.update(s, wide[2][..., cols, :], factor)
    return state.output().astype(q.dtype), state.lse()


def numpy_contenders(problem: AttentionProblem) -> list[Contender]:
    """Every variant's reference with the tiles that a call takes; 05 with its own rounding."""
    found = []
    for variant in VARIANTS.values():
        if variant.takes(problem):
            tiling = variant.tiling_for(problem, HOPPER_SMEM_PER_BLOCK)
            run = flash_on_tensor_cores if variant.tensor_cores else variant.reference
            found.append(_in_numpy(variant, run, problem, tiling))
    return found


def _in_numpy(
    variant: Variant, run: Callable[..., Any], problem: AttentionProblem, tiling: Tiling
) -> Contender:
    def prepare(q: Array, k: Array, v: Array, p: AttentionProblem) -> Callable[[], Any]:
        return lambda: run(q, k, v, p, tiling)

    shown = tiling if variant.tiled else None
    roundings = variant.roundings(problem, tiling)
    return Contender(
        records.OURS, variant.name, shown, 0, prepare, lambda p: None, roundings=roundings
    )


def gpu_contenders(problem: AttentionProblem) -> list[Contender]:
    """Every variant that takes the dtype, with the tiles that a call takes, then the peers."""
    ours = [
        our_contender(variant, _tiling(variant, problem), problem)
        for variant in VARIANTS.values()
        if variant.takes(problem)
    ]
    names = [name for name in installed_peers() if problem.dtype in BASELINES[name].dtypes]
    return [*ours, *(peer_contender(BASELINES[name], problem) for name in names)]


def _tiling(variant: Variant, problem: AttentionProblem) -> Tiling:
    return variant.tiling_for(problem, smem_limit_bytes())


def measure_case(
    case: Case, contenders: Sequence[Contender], inputs: Sequence[Any], xp: Any
) -> Iterator[records.Row]:
    """A row "rmse" for every contender, and "rms" and "rmse" of the exact result.

    `inputs`: q, k, v as arrays of `xp`. A result that is not finite where the exact one is has a
    row that says so, instead of a number.
    """
    problem = case.problem
    truth = Truth(inputs, problem, xp=xp)
    yield from (replace(row, inputs=case.inputs) for row in _exact_rows(problem, truth))
    for contender in contenders:
        yield replace(_one(problem, contender, inputs, truth), inputs=case.inputs)


def _never(*_: Any) -> Callable[[], Any]:
    raise NotImplementedError("the exact result is known, and nobody's kernel computes it")


def _exact_rows(problem: AttentionProblem, truth: Truth) -> Iterator[records.Row]:
    exact = Contender(EXACT, ROUNDED, None, 0, _never, lambda p: None)
    # On the host: NumPy rounds float64 to every dtype in one step.
    out = truth.out.get() if hasattr(truth.out, "get") else truth.out
    once = out.astype(io_dtype(problem.dtype)).astype(np.float64) - out
    rms = _root_mean_square(out, np)
    detail = _rows_said(truth)
    yield point.row_of(problem, exact, "rms", value=rms, error=0.0, detail=detail)
    error, most = _root_mean_square(once, np), float(np.abs(once).max())
    yield point.row_of(problem, exact, "rmse", value=error, error=most, detail=detail)


def _one(
    problem: AttentionProblem, contender: Contender, inputs: Sequence[Any], truth: Truth
) -> records.Row:
    try:
        contender.refuse(problem)
        result = contender.prepare(*inputs, problem)()
    except Exception as error:  # a peer may refuse in many ways; the run must go on
        refused = isinstance(error, ValueError | NotImplementedError)
        status = "refused" if refused else "failed"
        detail = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return point.row_of(problem, contender, "rmse", status=status, detail=detail)
    out, lse = result if isinstance(result, tuple) else (result, None)
    wrong = truth.checked(out) - truth.out
    rmse, most = _root_mean_square(wrong, truth.xp), float(truth.xp.abs(wrong).max())
    if not math.isfinite(most):
        detail = f"the output is not finite, the exact one is: {_rows_said(truth)}"
        return point.row_of(problem, contender, "rmse", status="failed", detail=detail)
    check = truth.check(out, lse, contender.roundings)
    within = "within" if check.ok else "beyond"
    detail = f"{_rows_said(truth)}, {within} the limit of out, {check.out_limit:.3g}"
    return point.row_of(problem, contender, "rmse", value=rmse, error=most, detail=detail)


def _rows_said(truth: Truth) -> str:
    return f"{len(truth.rows)} of {truth.problem.seqlen_q} rows checked"


def _root_mean_square(x: Any, xp: Any) -> float:
    return float(xp.sqrt((x * x).mean()))


def record_numerics(
    root: Path,
    label: str,
    command: str,
    resume: str | None = None,
    commit: str | None = None,
    seconds: float | None = None,
    say: Callable[[str], None] = print,
    backend: str = "cuda",
) -> tuple[Path, bool]:
    """Measure every case into a run of kind "numerics"; its folder, and whether it is whole.

    `backend`: "cuda", the kernels and peers on this GPU, or "numpy". Other arguments and errors as
    `backward_run.record_backward`.
    """
    start, gpu = time.monotonic(), backend == "cuda"
    folder, rows = open_run(
        "numerics", label, command, root, resume, commit,
        describe=None if gpu else describe_numpy_run,
        method=METHOD if gpu else NUMPY_METHOD,
    )  # fmt: skip
    done = {Case(row.problem, row.inputs) for row in rows}
    work = [case for case in cases(backend) if case not in done]
    say(f"{len(rows)} rows recorded, {len(work)} cases to do")
    if gpu:
        compiled = load_in_parallel(_plans(work))
        say(f"compiled {compiled} kernels in {time.monotonic() - start:.0f} s")

    def measure(case: Case) -> list[records.Row]:
        if not gpu:
            return list(measure_case(case, numpy_contenders(case.problem), case.draw(), np))
        import cupy

        memory.free_pools()
        inputs = [cupy.asarray(x) for x in case.draw()]
        return list(measure_case(case, gpu_contenders(case.problem), inputs, cupy))

    return folder, measure_each(folder, work, measure, _summary, start, seconds, say)


def _plans(work: Sequence[Case]) -> Iterator[Any]:
    for problem in dict.fromkeys(case.problem for case in work):
        for variant in VARIANTS.values():
            if variant.takes(problem):
                yield variant.plan(problem, _tiling(variant, problem))


def _summary(rows: Sequence[records.Row]) -> str:
    parts = []
    for row in rows:
        if row.status != "ok":
            parts.append(f"{row.series} {row.status}: {row.detail}")
        elif row.metric == "rmse" and row.median is not None:
            parts.append(f"{row.series} {row.median:.2e}")
    return ", ".join(parts)
