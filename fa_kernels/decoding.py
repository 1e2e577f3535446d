"""The front door of generation: new rows attend a KV cache, contiguous or paged; forward alone."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np

from fa_kernels.call import pick_backend
from fa_kernels.cuda import arrays, recipe, recipe_decode
from fa_kernels.cuda.compile import kernel_names
from fa_kernels.cuda.decode_call import decode_on_gpu, recipe_on_gpu, refuse_unfit
from fa_kernels.cuda.run_decode import DECODE_KERNEL, chosen_splits
from fa_kernels.cuda.verified import unverified
from fa_kernels.decode_options import DecodeArrays, problem_and_arrays
from fa_kernels.decode_problem import DecodeProblem, checked_splits
from fa_kernels.reference.decode import append, flash_decode


def decode(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    cache_seqlens: Any,
    *,
    k_new: Any = None,
    v_new: Any = None,
    block_table: Any = None,
    window: tuple[int | None, int | None] | None = None,
    softmax_scale: float | None = None,
    num_splits: int | None = None,
    backend: str = "auto",
    return_lse: bool = False,
) -> Any:
    """Attention of the newest rows of each sequence over its KV cache, exact, by split-KV decoding.

    Row i of q stands at position total - seqlen_q + i, total = cache_seqlens + seqlen_new, and
    attends the keys up to its own position (causal, bottom right).

    Args:
        q: (batch, nheads, seqlen_q, head_dim), a NumPy, CuPy or torch array; fp16 or bf16, on
            backend "numpy" also fp32 and float64. seqlen_q is small: 1 for plain generation.
        k_cache, v_cache: (batch, nheads_kv, max_seqlen, head_dim), kind and dtype of q; or, with
            `block_table`, pages (num_pages, nheads_kv, page_size, head_dim), page_size any multiple
            of 16. Any strides with a contiguous last axis: caches of flash-attn and vLLM, (pages,
            page_size, heads, d), go in as `.transpose(1, 2)`, without a copy (their rows then have
            gaps, and the kernel fetches them chunk by chunk, not a tile at once). nheads is a
            multiple of nheads_kv: query head h uses k/v head h // (nheads / nheads_kv).
        cache_seqlens: tokens in the cache before k_new: one number for all, or whole numbers
            (batch,), on the host or, int32, on q's GPU. **Lengths on a GPU are not checked**: that
            would wait for the GPU and break CUDA graphs. Past the cache's end the kernel neither
            reads nor writes; the result is then that of a sequence that ends there.
        k_new, v_new: (batch, nheads_kv, seqlen_new, head_dim): written into the caches at
            cache_seqlens, in place, before anything is attended. No two sequences may append to
            one page.
        block_table: int32 (batch, max_pages): the numbers of each sequence's pages in order; on
            the host or on q's GPU, where it is not checked either. Entries past the last token are
            not read.
        window: (left, right): also at most `left` keys before its own. `right` changes nothing,
            since no row attends what comes after it.
        softmax_scale: default 1/sqrt(head_dim).
        num_splits: parts of the keys that are attended at the same time, 1 to 128; default: as
            many as keep a GPU's SMs busy, 1 in NumPy. Results differ by rounding alone.
        backend: "auto" (where the arrays live; only a kernel that was verified), "cuda" or
            "numpy". "cuda" takes NumPy arrays too, and copies the caches at each call.
        return_lse: also return lse, (batch, nheads, seqlen_q) fp32 (float64 for float64), natural
            log of the sum of exp(score) over attended keys.

    Returns:
        out, of q's kind, shape and dtype; or (out, lse). A row without a key (an empty sequence,
        or a position before its first token): out 0, lse -inf.

    With arrays on a GPU a call can be captured in a CUDA graph after a first one outside (which
    compiles), if cache_seqlens is one number or lies on the GPU, and block_table lies there. Keep
    every out of a graph that was captured through CuPy as long as the graph: in its memory lies the
    workspace, too. torch's graphs keep theirs themselves.

    Raises:
        ValueError, NotImplementedError, TypeError: naming value, limit and remedy, before anything
            is allocated, written or launched. torch tensors that require grad are refused.
        ModuleNotFoundError: bf16 without ml_dtypes.
    """
    tensors = (q, k_cache, v_cache, k_new, v_new, block_table)
    key = recipe_decode.key(tensors, cache_seqlens, window, softmax_scale, num_splits, backend)
    if (known := recipe.find(key)) is not None:
        with contextlib.suppress(MemoryError):  # which the checks below meet again
            found = known(*tensors, cache_seqlens)
            if found is not None:
                return found if return_lse else found[0]
    if num_splits is not None:
        num_splits = checked_splits(num_splits)
    problem, given = problem_and_arrays(
        q, k_cache, v_cache, cache_seqlens, k_new, v_new, block_table, window, softmax_scale
    )
    if problem.dtype == "bfloat16":
        arrays.bfloat16()  # or the sentence that says how to get it
    chosen = pick_backend(backend, q)
    if chosen == "numpy":
        out, lse = _in_numpy(problem, given, num_splits or 1)
    else:
        out, lse = _on_gpu(problem, given, num_splits, backend, key)
    return (out, lse) if return_lse else out


def _in_numpy(problem: DecodeProblem, given: DecodeArrays, num_splits: int) -> tuple[Any, Any]:
    """Append, then the reference, on host arrays."""
    _append_on_host(problem, given)
    q, k, v = map(arrays.to_numpy, (given.q, given.k_cache, given.v_cache))
    totals = given.cache_seqlens + problem.seqlen_new
    # Overflow and NaN follow the inputs here as they do on the GPU: silently, row by row.
    with np.errstate(over="ignore", invalid="ignore"):
        table = given.block_table
        out, lse = flash_decode(q, k, v, totals, problem, num_splits, block_table=table)
    return arrays.like(given.q, out), arrays.like(given.q, lse)


def _append_on_host(problem: DecodeProblem, given: DecodeArrays) -> None:
    if not problem.seqlen_new:
        return
    named = (given.k_cache, given.v_cache, given.k_new, given.v_new)
    k, v, k_new, v_new = map(arrays.to_numpy, named)
    append(k, v, k_new, v_new, given.cache_seqlens, problem, given.block_table)


def _on_gpu(
    problem: DecodeProblem,
    given: DecodeArrays,
    num_splits: int | None,
    backend: str,
    key: Any,
) -> tuple[Any, Any]:
    """Checks of what only matters on a GPU, then the launches; they are remembered under `key`."""
    if backend == "auto":
        _refuse_unverified()
    refuse_unfit(problem, given)
    splits = num_splits or chosen_splits(problem)
    if not arrays.on_gpu(given.q):
        # The caches on the GPU are copies: what is new belongs into those of the caller.
        _append_on_host(problem, given)
        lengths = given.cache_seqlens + np.int32(problem.seqlen_new)
        given = replace(given, cache_seqlens=lengths, same_seqlen=None, k_new=None, v_new=None)
        problem = replace(problem, seqlen_new=0)
    elif key is not None and (known := recipe_on_gpu(problem, given, splits)) is not None:
        recipe.remember(key, known)
    return decode_on_gpu(problem, given, splits)


def _refuse_unverified() -> None:
    there = DECODE_KERNEL in kernel_names()
    status = unverified().get(DECODE_KERNEL, "") if there else "missing"
    if status:
        raise NotImplementedError(
            f"{DECODE_KERNEL} is not verified on a GPU ({status}): run `make verify`, or ask for "
            "it by backend='cuda'."
        )
