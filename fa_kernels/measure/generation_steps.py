"""Tokens of a text one by one over a KV cache of fixed places, each step one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Steps before a capture: they compile, load and plan.
_WARM_UP = 2


class Steps:
    """One new token of every sequence per call: a CUDA graph, or the plain call where none can be.

    Everything that a step reads and writes stays where it is.
    """

    def __init__(self, model: Any, prompt: Any, max_tokens: int, masked: bool) -> None:
        """Allocate everything, and capture a step.

        Args:
            model: a causal language model of transformers.
            prompt: tokens (batch, n), any; the first steps are taken with it.
            max_tokens: that the cache has room for.
            masked: attention does not know the lengths: it gets the whole cache and a mask.
        """
        import torch

        from fa_kernels.integrations.fixed_cache import FixedCache

        self.model, self.mask, batch = model, None, prompt.shape[0]
        self.cache = FixedCache(max_tokens, batch, prompt.device)
        self.token = torch.zeros(batch, 1, dtype=torch.int64, device=prompt.device)
        if masked:
            shape = (1, 1, 1, max_tokens)
            self.mask = torch.zeros(shape, dtype=model.dtype, device=prompt.device)
        self.begin(prompt)
        self.step, self.how = self._plain, "each step a plain call: no room to try a CUDA graph"
        if max_tokens - prompt.shape[1] > _WARM_UP:
            try:
                self.step, self.how = _captured(self._plain), "a step is one CUDA graph"
            except Exception as refusal:  # torch, CuPy and CUDA refuse in many ways
                why = " ".join(f"{type(refusal).__name__}: {refusal}".split())
                self.how = f"each step a plain call, no CUDA graph: {why}"

    def begin(self, prompt: Any) -> Any:
        """Read a prompt (batch, n) into the empty cache; logits (batch, vocabulary) after it."""
        import torch

        self.cache.rewind()
        with torch.no_grad():
            found = self.model(prompt, self.cache, use_cache=True, logits_to_keep=1)
        self.cache.begin_steps()
        if self.mask is not None:
            self.mask.fill_(torch.finfo(self.mask.dtype).min)
            self.mask[..., : prompt.shape[1]] = 0
        return found.logits[:, -1]

    def _plain(self) -> None:
        """Read `token`; leave the logits after it in `logits`, the likeliest one in `token`."""
        import torch

        if self.mask is not None:
            self.mask.index_fill_(-1, self.cache.position, 0)
        with torch.no_grad():
            found = self.model(
                self.token, self.cache, use_cache=True, logits_to_keep=1,
                position_ids=self.cache.position[None], attention_mask=self.mask,
            )  # fmt: skip
        self.logits = found.logits[:, -1]
        self.token.copy_(self.logits.argmax(-1, keepdim=True))
        self.cache.advance()


def _captured(step: Callable[[], None]) -> Callable[[], None]:
    """`step` in a CUDA graph; called a few times first.

    Raises:
        RuntimeError, or what torch, CuPy and CUDA raise: it cannot be captured.
    """
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("torch has no CUDA GPU here")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    found: Callable[[], None] = graph.replay
    return found
