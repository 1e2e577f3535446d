"""Hugging Face models, built from configs with random weights, against their eager attention."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here may go online

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from fa_kernels.integrations import fixed_cache, kv_cache  # noqa: E402
from fa_kernels.integrations import transformers as integration  # noqa: E402

SIZES = {"vocab_size": 64, "initializer_range": 0.15}
LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def gpt2(dropout: float = 0.0) -> Any:
    config = transformers.GPT2Config(
        n_embd=64, n_layer=2, n_head=4, n_positions=64, attn_pdrop=dropout, resid_pdrop=0.0,
        embd_pdrop=0.0, bos_token_id=1, eos_token_id=None, pad_token_id=0, **SIZES,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def bert() -> Any:
    config = transformers.BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **SIZES,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config)


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, **SIZES))


def mistral() -> Any:
    config = transformers.MistralConfig(sliding_window=5, **LLAMA, **SIZES)
    return transformers.MistralForCausalLM(config)


MODELS: dict[str, Callable[[], Any]] = {f.__name__: f for f in (gpt2, bert, llama, mistral)}
every_model = pytest.mark.parametrize("name", MODELS)
decoders = pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])

BATCH, SEQLEN, NEW_TOKENS = 3, 11, 7


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    integration.register()


def pair(build: Callable[[], Any], name: str = integration.NAME) -> tuple[Any, Any]:
    """The same weights twice: with eager attention and with ours."""
    torch.manual_seed(0)
    eager = build()
    eager.set_attn_implementation("eager")
    ours = copy.deepcopy(eager)
    ours.set_attn_implementation(name)
    return eager, ours


def tokens() -> Any:
    return torch.randint(3, 64, (BATCH, SEQLEN), generator=torch.Generator().manual_seed(1))


def padding(side: str) -> Any:
    """1 for a token, 0 for padding, another length in every sequence."""
    mask = torch.ones(BATCH, SEQLEN, dtype=torch.long)
    if side == "left":
        mask[0, :4] = mask[2, :1] = 0
    elif side == "right":
        mask[1, 6:] = mask[2, 9:] = 0
    return mask


def log_probabilities(model: Any, mask: Any) -> Any:
    """Of the tokens themselves, 0 at padding, whose rows attend nothing and mean nothing."""
    ids = tokens()
    logits = model(input_ids=ids, attention_mask=mask).logits
    return logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0] * mask


# -- outputs and gradients -------------------------------------------------------------------------


@every_model
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_outputs_and_gradients_are_those_of_eager_attention(name: str, side: str) -> None:
    models, mask = pair(MODELS[name]), padding(side)
    values = [log_probabilities(model.train(), mask) for model in models]
    torch.testing.assert_close(values[1], values[0], atol=2e-5, rtol=1e-5)
    grads = []
    for model, value in zip(models, values, strict=True):
        value.sum().backward()
        grads.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys()
    # One scale for all: the exact gradient of BERT's key bias is 0, both are rounding there.
    largest = max(grad.abs().max() for grad in grads[0].values())
    for parameter, want in grads[0].items():
        error = (grads[1][parameter] - want).abs().max()
        assert error <= 1e-5 * largest, f"{parameter}: {error:.1e} of {largest:.1e}"


def test_the_comparison_would_see_a_lost_mask() -> None:
    eager, ours = pair(bert)
    mask = padding("right")
    with torch.no_grad():
        want = log_probabilities(eager.eval(), mask)
        unmasked = log_probabilities(ours.eval(), torch.ones_like(mask)) * mask
    assert (unmasked - want).abs().max() > 0.1


def test_four_dimensional_masks_pass_through() -> None:
    eager, ours = pair(llama)
    ids = tokens()
    kept = torch.rand(BATCH, 1, SEQLEN, SEQLEN, generator=torch.Generator().manual_seed(2)) > 0.4
    kept |= torch.eye(SEQLEN, dtype=torch.bool)
    added = torch.zeros(kept.shape).masked_fill(~kept, torch.finfo(torch.float32).min)
    with torch.no_grad():
        want = eager(input_ids=ids, attention_mask=added).logits
        for mask in (kept, added):
            got = ours(input_ids=ids, attention_mask=mask).logits
            torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-5)


def test_attention_dropout_is_for_training_alone() -> None:
    _, ours = pair(lambda: gpt2(dropout=0.5))
    mask = padding("none")
    with torch.no_grad():
        still = log_probabilities(ours.eval(), mask)
        assert torch.equal(log_probabilities(ours.eval(), mask), still)
        torch.manual_seed(3)
        dropped = log_probabilities(ours.train(), mask)
        assert not torch.equal(dropped, still)
        torch.manual_seed(3)
        assert torch.equal(log_probabilities(ours, mask), dropped)


def test_model_compiles_whole() -> None:
    torch._dynamo.reset()
    _, ours = pair(gpt2)
    ids = tokens()
    with torch.no_grad():
        compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
        got = compiled(input_ids=ids, use_cache=False).logits
        want = ours(input_ids=ids, use_cache=False).logits
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


# -- generation ------------------------------------------------------------------------------------


@decoders
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_greedy_generation_with_a_cache_gives_the_same_tokens(name: str, cache: str) -> None:
    results = [
        model.eval().generate(
            tokens(), attention_mask=padding("left"), max_new_tokens=NEW_TOKENS, do_sample=False,
            cache_implementation=cache, pad_token_id=0,
        )
        for model in pair(MODELS[name])
    ]  # fmt: skip
    assert results[0].shape == (BATCH, SEQLEN + NEW_TOKENS)
    assert torch.equal(*results)


def cache_argument(model: Any) -> str:
    """How this release of transformers calls it."""
    names = inspect.signature(model.forward).parameters
    return "cache" if "cache" in names else "past_key_values"


@decoders
def test_prompt_may_come_in_pieces(name: str) -> None:
    eager, ours = pair(MODELS[name])
    ids = tokens()
    with torch.no_grad():
        want = eager(input_ids=ids).logits
        got, cache = [], {cache_argument(ours): transformers.DynamicCache()}
        for piece in ids.split((6, 4, 1), dim=1):
            got.append(ours(input_ids=piece, use_cache=True, **cache).logits)
    torch.testing.assert_close(torch.cat(got, 1), want, atol=2e-5, rtol=1e-5)


# -- the function itself ---------------------------------------------------------------------------


class Module:
    """As much of an attention module as the function looks at."""

    def __init__(self, is_causal: bool) -> None:
        self.is_causal = is_causal


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """(tensors, options) of every call of the attention beneath."""
    calls: list[Any] = []
    original = integration.attention

    def spy(*tensors: Any, **options: Any) -> Any:
        calls.append((tensors, options))
        return original(*tensors, **options)

    monkeypatch.setattr(integration, "attention", spy)
    return calls


def random(*shape: int, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def test_grouped_heads_are_not_repeated_and_views_not_copied(seen: list[Any]) -> None:
    _, ours = pair(llama)
    with torch.no_grad():
        ours.model(input_ids=tokens(), use_cache=False)
    (q, k, v), options = seen[0]
    assert (q.shape[1], k.shape[1], v.shape[1]) == (4, 2, 2)
    assert not v.is_contiguous() and v.stride(-1) == 1
    assert options["mask"] is None and options["causal"] is True


@pytest.mark.parametrize(
    ("is_causal", "argument", "seqlen_q", "causal"),
    [(True, None, 5, True), (False, None, 5, False), (False, True, 5, True),
     (True, False, 5, False), (True, None, 1, False)],
)  # fmt: skip
def test_causality_is_the_modules_unless_it_is_given(
    is_causal: bool, argument: bool | None, seqlen_q: int, causal: bool, seen: list[Any]
) -> None:
    q, k = random(1, 2, seqlen_q, 4), random(1, 2, 5, 4)
    integration.attention_forward(Module(is_causal), q, k, k, None, is_causal=argument)
    assert seen[0][1]["causal"] is causal


def test_empty_places_of_a_preallocated_cache_are_not_attended() -> None:
    q, k, v = random(1, 2, 5, 4), random(1, 2, 9, 4, seed=1), random(1, 2, 9, 4, seed=2)
    bias = random(1, 2, 5, 9, seed=3)
    got, none = integration.attention_forward(Module(True), q, k, v, None, position_bias=bias)
    scores = q @ k.mT / 2 + bias
    scores = scores.masked_fill(~torch.ones(5, 9, dtype=torch.bool).tril(), -torch.inf)
    torch.testing.assert_close(got, (scores.softmax(-1) @ v).transpose(1, 2))
    assert none is None


@pytest.mark.parametrize("additive", [False, True])
def test_mask_and_position_bias_act_together(additive: bool) -> None:
    q, k, v = random(2, 2, 5, 4), random(2, 2, 7, 4, seed=1), random(2, 2, 7, 4, seed=2)
    bias = random(1, 2, 5, 7, seed=3)
    kept = torch.ones(2, 1, 5, 9, dtype=torch.bool)  # longer than the keys, as for static caches
    kept[1, ..., :2] = False
    added = torch.zeros(kept.shape, dtype=q.dtype).masked_fill(~kept, -torch.inf)
    got, _ = integration.attention_forward(
        Module(True), q, k, v, added if additive else kept, scaling=0.3, position_bias=bias
    )
    scores = (q @ k.mT * 0.3 + bias).masked_fill(~kept[..., :7], -torch.inf)
    torch.testing.assert_close(got, (scores.softmax(-1) @ v).transpose(1, 2))


@pytest.mark.parametrize(("is_causal", "seqlen_q"), [(True, 9), (True, 1), (False, 9)])
def test_sliding_window_counts_as_transformers_masks_do(is_causal: bool, seqlen_q: int) -> None:
    from transformers import masking_utils

    q, k, v = random(1, 2, seqlen_q, 4), random(1, 2, 9, 4, seed=1), random(1, 2, 9, 4, seed=2)
    got, _ = integration.attention_forward(Module(is_causal), q, k, v, None, sliding_window=3)
    kind = "causal" if is_causal else "bidirectional"
    keeps = getattr(masking_utils, f"sliding_window_{kind}_mask_function")(3)
    rows, keys = torch.arange(9 - seqlen_q, 9)[:, None], torch.arange(9)
    mask = keeps(0, 0, rows, keys)
    want, _ = integration.attention_forward(Module(is_causal), q, k, v, mask[None, None])
    torch.testing.assert_close(got, want)


def test_another_name_carries_its_own_options(seen: list[Any]) -> None:
    integration.register("fa_kernels_kv_outer", variant="flash_kv_outer", deterministic=True)
    eager, ours = pair(gpt2, "fa_kernels_kv_outer")
    mask = padding("left")
    with torch.no_grad():
        want, got = (log_probabilities(model, mask) for model in (eager, ours))
    torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-5)
    assert {call[1]["variant"] for call in seen} == {"flash_kv_outer"}
    assert seen[0][1]["deterministic"] is True


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["flash_lab", "my_sdpa", "eager"])
def test_names_that_transformers_reads_are_refused(name: str) -> None:
    for module in (integration, kv_cache, fixed_cache):
        with pytest.raises(ValueError, match=f"name = '{name}'"):
            module.register(name)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"softcap": 30.0}, "softcap.*eager"),
        ({"s_aux": random(2)}, "s_aux.*sinks.*eager"),
        ({"head_mask": random(2)}, "head_mask.*eager"),
        ({"output_attentions": True}, "output_attentions.*never leave the chip.*eager"),
        ({"position_bias": random(5, 5).requires_grad_()}, "bias requires grad"),
    ],
)
def test_what_no_kernel_knows_is_refused(option: dict[str, Any], words: str) -> None:
    q = random(1, 2, 5, 4)
    with pytest.raises(NotImplementedError, match=words):
        integration.attention_forward(Module(True), q, q, q, None, **option)


def test_probabilities_are_refused_by_a_model() -> None:
    _, ours = pair(bert)
    with pytest.raises(NotImplementedError, match="output_attentions"):
        ours(input_ids=tokens(), output_attentions=True)
