"""The front door: validate, pick variant and backend, run; forward and backward."""

from __future__ import annotations

import contextlib
from typing import Any

from fa_kernels.call import Call, checked_backward_call, checked_call
from fa_kernels.cuda import arrays, recipe, recipe_backward
from fa_kernels.tiling import Tiling


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
    """dropout(softmax(softmax_scale * q kᵀ + bias)) v, exact, by the named algorithm.

    Args:
        q: (batch, nheads, seqlen_q, head_dim), a NumPy, CuPy or torch array; fp32, fp16 or bf16
            (NumPy and CuPy, through which torch tensors go, know bf16 by the package ml_dtypes);
            on backend "numpy" also float64. Any batch, head and row strides; on a GPU, a last axis
            that is not contiguous is copied once, with a warning, and by "flash_wgmma" also rows
            that do not start at multiples of 16 bytes or are broadcast ("auto" takes another then).
        k, v: (batch, nheads_kv, seqlen_k, head_dim), same kind, device and dtype as q. nheads is a
            multiple of nheads_kv: query head h uses k/v head h // (nheads / nheads_kv).
        variant: "auto" or a name of `fa.VARIANTS`.
        causal: False; True or "bottom_right" (row i attends keys <= i + seqlen_k - seqlen_q, as
            FlashAttention >= 2.1); "top_left" (keys <= i, as torch's is_causal).
        window: (left, right): row i attends the keys from i + offset - left to i + offset + right,
            both included, offset = seqlen_k - seqlen_q whatever `causal` says. None leaves a side
            unbounded.
        mask: bool, True = attend. 1 to 4 axes that broadcast to (batch, nheads, seqlen_q,
            seqlen_k) as in NumPy, without a copy; q's kind and device, as `bias`, `dropout_keep`.
        bias: a float array of q's dtype or fp32, added to the scaled scores; shapes as `mask`.
            -inf in it masks; a number, however low, does not. It gets no gradient, so a torch
            bias that requires grad is refused.
        block_mask: `fa.BlockMask`: attend only the keys in its kept blocks (and under the other
            masks); variants with `block_sparse` skip what it drops. Not with packed sequences. v
            must be finite also where masks drop it: 0 times NaN is NaN, and a tile may hold kept
            and dropped keys. On a GPU the first call with a mask makes its lists and waits for
            them: before a CUDA graph is captured, make one such call outside, on any stream.
        softmax_scale: default 1/sqrt(head_dim); any finite number, 0 and negative ones included.
        dropout_p: probability, in [0, 1), that an entry of softmax(...) is dropped; kept ones are
            scaled by 1 / (1 - dropout_p). A drawn mask rounds dropout_p to a multiple of 2^-16, in
            the scale as well. lse is that of the undropped row. 0 costs nothing.
        seed: which entries are dropped, 0 .. 2^64 - 1; needed with dropout_p > 0. The same seed
            drops the same (batch, head, row, key) with every variant, tiling and backend and in
            the backward pass: `fa.dropout_keep` gives the mask.
        dropout_keep: bool, True = keep, in place of a seed; shapes as `mask`. dropout_p then only
            sets the scale.
        cu_seqlens_q, cu_seqlens_k: bounds of packed sequences, [0, end of the first, ..., total]:
            q is (1, nheads, total_q, head_dim), k and v are (1, nheads_kv, total_k, head_dim), and
            rows attend the keys of their own sequence alone. Whole numbers in a list, tuple or
            array; those on a GPU are copied to the host, which waits for it. `causal` and `window`
            count within a sequence; `mask`, `bias` and `dropout_keep` broadcast to
            (sequences, nheads, longest_q, longest_k).
        tiling: `fa.Tiling(block_m, block_n)`; default: a tiling that fits.
        backend: "auto" (where the arrays live), "cuda" or "numpy". "cuda" takes NumPy arrays too.
        return_lse: also return lse, (batch, nheads, seqlen_q) fp32 (float64 for float64), natural
            log of the sum of exp(score) over attended keys; (1, nheads, total_q) for packed ones.

    Returns:
        out, of q's kind, shape and dtype; or (out, lse). A row that attends nothing: out 0, lse
        -inf.

    Raises:
        ValueError, NotImplementedError, TypeError: naming value, limit and remedy, before any
            allocation or launch. A torch tensor that requires grad is refused, never detached:
            `fa_kernels.integrations.torch.attention` records its gradient.
        ModuleNotFoundError: bf16 without ml_dtypes.
    """
    key = None
    unusual = (mask, bias, window, dropout_keep, cu_seqlens_q, cu_seqlens_k)
    if recipe.takes(dropout_p, seed, *unusual):
        options = (variant, tiling, backend, causal, softmax_scale, dropout_p, block_mask)
        key = recipe.key(q, k, v, *options)
        if (known := recipe.find(key)) is not None:
            with contextlib.suppress(MemoryError):  # which the checks below say in words
                out, lse = known(q, k, v, seed)
                return (out, lse) if return_lse else out
    call = checked_call(
        q, k, v, variant, tiling, backend, causal=causal, window=window, mask=mask, bias=bias,
        block_mask=block_mask, softmax_scale=softmax_scale, dropout_p=dropout_p, seed=seed,
        dropout_keep=dropout_keep, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
    )  # fmt: skip
    rest = ((q, k, v), call.problem, call.tiling, call.extras)
    if call.attends_nothing:
        out, lse = arrays.empty_result(q)
    elif call.backend == "numpy":
        out, lse = arrays.run_on_host(call.variant.reference, *rest)
    else:
        out, lse = _run_on_gpu(call, key, (q, k, v), seed)
    return (out, lse) if return_lse else out


