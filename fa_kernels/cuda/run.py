"""Every variant on CuPy arrays: from a problem to the launches of its kernel and their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fa_kernels import tile_list
from fa_kernels.cuda import arguments, plan_mma
from fa_kernels.cuda import plan as plans
from fa_kernels.cuda.arguments import Lists, rows_aligned, usable
from fa_kernels.cuda.launch import launch, refuse_on_this_gpu
from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.cuda.recipe import Recipe, results_like
from fa_kernels.extras import NO_EXTRAS, Extras
from fa_kernels.masks import SKIPPED, key_begin, key_end, tile_map
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.model import ALL_TENSORS, Traffic

#: Floats before the accumulator in a record of trace.cuh.
TRACE_HEADER = 6
CudaResult = tuple[Any, Any, Traffic | None]


@dataclass
class RowTrace:
    """Asks a launch to record one row; afterwards `records` is (visits, TRACE_HEADER + head_dim).

    Columns: first key, one past the last key, whether acc is normalised, m (natural log), l, alpha,
    then acc. float32; `records` is None until a launch has filled it.
    """

    batch: int
    head: int
    row: int
    records: np.ndarray | None = field(default=None, repr=False)


class Call:
    """One checked call: its plan, its arrays, and the arguments that several kernels share.

    `inputs` are q, k, v; `scores` is how many arrays shaped like S the kernels want as workspace;
    `results(shape, dtype)` makes out and lse, on the GPU if it is not given.
    """

    def __init__(
        self,
        make_plan: Callable[..., LaunchPlan],
        inputs: tuple[Any, Any, Any],
        problem: AttentionProblem,
        tiling: Tiling,
        extras: Extras,
        scores: int = 0,
        results: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        import cupy

        refuse_on_this_gpu(make_plan(problem, tiling), problem, tiling)
        named = dict(zip("qkv", inputs, strict=True))
        arguments.refuse_mismatch(named, problem, "fa.attention")
        arguments.refuse_extras_mismatch(problem, extras)
        self.q, self.k, self.v = (usable(name, array) for name, array in named.items())
        self.problem, self.tiling, self.extras = problem, tiling, extras
        # S and P before out: the pool would cut a small out from a large block that the call before
        # has left, and the next S would no longer fit into it.
        shape = (problem.batch, problem.nheads, problem.seqlen_q, problem.seqlen_k)
        self.scores = [cupy.empty(shape, self.q.dtype) for _ in range(scores)]
        empty = results or cupy.empty
        self.out = empty(self.q.shape, self.q.dtype)
        self.lse = empty(self.q.shape[:3], np.float32)
        aligned = rows_aligned(self.q, self.k, self.v, self.out)
        self.plan = make_plan(problem, tiling, aligned=aligned, **options)
        self.totals = new_counters() if options.get("count_traffic", False) else None
        # Option by option, as the kernels' parameter lists end.
        self.sizes, self.band = arguments.sizes(problem), arguments.band(problem)
        self.scores_of = arguments.score_arguments(problem, extras)
        self.dropout = arguments.dropout_arguments(problem, extras)
        self.packed = arguments.packed_arguments(problem)

    @property
    def counters(self) -> tuple[Any, ...]:
        return () if self.totals is None else (self.totals,)

    def result(self) -> CudaResult:
        """out, lse and, if they were compiled in, the in-kernel counters."""
        return self.out, self.lse, read_counters(self.totals)


def new_counters() -> Any:
    """In-kernel byte counters, all zero: (tensors, 2) uint64 on the GPU, in the order of io.cuh."""
    import cupy

    return cupy.zeros((len(ALL_TENSORS), 2), np.uint64)


def read_counters(totals: Any) -> Traffic | None:
    """What the counters hold after a launch; None if they were not compiled in."""
    if totals is None:
        return None
    table = totals.get()
    columns = [dict(zip(ALL_TENSORS, map(int, table[:, i]), strict=True)) for i in (0, 1)]
    return Traffic(columns[0], columns[1])


def _visits_of(call: Call, trace: RowTrace) -> int:
    """How many K/V tiles the Q tile of the traced row visits."""
    p, block_m = call.problem, call.tiling.block_m
    q_tile = trace.row // block_m
    if p.block_mask is None:
        end = key_end(p, min((q_tile + 1) * block_m, p.seqlen_q) - 1)
        return (
            -(-end // call.tiling.block_n) - key_begin(p, q_tile * block_m) // call.tiling.block_n
        )
    state = tile_map(p, call.tiling)
    lead = (min(trace.batch, state.shape[0] - 1), min(trace.head, state.shape[1] - 1))
    return int((state[lead][q_tile] != SKIPPED).sum())


def _trace_arguments(call: Call, trace: RowTrace | None) -> tuple[Any, ...]:
    import cupy

    if trace is None:
        return ()
    visits = _visits_of(call, trace)
    records = cupy.zeros((max(1, visits), TRACE_HEADER + call.problem.head_dim), np.float32)
    bh = trace.batch * call.problem.nheads + trace.head
    trace.records = records[:visits]
    return records, np.int64(bh * call.problem.seqlen_q + trace.row)


def _to_host(trace: RowTrace | None) -> None:
    if trace is not None and trace.records is not None:
        trace.records = trace.records.get()  # type: ignore[attr-defined]


def run_flash_q_outer(
    q: Any,
    k: Any,
    v: Any,
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    extras: Extras = NO_EXTRAS,
    count_traffic: bool = False,
    trace: RowTrace | None = None,
    one_block_per_head: bool = False,
) -> CudaResult:
    """04_flash_q_outer on CuPy arrays (batch, nheads, seqlen, head_dim).

    Args:
        extras: mask, bias and dropout mask, CuPy arrays, where the problem has them.
        count_traffic: also count bytes in the kernel.
        trace: also record one row.
        one_block_per_head: compile with -DONE_BLOCK_PER_HEAD.

    Returns:
        out like q; lse (batch, nheads, seqlen_q) fp32; the in-kernel counters or None.

    Raises:
        ValueError, NotImplementedError: this GPU or kernel cannot run it; before any launch.
    """
    plan = plans.plan_flash_q_outer_one_block if one_block_per_head else plans.plan_flash_q_outer
    options: dict[str, Any] = {"count_traffic": count_traffic, "trace": trace is not None}
    call = Call(plan, (q, k, v), problem, tiling, extras, **options)
    return _launch_flash(call, (), arguments.listed(tile_list.by_q), trace)


def run_flash_q_outer_one_block(*args: Any, **options: Any) -> CudaResult:
    """`run_flash_q_outer` with one block per head (-DONE_BLOCK_PER_HEAD)."""
    return run_flash_q_outer(*args, **options, one_block_per_head=True)


def run_flash_mma(
    q: Any,
    k: Any,
    v: Any,
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    extras: Extras = NO_EXTRAS,
    count_traffic: bool = False,
    without: tuple[str, ...] = (),
) -> CudaResult:
    """05_flash_mma on CuPy arrays; `without` turns off some of `plan_mma.SWITCHES`.

    Other arguments, results and errors as `run_flash_q_outer`.
    """
    options: dict[str, Any] = {"count_traffic": count_traffic, "without": without}
    call = Call(plan_mma.plan_flash_mma, (q, k, v), problem, tiling, extras, **options)
    return _launch_flash(call, (), arguments.queued(), None, _section(problem))


def run_flash_kv_outer(
    q: Any,
    k: Any,
    v: Any,
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    extras: Extras = NO_EXTRAS,
    count_traffic: bool = False,
    trace: RowTrace | None = None,
    o_io_dtype: bool = False,
) -> CudaResult:
    """03_flash_kv_outer on CuPy arrays; `o_io_dtype` compiles with -DO_IO_DTYPE.

    Other arguments, results and errors as `run_flash_q_outer`.
    """
    import cupy

    plan = plans.plan_flash_kv_outer_io if o_io_dtype else plans.plan_flash_kv_outer
    options: dict[str, Any] = {"count_traffic": count_traffic, "trace": trace is not None}
    call = Call(plan, (q, k, v), problem, tiling, extras, **options)
    l_hbm = cupy.empty_like(call.lse)
    in_out = call.plan.macros["O_IO_DTYPE"]
    o_partial = call.lse if in_out else cupy.empty(call.q.shape, np.float32)  # or not looked at
    return _launch_flash(call, (l_hbm, o_partial), arguments.listed(tile_list.by_kv), trace)


def run_flash_kv_outer_io(*args: Any, **options: Any) -> CudaResult:
    """`run_flash_kv_outer` with O carried in the io dtype (-DO_IO_DTYPE)."""
    return run_flash_kv_outer(*args, **options, o_io_dtype=True)


def _launch_flash(
    call: Call,
    workspace: tuple[Any, ...],
    lists: Lists,
    trace: RowTrace | None,
    after_scale: tuple[Any, ...] = (),
) -> CudaResult:
    """The one launch of a flash rung; `workspace` stands after lse among its arguments."""
    args = _flash_arguments(call, workspace, lists, after_scale)
    args += [*_trace_arguments(call, trace), *call.counters]
    launch(call.plan, call.plan.steps[0], args)
    _to_host(trace)
    return call.result()


def _flash_arguments(
    call: Call, workspace: tuple[Any, ...], lists: Lists, after_scale: tuple[Any, ...]
) -> list[Any]:
    problem = call.problem
    args = arguments.with_strides(call.q, call.k, call.v, call.out)
    args += [call.lse, *workspace, *call.sizes, call.band, arguments.score_scale(problem)]
    args += after_scale
    args += lists(problem, call.tiling)
    return [*args, *call.scores_of, *call.dropout, *call.packed]


def recipe_of(
    make_plan: Callable[..., LaunchPlan],
    lists: Lists,
    after_scale: Callable[[AttentionProblem], tuple[Any, ...]],
) -> Callable[..., Recipe | None]:
    """`prepare(q, k, v, problem, tiling, **options)` of a flash rung of one launch, without extras.

    `options` are those of its plan. It gives None where q, k or v would be copied first.
    """

    def prepare(
        q: Any, k: Any, v: Any, problem: AttentionProblem, tiling: Tiling, **options: Any
    ) -> Recipe | None:
        if not all(map(arguments.used_in_place, (q, k, v))):
            return None
        results = results_like(q)
        call = Call(make_plan, (q, k, v), problem, tiling, NO_EXTRAS, results=results, **options)
        return Recipe(call.plan, _flash_arguments(call, (), lists, after_scale(problem)))

    return prepare


def _section(problem: AttentionProblem) -> tuple[Any, ...]:
    return (np.int32(plan_mma.heads_in_section(problem)),)


def _nothing(problem: AttentionProblem) -> tuple[Any, ...]:
    return ()


prepare_flash_q_outer = recipe_of(
    plans.plan_flash_q_outer, arguments.listed(tile_list.by_q), _nothing
)
prepare_flash_mma = recipe_of(plan_mma.plan_flash_mma, arguments.queued(), _section)


def run_standard_tiled(
    q: Any,
    k: Any,
    v: Any,
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    extras: Extras = NO_EXTRAS,
    count_traffic: bool = False,
) -> CudaResult:
    """02_standard_tiled on CuPy arrays; arguments, results and errors as `run_flash_q_outer`."""
    plan = plans.plan_standard_tiled
    return _run_standard(plan, (q, k, v), problem, tiling, extras, count_traffic).result()


def run_standard_keeping_p(
    q: Any,
    k: Any,
    v: Any,
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    extras: Extras = NO_EXTRAS,
) -> tuple[Any, Any, Any]:
    """02_standard_tiled for training as frameworks do it: out, lse and P, undropped, for later.

    P is (batch, nheads, seqlen_q, seqlen_k) in q's dtype. Arguments as `run_standard_tiled`.
    """
    call = _run_standard(plans.plan_standard_tiled, (q, k, v), problem, tiling, extras, False)
    return call.out, call.lse, call.scores[1]


def run_standard_naive(
    q: Any,
    k: Any,
    v: Any,
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    extras: Extras = NO_EXTRAS,
    count_traffic: bool = False,
) -> CudaResult:
    """01_standard_naive on CuPy arrays; `tiling` has no meaning; else as `run_standard_tiled`."""
    plan = plans.plan_standard_naive
    return _run_standard(plan, (q, k, v), problem, tiling, extras, count_traffic).result()


def _run_standard(
    plan: Callable[..., LaunchPlan],
    inputs: tuple[Any, Any, Any],
    problem: AttentionProblem,
    tiling: Tiling,
    extras: Extras,
    count_traffic: bool,
) -> Call:
    """Three launches, S = Q K^T, P = softmax(S), O = P V, with S and P in HBM between them."""
    call = Call(plan, inputs, problem, tiling, extras, scores=2, count_traffic=count_traffic)
    naive = call.plan.kernel == "01_standard_naive"
    s, p = call.scores
    scores, softmax, output = call.plan.steps
    tail = (*call.packed, *call.counters)
    args = [*arguments.with_strides(call.q, call.k), s, *call.sizes, call.band]
    # EXTRAS_PARAMS are there as a whole: a launch that draws no dropout ignores its arguments.
    every_extra = (*call.scores_of, *call.dropout)
    launch(call.plan, scores, (*args, np.float32(problem.scale), *every_extra, *tail))
    rows = np.int64(problem.heads * problem.seqlen_q)
    lengths = (call.sizes[0], *call.sizes[2:])
    args = [s, p, call.lse, *lengths, call.band, rows, *(every_extra if naive else ())]
    launch(call.plan, softmax, (*args, *tail))
    args = [p, *arguments.with_strides(call.v, call.out), *call.sizes, call.band]
    # A thread per element needs to know how many there are; a block per tile does not.
    args += [rows * problem.head_dim] if naive else every_extra
    launch(call.plan, output, (*args, *tail))
    return call
