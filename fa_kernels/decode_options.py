"""The arguments of `fa.decode`, checked against each other before anything is written.

Lengths and page numbers that lie on a GPU are not looked at: that would wait for the GPU, and break
CUDA graphs. The kernel stops at the cache's end by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fa_kernels.cuda import arrays
from fa_kernels.decode_problem import DecodeProblem
from fa_kernels.options import dtype_of, refuse_mixed
from fa_kernels.problem import checked_int

_Q = "(batch, nheads, seqlen_q, head_dim)"
_CACHE = "(batch, nheads_kv, max_seqlen, head_dim), or (num_pages, nheads_kv, page_size, head_dim)"
_NEW = "(batch, nheads_kv, seqlen_new, head_dim)"
_GRAD = "and fa.decode records no gradient: pass {name}.detach()."


@dataclass(frozen=True, eq=False)
class DecodeArrays:
    """The arrays of a call that belong together.

    `cache_seqlens`: int32 (batch,), NumPy unless it came on a GPU; `same_seqlen`: the one number
    that was given instead. `block_table`: int32 (batch, max_pages), NumPy unless it came on a GPU.
    """

    q: Any
    k_cache: Any
    v_cache: Any
    k_new: Any
    v_new: Any
    cache_seqlens: Any
    same_seqlen: int | None
    block_table: Any


def problem_and_arrays(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    cache_seqlens: Any,
    k_new: Any,
    v_new: Any,
    block_table: Any,
    window: tuple[int | None, int | None] | None,
    softmax_scale: float | None,
) -> tuple[DecodeProblem, DecodeArrays]:
    """The problem that the arrays and options of `fa.decode` describe, and these arrays.

    Raises:
        TypeError, ValueError, NotImplementedError: naming value, limit and remedy.
    """
    _check_tensors(q, k_cache, v_cache, k_new, v_new, block_table is not None)
    batch, nheads, seqlen_q, head_dim = q.shape
    table = _checked_table(block_table, q)
    pages: dict[str, int | None] = {"max_seqlen": k_cache.shape[2]}
    if table is not None:
        pages = {"max_seqlen": None, "page_size": k_cache.shape[2], "max_pages": table.shape[1]}
        pages["num_pages"] = k_cache.shape[0]
    problem = DecodeProblem(
        batch=batch, nheads=nheads, nheads_kv=k_cache.shape[1], seqlen_q=seqlen_q,
        seqlen_new=0 if k_new is None else k_new.shape[2], head_dim=head_dim, dtype=dtype_of(q),
        window=window, softmax_scale=softmax_scale, **pages,
    )  # fmt: skip
    same, lengths = _checked_lengths(cache_seqlens, q, problem)
    if table is not None and not arrays.on_gpu(table) and not arrays.on_gpu(lengths):
        _check_pages(table, lengths + problem.seqlen_new, problem)
    if k_new is not None:
        _refuse_read_only("k_cache", k_cache)
        _refuse_read_only("v_cache", v_cache)
    return problem, DecodeArrays(q, k_cache, v_cache, k_new, v_new, lengths, same, table)


def _check_tensors(q: Any, k_cache: Any, v_cache: Any, k_new: Any, v_new: Any, paged: bool) -> None:
    """Kinds, dtypes and shapes of q, the caches and what is appended."""
    if (k_new is None) != (v_new is None):
        missing, there = ("k_new", "v_new") if k_new is None else ("v_new", "k_new")
        raise ValueError(
            f"{there} without {missing}: a token has a key and a value. Pass both, or neither."
        )
    named = {"q": q, "k_cache": k_cache, "v_cache": v_cache}
    if k_new is not None:
        named |= {"k_new": k_new, "v_new": v_new}
    for name, array in named.items():
        words = _Q if name == "q" else _NEW if name.endswith("new") else _CACHE
        arrays.refuse_unusable(name, array, words, _GRAD.format(name=name), range(4, 5))
    refuse_mixed(named)
    caches, (batch, _, _, head_dim) = tuple(k_cache.shape), q.shape
    if tuple(v_cache.shape) != caches:
        raise ValueError(
            f"v_cache has shape {tuple(v_cache.shape)}, k_cache {caches}: they must be alike."
        )
    if caches[3] != head_dim or not (paged or caches[0] == batch):
        raise ValueError(
            f"shapes do not belong together: q {tuple(q.shape)}, caches {caches}. Batch and "
            "head_dim must be equal; a cache made of pages needs a block_table."
        )
    if k_new is not None:
        want = (batch, caches[1], k_new.shape[2], head_dim)
        if not tuple(k_new.shape) == tuple(v_new.shape) == want:
            raise ValueError(
                f"k_new has shape {tuple(k_new.shape)}, v_new {tuple(v_new.shape)}: both must be "
                f"{_NEW} = {want}."
            )


def _checked_table(block_table: Any, q: Any) -> Any:
    """The block table: NumPy's int32 from the host, or as it lies on q's GPU; None if there is
    none."""
    if block_table is None:
        return None
    words = "(batch, max_pages), int32"
    grad = "which page numbers cannot: pass an int32 tensor."
    arrays.refuse_unusable("block_table", block_table, words, grad, range(2, 3))
    table = _whole_numbers("block_table", block_table, q)
    if table.shape[0] != q.shape[0]:
        raise ValueError(
            f"block_table has shape {tuple(table.shape)}, q has batch {q.shape[0]}: it must be "
            "(batch, max_pages), a row of page numbers for each sequence."
        )
    return table


def _whole_numbers(name: str, array: Any, q: Any) -> Any:
    """NumPy's int32 from a host array of whole numbers; an int32 array on q's GPU as it is."""
    if not arrays.on_gpu(array):
        host = np.asarray(arrays.to_numpy(array))
        if host.dtype.kind not in "iu":
            raise ValueError(f"{name} is {host.dtype}: pass whole numbers, int32.")
        limit = np.iinfo(np.int32)
        if host.size and not limit.min <= int(host.min()) <= int(host.max()) <= limit.max:
            raise ValueError(f"{name} reaches {int(host.max())}: it must fit into int32.")
        return host.astype(np.int32)
    if arrays.kind(array) != arrays.kind(q):
        raise ValueError(
            f"{name} is {arrays.kind(array)}, q is {arrays.kind(q)}: move it to q's device, or to "
            "the host."
        )
    if dtype_of(array) != "int32":
        raise ValueError(f"{name} is {dtype_of(array)} on a GPU, kernels read int32: cast it.")
    return array


def _checked_lengths(given: Any, q: Any, problem: DecodeProblem) -> tuple[int | None, Any]:
    """(the one length of all, or None; int32 (batch,)); checked where they are host values."""
    room, new = problem.capacity - problem.seqlen_new, problem.seqlen_new
    remedy = "Make the cache longer, or drop old tokens."
    if new:
        remedy = f"With {new} new tokens the cache of {problem.capacity} would overflow. {remedy}"
    number = not isinstance(given, (list, tuple)) and not getattr(given, "shape", ())
    if number and not arrays.on_gpu(given):
        same = checked_int("cache_seqlens", given, 0, room, remedy)
        return same, np.full(problem.batch, same, np.int32)
    if isinstance(given, (list, tuple)):
        try:
            given = np.array(given)
        except ValueError:
            given = np.array([None])  # ragged: refused below, in words
    lengths = _whole_numbers("cache_seqlens", given, q)
    if tuple(lengths.shape) != (problem.batch,):
        raise ValueError(
            f"cache_seqlens has shape {tuple(lengths.shape)}, it must be (batch,) = "
            f"({problem.batch},): one length for each sequence, or one number for all."
        )
    if not arrays.on_gpu(lengths):
        for b, length in enumerate(lengths):
            checked_int(f"cache_seqlens[{b}]", int(length), 0, room, remedy)
    return None, lengths


def _check_pages(table: np.ndarray, totals: np.ndarray, problem: DecodeProblem) -> None:
    """Entries that a sequence uses must be numbers of pages; those behind them are not read."""
    assert problem.page_size is not None and problem.num_pages is not None
    used = np.arange(table.shape[1]) * problem.page_size < totals[:, None]
    wrong = np.argwhere(used & ((table < 0) | (table >= problem.num_pages)))
    if len(wrong):
        b, i = map(int, wrong[0])
        raise ValueError(
            f"block_table[{b}, {i}] = {table[b, i]} is out of range: the cache has pages 0 to "
            f"{problem.num_pages - 1}. Give each sequence the numbers of its own pages."
        )


def _refuse_read_only(name: str, cache: Any) -> None:
    """New tokens are written in place: a cache must own every element once, and let it be set."""
    writeable = getattr(getattr(cache, "flags", None), "writeable", True)
    strides = cache.stride() if arrays.library_of(cache) == "torch" else cache.strides
    repeated = any(step == 0 and n > 1 for step, n in zip(strides, cache.shape, strict=True))
    if not writeable or repeated:
        how = "read-only" if not writeable else "a broadcast view"
        raise ValueError(
            f"{name} is {how}, and k_new and v_new are written into it: pass {name}.copy(), and "
            "keep that for the next step."
        )
