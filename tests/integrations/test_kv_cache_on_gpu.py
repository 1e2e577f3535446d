"""A small GPT-2 on a GPU: steps through the decoding kernel against the whole text in float64."""

from __future__ import annotations

import os
from typing import Any

import pytest

from fa_kernels.cuda.launch import available

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here may go online

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from fa_kernels.integrations import kv_cache  # noqa: E402
from fa_kernels.integrations.kv_cache import KVCache  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (available() and torch.cuda.is_available()), reason="needs CuPy and a CUDA GPU"
    ),
]
BATCH, PROMPT, NEW = 3, 113, 20


def model(implementation: str, dtype: Any) -> Any:
    """Equal weights, rounded to bf16, in every dtype."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=256, n_layer=2, n_head=4, n_positions=256, vocab_size=512, bos_token_id=1,
        eos_token_id=None, initializer_range=0.1, attn_implementation=implementation,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).bfloat16().to("cuda", dtype).eval()


def steps(of: Any, tokens: Any, cache: Any) -> Any:
    """Logits after the prompt and after each further token, (batch, steps, vocabulary)."""
    found = [of(tokens[:, :PROMPT], cache, use_cache=True).logits[:, -1]]
    for n in range(PROMPT, PROMPT + NEW):
        found.append(of(tokens[:, n : n + 1], cache, use_cache=True).logits[:, -1])
    return torch.stack(found, dim=1)


def test_every_step_is_as_good_as_eager_attention_in_the_same_dtype() -> None:
    kv_cache.register("fa_kernels_decode_cuda", backend="cuda")
    tokens = torch.randint(0, 512, (BATCH, PROMPT + NEW), device="cuda")
    with torch.no_grad():
        truth = model("eager", torch.float64)(tokens, use_cache=False).logits[:, PROMPT - 1 :]
        eager = model("eager", torch.bfloat16)
        plain = steps(eager, tokens, transformers.DynamicCache(config=eager.config))
        ours = steps(model("fa_kernels_decode_cuda", torch.bfloat16), tokens, KVCache(200))
    errors = [float((found.double() - truth).abs().max()) for found in (plain, ours)]
    assert errors[1] <= 2 * errors[0] + float(truth.abs().max()) * 2.0**-8, errors
