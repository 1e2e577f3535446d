"""Hugging Face models by this package's kernels: `register()`, then name them at loading.

from fa_kernels.integrations import transformers
transformers.register()
model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="fa_kernels")
"""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from fa_kernels.integrations.differentiable import attention
from fa_kernels.tiling import Tiling

NAME = "fa_kernels"
#: Arguments of some models that change what attention computes, and that no kernel here knows.
_UNKNOWN = {
    "softcap": "it bends the scores by a tanh",
    "s_aux": "attention sinks add to the row sums",
    "head_mask": "it scales the probabilities of every head",
}


def register(
    name: str = NAME,
    *,
    variant: str = "auto",
    tiling: Tiling | None = None,
    backend: str = "auto",
    deterministic: bool | None = None,
) -> None:
    """Make `attn_implementation=name` known to transformers, for models made from now on.

    Masks arrive as for "sdpa": none where causality says all, else bool (batch, 1, seqlen_q,
    seqlen_k), padding included. A second call replaces the first; another name lives beside it.

    Args:
        name: must hold neither "flash" nor "sdpa", which transformers takes for its own.
        variant, tiling, backend, deterministic: as `fa_kernels.integrations.torch.attention`.

    Raises:
        ValueError: a name that transformers would take for one of its own.
    """
    checked_name(name)
    options = {
        "variant": variant,
        "tiling": tiling,
        "backend": backend,
        "deterministic": deterministic,
    }
    AttentionInterface.register(name, functools.partial(attention_forward, options=options))
    AttentionMaskInterface.register(name, sdpa_mask)


def checked_name(name: str) -> str:
    """A name for `attn_implementation`.

    Raises:
        ValueError: transformers would take it for one of its own.
    """
    taken = [word for word in ("flash", "sdpa", "flex", "eager", "paged") if word in name]
    if taken:
        raise ValueError(
            f"name = {name!r} holds {taken[0]!r}, by which transformers knows its own "
            f"implementations: use another, e.g. {NAME!r}."
        )
    return name


def attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    position_bias: Tensor | None = None,
    options: dict[str, Any] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """One attention of a model, as transformers calls it.

    Args:
        module: the attention module; its `is_causal` counts where the argument is None.
        query: (batch, nheads, seqlen_q, head_dim), usually a transposed view, which is not copied.
        key, value: (batch, nheads_kv, seqlen_k, head_dim), not repeated for grouped queries.
        attention_mask: bool, True = attend, or additive; it then says all, causality and window
            included. (batch or 1, nheads or 1, seqlen_q, seqlen_k or more).
        position_bias: additive; must not require grad.

    Returns:
        (batch, seqlen_q, nheads, head_dim), and None where other implementations give P.

    Raises:
        NotImplementedError: options no kernel knows, and P itself (output_attentions=True).
    """
    refuse_unknown(kwargs)
    seqlen_q, seqlen_k = query.shape[2], key.shape[2]
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    # A single query is the newest token: it sees all keys.
    causal = attention_mask is None and seqlen_q > 1 and bool(is_causal)
    if causal and seqlen_k > seqlen_q:
        # No mask with more keys than queries: the first tokens of a preallocated cache, whose rest
        # is still empty. With tokens before these, a mask comes along.
        key, value = key[:, :, :seqlen_q], value[:, :, :seqlen_q]
        position_bias = None if position_bias is None else position_bias[..., :seqlen_q]
    mask, bias = _mask_and_bias(attention_mask, position_bias, key.shape[2])
    out = attention(
        query,
        key,
        value,
        causal=causal,
        window=None if attention_mask is not None else window_of(sliding_window, bool(is_causal)),
        mask=mask,
        bias=bias,
        softmax_scale=scaling,
        dropout_p=dropout,
        **(options or {}),
    )
    return out.transpose(1, 2), None


def refuse_unknown(kwargs: dict[str, Any]) -> None:
    """Refuse what a model passes along and no kernel here knows.

    Raises:
        NotImplementedError: naming it, what it does, and the remedy.
    """
    for name, effect in _UNKNOWN.items():
        if kwargs.get(name) is not None:
            raise NotImplementedError(
                f"{name} is set by this model, and no kernel here knows it ({effect}): load the "
                'model with attn_implementation="eager".'
            )
    if kwargs.get("output_attentions"):
        raise NotImplementedError(
            "output_attentions=True: the probabilities never leave the chip, so there are none to "
            'return. Load the model with attn_implementation="eager".'
        )


def window_of(sliding_window: int | None, is_causal: bool) -> tuple[int, int | None] | None:
    """transformers' sliding window as (left, right): a causal one counts the row's own key."""
    if sliding_window is None:
        return None
    return (sliding_window - 1, None) if is_causal else (sliding_window, sliding_window)


def _mask_and_bias(
    attention_mask: Tensor | None, position_bias: Tensor | None, seqlen_k: int
) -> tuple[Tensor | None, Tensor | None]:
    """Bool masks and additive ones apart, cut to the keys there are."""
    if attention_mask is None:
        return None, position_bias
    attention_mask = attention_mask[..., :seqlen_k]
    if not attention_mask.is_floating_point():
        return attention_mask.bool(), position_bias
    return None, attention_mask if position_bias is None else attention_mask + position_bias
