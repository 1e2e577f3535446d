"""Everything that is measured about one problem: correctness, memory, counted bytes, latency."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fa_kernels.cuda import launch
from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.measure import memory, timing
from fa_kernels.measure.about import current_arch
from fa_kernels.measure.baselines import Baseline
from fa_kernels.measure.check import Truth
from fa_kernels.measure.kernel_names import kernels_of
from fa_kernels.measure.records import OURS, UNITS, ContenderKey, Row, mask_text
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.model import TENSORS, Traffic
from fa_kernels.units import GIB
from fa_kernels.variants import Variant

#: A call estimated to take longer than this is recorded as skipped, not made.
MAX_LATENCY_MS = 3000.0
#: Share of the free memory that a call may be estimated to take; the rest is pools' rounding.
FILL = 0.98
Progress = Callable[[float, str], None]
#: Stands for the tiling of a variant that has no tiles, where a signature wants one.
UNTILED = Tiling(1, 1)


@dataclass
class Contender:
    """One way to compute a problem: a variant with a tiling, or a peer; what it needs and costs."""

    provider: str
    variant: str
    tiling: Tiling | None
    workspace_bytes: int
    prepare: Callable[..., Callable[[], Any]]
    refuse: Callable[[AttentionProblem], None]
    count: Callable[..., Traffic] | None = None
    estimate_ms: float | None = None
    limit_ms: float = MAX_LATENCY_MS
    roundings: int = 1
    #: Which kernels a call runs, for the detail of its timing; ours are known by the variant.
    name_kernels: Callable[[Callable[[], Any]], str] = lambda call: ""

    @property
    def key(self) -> ContenderKey:
        """As `Row.contender` of the rows this yields."""
        tiles = (self.tiling.block_m, self.tiling.block_n) if self.tiling else (None, None)
        return self.provider, self.variant, *tiles

    @property
    def label(self) -> str:
        """For progress lines."""
        tiles = f" {self.tiling.block_m}x{self.tiling.block_n}" if self.tiling else ""
        return f"{self.provider} {self.variant}{tiles}"


def our_contender(variant: Variant, tiling: Tiling, problem: AttentionProblem) -> Contender:
    """One of our variants with one tiling, which an untiled variant does not look at."""
    tiling = variant.clipped(problem, tiling)

    def prepare(q: Any, k: Any, v: Any, p: AttentionProblem) -> Callable[[], Any]:
        # As a repeated call of the front door: its launch is laid out once. Mask and lists are
        # inputs: they are on the GPU before timing.
        again = None
        if variant.prepare is not None:
            again = variant.prepare(q, k, v, p, tiling)
        elif p.block_mask is not None:
            variant.run(q, k, v, p, tiling)
        if again is not None:
            return lambda: again(q, k, v)
        return lambda: variant.run(q, k, v, p, tiling)[:2]

    def count(q: Any, k: Any, v: Any, p: AttentionProblem) -> Traffic:
        traffic = variant.run(q, k, v, p, tiling, count_traffic=True)[2]
        assert traffic is not None
        return traffic

    def refuse(p: AttentionProblem) -> None:
        if p.dtype not in variant.dtypes:
            raise NotImplementedError(f"{variant.name} takes {', '.join(variant.dtypes)} only")
        launch.refuse_old_gpu(variant.kernel, variant.min_arch)
        launch.refuse_on_this_gpu(variant.plan(p, tiling), p, tiling, launch.gpu_name())

    workspace = variant.workspace_bytes(problem)
    shown = tiling if variant.tiled else None
    roundings = variant.roundings(problem, tiling)
    return Contender(
        OURS, variant.name, shown, workspace, prepare, refuse, count, roundings=roundings
    )


def peer_contender(baseline: Baseline, problem: AttentionProblem) -> Contender:
    """A peer, which chooses its own tiles."""

    def refuse(p: AttentionProblem) -> None:
        name = baseline.provider
        if p.dtype not in baseline.dtypes:
            raise NotImplementedError(f"{name} has no {p.dtype} kernel")
        if p.block_mask is not None and not baseline.block_sparse:
            raise NotImplementedError(f"{name} takes no block mask")
        if baseline.archs and current_arch() not in baseline.archs:
            archs = ", ".join(baseline.archs)
            raise NotImplementedError(f"{name} is for {archs}, this GPU is {current_arch()}")

    workspace = baseline.workspace_bytes(problem)
    return Contender(
        baseline.provider,
        baseline.variant,
        None,
        workspace,
        baseline.prepare,
        refuse,
        name_kernels=kernels_of,
    )


def whole_model(provider: str, variant: str, does: str) -> Contender:
    """For the rows of a model that `does` something, such as "is trained": nothing to call here."""

    def prepare(*_: Any) -> Any:
        raise NotImplementedError(f"a model {does}, not a call of attention")

    return Contender(provider, variant, None, 0, prepare, lambda problem: None)


def random_inputs(problem: AttentionProblem, seed: int = 0) -> list[Any]:
    """q, k, v on the GPU: standard normal, rounded to the io dtype."""
    import cupy

    rng = cupy.random.default_rng(seed)
    shapes = (problem.q_shape, problem.kv_shape, problem.kv_shape)
    return [
        rng.standard_normal(s, dtype=np.float32).astype(io_dtype(problem.dtype)) for s in shapes
    ]


def measure_problem(
    problem: AttentionProblem,
    contenders: Sequence[Contender],
    flush: timing.Flush,
    on_progress: Progress = lambda fraction, text: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[Row]:
    """Check, count and time every contender on the same inputs.

    Yields rows as they become known: refusals and memory first, then latencies. A contender is
    timed only if its own output passed against float64.
    """
    memory.free_pools()
    runnable = []
    for contender in contenders:
        verdict = verdict_on(problem, contender)
        if verdict is None:
            runnable.append(contender)
        else:
            yield row_of(problem, contender, "latency_ms", status=verdict[0], detail=verdict[1])
    if not runnable:
        return
    inputs = random_inputs(problem)
    truth = Truth(inputs, problem)
    groups = _groups(problem, runnable)
    for number, group in enumerate(groups):
        memory.free_pools()

        def within(fraction: float, text: str, number: int = number) -> None:
            on_progress((number + fraction) / len(groups), text)

        detail = APART if len(groups) > 1 else ""
        rows = _measure_group(problem, group, inputs, truth, flush, within, cancelled)
        yield from (replace(row, detail=_joined(row, detail)) for row in rows)
    on_progress(1.0, "done")


#: `detail` of a timing whose peers could not be timed in the same rounds.
APART = "timed apart from the other library's: their workspaces do not fit together"


def _joined(row: Row, apart: str) -> str:
    """A row's detail; of a timing also that its peers were not timed in the same rounds."""
    told = [apart] if (row.metric, row.status) == ("latency_ms", "ok") else []
    return "; ".join(text for text in (*told, row.detail) if text)[:300]


