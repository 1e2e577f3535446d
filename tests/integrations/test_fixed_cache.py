"""A cache of fixed places: what it refuses, and that it is a plain cache before its first step."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from fa_kernels.integrations import fixed_cache  # noqa: E402
from fa_kernels.integrations.fixed_cache import FixedCache  # noqa: E402


def keys(tokens: int, value: float) -> Any:
    return torch.full((2, 3, tokens, 4), value)


def test_a_prompt_then_tokens_at_positions_of_the_device() -> None:
    cache = FixedCache(6, 2, "cpu")
    found, _ = cache.update(keys(3, 1.0), keys(3, 1.0), 0)
    assert found.shape[2] == 3
    cache.begin_steps()
    assert cache.position.tolist() == [3] and cache.lengths.tolist() == [4, 4]
    for at in (3, 4):
        found, values = cache.update(keys(1, float(at)), keys(1, -float(at)), 0)
        assert found.shape[2] == values.shape[2] == 6
        cache.advance()
    assert found[0, 0, :, 0].tolist() == [1, 1, 1, 3, 4, 0]
    assert values[1, 2, :, 3].tolist() == [1, 1, 1, -3, -4, 0]
    cache.rewind()
    found, _ = cache.update(keys(2, 7.0), keys(2, 7.0), 0)
    assert found[0, 0, :, 0].tolist() == [7, 7]


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="max_tokens = 0: a cache holds at least one token"):
        FixedCache(0, 2, "cpu")
    with pytest.raises(ValueError, match="takes no attention_mask: all sequences of a batch"):
        fixed_cache._no_mask(attention_mask=torch.ones(2, 3))
    cache = FixedCache(2, 2, "cpu")
    with pytest.raises(ValueError, match="3 tokens do not fit into a cache of max_tokens = 2"):
        cache.update(keys(3, 1.0), keys(3, 1.0), 0)
