"""A KV cache whose steps a CUDA graph can hold: shapes never change, places lie on the GPU.

from fa_kernels.integrations import fixed_cache
fixed_cache.register()
model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="fa_kernels_fixed")
cache = fixed_cache.FixedCache(max_tokens=4096, batch=16, device="cuda")
model(prompt, cache, use_cache=True)                                  # as any cache
cache.begin_steps()
model(token, cache, use_cache=True, position_ids=cache.position[None])  # may be captured
cache.advance()                                                       # this, too
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache

from fa_kernels.decoding import decode
from fa_kernels.integrations.kv_cache import KVCacheLayer, decode_forward
from fa_kernels.integrations.transformers import checked_name, refuse_unknown

NAME = "fa_kernels_fixed"
#: Set on the caches that a step returns: int32 (batch,), the keys to attend, on their device.
_LENGTHS = "fa_kernels_lengths"


class FixedCache(Cache):
    """Keys and values as `kv_cache.KVCache` has them; in a step, where the token goes is a tensor.

    `position`: int64 (1,), the place of the next token. `lengths`: int32 (batch,), one more than
    that. Attention that does not know lengths gets the whole capacity and needs a mask.
    """

    def __init__(self, max_tokens: int, batch: int, device: Any) -> None:
        """Raises ValueError: `max_tokens` is not positive."""
        if max_tokens < 1:
            raise ValueError(f"max_tokens = {max_tokens}: a cache holds at least one token.")
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(batch, dtype=torch.int32, device=device)
        self.stepping = False
        super().__init__(layer_class_to_replicate=functools.partial(_Layer, max_tokens, self))

    def rewind(self) -> None:
        """Begin a new sequence in the same memory."""
        self.stepping = False
        for layer in self.layers:
            layer.cumulative_length = 0

    def begin_steps(self) -> None:
        """From now on every call of the model is one token, at `position`."""
        seen = self.layers[0].cumulative_length
        self.position.fill_(seen)
        self.lengths.fill_(seen + 1)
        self.stepping = True

    def advance(self) -> None:
        """The next token comes one place later; nothing checks that there is room."""
        self.position.add_(1)
        self.lengths.add_(1)


class _Layer(KVCacheLayer):
    """One layer's keys and values."""

    def __init__(self, max_tokens: int, cache: FixedCache) -> None:
        super().__init__(max_tokens)
        self.cache = cache

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """As `KVCacheLayer`; in a step: write at `position`, and the whole cache."""
        if not self.cache.stepping:
            return super().update(key_states, value_states, *args, **kwargs)
        self.keys.index_copy_(2, self.cache.position, key_states)
        self.values.index_copy_(2, self.cache.position, value_states)
        keys, values = self.keys[:], self.values[:]
        setattr(keys, _LENGTHS, self.cache.lengths)
        return keys, values


def register(name: str = NAME, *, backend: str = "auto", variant: str = "auto") -> None:
    """Make `attn_implementation=name` known to transformers; arguments as `kv_cache.register`.

    Sequences of a batch have the same length: masks of padding are refused.
    """
    forward = functools.partial(fixed_forward, backend=backend, variant=variant)
    AttentionInterface.register(checked_name(name), forward)
    AttentionMaskInterface.register(name, _no_mask)


def _no_mask(*_: Any, attention_mask: Tensor | None = None, **__: Any) -> None:
    """Causality is the kernels' own.

    Raises:
        ValueError: a mask of padding.
    """
    if attention_mask is not None:
        raise ValueError(
            f'attn_implementation = "{NAME}" takes no attention_mask: all sequences of a batch '
            "have the same length. Group them by length, or use kv_cache."
        )


def fixed_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
    variant: str = "auto",
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """One attention of a model, as transformers calls it; arguments as `kv_cache.decode_forward`.

    Returns:
        (batch, seqlen_q, nheads, head_dim), and None where other implementations give P.
    """
    lengths = getattr(key, _LENGTHS, None)
    if lengths is None:
        return decode_forward(
            module, query, key, value, attention_mask, scaling, dropout, backend=backend,
            variant=variant, **kwargs,
        )  # fmt: skip
    refuse_unknown(kwargs)
    out = decode(query, key, value, lengths, softmax_scale=scaling, backend=backend)
    return out.transpose(1, 2), None