def _groups(problem: AttentionProblem, runnable: Sequence[Contender]) -> list[list[Contender]]:
    """Contenders that are timed in the same rounds: all, if what both libraries keep fits.

    CuPy and torch each keep a workspace in a pool of their own; two of 64 GiB would not leave
    room for each other, and the second would look as if it did not fit at all.
    """
    ours = [c for c in runnable if c.provider == OURS]
    peers = [c for c in runnable if c.provider != OURS]
    kept = sum(max((c.workspace_bytes for c in some), default=0) for some in (ours, peers))
    if kept + _tensors_bytes(problem) <= FILL * memory.free_bytes():
        return [list(runnable)]
    return [group for group in (ours, peers) if group]


def _measure_group(
    problem: AttentionProblem,
    group: Sequence[Contender],
    inputs: list[Any],
    truth: Truth,
    flush: timing.Flush,
    on_progress: Progress,
    cancelled: Callable[[], bool],
) -> Iterator[Row]:
    timed: list[tuple[Contender, Callable[[], Any], float, float]] = []
    for i, contender in enumerate(group):
        if cancelled():
            break
        on_progress(0.5 * i / len(group), f"checking {contender.label}")
        yield from _check_one(problem, contender, inputs, truth, flush, timed)
    on_progress(0.5, "timing")
    calls = [entry[1] for entry in timed]
    latencies = timing.time_interleaved(calls, flush, [entry[2] for entry in timed], cancelled)
    for (contender, call, _, error), latency in zip(timed, latencies, strict=True):
        if latency is None:
            continue  # cancelled before it was timed
        detail = contender.name_kernels(call)
        row = row_of(
            problem, contender, "latency_ms", value=latency.median, error=error, detail=detail
        )
        yield replace(row, p20=latency.p20, p80=latency.p80, n=latency.n)
    # Last: this empties the pools, from which timed calls are to be served.
    for contender, call, _, error in timed:
        if cancelled():
            return
        with contextlib.suppress(Exception):  # nothing else is lost with this number
            taken = memory.device_bytes(call)
            yield row_of(problem, contender, "device_mem_bytes", value=taken, error=error)


