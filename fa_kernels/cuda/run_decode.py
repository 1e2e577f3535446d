"""07_decode_split_kv on arrays: append, split-KV attention, merge; also in a CUDA graph."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fa_kernels.cuda.arguments import rows_aligned, usable, used_in_place, with_strides
from fa_kernels.cuda.launch import has_clusters, launch, smem_limit_bytes, smem_per_sm_bytes
from fa_kernels.cuda.plan import LaunchPlan, LaunchStep
from fa_kernels.cuda.plan_decode import cluster_of, default_splits, plan_decode
from fa_kernels.cuda.recipe_backward import Record
from fa_kernels.cuda.recipe_decode import DecodeRecipe
from fa_kernels.cuda.run import new_counters, read_counters
from fa_kernels.cuda.stream import capturing
from fa_kernels.decode_problem import DecodeProblem
from fa_kernels.traffic.decode_model import append_chunks
from fa_kernels.traffic.model import Traffic

DECODE_KERNEL = "07_decode_split_kv"
#: The oldest GPU it runs on, and its dtypes: it multiplies on tensor cores (mma.sync).
MIN_ARCH, DTYPES = 80, ("float16", "bfloat16")
#: A side of the window that bounds nothing: the kernel's int.
UNBOUNDED_WINDOW = 2**31 - 1
#: Where arrays begin in a buffer that holds several.
_ALIGNED = 256


@functools.lru_cache(maxsize=256)
def planned(problem: DecodeProblem, num_splits: int, **options: Any) -> LaunchPlan:
    """`plan_decode`, once for a problem: a step of generation repeats the one before."""
    return plan_decode(problem, num_splits, **options)


def planned_here(problem: DecodeProblem, num_splits: int, **options: Any) -> LaunchPlan:
    """`planned` for the current GPU's shared memory and clusters, unless `options` name others."""
    limits = {"limit_bytes": smem_limit_bytes(), "sm_bytes": smem_per_sm_bytes(), **_clusters()}
    return planned(problem, num_splits, **limits | options)


def block_rows(problem: DecodeProblem, num_splits: int) -> int:
    """Query rows of one block, which share its keys: what the traffic model wants to know."""
    return int(planned(problem, num_splits).macros["GROUP_ROWS"])


def merges_on_chip(problem: DecodeProblem, num_splits: int, **limits: Any) -> bool:
    """Whether a cluster of blocks merges the splits, so that they leave nothing in HBM."""
    of_gpu = _clusters() | limits
    return bool(of_gpu["clusters"]) and cluster_of(problem, num_splits, of_gpu["sms"]) > 1


def _clusters() -> dict[str, Any]:
    """What `plan_decode` wants to know of the current GPU to make clusters."""
    return {"clusters": has_clusters(), "sms": _sms(_device())}


def chosen_splits(problem: DecodeProblem) -> int:
    """As many splits as the current GPU has use for."""
    smem = (smem_limit_bytes(), smem_per_sm_bytes())
    return default_splits(problem, _sms(_device()), *smem, has_clusters())


def _device() -> int:
    import cupy

    return int(cupy.cuda.Device().id)


@functools.cache
def _sms(device_id: int) -> int:
    import cupy

    return int(cupy.cuda.Device(device_id).attributes["MultiProcessorCount"])


