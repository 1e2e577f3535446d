"""Generation through `fa.decode` and a cache in one piece, on the CPU, against transformers."""

from __future__ import annotations

import copy
import inspect
import os
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here may go online

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from fa_kernels.integrations import kv_cache  # noqa: E402
from fa_kernels.integrations.kv_cache import KVCache, KVCacheLayer  # noqa: E402
from tests.integrations.test_transformers import gpt2, llama, mistral  # noqa: E402

BATCH, PROMPT, NEW = 2, 7, 6
every_decoder = pytest.mark.parametrize("build", [gpt2, llama, mistral], ids=lambda f: f.__name__)


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    kv_cache.register(backend="numpy")


def pair(build: Any) -> tuple[Any, Any]:
    """The same weights twice: with eager attention and with `fa.decode`."""
    torch.manual_seed(0)
    eager = build().eval()
    eager.set_attn_implementation("eager")
    ours = copy.deepcopy(eager)
    ours.set_attn_implementation(kv_cache.NAME)
    return eager, ours


def given_to(model: Any, cache: KVCache) -> dict[str, Any]:
    """The argument by which a model takes its cache: "cache", in older releases another."""
    known = inspect.signature(model.forward).parameters
    return {"cache" if "cache" in known else "past_key_values": cache}


def tokens() -> Any:
    return torch.randint(2, 64, (BATCH, PROMPT + NEW), generator=torch.Generator().manual_seed(1))


@every_decoder
def test_every_step_gives_the_logits_of_the_whole_sequence(build: Any) -> None:
    eager, ours = pair(build)
    given, cache = tokens(), KVCache(PROMPT + NEW)
    with torch.no_grad():
        truth = eager(given, use_cache=False).logits
        kept = {**given_to(ours, cache), "use_cache": True}
        steps = [ours(given[:, :PROMPT], **kept).logits[:, -1]]
        for n in range(PROMPT, PROMPT + NEW):
            steps.append(ours(given[:, n : n + 1], **kept).logits[:, -1])
    found = torch.stack(steps, dim=1)
    torch.testing.assert_close(found, truth[:, PROMPT - 1 :], rtol=1e-4, atol=1e-5)
    assert cache.get_seq_length() == PROMPT + NEW


@pytest.mark.parametrize("build", [gpt2, llama], ids=lambda f: f.__name__)
def test_one_row_goes_to_decode_and_a_prompt_does_not(
    build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, ...]] = []
    real = kv_cache.decode

    def watched(q: Any, k: Any, v: Any, tokens: int, **options: Any) -> Any:
        seen.append((q.shape[2], k.shape[2], tokens, k.data_ptr()))
        return real(q, k, v, tokens, **options)

    monkeypatch.setattr(kv_cache, "decode", watched)
    _, ours = pair(build)
    given, cache = tokens(), KVCache(PROMPT + NEW)
    with torch.no_grad():
        kept = {**given_to(ours, cache), "use_cache": True}
        ours(given[:, :PROMPT], **kept)
        assert not seen
        ours(given[:, PROMPT : PROMPT + 1], **kept)
    layers = cache.layers
    # The whole cache, so that every step has the same shapes.
    whole = (1, PROMPT + NEW, PROMPT + 1)
    assert seen == [(*whole, layer.keys.data_ptr()) for layer in layers]


def test_generate_takes_the_cache() -> None:
    eager, ours = pair(llama)
    given = tokens()[:, :PROMPT]
    options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    found = ours.generate(given, **given_to(ours, KVCache(PROMPT + NEW)), **options)
    assert torch.equal(found, eager.generate(given, **options))


def test_padded_prompts_go_through_masks() -> None:
    eager, ours = pair(llama)
    given = tokens()[:, :PROMPT]
    mask = torch.ones_like(given)
    mask[0, :3] = 0
    options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, "attention_mask": mask}
    found = ours.generate(given, **given_to(ours, KVCache(PROMPT + NEW)), **options)
    assert torch.equal(found, eager.generate(given, **options))


def test_a_layer_grows_in_place_and_says_when_it_is_full() -> None:
    layer = KVCacheLayer(4)
    first = torch.randn(2, 3, 3, 5)
    keys, values = layer.update(first, -first)
    assert keys.data_ptr() == layer.keys.data_ptr() and torch.equal(values, -first)
    assert layer.get_mask_sizes(1) == (4, 0) and layer.get_max_length() == 4
    one = torch.randn(2, 3, 1, 5)
    keys, _ = layer.update(one, one)
    assert keys.shape == (2, 3, 4, 5) and torch.equal(keys[:, :, :3], first)
    with pytest.raises(ValueError, match="5 tokens do not fit into a cache of max_tokens = 4"):
        layer.update(one, one)
    layer.reset()
    assert layer.get_seq_length() == 0 and not layer.keys.any()
    with pytest.raises(ValueError, match="max_tokens = 0"):
        KVCache(0)


def test_a_cache_of_transformers_works_too() -> None:
    """Its keys are as long as the text: they are attended as they are."""
    eager, ours = pair(llama)
    given = tokens()[:, :PROMPT]
    options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(ours.generate(given, **options), eager.generate(given, **options))


def test_what_decode_does_not_know_is_refused() -> None:
    q = torch.zeros(1, 2, 1, 8)
    with pytest.raises(NotImplementedError, match="softcap"):
        kv_cache.decode_forward(None, q, q, q, None, softcap=3.0)
