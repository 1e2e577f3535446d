"""Every backward pass on CuPy arrays: from a problem to launches and to dq, dk, dv."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fa_kernels import tile_list
from fa_kernels.cuda import arguments, plan, plan_backward, plan_mma
from fa_kernels.cuda.arguments import Lists, listed, queued, rows_aligned, usable, with_strides
from fa_kernels.cuda.launch import launch, refuse_on_this_gpu
from fa_kernels.cuda.plan import LaunchPlan, LaunchStep
from fa_kernels.cuda.plan_mma_backward import plan_flash_mma_backward
from fa_kernels.cuda.plan_wgmma_backward import plan_flash_wgmma_backward
from fa_kernels.cuda.recipe import by_rows_shape, lies_by_rows
from fa_kernels.cuda.recipe_backward import BackwardRecipe, Record
from fa_kernels.cuda.run import new_counters, read_counters
from fa_kernels.cuda.tensor_map import Boxed
from fa_kernels.extras import NO_EXTRAS, Extras
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.model import Traffic

CudaGradients = tuple[Any, Any, Any, Traffic | None]
NAMES = ("d_out", "q", "k", "v", "out", "lse")
#: Plans of kernels that write dq with strides in every dtype they take: others add dq up in place.
BY_ROWS = frozenset({plan_flash_mma_backward, plan_flash_wgmma_backward})


def _no_section(problem: AttentionProblem) -> tuple[Any, ...]:
    return ()


def _section(problem: AttentionProblem) -> tuple[Any, ...]:
    return (np.int32(plan_mma.kv_heads_in_section(problem)),)


@dataclass(frozen=True)
class Walks:
    """How the launches of a kernel find their tiles under a block mask; what else `keys` takes."""

    by_keys: Lists
    by_rows: Lists
    statistics: Lists
    section: Callable[[AttentionProblem], tuple[Any, ...]] = _no_section


LISTED = Walks(listed(tile_list.by_kv), listed(tile_list.by_q), listed(tile_list.by_q))
#: Those of 05. Its statistics read no list where they are not needed, so theirs are not sorted.
QUEUED = Walks(queued(by_keys=True), queued(), queued(longest_first=False), _section)


class _Call:
    """One checked call: its plan, its arrays, and the arguments that several kernels share.

    `inputs` by name, of NAMES those that the kernels read; dq, dk, dv are contiguous, of kernels in
    `BY_ROWS` by rows where q, k, v lie so: a model copies them otherwise.
    """

    def __init__(
        self,
        make_plan: Callable[..., LaunchPlan],
        inputs: dict[str, Any],
        problem: AttentionProblem,
        tiling: Tiling,
        extras: Extras,
        record: Record | None = None,
        **options: bool,
    ) -> None:
        """`record`: make no arrays and launch nothing, but note what would be, for a recipe."""
        refuse_on_this_gpu(make_plan(problem, tiling, **options), problem, tiling)
        arguments.refuse_mismatch(inputs, problem, "fa.attention_backward")
        arguments.refuse_extras_mismatch(problem, extras)
        self.problem, self.tiling = problem, tiling
        self.at = {name: usable(name, array) for name, array in inputs.items()}
        self.record = record
        dtype = self.at["q"].dtype
        for name in ("q", "k", "v"):
            like = self.at[name] if make_plan in BY_ROWS else None
            shape = problem.q_shape if name == "q" else problem.kv_shape
            self.at[f"d{name}"] = self.empty(shape, dtype, like)
        self.aligned = rows_aligned(*(a for name, a in self.at.items() if name != "lse"))
        self.plan = make_plan(problem, tiling, aligned=self.aligned, **options)
        self.totals = new_counters() if options.get("count_traffic", False) else None
        self.sizes, self.band = arguments.sizes(problem), arguments.band(problem)
        self.extras = arguments.extras_arguments(problem, extras)
        counters = () if self.totals is None else (self.totals,)
        self.tail = (*arguments.packed_arguments(problem), *counters)

    def with_strides(self, *names: str) -> list[Any]:
        """Arrays by name, each followed by its strides."""
        return with_strides(*(self.at[name] for name in names))

    def empty(self, shape: tuple[int, ...], dtype: Any, like: Any = None) -> Any:
        """A new array, or its stand-in, which lies by rows if `like` does."""
        import cupy

        by_rows = like is not None and lies_by_rows(like.shape, like.strides)
        if self.record is not None:
            return self.record.empty(shape, dtype, by_rows)
        held = cupy.empty(by_rows_shape(shape) if by_rows else shape, dtype)
        return held.swapaxes(1, 2) if by_rows else held

    def clear(self, array: Any) -> None:
        """Zeros."""
        if self.record is None:
            array.fill(0)
        else:
            self.record.clear(array)

    def statistics(self) -> Any:
        """An fp32 array with a number for every row of q."""
        return self.empty(self.problem.q_shape[:3], np.float32)

    def launch(self, name: str, args: list[Any]) -> None:
        """The launch whose entry ends in `name`."""
        args = [*args, *self.tail]
        if self.record is None:
            args = [arg.map() if isinstance(arg, Boxed) else arg for arg in args]
            launch(self.plan, self._step(name), args)
        else:
            self.record.launch(self.plan, self._step(name), args)

    def _step(self, name: str) -> LaunchStep:
        return next(step for step in self.plan.steps if step.entry.endswith(f"_{name}"))

    def tiles(self, lists: Lists, *after: Any) -> list[Any]:
        """What a kernel that rebuilds S takes after its arrays; `after` the lists of its tiles."""
        problem = self.problem
        found = lists(problem, self.tiling)
        more = after if found else ()
        return [*self.sizes, self.band, arguments.score_scale(problem), *found, *more, *self.extras]

    def row_statistics(self, walks: Walks) -> tuple[Any, Any]:
        """row_m and row_scale: lse itself and nothing, or with a bias what a launch makes of it."""
        lse = self.at["lse"]
        if self.problem.bias_dtype is None:
            return lse, lse  # the second is not looked at
        row_m, row_scale = self.statistics(), self.statistics()
        args = [*self.with_strides("q", "k"), lse, row_m, row_scale]
        self.launch("statistics", [*args, *self.tiles(walks.statistics)])
        return row_m, row_scale

    def result(self) -> CudaGradients:
        """dq, dk, dv and, if they were compiled in, the in-kernel counters."""
        return self.at["dq"], self.at["dk"], self.at["dv"], read_counters(self.totals)


def flash_call(
    make_plan: Callable[..., LaunchPlan],
    arrays: tuple[Any, ...],
    problem: AttentionProblem,
    tiling: Tiling,
    extras: Extras,
    record: Record | None = None,
    **options: bool,
) -> _Call:
    """A checked call of a flash rung on d_out, q, k, v, out and lse."""
    import cupy

    inputs = dict(zip(NAMES, arrays, strict=True))
    call = _Call(make_plan, inputs, problem, tiling, extras, record, **options)
    if not call.at["lse"].flags.c_contiguous:  # kernels find its rows by number
        call.at["lse"] = cupy.ascontiguousarray(call.at["lse"])
    return call


def run_flash_q_outer_backward(
    d_out: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    extras: Extras = NO_EXTRAS,
    deterministic: bool = False,
    count_traffic: bool = False,
) -> CudaGradients:
    """04_flash_q_outer_backward on CuPy arrays.

    Args:
        d_out, q, out: (batch, nheads, seqlen_q, head_dim); k, v: (batch, nheads_kv, seqlen_k,
            head_dim); lse: (batch, nheads, seqlen_q) fp32, natural log, as the forward gave it.
        extras: mask, bias and dropout mask, CuPy arrays, where the problem has them.
        deterministic: dq by a launch of its own, with the same bits at every run.
        count_traffic: also count bytes in the kernels.

    Returns:
        dq, dk, dv like q, k, v, contiguous (05: by rows where q, k, v lie so); the in-kernel
        counters or None.

    Raises:
        ValueError, NotImplementedError: this GPU or kernel cannot run it; before any launch.
    """
    options = {"deterministic": deterministic, "count_traffic": count_traffic}
    make_plan, arrays = plan_backward.plan_flash_q_outer_backward, (d_out, q, k, v, out, lse)
    return _by_key_tiles(make_plan, arrays, problem, tiling, extras, options, LISTED)


def run_flash_mma_backward(
    d_out: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    extras: Extras = NO_EXTRAS,
    deterministic: bool = False,
    count_traffic: bool = False,
    **choices: Any,
) -> CudaGradients:
    """05_flash_mma_backward on CuPy arrays; `choices` as `plan_flash_mma_backward` takes them.

    Other arguments, results and errors as `run_flash_q_outer_backward`.
    """
    options = {"deterministic": deterministic, "count_traffic": count_traffic, **choices}
    make_plan, arrays = plan_flash_mma_backward, (d_out, q, k, v, out, lse)
    return _by_key_tiles(make_plan, arrays, problem, tiling, extras, options, QUEUED)


def _by_key_tiles(
    make_plan: Callable[..., LaunchPlan],
    arrays: tuple[Any, ...],
    problem: AttentionProblem,
    tiling: Tiling,
    extras: Extras,
    options: dict[str, Any],
    walks: Walks,
    record: Record | None = None,
) -> CudaGradients:
    """delta, the statistics, dk and dv by blocks that own a K/V tile, and dq: 04 and 05."""
    call = flash_call(make_plan, arrays, problem, tiling, extras, record, **options)
    delta, dq = call.statistics(), call.at["dq"]
    sizes = (call.sizes[0], *call.sizes[2:])
    call.launch("delta", [*call.with_strides("d_out", "out"), delta, *sizes])
    stats = (*call.row_statistics(walks), delta)
    deterministic = options["deterministic"]
    in_dq = deterministic or problem.itemsize == 4
    if deterministic:
        dq_sum = delta  # not looked at
    else:  # sums start from zero; in fp32 they are dq itself
        dq_sum = dq if in_dq else call.empty(problem.q_shape, np.float32)
        call.clear(dq_sum)
    inputs = call.with_strides("q", "k", "v", "d_out")
    args = [*inputs, *stats, dq_sum, *call.with_strides("dk", "dv")]
    call.launch("keys", [*args, *call.tiles(walks.by_keys, *walks.section(problem))])
    if deterministic:
        args = [*inputs, *stats, *call.with_strides("dq")]
        call.launch("rows", [*args, *call.tiles(walks.by_rows)])
    elif not in_dq:
        call.launch("convert", [dq_sum, *call.with_strides("dq"), *sizes])
    return call.result()


def prepare_flash_mma_backward(
    d_out: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    problem: AttentionProblem,
    tiling: Tiling,
    deterministic: bool = False,
) -> BackwardRecipe | None:
    """The launches of a repeated call without extras; None where an array would be copied first."""
    tensors = (d_out, q, k, v, out, lse)
    if not (all(map(arguments.used_in_place, tensors)) and lse.flags.c_contiguous):
        return None
    tensors = tuple(x.view() for x in tensors)  # an array that comes twice has two places
    record, options = Record(tensors), {"deterministic": deterministic}
    make_plan = plan_flash_mma_backward
    _by_key_tiles(make_plan, tensors, problem, tiling, NO_EXTRAS, options, QUEUED, record)
    return BackwardRecipe(record)


def run_flash_kv_outer_backward(
    d_out: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    extras: Extras = NO_EXTRAS,
    deterministic: bool = False,
    count_traffic: bool = False,
) -> CudaGradients:
    """03_flash_kv_outer_backward on CuPy arrays; `deterministic` has no meaning: it always is.

    Other arguments, results and errors as `run_flash_q_outer_backward`.
    """
    import cupy

    make_plan = plan_backward.plan_flash_kv_outer_backward
    arrays = (d_out, q, k, v, out, lse)
    call = flash_call(make_plan, arrays, problem, tiling, extras, count_traffic=count_traffic)
    dq = call.at["dq"]
    dq_sum = dq if problem.itemsize == 4 else cupy.empty(problem.q_shape, np.float32)
    args = [*call.with_strides("q", "k", "v", "d_out", "out"), *call.row_statistics(LISTED)]
    args += [dq_sum, dq, *call.with_strides("dk", "dv"), *call.tiles(LISTED.by_keys)]
    call.launch("keys", args)
    return call.result()


def run_standard_tiled_backward(
    d_out: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    extras: Extras = NO_EXTRAS,
    deterministic: bool = False,
    count_traffic: bool = False,
    p: Any = None,
) -> CudaGradients:
    """02_standard_tiled_backward on CuPy arrays; out and lse are not looked at.

    Args:
        p: the forward's P, that before dropout, (batch, nheads, seqlen_q, seqlen_k) in q's dtype,
            contiguous; of packed sequences (sequences, nheads, longest_q, longest_k). None
            rebuilds it by the forward's first two launches.

    Other arguments, results and errors as `run_flash_q_outer_backward`.
    """
    make_plan = plan_backward.plan_standard_tiled_backward
    inputs = {"d_out": d_out, "q": q, "k": k, "v": v}
    if p is None:
        refuse_on_this_gpu(plan.plan_standard_tiled(problem, tiling), problem, tiling)
    else:
        _refuse_other_scores(p, problem)
    call = _Call(make_plan, inputs, problem, tiling, extras, count_traffic=count_traffic)
    p, ds = _probabilities(call, p)
    dq, common = call.at["dq"], [*call.sizes, call.band]
    scale = np.float32(problem.scale)
    args = [p, *call.with_strides("d_out", "dv"), *common, *call.extras]
    call.launch("dv", args)
    call.launch("dp", [*call.with_strides("d_out", "v"), ds, *common, *call.extras])
    rows = np.int64(problem.heads * problem.seqlen_q)
    call.launch("ds", [p, ds, common[0], *common[2:], rows])
    call.launch("dq", [ds, *call.with_strides("k"), dq, *common, scale])
    call.launch("dk", [ds, *call.with_strides("q", "dk"), *common, scale, *call.extras])
    return call.result()


def _refuse_other_scores(p: Any, problem: AttentionProblem) -> None:
    shape = (problem.batch, problem.nheads, problem.seqlen_q, problem.seqlen_k)
    whole = p.flags.c_contiguous and p.data.ptr % 16 == 0  # its rows are read 16 bytes at once
    if tuple(p.shape) != shape or p.dtype.name != problem.dtype or not whole:
        raise ValueError(
            f"p is {p.dtype} of shape {tuple(p.shape)}, it must be contiguous (from a multiple of "
            f"16 bytes on), {problem.dtype} {shape}: pass the P of the forward, or None to rebuild "
            "it."
        )


def _probabilities(call: _Call, p: Any) -> tuple[Any, Any]:
    """P, rebuilt if it is None, and an array like it for dP and dS: that of S, if there is one."""
    import cupy

    problem, dtype = call.problem, call.at["q"].dtype
    shape = (problem.batch, problem.nheads, problem.seqlen_q, problem.seqlen_k)
    s = cupy.empty(shape, dtype)
    if p is not None:
        return p, s
    p, count = cupy.empty(shape, dtype), call.totals is not None
    forward = plan.plan_standard_tiled(
        problem, call.tiling, aligned=call.aligned, count_traffic=count
    )
    args = [*call.with_strides("q", "k"), s, *call.sizes, call.band, np.float32(problem.scale)]
    launch(forward, forward.steps[0], [*args, *call.extras, *call.tail])
    rows = np.int64(problem.heads * problem.seqlen_q)
    args = [s, p, call.statistics(), call.sizes[0], *call.sizes[2:], call.band, rows]
    launch(forward, forward.steps[1], [*args, *call.tail])
    return p, s