def _tensors_bytes(problem: AttentionProblem) -> int:
    """Bytes of q, k, v, out and lse."""
    return 2 * problem.q_bytes + 2 * problem.kv_bytes + problem.lse_bytes


def too_slow(estimate_ms: float, limit_ms: float) -> str:
    """Why a call is not made."""
    return f"estimated {estimate_ms / 1e3:.2g} s per launch, limit {limit_ms / 1e3:g} s"


def verdict_on(problem: AttentionProblem, contender: Contender) -> tuple[str, str] | None:
    """(status, sentence) if the contender is not to be tried, else None."""
    try:
        contender.refuse(problem)
    except (ValueError, NotImplementedError) as error:
        return "refused", str(error)
    need = _tensors_bytes(problem) + contender.workspace_bytes
    if need > FILL * memory.free_bytes():
        return "does not fit", f"does not fit (estimated {need / GIB:.3g} GiB)"
    if contender.estimate_ms is not None and contender.estimate_ms > contender.limit_ms:
        return "skipped (estimated)", too_slow(contender.estimate_ms, contender.limit_ms)
    return None


def _check_one(
    problem: AttentionProblem,
    contender: Contender,
    inputs: list[Any],
    truth: Truth,
    flush: timing.Flush,
    timed: list[tuple[Contender, Callable[[], Any], float, float]],
) -> Iterator[Row]:
    try:
        call = contender.prepare(*inputs, problem)
        result, peak = memory.peak_extra_bytes(call)  # also compiles and fills the pools
        out, lse = result if isinstance(result, tuple) else (result, None)
        check = truth.check(out, lse, contender.roundings)
        del result, out, lse
        # A wrong result is never timed.
        first_ms = timing.time_once(call, flush) if check.ok else 0.0
    except Exception as error:  # a peer may refuse in many ways; the run must go on
        # Out of memory here is a wrong estimate of ours, not a finding about the contender.
        detail = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        status = "failed"
        yield row_of(problem, contender, "latency_ms", status=status, detail=detail)
        return
    detail = f"{check.rows} of {problem.seqlen_q} rows checked"
    if not check.ok:
        detail = (
            f"wrong: error {check.out_err:.3g} (limit {check.out_limit:.3g}), "
            f"lse {check.lse_err:.3g} (limit {check.lse_limit:.3g})"
        )
        yield row_of(problem, contender, "latency_ms", status="failed", detail=detail)
        return
    inputs_bytes = sum(array.nbytes for array in inputs)
    for metric, value in (("extra_mem_bytes", peak), ("peak_mem_bytes", inputs_bytes + peak)):
        yield row_of(problem, contender, metric, value=value, error=check.out_err, detail=detail)
    if contender.count is not None:
        yield from _counted(problem, contender, contender.count(*inputs, problem), check.out_err)
    timed.append((contender, call, first_ms, check.out_err))


def _counted(
    problem: AttentionProblem, contender: Contender, traffic: Traffic, error: float
) -> Iterator[Row]:
    detail = "counted in the kernel"
    total = traffic.total_bytes
    yield row_of(problem, contender, "hbm_bytes", value=total, error=error, detail=detail)
    for tensor in TENSORS:
        if traffic.of(tensor):
            metric, value = f"hbm_{tensor}_bytes", traffic.of(tensor)
            yield row_of(problem, contender, metric, value=value, error=error, detail=detail)


def row_of(
    problem: AttentionProblem,
    contender: Contender,
    metric: str,
    *,
    value: float | None = None,
    error: float | None = None,
    status: str = "ok",
    detail: str = "",
) -> Row:
    """A row about one contender at one problem; `value`, in the metric's unit, is its median."""
    provider, variant, block_m, block_n = contender.key
    return Row(
        provider=provider,
        variant=variant,
        pass_="fwd",
        dtype=problem.dtype,
        batch=problem.batch,
        nheads=problem.nheads,
        nheads_kv=problem.nheads_kv or problem.nheads,
        seqlen_q=problem.seqlen_q,
        seqlen_k=problem.seqlen_k,
        head_dim=problem.head_dim,
        causal=problem.causal or "none",
        dropout_p=0.0,
        density=1.0 if problem.block_mask is None else problem.block_mask.density,
        block_m=block_m,
        block_n=block_n,
        metric=metric,
        unit=UNITS.get(metric, "B"),  # counted bytes, hbm_<tensor>_bytes, are not listed
        p20=value,
        median=value,
        p80=value,
        n=1 if value is not None else 0,
        status=status,
        detail=detail[:300],
        max_abs_err=error,
        block_mask=mask_text(problem),
    )
