"""The front door: validate, pick variant and backend, run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda import arrays
from fa_kernels.cuda.launch import (
    refuse_memory,
    refuse_old_gpu,
    refuse_on_this_gpu,
    smem_limit_bytes,
)
from fa_kernels.cuda.verified import unverified
from fa_kernels.problem import AttentionProblem, causal_name, dtype_name
from fa_kernels.tiling import HOPPER_SMEM_PER_BLOCK, Tiling, default_tiling
from fa_kernels.units import capacity
from fa_kernels.variants import VARIANTS, Variant, find_variant

#: Fastest first: "auto" takes the first that is verified on a GPU and knows the dtype.
AUTO_ORDER = ("flash_q_outer", "standard_tiled", "flash_kv_outer", "standard_naive")

_NOT_YET = {
    "window": "attend the whole sequence, or use causal=True",
    "mask": "use causal=True, causal='top_left' or a block_mask",
    "bias": "leave it None",
    "seed": "leave it None: nothing is drawn at random",
    "dropout_keep": "leave it None",
    "cu_seqlens_q": "call once per sequence",
    "cu_seqlens_k": "call once per sequence",
}


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    variant: str = "auto",
    causal: bool | str = False,
    window: tuple[int | None, int | None] | None = None,
    mask: Any = None,
    bias: Any = None,
    block_mask: Any = None,
    softmax_scale: float | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    dropout_keep: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    tiling: Tiling | None = None,
    backend: str = "auto",
    return_lse: bool = False,
) -> Any:
    """softmax(softmax_scale * q kᵀ) v, exact, by the named algorithm.

    Args:
        q: (batch, nheads, seqlen_q, head_dim), a NumPy, CuPy or torch array; fp32, fp16 or bf16
            (NumPy and CuPy, through which torch tensors go, know bf16 by the package ml_dtypes).
            Any batch, head and row strides; on a GPU, a last axis that is not contiguous is
            copied once, with a warning.
        k, v: (batch, nheads, seqlen_k, head_dim), same kind, device and dtype as q.
        variant: "auto" or a name of `fa.VARIANTS`.
        causal: False; True or "bottom_right" (row i attends keys <= i + seqlen_k - seqlen_q, as
            FlashAttention >= 2.1); "top_left" (keys <= i, as torch's is_causal).
        block_mask: `fa.BlockMask`: attend only the keys in its kept blocks (and under `causal`);
            variants with `block_sparse` skip what it drops. v must be finite also there: 0 times
            NaN is NaN, and a tile may hold kept and dropped keys (as with `causal`).
        softmax_scale: default 1/sqrt(head_dim).
        tiling: `fa.Tiling(block_m, block_n)`; default: a tiling that fits.
        backend: "auto" (where the arrays live), "cuda" or "numpy". "cuda" takes NumPy arrays too.
        return_lse: also return lse, (batch, nheads, seqlen_q) fp32, natural log.
        window, mask, bias, dropout_p, seed, dropout_keep, cu_seqlens_q, cu_seqlens_k: not there
            yet; anything but the default is refused.

    Returns:
        out, of q's kind, shape and dtype; or (out, lse). A fully masked row: out 0, lse -inf.

    Raises:
        ValueError, NotImplementedError, TypeError: naming value, limit and remedy, before any
            allocation or launch.
        ModuleNotFoundError: bf16 without ml_dtypes.
    """
    options = {
        "window": window,
        "mask": mask,
        "bias": bias,
        "seed": seed,
        "dropout_keep": dropout_keep,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
    }
    _refuse_missing_options(options, dropout_p)
    call = checked_call(
        q, k, v, variant, tiling, backend, causal=causal, softmax_scale=softmax_scale,
        block_mask=block_mask,
    )  # fmt: skip
    problem, chosen = call.problem, call.variant
    if problem.heads == 0 or problem.seqlen_q == 0 or problem.seqlen_k == 0:
        out, lse = arrays.empty_result(q, problem)
    elif call.backend == "numpy":
        out, lse = _run_numpy(chosen, q, k, v, problem, call.tiling)
    else:
        out, lse = arrays.run_on_gpu(chosen.run, q, k, v, problem, call.tiling)
    return (out, lse) if return_lse else out


@dataclass(frozen=True)
class Call:
    """A call that has been checked: what to run, on which backend, with which tiles."""

    problem: AttentionProblem
    variant: Variant
    backend: str
    tiling: Tiling


def checked_call(
    q: Any,
    k: Any,
    v: Any,
    variant: str,
    tiling: Tiling | None,
    backend: str,
    **options: Any,
) -> Call:
    """Arrays and arguments of `attention` as a call that can run here; allocates nothing.

    Raises:
        ValueError, NotImplementedError, TypeError: naming value, limit and remedy.
    """
    problem = problem_of(q, k, v, **options)
    if problem.dtype == "bfloat16":
        arrays.bfloat16()  # or the sentence that says how to get it
    backend = _pick_backend(backend, q)
    chosen = _pick_variant(variant, problem, backend)
    call = Call(problem, chosen, backend, _checked_tiling(tiling, problem, backend))
    if problem.heads == 0 or problem.seqlen_q == 0 or problem.seqlen_k == 0:
        return call
    if backend == "numpy":
        _refuse_host_memory(chosen, problem)
        return call
    refuse_old_gpu(chosen.kernel, chosen.min_arch)
    refuse_on_this_gpu(chosen.plan(problem, call.tiling), problem, call.tiling)
    memory = chosen.memory(problem)
    need = memory.extra_bytes if arrays.on_gpu(q) else memory.total_bytes
    refuse_memory(chosen.name, need)
    return call


def problem_of(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool | str = False,
    softmax_scale: float | None = None,
    block_mask: BlockMask | None = None,
) -> AttentionProblem:
    """The problem that arrays and options describe, checked against each other.

    Raises:
        TypeError, ValueError, NotImplementedError: not arrays, shapes, dtypes, kinds or devices
            that do not belong together, or a torch tensor that requires grad.
    """
    named = {"q": q, "k": k, "v": v}
    for name, array in named.items():
        arrays.refuse_unusable(name, array)
    kinds = {name: arrays.kind(array) for name, array in named.items()}
    if len(set(kinds.values())) > 1:
        raise ValueError(f"q, k and v are of different kinds or devices: {kinds}. Convert them.")
    dtypes = {name: dtype_name(array.dtype) for name, array in named.items()}
    if len(set(dtypes.values())) > 1:
        raise ValueError(f"q, k and v have different dtypes: {dtypes}. Cast them to one dtype.")
    batch, nheads, seqlen_q, head_dim = q.shape
    expected = (batch, k.shape[1], k.shape[2], head_dim)
    if tuple(k.shape) != expected or tuple(v.shape) != tuple(k.shape):
        raise ValueError(
            f"shapes do not belong together: q {tuple(q.shape)}, k {tuple(k.shape)}, "
            f"v {tuple(v.shape)}. Batch and head_dim must be equal, and v must be shaped like k."
        )
    if k.shape[1] != nheads:
        raise NotImplementedError(
            f"k and v have {k.shape[1]} heads, q has {nheads}: grouped-query attention is not "
            "there yet. Repeat k and v along the head axis."
        )
    if block_mask is not None and not isinstance(block_mask, BlockMask):
        raise TypeError(
            f"block_mask is a {type(block_mask).__name__}: make one with "
            "fa.BlockMask.from_dense(keep_blocks, block_m, block_n) or fa.BlockMask.pattern(...)."
        )
    empty = 0 in (batch, seqlen_q, k.shape[2])  # nothing to mask: the result is known
    return AttentionProblem(
        batch,
        nheads,
        seqlen_q,
        k.shape[2],
        head_dim,
        dtypes["q"],
        causal_name(causal),
        softmax_scale,
        block_mask=None if empty else block_mask,
    )


def _refuse_missing_options(options: dict[str, Any], dropout_p: float) -> None:
    for name, value in options.items():
        if value is not None:
            raise NotImplementedError(f"{name} is not there yet: {_NOT_YET[name]}.")
    if not isinstance(dropout_p, (int, float)) or dropout_p != 0.0:
        raise NotImplementedError(f"dropout_p = {dropout_p!r} is not there yet: use 0.0.")


def _pick_variant(name: str, problem: AttentionProblem, backend: str) -> Variant:
    if name == "auto":
        return _auto_variant(problem, backend)
    chosen = find_variant(name)
    if problem.dtype not in chosen.dtypes:
        raise NotImplementedError(
            f"variant = {name!r} does not take {problem.dtype}: cast q, k and v to one of "
            f"{', '.join(chosen.dtypes)}."
        )
    if problem.block_mask is not None and not chosen.block_sparse:
        able = ", ".join(repr(v.name) for v in VARIANTS.values() if v.block_sparse)
        raise NotImplementedError(
            f"variant = {name!r} does not take a block_mask: use one of {able}."
        )
    return chosen


def _auto_variant(problem: AttentionProblem, backend: str) -> Variant:
    known = [
        VARIANTS[name]
        for name in AUTO_ORDER
        if problem.dtype in VARIANTS[name].dtypes
        and (problem.block_mask is None or VARIANTS[name].block_sparse)
    ]
    if backend == "numpy":
        return known[0]  # the specification itself: there is no kernel to verify
    pending = unverified()
    for variant in known:
        if variant.kernel not in pending:
            return variant
    raise NotImplementedError(
        f"no kernel for {problem.dtype} is verified on a GPU ({pending}): "
        "run `make verify`, or name a variant."
    )


def _checked_tiling(tiling: Tiling | None, problem: AttentionProblem, backend: str) -> Tiling:
    if tiling is None:
        limit = smem_limit_bytes() if backend == "cuda" else HOPPER_SMEM_PER_BLOCK
        tiling = default_tiling(problem.head_dim, problem.itemsize, limit)
    elif not isinstance(tiling, Tiling):
        raise TypeError(
            f"tiling = {tiling!r} is not a Tiling: pass fa.Tiling(block_m, block_n) "
            "or fa.Tiling.from_sram(sram_bytes, head_dim, dtype)."
        )
    return tiling.clipped(problem.seqlen_q, problem.seqlen_k)


def _pick_backend(backend: str, q: Any) -> str:
    if not isinstance(backend, str) or backend not in ("auto", "cuda", "numpy"):
        raise ValueError(f"backend = {backend!r} is not known: use 'auto', 'cuda' or 'numpy'.")
    on_gpu = arrays.on_gpu(q)
    if backend == "auto":
        return "cuda" if on_gpu else "numpy"
    if backend == "numpy" and on_gpu:
        raise ValueError("backend = 'numpy' with arrays on a GPU: copy them to the host first.")
    if backend == "cuda":
        arrays.refuse_without_gpu()
    return backend


def _refuse_host_memory(variant: Variant, problem: AttentionProblem) -> None:
    need = variant.memory(problem).extra_bytes
    try:
        have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not to be had on this platform
        return
    if need > have:
        raise ValueError(
            f"{variant.name} needs {capacity(need)} beside its inputs, this machine has "
            f"{capacity(have)}: use variant='flash_q_outer', a shorter sequence or a smaller batch."
        )


def _run_numpy(
    variant: Variant, q: Any, k: Any, v: Any, problem: AttentionProblem, tiling: Tiling
) -> tuple[Any, Any]:
    q_np, k_np, v_np = (arrays.to_numpy(x) for x in (q, k, v))
    # Overflow and NaN follow the inputs here as they do on the GPU: silently, row by row.
    with np.errstate(over="ignore", invalid="ignore"):
        out, lse = variant.reference(q_np, k_np, v_np, problem, tiling)
    return arrays.like(q, out), arrays.like(q, lse)
