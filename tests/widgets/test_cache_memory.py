"""The caches of published models: what is said follows from their sizes."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

import fa_kernels as fa
from fa_kernels.figures.provenance import Provenance, Shown


def plain(text: str) -> str:
    return html.unescape(re.sub("<[^>]*>", "", text))


def test_the_sentence_follows_the_controls() -> None:
    widget = fa.cache_memory("llama-3-8b", 8192, 16)
    said = plain(widget.sentence.value)
    assert "keeps 128 KiB for each token: 16 × 8192 tokens in bf16 take 16 GiB" in said
    assert "4 times less than the 64 GiB" in said and "A100 40GB" in said
    widget.tokens.value = 32768
    said = plain(widget.sentence.value)
    assert "take 64 GiB" in said and "published for at most 8192 tokens" in said
    widget.model.value, widget.batch.value = "falcon-7b", 1
    assert "71 times less" in plain(widget.sentence.value)
    widget.model.value, widget.batch.value = "llama-2-7b", 4096
    said = plain(widget.sentence.value)
    assert "with one head for all (multi-query, MQA)" in said and "no single GPU" in said


def test_a_typed_value_is_refused_in_words() -> None:
    widget = fa.cache_memory()
    widget.batch.type("0")
    assert widget.batch.error.startswith("batch = 0 is out of range") and widget.batch.value == 16
    widget.tokens.type("5000")
    assert "× 5000 tokens" in plain(widget.sentence.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": "gpt5"}, "model = 'gpt5'"),
        ({"tokens": 0}, "tokens = 0"),
        ({"batch": 1e6}, "batch = "),
        ({"dtype": "fp8"}, "fp8"),
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fa.cache_memory(**changed)


def test_every_model_has_a_line_with_its_source() -> None:
    table = fa.cache_memory().table.value
    assert table.count("<tr>") == 13 and table.count("Hugging Face, config.json of ") == 12
    assert "71 / 1 (MQA)" in table and "none alone" in table


def test_an_exported_figure_says_its_parameters() -> None:
    found = Provenance.of(Shown.of(fa.cache_memory("gpt2", 1024, 2, dtype="fp16")))
    assert found.parameters == {"model": "gpt2", "tokens": 1024, "batch": 2, "dtype": "fp16"}