def run_decode(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    cache_seqlens: Any,
    problem: DecodeProblem,
    num_splits: int,
    *,
    k_new: Any = None,
    v_new: Any = None,
    block_table: Any = None,
    count_traffic: bool = False,
    limits: Mapping[str, Any] | None = None,
) -> tuple[Any, Any, Traffic | None]:
    """07_decode_split_kv on CuPy arrays; the caches are written where there is something new.

    Args:
        q, k_cache, v_cache, k_new, v_new, block_table: shapes as `fa.decode`.
        cache_seqlens: int32 (batch,) on the GPU, or one number.
        count_traffic: also count bytes in the kernels.
        limits: `limit_bytes`, `sm_bytes`, `clusters` of `plan_decode`, in place of the GPU's.

    Returns:
        out like q, contiguous; lse (batch, nheads, seqlen_q) fp32; the in-kernel counters or None.

    Raises:
        ValueError: arrays are not what `problem` says.
    """
    import cupy

    lengths = None if isinstance(cache_seqlens, int) else cache_seqlens
    _refuse_mismatch(problem, q, k_cache, v_cache, k_new, v_new, block_table, lengths)
    rooms = _rooms(problem, _left(problem, num_splits, limits), q.dtype, lengths is None)
    if lengths is None:  # by a kernel, which a graph can hold
        lengths = rooms.pop()
        lengths.fill(cache_seqlens)
    k_new, v_new = (x if x is None else usable("k_new, v_new", x) for x in (k_new, v_new))
    if block_table is not None and not used_in_place(block_table):
        block_table = cupy.ascontiguousarray(block_table)
    arrays_of = _Arrays(
        usable("q", q), k_cache, v_cache, k_new, v_new, block_table,
        cupy.ascontiguousarray(lengths), *rooms,
    )  # fmt: skip
    totals = new_counters() if count_traffic else None
    counters = () if totals is None else (totals,)
    options = {"count_traffic": count_traffic, **(limits or {})}
    for plan, step, args in _launches(arrays_of, problem, num_splits, options):
        launch(plan, step, (*args, *counters))
    return arrays_of.out, arrays_of.lse, read_counters(totals)


def prepare_decode(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k_new: Any,
    v_new: Any,
    block_table: Any,
    cache_seqlens: Any,
    problem: DecodeProblem,
    num_splits: int,
) -> DecodeRecipe | None:
    """The launches of a repeated call; None where an array would be copied first.

    Arguments as `run_decode`, cache_seqlens an array.
    """
    given: tuple[Any, ...] = (q, k_cache, v_cache, k_new, v_new, block_table, cache_seqlens)
    there = [x for x in given if x is not None]
    if not all(map(used_in_place, there)):
        return None
    _refuse_mismatch(problem, q, k_cache, v_cache, k_new, v_new, block_table, cache_seqlens)
    given = tuple(None if x is None else x.view() for x in given)  # one twice has two places
    record = Record([x for x in given if x is not None])
    rooms = _rooms(problem, _left(problem, num_splits), q.dtype, False, record.empty)
    for launched in _launches(_Arrays(*given, *rooms), problem, num_splits, {}):
        record.launch(*launched)
    return DecodeRecipe(record, problem)


@dataclass(frozen=True, eq=False)
class _Arrays:
    """What the launches are given: arrays, or the stand-ins of those to come."""

    q: Any
    k: Any
    v: Any
    k_new: Any
    v_new: Any
    block_table: Any
    lengths: Any
    out: Any
    lse: Any
    partial_out: Any
    partial_lse: Any


def _launches(
    a: _Arrays, problem: DecodeProblem, num_splits: int, how: Mapping[str, Any]
) -> Iterator[tuple[LaunchPlan, LaunchStep, tuple[Any, ...]]]:
    """Plan, step and arguments of each launch, without counters; `how` it is planned."""
    new = () if a.k_new is None else (a.k_new, a.v_new)
    aligned = rows_aligned(a.q, a.k, a.v, a.out, *new)
    options = {"aligned": aligned, "whole_tiles": all(map(_rows_in_a_row, (a.k, a.v)))}
    plan = planned_here(problem, num_splits, **how, **options)
    p = problem
    caches, out = with_strides(a.k, a.v), with_strides(a.out)
    pages = _pages(p, a.block_table)
    window = _window(p) if plan.macros["WINDOW"] else ()
    sizes = (p.nheads, p.group, p.seqlen_q, p.seqlen_new, p.capacity, num_splits)
    rows = np.int64(p.batch * p.nheads * p.seqlen_q)
    of_step: dict[str, Callable[[], tuple[Any, ...]]] = {
        "decode_split_kv_append": lambda: (
            *with_strides(*new), *caches, a.lengths, np.int64(append_chunks(p)),
            *map(np.int32, (p.nheads_kv, p.seqlen_new, p.capacity)), *pages,
        ),
        "decode_split_kv_attend": lambda: (
            *with_strides(a.q), *caches, *out, a.lse, a.partial_out, a.partial_lse, a.lengths,
            *map(np.int32, sizes), *window, np.float32(p.scale * math.log2(math.e)), *pages,
        ),
        "decode_split_kv_merge": lambda: (
            a.partial_out, a.partial_lse, *out, a.lse, np.int32(p.nheads), np.int32(p.seqlen_q),
            rows, np.int32(num_splits),
        ),
    }  # fmt: skip
    for step in plan.steps:
        yield plan, step, of_step[step.entry]()


