"""What the KV caches of published models take, and which GPU holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fa_kernels.device import Device, readable_devices
from fa_kernels.figures.cache_memory import (
    CachedModel,
    memory_spec,
    size_words,
    smallest_device,
)
from fa_kernels.figures.point import device_words
from fa_kernels.model_shape import MAX_BATCH, MAX_TOKENS, list_models, model_shape
from fa_kernels.problem import SHORT_DTYPE, checked_int, dtype_name
from fa_kernels.units import significant
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.drawn_view import DrawnView
from fa_kernels.widgets.headline import HELD, Headline
from fa_kernels.widgets.knob import Knob
from fa_kernels.widgets.setting import dtype_choice
from fa_kernels.widgets.text import html_table, labels

_SAID = {"MHA": "said_mha", "GQA": "said_gqa", "MQA": "said_mqa"}
_TOKENS = tuple(2**e for e in range(7, 21))
_BATCHES = tuple(2**e for e in range(13))


def checked_tokens(value: object) -> int:
    """Tokens of a sequence as an int, or a ValueError that says what it must be."""
    return checked_int("tokens", value, 1, MAX_TOKENS, "Choose a length in that range.")


def checked_batch(value: object) -> int:
    """Sequences as an int, or a ValueError that says what it must be."""
    return checked_int("batch", value, 1, MAX_BATCH, "Choose a number in that range.")


@dataclass(frozen=True)
class CacheSize:
    """What the controls show: slug of a model, tokens, sequences, dtype by its short name."""

    model: str
    tokens: int
    batch: int
    dtype: str

    def of(self, slug: str) -> CachedModel:
        """The same cache of another model."""
        return CachedModel(model_shape(slug), self.tokens, self.batch, self.dtype)


def takeaway(chosen: CachedModel, devices: Sequence[Device]) -> str:
    """What a token and the whole cache take, what shared heads save, and where it fits."""
    text, model = labels("cache_memory"), chosen.model
    said = text["said"].format(
        name=model.name, token=size_words(chosen.token_bytes), batch=chosen.batch,
        tokens=chosen.tokens, size=size_words(chosen.nbytes), dtype=chosen.dtype,
        ratio=significant(chosen.nbytes / chosen.weight_bytes),
    )  # fmt: skip
    words = {"group": model.group, "kv": model.nheads_kv, "heads": model.nheads}
    said += " " + text[_SAID[model.kind]].format(
        mha=size_words(chosen.mha_bytes), mqa=size_words(chosen.mqa_bytes), **words
    )
    device = smallest_device(chosen.total_bytes, devices)
    total = size_words(chosen.total_bytes)
    if device is None:
        said += " " + text["said_nowhere"].format(total=total)
    else:
        said += " " + text["said_device"].format(total=total, device=device_words(device))
    if chosen.beyond_context:
        said += " " + text["said_beyond"].format(name=model.name, context=model.context)
    return said


def memory_table(models: Sequence[CachedModel], devices: Sequence[Device], caption: str) -> str:
    """The numbers behind the figure, one row per model, as HTML."""
    text = labels("cache_memory")
    names = (
        "column_model", "column_heads", "column_layers", "column_head_dim",
        "column_token", "column_cache", "column_mha", "column_weights", "column_fits",
        "column_context", "column_source",
    )  # fmt: skip
    head = [text[name] for name in names]
    body = []
    for one in models:
        model, device = one.model, smallest_device(one.total_bytes, devices)
        body.append(
            [
                model.name, f"{model.nheads} / {model.nheads_kv} ({model.kind})", str(model.layers),
                str(model.head_dim), size_words(one.token_bytes), size_words(one.nbytes),
                size_words(one.mha_bytes), size_words(one.weight_bytes),
                device_words(device) if device else text["nowhere"],
                str(model.context), model.source.split(":")[0],
            ]
        )  # fmt: skip
    return html_table("cache-memory", caption, head, body)


class CacheMemory(DrawnView):
    """The cache of every model at the chosen tokens and batch, beside the memories of GPUs."""

    section = mark = "cache_memory"
    least_width = 820

    def __init__(self, size: CacheSize) -> None:
        text = labels("cache_memory")
        self.devices = readable_devices()
        options = [(model_shape(slug).name, slug) for slug in list_models()]
        self.model = Choice(text["model"], options, size.model)
        self.tokens = Knob(
            check=checked_tokens, label=text["tokens"], description=text["tokens_description"],
            values=list(_TOKENS), value=size.tokens,
        )  # fmt: skip
        self.batch = Knob(
            check=checked_batch, label=text["batch"], description=text["batch_description"],
            values=list(_BATCHES), value=size.batch,
        )  # fmt: skip
        self.dtype = dtype_choice(size.dtype)
        super().__init__(size, (self.model, self.tokens, self.batch, self.dtype))

    @property
    def setting(self) -> CacheSize:
        """What the controls show now."""
        return CacheSize(self.model.value, self.tokens.value, self.batch.value, self.dtype.value)

    def headline(self) -> Headline:
        """The cache of the chosen model, a token's part of it, and what the model needs in all."""
        text, chosen = labels("headline"), self.chosen
        return {
            text["cache"]: (chosen.nbytes, HELD), text["token"]: (chosen.token_bytes, HELD),
            text["with_weights"]: (chosen.total_bytes, HELD),
        }  # fmt: skip

    def draw(self, setting: CacheSize, stamp: float) -> None:
        """Compute and show a setting."""
        models = [setting.of(slug) for slug in list_models()]
        self.chosen = setting.of(setting.model)
        said = takeaway(self.chosen, self.devices)
        caption = self.text["caption"].format(
            batch=setting.batch, tokens=setting.tokens, dtype=setting.dtype
        )
        spec = memory_spec(models, setting.model, self.devices, self.text)
        alt = self.text["figure"].format(sentence=said)
        self.show(spec, alt, said, memory_table(models, self.devices, caption), stamp)


def cache_memory(
    model: str = "llama-3-8b", tokens: int = 8192, batch: int = 16, *, dtype: str = "bf16"
) -> CacheMemory:
    """What the KV cache of a published model takes, beside other models' and GPUs' memories.

    Args:
        model: slug of a sheet in data/models, such as "llama-3-8b".
        tokens: of each sequence, prompt and output together.
        batch: how many sequences.
        dtype: of the cache: "fp16", "bf16" or "fp32".

    Raises:
        ValueError: a bad value; value, limit and remedy.
    """
    short = SHORT_DTYPE[dtype_name(dtype)]
    slug = model_shape(model).slug
    return CacheMemory(CacheSize(slug, checked_tokens(tokens), checked_batch(batch), short))
