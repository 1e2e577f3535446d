"""Published sizes of models, and what their KV caches take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fa_kernels.model_shape import MODELS_DIR, ModelShape, list_models, load_model, model_shape

MODELS = [model_shape(slug) for slug in list_models()]
every_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.slug)


@every_model
def test_the_cache_is_counted_as_arrays_are(model: ModelShape) -> None:
    """One layer at a time, for a sequence longer than any window."""
    tokens, nbytes = 5000, 0
    for layer in range(model.layers):
        kept = min(tokens, model.window or tokens) if layer < model.windowed_layers else tokens
        nbytes += 2 * kept * model.nheads_kv * model.head_dim * 2 * 3
    assert model.cache_bytes(tokens, 3, "bf16") == nbytes
    assert 2 * nbytes == model.cache_bytes(tokens, 3, "fp32")
    assert model.cache_bytes(0) == model.cache_bytes(7, 0) == 0


@every_model
def test_sharing_heads_saves_by_the_group(model: ModelShape) -> None:
    every = model.with_kv_heads(model.nheads)
    assert every.kind == "MHA" and every.group == 1
    assert every.cache_bytes(100) == model.group * model.cache_bytes(100)
    assert model.with_kv_heads(1).cache_bytes(100) * model.nheads_kv == model.cache_bytes(100)


def test_known_numbers() -> None:
    """Half a MiB a token for Llama 2 7B is what papers on serving reckon with."""
    assert model_shape("llama-2-7b").cache_bytes(1) == 512 * 1024
    assert model_shape("llama-3-8b").cache_bytes(1) == 128 * 1024
    kinds = {slug: model_shape(slug).kind for slug in ("gpt2", "llama-2-70b", "falcon-7b")}
    assert kinds == {"gpt2": "MHA", "llama-2-70b": "GQA", "falcon-7b": "MQA"}
    gemma = model_shape("gemma-2-9b")
    assert gemma.cache_bytes(8192) == 1.5 * gemma.cache_bytes(4096)
    assert model_shape("gpt2").weight_bytes("fp32") == 4 * 124439808


def test_parameters_are_those_that_transformers_builds() -> None:
    """Of the smallest model; the others were counted in the same way and take longer."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    assert sum(p.numel() for p in model.parameters()) == model_shape("gpt2").parameters


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="model = 'gpt5' is not known: choose one of gpt2"):
        model_shape("gpt5")
    model = model_shape("llama-3-8b")
    with pytest.raises(ValueError, match="nheads_kv = 5 does not divide the 32"):
        model.with_kv_heads(5)
    with pytest.raises(ValueError, match="tokens = -1"):
        model.cache_bytes(-1)
    with pytest.raises(ValueError, match="batch = 5000"):
        model.cache_bytes(1, 5000)
    with pytest.raises(ValueError, match="dtype = int8"):
        model.cache_bytes(1, 1, "int8")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"layers": 0}, "layers = 0"),
        ({"nheads_kv": 5}, "5 KV heads, which do not divide 12"),
        ({"slug": "x"}, "slug and file name"),
        ({"source": " "}, "must be a text"),
        ({"windowed_layers": 13}, "between 0 and the layers"),
        ({"window": 100}, "together, or neither"),
        ({"window": 1.5}, "null or a positive"),
        ({"more": 1}, "must hold exactly"),
    ],
)
def test_a_bad_sheet_is_refused_in_words(
    tmp_path: Path, changed: dict[str, object], said: str
) -> None:
    sheet = json.loads((MODELS_DIR / "gpt2.json").read_text(encoding="utf-8")) | changed
    path = tmp_path / "gpt2.json"
    path.write_text(json.dumps(sheet), encoding="utf-8")
    with pytest.raises(ValueError, match=said) as refusal:
        load_model(path)
    assert "git checkout -- data/models" in str(refusal.value)


def test_a_sheet_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"data/models/x.json cannot be read"):
        load_model(tmp_path / "x.json")
