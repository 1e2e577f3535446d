"""`fa.attention` for torch tensors, with autograd, autocast and torch.compile."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fa_kernels.block_mask import BlockMask
from fa_kernels.integrations import operators
from fa_kernels.problem import causal_name, checked_dropout_p, checked_seed, checked_window
from fa_kernels.tiling import Tiling
from fa_kernels.variants import VARIANTS, find_variant, with_backward


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    variant: str = "auto",
    causal: bool | str = False,
    window: tuple[int | None, int | None] | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    block_mask: BlockMask | None = None,
    softmax_scale: float | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    dropout_keep: Tensor | None = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    tiling: Tiling | None = None,
    backend: str = "auto",
    deterministic: bool | None = None,
    return_lse: bool = False,
) -> Any:
    """softmax(softmax_scale * q kᵀ) v with gradients for q, k and v; options as `fa.attention`.

    Kept for the backward pass: q, k, v, out, lse and the tensors among the options, and no P.
    Under autocast, q, k and v are cast as for torch's own scaled_dot_product_attention.

    Args:
        q: (batch, nheads, seqlen_q, head_dim), fp32, fp16, bf16, on the CPU also fp64. A
            (batch, seqlen, nheads, head_dim) tensor seen transposed is not copied.
        k, v: (batch, nheads_kv, seqlen_k, head_dim).
        bias: must not require grad: it gets none.
        seed: with dropout_p > 0, None draws one from torch's default generator, so that
            torch.manual_seed and activation checkpointing repeat the dropout.
        cu_seqlens_q, cu_seqlens_k: int tensors or lists.
        deterministic: dq is summed in a fixed order; None follows
            torch.are_deterministic_algorithms_enabled().
        return_lse: also return lse, (batch, nheads, seqlen_q) fp32 (fp64 for fp64), which can be
            differentiated too, at the price of another forward and backward pass.

    Returns:
        out, shaped as q, and as q either contiguous or with heads within a row; or (out, lse). A
        fully masked row: out 0, lse -inf.

    Raises:
        ValueError, NotImplementedError, TypeError: naming value, limit and remedy.
    """
    _refuse_other_kinds(q, k, v, mask=mask, bias=bias, dropout_keep=dropout_keep)
    graded = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    _refuse_without_gradient(variant, bias, graded)
    q, k, v, bias = _autocast(q, k, v, bias)
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    block_keep, block_size = operators.packed_block_mask(_checked_block_mask(block_mask))
    dropout_p = checked_dropout_p(dropout_p)
    options = operators.packed_options(
        mask=mask,
        bias=bias,
        dropout_keep=dropout_keep,
        seed=_seed_bits(seed, drawn=dropout_p > 0.0 and dropout_keep is None),
        cu_seqlens_q=_bounds(cu_seqlens_q),
        cu_seqlens_k=_bounds(cu_seqlens_k),
        block_keep=block_keep,
        block_size=block_size,
        window=operators.packed_window(checked_window(window)),
        tiling=_tile_sizes(tiling),
        causal=causal_name(causal) or "",
        variant=variant,
        backend=str(backend),
        softmax_scale=_as_float(softmax_scale),
        dropout_p=dropout_p,
        deterministic=bool(deterministic),
    )
    out, lse = operators.forward(q, k, v, *options)
    return (out, lse) if return_lse else out


def _refuse_other_kinds(q: Any, k: Any, v: Any, **optional: Any) -> None:
    for name, x in {"q": q, "k": k, "v": v, **optional}.items():
        if not isinstance(x, Tensor) and not (x is None and name in optional):
            raise TypeError(
                f"{name} is a {type(x).__name__}: pass a torch tensor; NumPy and CuPy arrays go "
                "to fa.attention."
            )


def _refuse_without_gradient(variant: str, bias: Tensor | None, graded: bool) -> None:
    if bias is not None and bias.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(
            "bias requires grad, and the kernels give no gradient for it: pass bias.detach(), or "
            "train it with torch.nn.functional.scaled_dot_product_attention."
        )
    if variant != "auto" and graded and with_backward(find_variant(variant)) is None:
        able = ", ".join(repr(v.name) for v in VARIANTS.values() if v.backward is not None)
        raise NotImplementedError(
            f"variant = {variant!r} has no backward pass, and q, k or v requires grad: use 'auto' "
            f"or one of {able}, or call it under torch.no_grad()."
        )


def _autocast(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> tuple[Any, ...]:
    """The tensors in autocast's dtype where it is on; fp64 and a bias in fp32 stay as they are."""
    device = q.device.type
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return q, k, v, bias
    dtype = torch.get_autocast_dtype(device)
    q, k, v = (x if x.dtype == torch.float64 else x.to(dtype) for x in (q, k, v))
    if bias is not None and bias.dtype in (torch.float16, torch.bfloat16):
        bias = bias.to(dtype)
    return q, k, v, bias


def _seed_bits(seed: int | None, drawn: bool) -> Tensor | None:
    """The seed's 64 bits as an int64 tensor: a number would be frozen into a compiled graph."""
    if seed is not None:
        seed = checked_seed(seed)
        return torch.tensor(
            seed - 2**64 if seed >= 2**63 else seed, dtype=torch.int64, device="cpu"
        )
    return torch.randint(2**63 - 1, (), dtype=torch.int64, device="cpu") if drawn else None


def _bounds(cu_seqlens: Any) -> Tensor | None:
    if cu_seqlens is None or isinstance(cu_seqlens, Tensor):
        return cu_seqlens
    return torch.tensor(cu_seqlens, dtype=torch.int64, device="cpu")


def _checked_block_mask(block_mask: Any) -> BlockMask | None:
    if block_mask is not None and not isinstance(block_mask, BlockMask):
        raise TypeError(
            f"block_mask is a {type(block_mask).__name__}: make one with "
            "fa.BlockMask.from_dense(keep_blocks, block_m, block_n) or fa.BlockMask.pattern(...)."
        )
    return block_mask


def _tile_sizes(tiling: Any) -> list[int]:
    if tiling is None:
        return []
    if not isinstance(tiling, Tiling):
        raise TypeError(f"tiling = {tiling!r} is not a Tiling: pass fa.Tiling(block_m, block_n).")
    return [tiling.block_m, tiling.block_n]


def _as_float(softmax_scale: Any) -> float | None:
    if softmax_scale is None:
        return None
    if not hasattr(softmax_scale, "__float__"):  # text that reads as a number has none
        raise ValueError(f"softmax_scale = {softmax_scale!r} is not a number: pass one, or None.")
    return float(softmax_scale)