def _rows_in_a_row(cache: Any) -> bool:
    """True if the keys of a head lie behind one another, without a gap."""
    return bool(cache.strides[2] == cache.shape[3] * cache.itemsize)


def _window(problem: DecodeProblem) -> tuple[np.int32, ...]:
    """left and right of the window."""
    sides = problem.window or (None, None)
    return tuple(
        np.int32(UNBOUNDED_WINDOW if n is None else min(n, UNBOUNDED_WINDOW)) for n in sides
    )


def _pages(problem: DecodeProblem, block_table: Any) -> tuple[Any, ...]:
    """What PAGED adds to the arguments."""
    if block_table is None:
        return ()
    stride = block_table.strides[0] // block_table.itemsize
    return block_table, np.int64(stride), np.int32(problem.page_size or 0)


def _left(problem: DecodeProblem, num_splits: int, limits: Mapping[str, Any] | None = None) -> int:
    """Splits that leave out and lse in HBM for a merge; 0 for one, or where a cluster merges."""
    on_chip = num_splits == 1 or merges_on_chip(problem, num_splits, **(limits or {}))
    return 0 if on_chip else num_splits


def _rooms(
    problem: DecodeProblem,
    left: int,
    dtype: Any,
    with_lengths: bool,
    empty: Callable[..., Any] | None = None,
) -> list[Any]:
    """out, lse, partial out and lse of the splits that leave some (lse in their place where none
    does) and, if they are to be filled in, the lengths; by `empty`, else on the GPU.

    While a CUDA graph is captured they share one buffer, which lives as long as `out` does: the
    workspace of a graph must not be handed to somebody else between its replays.
    """
    import cupy

    of_rows = problem.q_shape[:3]
    wanted: list[tuple[tuple[int, ...], Any]] = [(problem.q_shape, dtype), (of_rows, np.float32)]
    if left:
        wanted += [((left, *problem.q_shape), np.float32), ((left, *of_rows), np.float32)]
    if with_lengths:
        wanted.append(((problem.batch,), np.int32))
    if empty is None and capturing():
        made = _in_one_buffer(wanted)
    else:
        made = [(empty or cupy.empty)(*one) for one in wanted]
    if not left:
        made[2:2] = [made[1], made[1]]  # valid addresses that are not looked at
    return made


def _in_one_buffer(wanted: Sequence[tuple[tuple[int, ...], Any]]) -> list[Any]:
    import cupy

    sizes = [int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in wanted]
    begins = np.cumsum([0, *(-(-size // _ALIGNED) * _ALIGNED for size in sizes)])
    buffer = cupy.empty((int(begins[-1]),), np.uint8)
    return [
        buffer[begin : begin + size].view(dtype).reshape(shape)
        for begin, size, (shape, dtype) in zip(begins[:-1], sizes, wanted, strict=True)
    ]


def _refuse_mismatch(
    problem: DecodeProblem,
    q: Any,
    k: Any,
    v: Any,
    k_new: Any,
    v_new: Any,
    block_table: Any,
    lengths: Any,
) -> None:
    """Raise unless arrays are what `problem` says; a kernel would read out of bounds."""
    wanted = {"q": (q, problem.q_shape), "k_cache": (k, problem.cache_shape)}
    wanted |= {"v_cache": (v, problem.cache_shape)}
    if problem.seqlen_new:
        wanted |= {"k_new": (k_new, problem.new_shape), "v_new": (v_new, problem.new_shape)}
    for name, (array, shape) in wanted.items():
        found = None if array is None else (array.dtype.name, tuple(array.shape))
        if found != (problem.dtype, shape):
            raise ValueError(
                f"{name} is {found}, the problem says {(problem.dtype, shape)}: make the problem "
                "from the arrays (fa.decode does)."
            )
    of_table = (problem.batch, problem.max_pages) if problem.paged else None
    for name, array, want in (
        ("block_table", block_table, of_table),
        ("cache_seqlens", lengths, (problem.batch,) if lengths is not None else None),
    ):
        found = None if array is None else (array.dtype.name, tuple(array.shape))
        if found != (None if want is None else ("int32", want)):
            raise ValueError(
                f"{name} is {found}, the problem says int32 {want}: make the problem from the "
                "arrays (fa.decode does)."
            )
