"""torch's scaled_dot_product_attention, with torch's meaning of every argument."""

from __future__ import annotations

import torch
from torch import Tensor

from fa_kernels.integrations.differentiable import attention


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` by this package's kernels.

    Args:
        query: (..., nheads, seqlen_q, head_dim), any number of leading axes; two and three axes
            are taken as torch does, without batch or without batch and heads.
        key, value: (..., nheads, seqlen_k, head_dim); axes before the last two broadcast.
        attn_mask: bool, True = attend, or a float of query's dtype or fp32 that is added to the
            scores; broadcasts to (..., nheads, seqlen_q, seqlen_k). It must not require grad.
        dropout_p: applied whenever it is above 0: pass 0.0 outside of training.
        is_causal: query i attends keys <= i ("top_left"); not together with attn_mask.
        scale: default 1/sqrt(head_dim).
        enable_gqa: key and value may have fewer heads, a divisor of query's.

    Returns:
        (..., nheads, seqlen_q, head_dim), contiguous. A fully masked row gives 0 (torch's own
        gives 0 or NaN, depending on release and backend).

    Raises:
        ValueError, NotImplementedError, TypeError: naming value, limit and remedy. Unlike torch:
            a value head_dim other than query's, and a float mask that requires grad.
    """
    for name, x in {"query": query, "key": key, "value": value}.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}: pass a torch tensor.")
    _refuse_shapes(query, key, value, enable_gqa)
    lead = torch.broadcast_shapes(*(x.shape[:-3] for x in (query, key, value)))
    heads = [x.shape[-3] if x.dim() > 2 else 1 for x in (query, key, value)]
    if not enable_gqa:  # one head serves all heads of the others
        heads = [0 if 0 in heads else max(heads)] * 3
    outer = (*lead, heads[0]) if query.dim() > 2 else ()
    mask, bias = _mask_and_bias(attn_mask, is_causal, (*outer, query.shape[-2], key.shape[-2]))
    q, k, v = (
        _four_axes(x, lead, nheads) for x, nheads in zip((query, key, value), heads, strict=True)
    )
    out = attention(
        q,
        k,
        v,
        causal="top_left" if is_causal else False,
        mask=mask,
        bias=bias,
        softmax_scale=scale,
        dropout_p=dropout_p,
    )
    return out.reshape(*outer, *out.shape[-2:])


def _refuse_shapes(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if query.dim() < 2 or {query.dim(), key.dim(), value.dim()} != {query.dim()}:
        raise ValueError(
            f"{shapes}: all three need the same number of axes, at least 2, "
            "(..., nheads, seqlen, head_dim). Add axes of length 1."
        )
    if key.shape[-2] != value.shape[-2] or query.shape[-1] != key.shape[-1]:
        raise ValueError(
            f"{shapes}: key and value need the same seqlen, query and key the same head_dim."
        )
    if value.shape[-1] != query.shape[-1]:
        raise NotImplementedError(
            f"value has head_dim {value.shape[-1]}, query {query.shape[-1]}: the kernels take "
            "equal ones. Pad the smaller with zeros (torch.nn.functional.pad) and slice the output."
        )
    lengths = zip(*(x.shape[:-3] for x in (query, key, value)), strict=True)
    if any(len({*same} - {1}) > 1 for same in lengths):
        raise ValueError(f"{shapes}: the batch axes must be equal, or 1 to be broadcast.")
    if query.dim() > 2:
        _refuse_heads(shapes, query, key, value, enable_gqa)


def _refuse_heads(shapes: str, query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    nheads, of_key, of_value = (x.shape[-3] for x in (query, key, value))
    if not enable_gqa and len({nheads, of_key, of_value} - {1}) > 1:
        raise ValueError(
            f"{shapes}: {nheads}, {of_key} and {of_value} heads do not broadcast. "
            "Pass enable_gqa=True if groups of query heads share a head of key and value."
        )
    if enable_gqa and (of_key != of_value or of_key == 0 or nheads % of_key):
        raise ValueError(
            f"{shapes}: with enable_gqa key and value need the same number of heads, a divisor "
            f"of query's {nheads}, not {of_key} and {of_value}."
        )


def _four_axes(x: Tensor, lead: torch.Size, nheads: int) -> Tensor:
    """(batch, nheads, seqlen, head_dim), a view wherever the leading axes can be one."""
    if x.dim() == 2:
        x = x.unsqueeze(0)
    x = x.expand(*lead, nheads, *x.shape[-2:])
    return x.unsqueeze(0) if x.dim() == 3 else x.flatten(0, -4)


def _mask_and_bias(
    attn_mask: Tensor | None, is_causal: bool, scores: tuple[int, ...]
) -> tuple[Tensor | None, Tensor | None]:
    """The mask with four axes, as what masks and as what is added; `scores` is torch's shape."""
    if attn_mask is None:
        return None, None
    if is_causal:
        raise ValueError(
            "attn_mask together with is_causal=True: torch documents it as an error. Build the "
            "causality into the mask, or call fa_kernels.integrations.torch.attention with mask "
            'or bias and causal="top_left".'
        )
    boolean = isinstance(attn_mask, Tensor) and attn_mask.dtype == torch.bool
    if not boolean and not (isinstance(attn_mask, Tensor) and attn_mask.is_floating_point()):
        kind = getattr(attn_mask, "dtype", type(attn_mask).__name__)
        raise TypeError(
            f"attn_mask is {kind}: pass a bool tensor, True = attend, or a float one to add."
        )
    _refuse_mask_shape(attn_mask, scores)
    mask = attn_mask[(None,) * max(0, 3 - attn_mask.dim())]
    if all(n == 1 for n in mask.shape[:-3]):  # one for the whole batch, however many axes that has
        mask = mask.reshape(1, *mask.shape[-3:])
    else:
        mask = mask.expand(*scores[:-3], *mask.shape[-3:]).flatten(0, -4)
    return (mask, None) if boolean else (None, mask)


def _refuse_mask_shape(attn_mask: Tensor, scores: tuple[int, ...]) -> None:
    own = tuple(attn_mask.shape)
    padded = (1,) * (len(scores) - len(own)) + own
    if len(own) > len(scores) or any(
        n not in (1, full) for n, full in zip(padded, scores, strict=True)
    ):
        raise ValueError(
            f"attn_mask has shape {own}, which does not broadcast to the scores {scores}, "
            "(..., nheads, seqlen_q, seqlen_k): give every axis its whole length, or 1."
        )
