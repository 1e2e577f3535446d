"""Every variant on CuPy arrays: from a problem to the launches of its kernel and their results."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fa_kernels import tile_list
from fa_kernels.block_mask import BlockMask, per_mask
from fa_kernels.cuda import plan as plans
from fa_kernels.cuda.launch import launch, refuse_on_this_gpu
from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.masks import SKIPPED, causal_offset, key_end, tile_map
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.standard import scale_in_log2
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.model import TENSORS, Traffic

_STRIDES = np.dtype([("batch", "<i8"), ("head", "<i8"), ("row", "<i8")])
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


def usable(name: str, array: Any) -> Any:
    """`array` itself if its last axis is contiguous, else one contiguous copy, with a warning."""
    import cupy

    whole = all(stride % array.itemsize == 0 for stride in array.strides)
    if whole and (array.shape[-1] == 1 or array.strides[-1] == array.itemsize):
        return array
    warnings.warn(
        f"{name} has strides {array.strides} bytes: its last axis is not contiguous (or a stride "
        "is no whole number of elements), so it was copied once. Pass a contiguous last axis.",
        stacklevel=4,
    )
    return cupy.ascontiguousarray(array)


def rows_aligned(*arrays: Any) -> bool:
    """True if every row of every array starts at a multiple of 16 bytes."""
    return all(
        a.data.ptr % 16 == 0
        and all(s % 16 == 0 for s, n in zip(a.strides[:3], a.shape[:3], strict=True) if n > 1)
        for a in arrays
    )


def _strides_argument(array: Any) -> np.ndarray:
    elements = tuple(stride // array.itemsize for stride in array.strides[:3])
    # One structured element is passed by value, as the kernel's `Strides`.
    return np.array([elements], dtype=_STRIDES)


def _refuse_mismatch(q: Any, k: Any, v: Any, problem: AttentionProblem) -> None:
    """Raise unless the arrays are what `problem` says; a kernel would read out of bounds."""
    rows = {"q": problem.seqlen_q, "k": problem.seqlen_k, "v": problem.seqlen_k}
    for (name, n), array in zip(rows.items(), (q, k, v), strict=True):
        shape = (problem.batch, problem.nheads, n, problem.head_dim)
        if tuple(array.shape) != shape or array.dtype.name != problem.dtype:
            raise ValueError(
                f"{name} is {array.dtype} of shape {tuple(array.shape)}, the problem says "
                f"{problem.dtype} {shape}: make the problem from the arrays (fa.attention does)."
            )


class _Call:
    """One checked call: its plan, its arrays, and the arguments that several kernels share.

    `scores` is how many arrays shaped like S the kernels want as workspace.
    """

    def __init__(
        self,
        make_plan: Callable[..., LaunchPlan],
        inputs: tuple[Any, Any, Any],
        problem: AttentionProblem,
        tiling: Tiling,
        scores: int = 0,
        **options: bool,
    ) -> None:
        import cupy

        refuse_on_this_gpu(make_plan(problem, tiling), problem, tiling)
        _refuse_mismatch(*inputs, problem)
        self.q, self.k, self.v = (usable(n, a) for n, a in zip("qkv", inputs, strict=True))
        self.problem, self.tiling = problem, tiling
        # S and P before out: the pool would cut a small out from a large block that the call before
        # has left, and the next S would no longer fit into it.
        shape = (*self.q.shape[:3], problem.seqlen_k)
        self.scores = [cupy.empty(shape, self.q.dtype) for _ in range(scores)]
        self.out = cupy.empty(self.q.shape, self.q.dtype)
        self.lse = cupy.empty(self.q.shape[:3], np.float32)
        aligned = rows_aligned(self.q, self.k, self.v, self.out)
        self.plan = make_plan(problem, tiling, aligned=aligned, **options)
        count = options.get("count_traffic", False)
        self.totals = cupy.zeros((len(TENSORS), 2), np.uint64) if count else None

    def with_strides(self, *arrays: Any) -> list[Any]:
        """Each array followed by its batch, head and row strides, as the kernels take them."""
        return [part for array in arrays for part in (array, _strides_argument(array))]

    @property
    def sizes(self) -> tuple[np.generic, ...]:
        p = self.problem
        return (np.int32(p.nheads), np.int32(p.seqlen_q), np.int32(p.seqlen_k))

    @property
    def offset(self) -> np.int64:
        return np.int64(causal_offset(self.problem))

    @property
    def counters(self) -> tuple[Any, ...]:
        return () if self.totals is None else (self.totals,)

    def result(self) -> CudaResult:
        """out, lse and, if they were compiled in, the in-kernel counters."""
        if self.totals is None:
            return self.out, self.lse, None
        table = self.totals.get()
        columns = [dict(zip(TENSORS, map(int, table[:, i]), strict=True)) for i in (0, 1)]
        return self.out, self.lse, Traffic(columns[0], columns[1])


def _mask_arguments(call: _Call, order: Callable[..., tile_list.TileLists]) -> tuple[Any, ...]:
    """BLOCK_MASK_PARAMS of block_mask.cuh; nothing without a block mask."""
    import cupy

    mask, p = call.problem.block_mask, call.problem
    if mask is None:
        return ()
    device = cupy.cuda.Device().id
    sizes = (p.causal, p.seqlen_q, p.seqlen_k, call.tiling, order, device)
    start, entries, keep = _mask_on_gpu(mask, *sizes)
    lead = (np.int64(mask.lead[1] if mask.lead[0] > 1 else 0), np.int64(mask.lead[1] > 1))
    return start, entries, keep, *lead, *map(np.int32, mask.blocks)


@per_mask(entries=4)
def _mask_on_gpu(
    mask: BlockMask,
    causal: str | None,
    seqlen_q: int,
    seqlen_k: int,
    tiling: Tiling,
    order: Callable[..., tile_list.TileLists],
    device: int,
) -> tuple[Any, Any, Any]:
    """Lists and mask on the GPU, once for a mask: they depend on no value of q, k or v."""
    import cupy

    problem = AttentionProblem(
        mask.lead[0], mask.lead[1], seqlen_q, seqlen_k, 1, causal=causal, block_mask=mask
    )
    lists = order(problem, tiling)
    entries = lists.entries if len(lists.entries) else np.zeros(1, np.int32)  # a valid pointer
    host = (lists.start, entries, mask.keep.astype(np.uint8))
    arrays = tuple(cupy.asarray(array) for array in host)
    cupy.cuda.get_current_stream().synchronize()  # a later call may use another stream
    return arrays[0], arrays[1], arrays[2]


def _visits_of(call: _Call, trace: RowTrace) -> int:
    """How many K/V tiles the Q tile of the traced row visits."""
    p, block_m = call.problem, call.tiling.block_m
    q_tile = trace.row // block_m
    if p.block_mask is None:
        end = key_end(p, min((q_tile + 1) * block_m, p.seqlen_q) - 1)
        return -(-end // call.tiling.block_n)
    state = tile_map(p, call.tiling)
    lead = (min(trace.batch, state.shape[0] - 1), min(trace.head, state.shape[1] - 1))
    return int((state[lead][q_tile] != SKIPPED).sum())


def _trace_arguments(call: _Call, trace: RowTrace | None) -> tuple[Any, ...]:
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
    count_traffic: bool = False,
    trace: RowTrace | None = None,
    one_block_per_head: bool = False,
) -> CudaResult:
    """04_flash_q_outer on CuPy arrays (batch, nheads, seqlen, head_dim).

    Args:
        count_traffic: also count bytes in the kernel.
        trace: also record one row.
        one_block_per_head: compile with -DONE_BLOCK_PER_HEAD.

    Returns:
        out like q; lse (batch, nheads, seqlen_q) fp32; the in-kernel counters or None.

    Raises:
        ValueError, NotImplementedError: this GPU or kernel cannot run it; before any launch.
    """
    plan = plans.plan_flash_q_outer_one_block if one_block_per_head else plans.plan_flash_q_outer
    options = {"count_traffic": count_traffic, "trace": trace is not None}
    call = _Call(plan, (q, k, v), problem, tiling, **options)
    return _launch_flash(call, (), tile_list.by_q, trace)


def run_flash_q_outer_one_block(*args: Any, **options: Any) -> CudaResult:
    """`run_flash_q_outer` with one block per head (-DONE_BLOCK_PER_HEAD)."""
    return run_flash_q_outer(*args, **options, one_block_per_head=True)


def run_flash_kv_outer(
    q: Any,
    k: Any,
    v: Any,
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    count_traffic: bool = False,
    trace: RowTrace | None = None,
    o_io_dtype: bool = False,
) -> CudaResult:
    """03_flash_kv_outer on CuPy arrays; `o_io_dtype` compiles with -DO_IO_DTYPE.

    Other arguments, results and errors as `run_flash_q_outer`.
    """
    import cupy

    plan = plans.plan_flash_kv_outer_io if o_io_dtype else plans.plan_flash_kv_outer
    options = {"count_traffic": count_traffic, "trace": trace is not None}
    call = _Call(plan, (q, k, v), problem, tiling, **options)
    l_hbm = cupy.empty_like(call.lse)
    in_out = call.plan.macros["O_IO_DTYPE"]
    o_partial = call.lse if in_out else cupy.empty(call.q.shape, np.float32)  # or not looked at
    return _launch_flash(call, (l_hbm, o_partial), tile_list.by_kv, trace)


def run_flash_kv_outer_io(*args: Any, **options: Any) -> CudaResult:
    """`run_flash_kv_outer` with O carried in the io dtype (-DO_IO_DTYPE)."""
    return run_flash_kv_outer(*args, **options, o_io_dtype=True)


def _launch_flash(
    call: _Call,
    workspace: tuple[Any, ...],
    order: Callable[..., tile_list.TileLists],
    trace: RowTrace | None,
) -> CudaResult:
    """The one launch of a flash rung; `workspace` stands after lse among its arguments."""
    args = call.with_strides(call.q, call.k, call.v, call.out)
    args += [call.lse, *workspace, *call.sizes, call.offset]
    args += [np.float32(scale_in_log2(call.problem)), *_mask_arguments(call, order)]
    args += [*_trace_arguments(call, trace), *call.counters]
    launch(call.plan, call.plan.steps[0], args)
    _to_host(trace)
    return call.result()


def run_standard_tiled(
    q: Any,
    k: Any,
    v: Any,
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    count_traffic: bool = False,
) -> CudaResult:
    """02_standard_tiled on CuPy arrays; arguments, results and errors as `run_flash_q_outer`."""
    return _run_standard(plans.plan_standard_tiled, (q, k, v), problem, tiling, count_traffic)


def run_standard_naive(
    q: Any,
    k: Any,
    v: Any,
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    count_traffic: bool = False,
) -> CudaResult:
    """01_standard_naive on CuPy arrays; `tiling` has no meaning; else as `run_standard_tiled`."""
    return _run_standard(plans.plan_standard_naive, (q, k, v), problem, tiling, count_traffic)


def _run_standard(
    plan: Callable[..., LaunchPlan],
    inputs: tuple[Any, Any, Any],
    problem: AttentionProblem,
    tiling: Tiling,
    count_traffic: bool,
) -> CudaResult:
    """Three launches, S = Q K^T, P = softmax(S), O = P V, with S and P in HBM between them."""
    call = _Call(plan, inputs, problem, tiling, scores=2, count_traffic=count_traffic)
    s, p = call.scores
    scores, softmax, output = call.plan.steps
    offset, counters = call.offset, call.counters
    operands = [*call.with_strides(call.q, call.k), s]
    scale = np.float32(problem.scale)
    launch(call.plan, scores, (*operands, *call.sizes, offset, scale, *counters))
    rows = np.int64(problem.heads * problem.seqlen_q)
    launch(call.plan, softmax, (s, p, call.lse, *call.sizes[1:], offset, rows, *counters))
    operands = [p, *call.with_strides(call.v, call.out)]
    # A thread per element needs to know how many there are; a block per tile does not.
    extra = (rows * problem.head_dim,) if call.plan.kernel == "01_standard_naive" else ()
    launch(call.plan, output, (*operands, *call.sizes, offset, *extra, *counters))
    return call.result()
