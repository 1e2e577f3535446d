"""Kernel arguments as the headers declare them: strides, band, masks, dropout, packed sequences."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from fa_kernels import masks, tile_list
from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda import mask_arrays
from fa_kernels.dropout import keep_scale, threshold
from fa_kernels.extras import Extras
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.standard import scale_in_log2
from fa_kernels.tiling import Tiling

_STRIDES = np.dtype([("batch", "<i8"), ("head", "<i8"), ("row", "<i8")])
_STRIDES4 = np.dtype([("batch", "<i8"), ("head", "<i8"), ("row", "<i8"), ("col", "<i8")])
_BAND = np.dtype([("begin", "<i8"), ("end", "<i8"), ("bottom_right", "<i8")])
#: A limit of the band past any row and key, far from overflow when lengths are added.
UNBOUNDED_BAND = 2**40


def used_in_place(array: Any) -> bool:
    """True if kernels take the array as it lies: last axis contiguous, strides whole elements."""
    whole = all(stride % array.itemsize == 0 for stride in array.strides)
    return whole and (array.shape[-1] == 1 or array.strides[-1] == array.itemsize)


def usable(name: str, array: Any) -> Any:
    """`array` itself if its last axis is contiguous, else one contiguous copy, with a warning."""
    import cupy

    if used_in_place(array):
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


def with_strides(*arrays: Any) -> list[Any]:
    """Each array followed by its batch, head and row strides: the kernels' `Strides`.

    Along an axis of one element a stride says nothing (torch's is 1): 0 where it is no multiple of
    the 16 bytes that `rows_aligned` promises.
    """
    return [part for a in arrays for part in (a, _by_value(_STRIDES, _steps(a), a.itemsize))]


def _steps(array: Any) -> tuple[int, ...]:
    pairs = zip(array.strides[:3], array.shape[:3], strict=True)
    return tuple(0 if n == 1 and stride % 16 else stride for stride, n in pairs)


def _by_value(dtype: np.dtype, strides: tuple[int, ...], itemsize: int) -> np.ndarray:
    # One structured element is passed by value.
    return np.array([tuple(stride // itemsize for stride in strides)], dtype=dtype)


def sizes(problem: AttentionProblem) -> tuple[np.int32, ...]:
    """nheads, kv_group, seqlen_q, seqlen_k; of packed sequences the longest."""
    p = problem
    return tuple(map(np.int32, (p.nheads, p.group, p.seqlen_q, p.seqlen_k)))


def band(problem: AttentionProblem) -> np.ndarray:
    """`Band` of score.cuh; of packed sequences without their lengths."""
    if problem.packed is None:
        limits = masks.band(problem)
        return np.array([(limits.begin, limits.end, UNBOUNDED_BAND)], dtype=_BAND)
    left, right = problem.window or (None, None)
    top_left = 0 if problem.causal == "top_left" else UNBOUNDED_BAND
    ends = [UNBOUNDED_BAND if right is None else right]
    ends.append(0 if problem.causal == "bottom_right" else UNBOUNDED_BAND)
    begin = -UNBOUNDED_BAND if left is None else -left
    return np.array([(begin, top_left, min(ends))], dtype=_BAND)


def score_scale(problem: AttentionProblem) -> np.float32:
    """What kernels multiply q.k by: to log2 units, with a bias to natural ones (score.cuh)."""
    return np.float32(scale_in_log2(problem) if problem.bias_dtype is None else problem.scale)


def option_macros(problem: AttentionProblem) -> dict[str, int]:
    """The macros of score.cuh."""
    bias = 0 if problem.bias_dtype is None else 2 if problem.bias_dtype == "float32" else 1
    return {
        "WINDOW": int(problem.window is not None and problem.window[0] is not None),
        "MASK": int(problem.masked),
        "BIAS": bias,
        "DROPOUT": 2 if problem.keep_given else int(problem.dropout_p > 0.0),
        "PACKED": int(problem.packed is not None),
    }


def score_arguments(problem: AttentionProblem, extras: Extras) -> tuple[Any, ...]:
    """MASK_PARAMS and BIAS_PARAMS of score.cuh."""
    return (*_element_array(extras.mask), *_element_array(extras.bias))


def dropout_arguments(problem: AttentionProblem, extras: Extras) -> tuple[Any, ...]:
    """DROPOUT_PARAMS of score.cuh."""
    scale = np.float32(keep_scale(problem.dropout_p, problem.keep_given))
    if problem.keep_given:
        return (*_element_array(extras.dropout_keep), scale)
    if problem.dropout_p == 0.0:
        return ()
    assert problem.seed is not None
    # Kernels compare in the upper half of a word, where the odd key's bits are already.
    drop_below = np.uint32(threshold(problem.dropout_p) << 16)
    return np.uint64(problem.seed), drop_below, scale


def extras_arguments(problem: AttentionProblem, extras: Extras) -> tuple[Any, ...]:
    """EXTRAS_PARAMS of score.cuh."""
    return (*score_arguments(problem, extras), *dropout_arguments(problem, extras))


def _element_array(array: Any) -> tuple[Any, ...]:
    if array is None:
        return ()
    return array, _by_value(_STRIDES4, array.strides, array.itemsize)


def refuse_mismatch(inputs: Mapping[str, Any], problem: AttentionProblem, door: str) -> None:
    """Raise unless arrays are what `problem` says; a kernel would read out of bounds.

    Args:
        inputs: by name: k and v; lse; all others are shaped like q.
        door: the front door that makes problems from arrays.

    Raises:
        ValueError: names the array, what it is and what it must be.
    """
    of_q, of_k = (problem.q_shape, problem.dtype), (problem.kv_shape, problem.dtype)
    of_stats = (problem.q_shape[:3], "float32")
    for name, array in inputs.items():
        shape, dtype = of_stats if name == "lse" else of_k if name in ("k", "v") else of_q
        if tuple(array.shape) != shape or array.dtype.name != dtype:
            raise ValueError(
                f"{name} is {array.dtype} of shape {tuple(array.shape)}, the problem says "
                f"{dtype} {shape}: make the problem from the arrays ({door} does)."
            )


def refuse_extras_mismatch(problem: AttentionProblem, extras: Extras) -> None:
    """Raise unless `extras` holds what `problem` says; a kernel would read out of bounds.

    Raises:
        ValueError: names the array, what it is and what it must be.
    """
    shape = (problem.batch, problem.nheads, problem.seqlen_q, problem.seqlen_k)
    wanted = {
        "mask": "bool" if problem.masked else None,
        "bias": problem.bias_dtype,
        "dropout_keep": "bool" if problem.keep_given else None,
    }
    for name, dtype in wanted.items():
        array = getattr(extras, name)
        if array is None and dtype is None:
            continue
        found = None if array is None else (array.dtype.name, tuple(array.shape))
        whole = array is None or all(s % array.itemsize == 0 for s in array.strides)
        if found != (dtype, shape) or not whole:
            raise ValueError(
                f"{name} is {found}, the problem says {(dtype, shape)}: make the problem from the "
                "arrays (fa.attention does)."
            )


def packed_arguments(problem: AttentionProblem) -> tuple[Any, ...]:
    """PACKED_PARAMS of score.cuh; nothing for sequences of one length."""
    if problem.packed is None:
        return ()
    from fa_kernels.cuda import packed_arrays

    return (*packed_arrays.KEPT.bounds(problem.packed), np.int64(problem.packed.total_q))


#: `by_q` or `by_kv` of tile_list.py.
Order = Callable[[AttentionProblem, Tiling], tile_list.TileLists]
#: What a launch takes to find its tiles under a block mask; nothing without one.
Lists = Callable[[AttentionProblem, Tiling], tuple[Any, ...]]


def listed(order: Order) -> Lists:
    """BLOCK_MASK_PARAMS of block_mask.cuh, lists in `order`; nothing without a block mask."""

    def lists(problem: AttentionProblem, tiling: Tiling) -> tuple[Any, ...]:
        return _mask_arguments(functools.partial(_from_host, order), problem, tiling, order)

    return lists


def queued(by_keys: bool = False, longest_first: bool = True) -> Lists:
    """The same with the lists of tile_queue.cuh, as `tile_list.queues` takes its arguments."""

    def lists(problem: AttentionProblem, tiling: Tiling) -> tuple[Any, ...]:
        if problem.block_mask is None:
            return ()
        from fa_kernels.cuda import block_lists

        # A block makes dk and dv of one tile for all heads of a group: their lists stand alike.
        alike = problem.block_mask.lead[1] == 1
        in_order = longest_first and (not by_keys or problem.group == 1 or alike)
        build = functools.partial(block_lists.build, by_keys=by_keys, longest_first=in_order)
        return _mask_arguments(build, problem, tiling, by_keys, in_order)

    return lists


def _mask_arguments(
    build: Callable[[Any, AttentionProblem, Tiling], tuple[Any, Any]],
    problem: AttentionProblem,
    tiling: Tiling,
    *how: Hashable,
) -> tuple[Any, ...]:
    """Lists made by `build`, which `how` tells from others, and the mask; once for all calls."""
    mask, p = problem.block_mask, problem
    if mask is None:
        return ()

    def made(keep: Any) -> tuple[Any, Any]:
        return build(keep, _of_mask(problem, mask), tiling)

    shape = (p.causal, p.window, p.seqlen_q, p.seqlen_k, tiling, *how)
    lists, entries, keep = mask_arrays.KEPT.lists(mask, shape, made)
    lead = (np.int64(mask.lead[1] if mask.lead[0] > 1 else 0), np.int64(mask.lead[1] > 1))
    return lists, entries, keep, *lead, *map(np.int32, mask.blocks)


def _of_mask(problem: AttentionProblem, mask: BlockMask) -> AttentionProblem:
    """A problem with the masks of a call and nothing else of it."""
    p = problem
    return AttentionProblem(
        *mask.lead, p.seqlen_q, p.seqlen_k, 1, causal=p.causal, window=p.window, block_mask=mask
    )


def _from_host(
    order: Order, keep: Any, problem: AttentionProblem, tiling: Tiling
) -> tuple[Any, Any]:
    import cupy

    lists = order(problem, tiling)
    entries = lists.entries if len(lists.entries) else np.zeros(1, np.int32)  # a valid pointer
    return cupy.asarray(lists.start), cupy.asarray(entries)
