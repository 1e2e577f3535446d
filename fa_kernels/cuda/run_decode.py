"""07_decode_split_kv on arrays: append, split-KV attention, merge; also in a CUDA graph."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from fa_kernels.cuda import arrays
from fa_kernels.cuda.arguments import rows_aligned, usable, used_in_place, with_strides
from fa_kernels.cuda.launch import launch, refuse_old_gpu, smem_limit_bytes
from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.cuda.plan_decode import default_splits, plan_decode
from fa_kernels.cuda.run import new_counters, read_counters
from fa_kernels.decode_problem import DecodeProblem
from fa_kernels.traffic.decode_model import append_chunks
from fa_kernels.traffic.model import Traffic
from fa_kernels.units import capacity

DECODE_KERNEL = "07_decode_split_kv"
#: The oldest GPU it runs on, and its dtypes: it multiplies on tensor cores (mma.sync).
MIN_ARCH, DTYPES = 80, ("float16", "bfloat16")
#: `window` for an unbounded side.
UNBOUNDED = 2**31 - 1
#: Where arrays begin in a buffer that holds several.
_ALIGNED = 256


class Given(Protocol):
    """The arrays of a call, as `decode_options.DecodeArrays` has them."""

    @property
    def q(self) -> Any:
        """(batch, nheads, seqlen_q, head_dim)."""

    @property
    def k_cache(self) -> Any:
        """Contiguous or paged."""

    @property
    def v_cache(self) -> Any:
        """As k_cache."""

    @property
    def k_new(self) -> Any:
        """None, or (batch, nheads_kv, seqlen_new, head_dim)."""

    @property
    def v_new(self) -> Any:
        """As k_new."""

    @property
    def cache_seqlens(self) -> Any:
        """int32 (batch,)."""

    @property
    def same_seqlen(self) -> int | None:
        """The one length of all, if it was given as a number."""

    @property
    def block_table(self) -> Any:
        """None, or int32 (batch, max_pages)."""


@functools.lru_cache(maxsize=256)
def planned(
    problem: DecodeProblem, num_splits: int, aligned: bool = True, count_traffic: bool = False
) -> LaunchPlan:
    """`plan_decode`, once for a problem: a step of generation repeats the one before."""
    return plan_decode(problem, num_splits, aligned=aligned, count_traffic=count_traffic)


def block_rows(problem: DecodeProblem, num_splits: int) -> int:
    """Query rows of one block, which share its keys: what the traffic model wants to know."""
    return int(planned(problem, num_splits).macros["GROUP_ROWS"])


def chosen_splits(problem: DecodeProblem) -> int:
    """As many splits as the current GPU has use for."""
    import cupy

    return default_splits(problem, _sms(cupy.cuda.Device().id))


@functools.cache
def _sms(device_id: int) -> int:
    import cupy

    return int(cupy.cuda.Device(device_id).attributes["MultiProcessorCount"])


def refuse_unfit(problem: DecodeProblem, given: Given) -> None:
    """Raise unless the kernel takes this call on the current GPU; allocates nothing.

    Raises:
        NotImplementedError: a dtype without tensor cores, or an older GPU.
        ValueError: caches that would have to be copied, or too little shared memory.
    """
    if problem.dtype not in DTYPES:
        raise NotImplementedError(
            f"dtype = {problem.dtype}: {DECODE_KERNEL} multiplies on tensor cores and takes "
            f"{', '.join(DTYPES)}. Cast q and the caches, or use backend='numpy' on host arrays."
        )
    for name, cache in (("k_cache", given.k_cache), ("v_cache", given.v_cache)):
        last = cache.stride(-1) if arrays.library_of(cache) == "torch" else cache.strides[-1]
        wanted = 1 if arrays.library_of(cache) == "torch" else cache.dtype.itemsize
        if cache.shape[-1] > 1 and last != wanted and arrays.on_gpu(cache):
            raise ValueError(
                f"{name} has a last axis that is not contiguous: copying a cache at every step "
                "would cost more than the step. Store it with head_dim innermost."
            )
    refuse_old_gpu(DECODE_KERNEL, MIN_ARCH)
    need, limit = planned(problem, 1).smem_bytes, smem_limit_bytes()
    if need > limit:
        raise ValueError(
            f"d = {problem.head_dim}: {DECODE_KERNEL} needs {capacity(need)} of shared memory per "
            f"block, this GPU allows {capacity(limit)}: use backend='numpy' on host arrays."
        )


def decode_on_gpu(problem: DecodeProblem, given: Given, num_splits: int) -> tuple[Any, Any]:
    """out and lse of a checked call, of q's kind, on the stream of q's library.

    Raises:
        ValueError: lengths or pages on the host while a CUDA graph is captured.
    """
    # A number needs no array of its own: it is filled in on the GPU.
    lengths = given.same_seqlen if given.same_seqlen is not None else given.cache_seqlens
    inputs = [given.q, given.k_cache, given.v_cache, given.k_new, given.v_new, given.block_table]
    uploads = {"cache_seqlens": lengths, "block_table": given.block_table}
    inputs += [None if isinstance(lengths, int) else lengths]

    def run(q: Any, k: Any, v: Any, k_new: Any, v_new: Any, table: Any, on_gpu: Any) -> Any:
        of_lengths = lengths if on_gpu is None else on_gpu
        rest: dict[str, Any] = {"k_new": k_new, "v_new": v_new, "block_table": table}
        return run_decode(q, k, v, of_lengths, problem, num_splits, **rest)[:2]

    out, lse = arrays.call_on_gpu(run, inputs, lambda: _refuse_uploads(uploads))
    return out, lse


def _refuse_uploads(uploads: dict[str, Any]) -> None:
    """A captured graph would copy from memory that is gone when it runs."""
    arrays_of = {n: x for n, x in uploads.items() if x is not None and not isinstance(x, int)}
    host = [name for name, array in arrays_of.items() if not arrays.on_gpu(array)]
    if host and _capturing():
        raise ValueError(
            f"{host[0]} lies on the host while a CUDA graph is captured: pass an int32 array on "
            "the GPU, whose values each replay reads."
        )


def _capturing() -> bool:
    import cupy

    return bool(cupy.cuda.get_current_stream().is_capturing())


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
) -> tuple[Any, Any, Traffic | None]:
    """07_decode_split_kv on CuPy arrays; the caches are written where there is something new.

    Args:
        q, k_cache, v_cache, k_new, v_new, block_table: shapes as `fa.decode`.
        cache_seqlens: int32 (batch,) on the GPU, or one number.
        count_traffic: also count bytes in the kernels.

    Returns:
        out like q, contiguous; lse (batch, nheads, seqlen_q) fp32; the in-kernel counters or None.

    Raises:
        ValueError: arrays are not what `problem` says.
    """
    _refuse_mismatch(problem, q, k_cache, v_cache, k_new, v_new, block_table)
    q = usable("q", q)
    new = [usable(name, x) for name, x in (("k_new", k_new), ("v_new", v_new)) if x is not None]
    rooms = _rooms(problem, num_splits, q.dtype, isinstance(cache_seqlens, int))
    out, lse, partial_out, partial_lse = rooms[:4]
    lengths = _lengths(cache_seqlens, rooms)
    aligned = rows_aligned(q, k_cache, v_cache, out, *new)
    plan = planned(problem, num_splits, aligned, count_traffic)
    totals = new_counters() if count_traffic else None
    counters = () if totals is None else (totals,)
    pages = _pages(problem, block_table)
    caches = with_strides(k_cache, v_cache)
    sizes = (problem.nheads, problem.group, problem.seqlen_q, problem.seqlen_new, problem.capacity)
    window = _window(problem) if plan.macros["WINDOW"] else ()
    of_step: dict[str, Callable[[], Sequence[Any]]] = {
        "decode_append": lambda: (
            *with_strides(*new), *caches, lengths, np.int64(append_chunks(problem)),
            *map(np.int32, (problem.nheads_kv, problem.seqlen_new, problem.capacity)), *pages,
        ),
        "decode_split_kv": lambda: (
            *with_strides(q), *caches, *with_strides(out), lse, partial_out, partial_lse, lengths,
            *map(np.int32, (*sizes, num_splits)), *window,
            np.float32(problem.scale * math.log2(math.e)), *pages,
        ),
        "decode_merge": lambda: (
            partial_out, partial_lse, *with_strides(out), lse,
            np.int32(problem.nheads), np.int32(problem.seqlen_q),
            np.int64(problem.batch * problem.nheads * problem.seqlen_q), np.int32(num_splits),
        ),
    }  # fmt: skip
    for step in plan.steps:
        launch(plan, step, (*of_step[step.entry](), *counters))
    return out, lse, read_counters(totals)


def _window(problem: DecodeProblem) -> tuple[np.int32, ...]:
    """left and right of the window."""
    sides = problem.window or (None, None)
    return tuple(np.int32(UNBOUNDED if n is None else min(n, UNBOUNDED)) for n in sides)


def _pages(problem: DecodeProblem, block_table: Any) -> tuple[Any, ...]:
    """What PAGED adds to the arguments."""
    if block_table is None:
        return ()
    import cupy

    if not used_in_place(block_table):
        block_table = cupy.ascontiguousarray(block_table)
    stride = block_table.strides[0] // block_table.itemsize
    return block_table, np.int64(stride), np.int32(problem.page_size or 0)


def _rooms(problem: DecodeProblem, num_splits: int, dtype: Any, with_lengths: bool) -> list[Any]:
    """out, lse, partial out and lse (lse in their place for one split) and, if it is to be filled
    in, the lengths.

    While a CUDA graph is captured they share one buffer, which lives as long as `out` does: the
    workspace of a graph must not be handed to somebody else between its replays.
    """
    import cupy

    of_rows = problem.q_shape[:3]
    wanted: list[tuple[tuple[int, ...], Any]] = [(problem.q_shape, dtype), (of_rows, np.float32)]
    if num_splits > 1:
        wanted += [
            ((num_splits, *problem.q_shape), np.float32),
            ((num_splits, *of_rows), np.float32),
        ]
    if with_lengths:
        wanted.append(((problem.batch,), np.int32))
    made = _in_one_buffer(wanted) if _capturing() else [cupy.empty(*one) for one in wanted]
    if num_splits == 1:
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


def _lengths(cache_seqlens: Any, rooms: list[Any]) -> Any:
    """Lengths on the GPU, contiguous; a number is written by a kernel, which a graph can hold."""
    if isinstance(cache_seqlens, int):
        rooms[4].fill(cache_seqlens)
        return rooms[4]
    import cupy

    return cupy.ascontiguousarray(cache_seqlens)


def _refuse_mismatch(
    problem: DecodeProblem, q: Any, k: Any, v: Any, k_new: Any, v_new: Any, block_table: Any
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
    table = None if block_table is None else (block_table.dtype.name, tuple(block_table.shape))
    of_table = ("int32", (problem.batch, problem.max_pages)) if problem.paged else None
    if table != of_table:
        raise ValueError(
            f"block_table is {table}, the problem says {of_table}: make the problem from the "
            "arrays (fa.decode does)."
        )
