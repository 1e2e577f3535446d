"""Parts of a row: each the softmax of its own keys, and the merge that of all."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import pytest

from fa_kernels.decode_problem import TILE_KEYS
from fa_kernels.figures.split_kv import SplitRow, random_row, split_spec
from fa_kernels.widgets.text import labels
from fa_kernels.widgets.whole_row import LIMIT, softmax_output
from tests.figures.test_explorer import sizes

TEXT = labels("split_kv")


@pytest.mark.parametrize("keys", [1, 15, 16, 17, 120, 1023])
@pytest.mark.parametrize("num_splits", [1, 2, 3, 7, 16, 128])
def test_the_merge_is_the_softmax_of_the_whole_row(keys: int, num_splits: int) -> None:
    scores, values = random_row(keys, seed=keys)
    row = SplitRow.of(scores, values, num_splits)
    assert len(row.parts) == num_splits and row.weights.sum() == pytest.approx(1.0)
    assert np.abs(row.out - softmax_output(scores, values)).max() <= LIMIT
    assert row.lse == pytest.approx(float(np.log(np.exp(scores).sum())), abs=1e-12)
    owned = [key for part in row.parts for key in range(part.first, part.stop)]
    assert owned == list(range(keys))
    for part, weight in zip(row.parts, row.weights, strict=True):
        assert part.first % TILE_KEYS == 0 or part.first == part.stop
        if part.first == part.stop:
            assert (part.m, part.l, part.lse, weight) == (-np.inf, 0.0, -np.inf, 0.0)
        else:
            own = scores[part.first : part.stop]
            assert part.m == own.max() and part.l == pytest.approx(np.exp(own - part.m).sum())
            expected = softmax_output(own, values[part.first : part.stop])
            np.testing.assert_allclose(part.out, expected, atol=LIMIT)


@pytest.mark.parametrize(("keys", "num_splits"), [(1, 1), (120, 4), (120, 16), (1024, 128)])
def test_plotly_takes_every_cut(keys: int, num_splits: int) -> None:
    row = SplitRow.of(*random_row(keys, 1), num_splits)
    spec = split_spec(row, TEXT)
    go.Figure(spec)
    assert min(sizes(spec)) >= 12
    scores, weights = spec["data"]
    tops = [base + y for base, y in zip([scores["base"]] * keys, scores["y"], strict=True)]
    np.testing.assert_allclose(tops, row.scores)
    assert len(weights["y"]) == num_splits
    filled = [part for part in row.parts if part.first < part.stop]
    assert len(spec["layout"]["shapes"]) == len(filled)
