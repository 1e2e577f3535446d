"""Ranges and errors of softmax: plotly takes the spec, words can be read in both themes."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import plotly.graph_objects as go

from fa_kernels.figures import theme
from fa_kernels.figures.panel import LEAST_WIDTH
from fa_kernels.figures.softmax_range import ONLINE, SAFE, UNSAFE, SoftmaxRange, softmax_range_spec
from fa_kernels.widgets.text import labels

RANGES = [
    SoftmaxRange("fp16", -17.3, 9.67, {UNSAFE: 0.5, SAFE: 1e-3, ONLINE: 1e-3}),
    SoftmaxRange("fp64", -745.0, 709.0, {UNSAFE: 7e-16, SAFE: 0.0, ONLINE: 2e-16}),
]


def spec() -> dict[str, Any]:
    return softmax_range_spec(RANGES, labels("softmax")["figure"])


def trace(name: str) -> dict[str, Any]:
    (found,) = [t for t in spec()["data"] if t["name"] == name and t.get("mode") != "markers+text"]
    return found


def sizes(node: Any, key: str = "") -> list[float]:
    if isinstance(node, list):
        return [size for item in node for size in sizes(item, key)]
    if not isinstance(node, dict):
        return []
    own = [node["size"]] if key.endswith("font") and "size" in node else []
    return own + [size for name, value in node.items() for size in sizes(value, name)]


def test_plotly_takes_it_and_nothing_is_small() -> None:
    go.Figure(spec())
    assert min(sizes(spec())) >= theme.SMALL
    assert len(set(sizes(spec()["data"]))) <= 2, "a font was enlarged twice"


def test_the_bars_say_where_it_fails() -> None:
    assert trace("left")["text"] == ["NaN ← −17.3 ", "NaN ← −745 "]
    assert trace("right")["text"] == [" 9.67 → NaN", " 709 → NaN"]
    unsafe = trace(UNSAFE)
    assert unsafe["base"][0] < 0 < unsafe["base"][0] + unsafe["x"][0]
    assert unsafe["x"][1] > unsafe["x"][0]


def test_words_on_the_bars_stay_dark_in_the_dark() -> None:
    for name in (UNSAFE, ONLINE):
        assert trace(name)["textfont"]["color"] not in theme.DARK


def test_an_error_of_zero_is_said_and_drawn() -> None:
    (safe,) = [t for t in spec()["data"] if t["name"] == SAFE]
    assert "0" in safe["text"][1].split() and safe["x"][1] > 0


def test_the_words_beside_the_widest_bar_have_room() -> None:
    """In the narrowest figure "NaN ← −745" begins right of the names of the dtypes."""
    layout, words = spec()["layout"], trace("left")
    margin, axis = layout["margin"], layout["xaxis"]
    inner = LEAST_WIDTH - margin["l"] - margin["r"]
    low, high = axis["range"]
    start, end = axis["domain"]
    at = (start + (words["x"][1] - low) / (high - low) * (end - start)) * inner
    assert at > 7.5 * len(words["text"][1])
    assert words["cliponaxis"] is False


def test_ticks_are_few_enough_to_stand_upright() -> None:
    layout = spec()["layout"]
    inner = LEAST_WIDTH - layout["margin"]["l"] - layout["margin"]["r"]
    for name in ("xaxis", "xaxis2"):
        axis = layout[name]
        assert axis["tickangle"] == 0
        low, high = axis["range"]
        px = (axis["domain"][1] - axis["domain"][0]) * inner / (high - low)
        values = [math.log10(x) for x in axis["tickvals"]] if name == "xaxis2" else axis["tickvals"]
        plain = [re.sub("<.*?>", "", text) for text in axis["ticktext"]]
        places = zip(values, plain, strict=True)
        for (a, first), (b, second) in itertools.pairwise(places):
            assert (b - a) * px > 7.3 * (len(first) + len(second)) / 2, (first, second)
