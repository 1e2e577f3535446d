"""Caches of published models as bars, beside the memories of GPUs."""

from __future__ import annotations

import math

import plotly.graph_objects as go
import pytest

from fa_kernels.device import device, readable_devices
from fa_kernels.figures.cache_memory import CachedModel, memory_spec, size_words, smallest_device
from fa_kernels.model_shape import list_models, model_shape
from fa_kernels.widgets.text import labels
from tests.figures.test_explorer import sizes

TEXT = labels("cache_memory")


def models(tokens: int, batch: int, dtype: str = "bf16") -> list[CachedModel]:
    return [CachedModel(model_shape(slug), tokens, batch, dtype) for slug in list_models()]


@pytest.mark.parametrize("tokens", [1, 128, 4096, 1 << 20])
@pytest.mark.parametrize("batch", [1, 4096])
def test_plotly_takes_every_size(tokens: int, batch: int) -> None:
    shown = models(tokens, batch)
    spec = memory_spec(shown, "llama-3-8b", readable_devices(), TEXT)
    go.Figure(spec)
    assert min(sizes(spec)) >= 12
    low, high = spec["layout"]["xaxis"]["range"]
    outlines, bars = spec["data"]
    for one, x, mha in zip(shown, bars["x"], outlines["x"], strict=True):
        root = bars["base"][0]
        assert x + root == pytest.approx(one.nbytes) and mha + root == pytest.approx(one.mha_bytes)
        assert low <= math.log10(one.nbytes) and math.log10(one.mha_bytes) <= high
    lines = [shape["x0"] for shape in spec["layout"]["shapes"]]
    assert lines == sorted({gpu.hbm_capacity_bytes for gpu in readable_devices()})
    assert all(low <= math.log10(line) <= high for line in lines)


def test_the_chosen_model_stands_out_and_a_star_marks_what_is_too_long() -> None:
    spec = memory_spec(models(8192, 1), "gpt2", readable_devices(), TEXT)
    names = spec["layout"]["yaxis"]["ticktext"]
    assert [name for name in names if "<b>" in name] == ["<b>GPT-2 small</b>&nbsp;"]
    words = [note["text"] for note in spec["layout"]["annotations"]]
    assert any("<b>288 MiB</b>* (MHA, 12 of 12)" in word for word in words)
    assert any(word == "1 GiB (GQA, 8 of 32)" for word in words)


def test_the_smallest_device_that_holds_it() -> None:
    gpus = readable_devices()
    found = smallest_device(41 * 2**30, gpus)
    assert found is not None and found.hbm_capacity_bytes == 80 * 2**30
    assert smallest_device(16 * 2**30, gpus) == device("t4")
    assert smallest_device(200 * 2**30, gpus) is None


def test_multi_query_and_multi_head_bound_the_cache() -> None:
    for one in models(5000, 3):
        assert one.mqa_bytes <= one.nbytes <= one.mha_bytes
        assert one.mha_bytes == one.mqa_bytes * one.model.nheads
        assert one.total_bytes == one.nbytes + 2 * one.model.parameters


def test_more_than_a_gpu_holds_is_said_in_tib() -> None:
    assert size_words(1.5 * 2**40) == "1.5 TiB" and size_words(2**39) == "512 GiB"
