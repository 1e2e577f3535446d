"""Generation with a Hugging Face model: a KV cache in one piece, attended by `fa.decode`.

from fa_kernels.integrations import kv_cache
kv_cache.register()
model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="fa_kernels_decode")
model.generate(tokens, cache=kv_cache.KVCache(max_tokens=4096))  # older: past_key_values=
"""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.masking_utils import sdpa_mask

from fa_kernels.decoding import decode
from fa_kernels.integrations.transformers import (
    attention_forward,
    checked_name,
    refuse_unknown,
    window_of,
)

NAME = "fa_kernels_decode"
#: Set on the views that `KVCacheLayer.update` returns: the whole cache, whose shape stays the same
#: from step to step, so that a step is planned like the one before.
_WHOLE = "fa_kernels_whole_cache"


class KVCache(Cache):
    """Keys and values of all layers, each (batch, nheads_kv, max_tokens, head_dim), allocated once.

    New tokens are written in place: nothing is copied when the sequence grows. All sequences have
    the same length, as transformers' own caches.
    """

    def __init__(self, max_tokens: int) -> None:
        """Raises ValueError: `max_tokens` is not positive."""
        if max_tokens < 1:
            raise ValueError(f"max_tokens = {max_tokens}: a cache holds at least one token.")
        super().__init__(layer_class_to_replicate=functools.partial(KVCacheLayer, max_tokens))


class KVCacheLayer(CacheLayerMixin):
    """One layer's keys and values."""

    is_sliding = False

    def __init__(self, max_tokens: int) -> None:
        super().__init__()
        self.max_tokens, self.cumulative_length = max_tokens, 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate, once dtype, device and heads are known."""
        batch, nheads_kv, _, head_dim = key_states.shape
        self.keys = key_states.new_zeros(batch, nheads_kv, self.max_tokens, head_dim)
        self.values = value_states.new_zeros(
            batch, nheads_kv, self.max_tokens, value_states.shape[-1]
        )
        self.device, self.is_initialized = key_states.device, True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write new tokens behind those that are there; views of all so far, not copied.

        Raises:
            ValueError: more tokens than the cache has room for.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        begin, end = self.cumulative_length, self.cumulative_length + key_states.shape[-2]
        if end > self.max_tokens:
            raise ValueError(
                f"{end} tokens do not fit into a cache of max_tokens = {self.max_tokens}: make it "
                "larger, or generate fewer."
            )
        self.keys[:, :, begin:end] = key_states
        self.values[:, :, begin:end] = value_states
        self.cumulative_length = end
        keys, values = self.keys[:, :, :end], self.values[:, :, :end]
        setattr(keys, _WHOLE, self.keys)
        setattr(values, _WHOLE, self.values)
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys that a mask must cover, where they begin)."""
        return self.cumulative_length + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens so far."""
        return self.cumulative_length

    def get_max_length(self) -> int:
        """Tokens that there is room for."""
        return self.max_tokens


def register(name: str = NAME, *, backend: str = "auto", variant: str = "auto") -> None:
    """Make `attn_implementation=name` known to transformers, for models made from now on.

    One query row per sequence without a mask goes to `fa.decode`; all else to `fa.attention`, as
    with `integrations.transformers.register`: prompts, padded batches, and steps of models whose
    sliding window transformers writes as a mask.

    Args:
        name: another one lives beside the first; not as transformers names its own.
        backend: of both, "auto", "cuda" or "numpy".
        variant: of `fa.attention`.

    Raises:
        ValueError: a name that transformers would take for one of its own.
    """
    forward = functools.partial(decode_forward, backend=backend, variant=variant)
    AttentionInterface.register(checked_name(name), forward)
    AttentionMaskInterface.register(name, sdpa_mask)


def decode_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    position_bias: Tensor | None = None,
    backend: str = "auto",
    variant: str = "auto",
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """One attention of a model, as transformers calls it; arguments as `attention_forward`.

    Args:
        key, value: (batch, nheads_kv, tokens so far, head_dim), usually a view of a `KVCache`.

    Returns:
        (batch, seqlen_q, nheads, head_dim), and None where other implementations give P.
    """
    steps = query.shape[2] == 1 and attention_mask is None and position_bias is None
    if not steps or dropout:
        options = {"backend": backend, "variant": variant}
        return attention_forward(
            module, query, key, value, attention_mask, scaling, dropout,
            sliding_window=sliding_window, position_bias=position_bias, options=options, **kwargs,
        )  # fmt: skip
    refuse_unknown(kwargs)
    caches = (getattr(key, _WHOLE, key), getattr(value, _WHOLE, value))
    out = decode(
        query, *caches, key.shape[2], window=window_of(sliding_window, True),
        softmax_scale=scaling, backend=backend,
    )  # fmt: skip
    return out.transpose(1, 2), None
