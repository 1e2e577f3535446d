"""A call that has been checked: variant, backend and tiles are chosen, and it can run here."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

from fa_kernels.cuda import arrays
from fa_kernels.cuda.launch import (
    refuse_memory,
    refuse_old_gpu,
    refuse_on_this_gpu,
    smem_limit_bytes,
)
from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.cuda.tensor_map import mappable
from fa_kernels.cuda.verified import unverified
from fa_kernels.extras import Extras
from fa_kernels.options import check_saved, problem_and_extras
from fa_kernels.problem import ITEMSIZE, AttentionProblem
from fa_kernels.tiling import HOPPER_SMEM_PER_BLOCK, Tiling
from fa_kernels.units import capacity
from fa_kernels.variants import VARIANTS, Backward, Variant, find_variant, with_backward

#: Fastest first: "auto" takes the first that is verified on a GPU and knows the dtype.
AUTO_ORDER = (
    "flash_wgmma", "flash_mma", "flash_q_outer", "standard_tiled", "flash_kv_outer",
    "standard_naive",
)  # fmt: skip


@dataclass(frozen=True)
class _Asked:
    """What a call asks of its variant: a pass, and of a backward whether dq must repeat.

    `read`: the arrays that it goes over tile by tile, q, k, v and of a backward d_out.
    """

    read: tuple[Any, ...]
    backward: bool = False
    deterministic: bool = False

    def of(self, variant: Variant) -> Variant | Backward:
        """The pass of a variant: each has a kernel, a plan and default tiles of its own."""
        if not self.backward:
            return variant
        assert variant.backward is not None  # or it would have been refused
        return variant.backward

    def plan(self, variant: Variant, problem: AttentionProblem, tiling: Tiling) -> LaunchPlan:
        """What that pass would launch.

        Raises: as plans do.
        """
        options = {"deterministic": self.deterministic} if self.backward else {}
        return self.of(variant).plan(problem, tiling, **options)

    def copied_bytes(self, variant: Variant) -> int:
        """Of the arrays on the GPU that the variant cannot read where they lie."""
        if not variant.whole_rows:
            return 0
        copied = (x for x in self.read if arrays.on_gpu(x) and not mappable(x))
        return sum(math.prod(x.shape) * int(x.dtype.itemsize) for x in copied)


@dataclass(frozen=True, eq=False)
class Call:
    """What to run, on which backend, with which tiles."""

    problem: AttentionProblem
    extras: Extras
    variant: Variant
    backend: str
    tiling: Tiling

    @property
    def attends_nothing(self) -> bool:
        """True if there is no row or no key at all, so that the result is known."""
        return 0 in (self.problem.heads, self.problem.seqlen_q, self.problem.seqlen_k)


def checked_call(
    q: Any, k: Any, v: Any, variant: str, tiling: Tiling | None, backend: str, **options: Any
) -> Call:
    """Arrays and arguments of `fa.attention` as a call that can run here; allocates nothing.

    Args:
        options: those of `options.problem_and_extras`.

    Raises:
        ValueError, NotImplementedError, TypeError: naming value, limit and remedy.
    """
    asked = _Asked((q, k, v))
    call = _chosen((q, k, v), variant, tiling, backend, options, asked)
    if call.attends_nothing:
        return call
    memory, chosen = call.variant.memory(call.problem), call.variant
    if call.backend == "numpy":
        _refuse_host_memory(chosen.name, memory.extra_bytes)
        return call
    refuse_old_gpu(chosen.kernel, chosen.min_arch)
    refuse_on_this_gpu(chosen.plan(call.problem, call.tiling), call.problem, call.tiling)
    copied = 0 if arrays.on_gpu(q) else memory.input_bytes + _held_bytes(call.extras)
    copied += asked.copied_bytes(chosen)
    refuse_memory(chosen.name, memory.extra_bytes + copied, arrays.pool_bytes(q))
    return call


def checked_backward_call(
    tensors: tuple[Any, ...],
    variant: str,
    tiling: Tiling | None,
    backend: str,
    *,
    deterministic: bool = False,
    **options: Any,
) -> Call:
    """As `checked_call`, for `fa.attention_backward`; `tensors`: d_out, q, k, v, out, lse.

    The variant of the call has a backward pass: of one that has none, it is the partner whose
    algorithm that one runs.
    """
    d_out, q, k, v, out, lse = tensors
    asked = _Asked((d_out, q, k, v), True, deterministic)
    call = _chosen((q, k, v), variant, tiling, backend, options, asked)
    check_saved(d_out, q, out, lse)
    if call.attends_nothing:
        return call
    problem, chosen, backward = call.problem, call.variant, call.variant.backward
    assert backward is not None
    results = problem.q_bytes + 2 * problem.kv_bytes
    need = results + backward.workspace_bytes(problem)
    if call.backend == "numpy":
        _refuse_host_memory(f"the backward of {chosen.name}", need)
        return call
    refuse_old_gpu(backward.kernel, chosen.min_arch)
    refuse_on_this_gpu(asked.plan(chosen, problem, call.tiling), problem, call.tiling)
    if not arrays.on_gpu(q):
        need += results + 2 * problem.q_bytes + problem.lse_bytes + _held_bytes(call.extras)
    need += asked.copied_bytes(chosen)
    refuse_memory(f"the backward of {chosen.name}", need, arrays.pool_bytes(q))
    return call


def _chosen(
    inputs: tuple[Any, Any, Any],
    variant: str,
    tiling: Tiling | None,
    backend: str,
    options: dict[str, Any],
    asked: _Asked,
) -> Call:
    problem, extras = problem_and_extras(*inputs, **options)
    if "bfloat16" in (problem.dtype, problem.bias_dtype):
        arrays.bfloat16()  # or the sentence that says how to get it
    backend = pick_backend(backend, inputs[0])
    if problem.dtype not in ITEMSIZE and backend == "cuda":
        raise NotImplementedError(
            f"dtype = {problem.dtype} runs on backend 'numpy' alone, the kernels take "
            f"{', '.join(ITEMSIZE)}: cast q, k and v to float32, or copy them to the host."
        )
    chosen = _pick_variant(variant, problem, tiling, backend, asked)
    tiling = _checked_tiling(tiling, problem, backend, chosen, asked)
    return Call(problem, extras, chosen, backend, tiling)


def _held_bytes(extras: Extras) -> int:
    """Bytes of masks and bias as they are copied to the GPU."""
    views = (extras.mask, extras.bias, extras.dropout_keep)
    return sum(arrays.compact_bytes(view) for view in views if view is not None)


def _takes_dtype(variant: Variant, dtype: str) -> bool:
    """float64 is for the references in NumPy, and for those that take the widest io dtype."""
    return dtype in variant.dtypes or (dtype == "float64" and "float32" in variant.dtypes)


def _pick_variant(
    name: str, problem: AttentionProblem, tiling: Tiling | None, backend: str, asked: _Asked
) -> Variant:
    if name == "auto":
        return _auto_variant(problem, tiling, backend, asked)
    chosen = find_variant(name)
    if not _takes_dtype(chosen, problem.dtype):
        raise NotImplementedError(
            f"variant = {name!r} does not take {problem.dtype}: cast q, k and v to one of "
            f"{', '.join(chosen.dtypes)}, or use a variant that does, e.g. 'flash_q_outer'."
        )
    if problem.block_mask is not None and not chosen.block_sparse:
        able = ", ".join(repr(v.name) for v in VARIANTS.values() if v.block_sparse)
        raise NotImplementedError(
            f"variant = {name!r} does not take a block_mask: use one of {able}."
        )
    if not asked.backward:
        return chosen
    partner = with_backward(chosen)
    if partner is None:
        able = ", ".join(repr(v.name) for v in VARIANTS.values() if v.backward is not None)
        raise NotImplementedError(
            f"variant = {name!r} has no backward pass: use 'auto' or one of {able}."
        )
    return partner


def _auto_variant(
    problem: AttentionProblem, tiling: Tiling | None, backend: str, asked: _Asked
) -> Variant:
    known = [
        VARIANTS[name]
        for name in AUTO_ORDER
        if _takes_dtype(VARIANTS[name], problem.dtype)
        and (problem.block_mask is None or VARIANTS[name].block_sparse)
        and (not asked.backward or VARIANTS[name].backward is not None)
    ]
    # NumPy runs the specification itself: there is no kernel to verify.
    pending = unverified() if backend == "cuda" else {}
    for variant in known:
        ready = asked.of(variant).kernel not in pending
        if ready and _can_have(variant, problem, tiling, backend, asked):
            return variant
    what = "no backward kernel" if asked.backward else "no kernel"
    raise NotImplementedError(
        f"{what} for {problem.dtype} is verified on a GPU ({pending}): "
        "run `make verify`, or name a variant."
    )


def _can_have(
    variant: Variant,
    problem: AttentionProblem,
    tiling: Tiling | None,
    backend: str,
    asked: _Asked,
) -> bool:
    """False if "auto" has to leave the call to the variant whose algorithm this one runs.

    Its units may not take these tiles, or not be there, or it would copy what that one reads where
    it lies. Of other variants what does not fit is refused, in words.
    """
    if variant.same_algorithm is None:
        return True
    if backend == "cuda" and asked.copied_bytes(variant):
        return False
    tiling = _checked_tiling(tiling, problem, backend, variant, asked)
    try:
        plan = asked.plan(variant, problem, tiling)
        if backend == "cuda":
            refuse_old_gpu(asked.of(variant).kernel, variant.min_arch)
            refuse_on_this_gpu(plan, problem, tiling)
    except (ValueError, NotImplementedError):
        return False
    return True


def _checked_tiling(
    tiling: Tiling | None,
    problem: AttentionProblem,
    backend: str,
    variant: Variant,
    asked: _Asked,
) -> Tiling:
    if tiling is None:
        limit = smem_limit_bytes() if backend == "cuda" else HOPPER_SMEM_PER_BLOCK
        return asked.of(variant).tiling_for(problem, limit)
    if not isinstance(tiling, Tiling):
        raise TypeError(
            f"tiling = {tiling!r} is not a Tiling: pass fa.Tiling(block_m, block_n) "
            "or fa.Tiling.from_sram(sram_bytes, head_dim, dtype)."
        )
    if asked.backward and variant.backward is not None and variant.backward.own_tiles_alone:
        return tiling  # of short sequences, too
    return variant.clipped(problem, tiling)


def pick_backend(backend: str, q: Any) -> str:
    """ "cuda" or "numpy": "auto" is where q lives.

    Raises:
        ValueError: another word, NumPy for arrays on a GPU, or CUDA where there is none.
    """
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


def _refuse_host_memory(what: str, need: int) -> None:
    try:
        have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not to be had on this platform
        return
    if need > have:
        raise ValueError(
            f"{what} needs {capacity(need)} beside its inputs, this machine has "
            f"{capacity(have)}: use variant='flash_q_outer', a shorter sequence or a smaller batch."
        )