def _run_on_gpu(
    call: Call, key: Any, inputs: tuple[Any, Any, Any], seed: int | None
) -> tuple[Any, ...]:
    """out and lse of a checked call; what a repeated one needs is remembered under `key`."""
    prepare, rest = call.variant.prepare, (call.problem, call.tiling)
    if key is not None and prepare is not None:
        known = arrays.prepared(prepare, inputs, *rest)
        if known is not None:
            recipe.remember(key, known)
            return known(*inputs, seed)
    return arrays.run_on_gpu(call.variant.run, inputs, *rest, call.extras)


def attention_backward(
    d_out: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    *,
    variant: str = "auto",
    deterministic: bool = False,
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
) -> tuple[Any, Any, Any]:
    """Gradients of q, k and v by recomputation: S and P are rebuilt from q, k and lse.

    Args:
        d_out: gradient of out, (batch, nheads, seqlen_q, head_dim); kind and dtype of q.
        q, k, v: what `fa.attention` was called with.
        out, lse: what it returned, with return_lse=True.
        variant: "auto", a variant with a `backward`, or one that runs the algorithm of such a one,
            whose gradients these then are. It need not be that of the forward pass, but lse says
            which scores it is of: after a variant that keeps S in 16 bits, name "standard_tiled",
            which rounds them alike.
        deterministic: the same bits at every call for dq, too, which is otherwise summed by
            atomic additions in any order (by flash_q_outer, flash_mma and flash_wgmma on a GPU;
            out, lse, dk and dv always are). It costs a second recomputation of the scores;
            flash_wgmma has no such option, and "auto" leaves the call to flash_mma.
        other options: as in the call of `fa.attention`, the seed included.

    Returns:
        dq, dk, dv, shaped like q, k and v, of q's kind and dtype; contiguous, but "flash_mma" and
        "flash_wgmma" on a GPU give views of contiguous (batch, seqlen, nheads, head_dim) where q,
        k, v lie so. A row that attends nothing adds 0; with grouped heads, dk and dv are summed
        over their group.

    Raises:
        ValueError, NotImplementedError, TypeError: as `fa.attention`, before any allocation.
    """
    tensors, key = (d_out, q, k, v, out, lse), None
    unusual = (mask, bias, window, dropout_keep, cu_seqlens_q, cu_seqlens_k)
    if recipe.takes(dropout_p, seed, *unusual):
        options = (variant, tiling, backend, causal, softmax_scale, dropout_p, deterministic)
        key = recipe_backward.key(tensors, *options, block_mask)
        if (known := recipe.find(key)) is not None:
            with contextlib.suppress(MemoryError):  # which the checks below say in words
                return known(*tensors, seed=seed)
    call = checked_backward_call(
        tensors, variant, tiling, backend, deterministic=deterministic, causal=causal,
        window=window, mask=mask, bias=bias, block_mask=block_mask, softmax_scale=softmax_scale,
        dropout_p=dropout_p, seed=seed, dropout_keep=dropout_keep, cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
    )  # fmt: skip
    if call.attends_nothing:
        return arrays.zeros_like(q), arrays.zeros_like(k), arrays.zeros_like(v)
    backward = call.variant.backward
    assert backward is not None  # or the variant would have been refused
    rest = (tensors, call.problem, call.tiling, call.extras)
    if call.backend == "numpy":
        gradients = arrays.run_on_host(backward.reference, *rest, deterministic=deterministic)
    else:
        if key is not None and backward.prepare is not None:
            ready = (call.problem, call.tiling, deterministic)
            known = arrays.prepared(backward.prepare, tensors, *ready)
            if known is not None:
                recipe.remember(key, known)
                return known(*tensors, seed=seed)
        gradients = arrays.run_on_gpu(backward.run, *rest, deterministic=deterministic)
    dq, dk, dv = gradients
    return dq, dk, dv
