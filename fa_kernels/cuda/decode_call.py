"""A decoding step as the front door has it, on the GPU that its arrays are on or are copied to."""

from __future__ import annotations

from typing import Any, Protocol

from fa_kernels.cuda import arrays
from fa_kernels.cuda.launch import refuse_old_gpu, smem_limit_bytes
from fa_kernels.cuda.recipe_decode import DecodeRecipe
from fa_kernels.cuda.run_decode import (
    DECODE_KERNEL,
    DTYPES,
    MIN_ARCH,
    planned_here,
    prepare_decode,
    run_decode,
)
from fa_kernels.cuda.stream import capturing
from fa_kernels.decode_problem import DecodeProblem
from fa_kernels.units import capacity


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
    need, limit = planned_here(problem, 1).smem_bytes, smem_limit_bytes()
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


def recipe_on_gpu(problem: DecodeProblem, given: Given, num_splits: int) -> DecodeRecipe | None:
    """The launches of a checked call, for the next one like it; None where arrays are copied."""
    lengths = given.cache_seqlens
    if given.same_seqlen is not None:  # an array will stand here: any does to lay it out
        lengths = arrays.full(given.q, (problem.batch,), given.same_seqlen, "int32")
    inputs = [given.q, given.k_cache, given.v_cache, given.k_new, given.v_new, given.block_table]
    return arrays.prepared(prepare_decode, [*inputs, lengths], problem, num_splits)


def _refuse_uploads(uploads: dict[str, Any]) -> None:
    """A captured graph would copy from memory that is gone when it runs."""
    arrays_of = {n: x for n, x in uploads.items() if x is not None and not isinstance(x, int)}
    host = [name for name, array in arrays_of.items() if not arrays.on_gpu(array)]
    if host and capturing():
        raise ValueError(
            f"{host[0]} lies on the host while a CUDA graph is captured: pass an int32 array on "
            "the GPU, whose values each replay reads."
        )
