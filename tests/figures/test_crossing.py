"""Where the two loop orders ask for the same number of bytes: by search and by the law."""

from __future__ import annotations

import plotly.graph_objects as go
import pytest

from fa_kernels.device import Device
from fa_kernels.figures.crossing import (
    MODELS,
    ORDERS,
    Crossing,
    crossing_kib,
    crossing_spec,
    law_kib,
    moved_at,
)
from fa_kernels.figures.point import Point
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.units import KIB
from fa_kernels.widgets.text import labels
from tests.figures.test_explorer import sizes


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("d", [32, 64, 128])
def test_the_search_finds_the_least_budget(d: int, dtype: str, model: str) -> None:
    problem = AttentionProblem.of_tokens(16384, d, dtype)
    found = crossing_kib(problem, model)
    assert found is not None
    at, before = (
        [moved_at(name, model, problem, kib) for name in ORDERS] for kib in (found, found - 1)
    )
    assert at[0] < at[1] and before[0] >= before[1]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("d", [64, 128])
def test_the_law_is_near_for_long_sequences(d: int, model: str) -> None:
    problem = AttentionProblem.of_tokens(65536, d)
    found = crossing_kib(problem, model)
    assert found is not None and found / law_kib(problem, model) == pytest.approx(1, abs=0.1)


def test_the_law_in_elements() -> None:
    """6 d² elements in the paper's model, 10 d² with O in fp32 between 16-bit passes."""
    half, single = (AttentionProblem.of_tokens(4096, 64, t) for t in ("float16", "float32"))
    assert law_kib(half, "paper") * KIB / 2 == 6 * 64**2
    assert law_kib(half, "launched") * KIB / 2 == 10 * 64**2
    assert law_kib(single, "launched") * KIB / 4 == 6 * 64**2


def test_figure_two_of_the_paper() -> None:
    """N = 1024, d = 64, B_r = 64: the swapped order asks for more than Algorithm 1 at 192 KiB."""
    problem = AttentionProblem(64, 16, 1024, 1024, 64, "float16")
    kv, q = (moved_at(name, "paper", problem, 192) for name in ORDERS)
    assert q == pytest.approx(4.57e9, rel=0.005)
    assert kv < q / 2


@pytest.mark.parametrize("n", [1, 113, 4096])
def test_plotly_takes_it_without_a_run(n: int, h200: Device) -> None:
    problem = AttentionProblem.of_tokens(n, 64)
    point = Point(problem, 64 * KIB, Tiling(64, 128).clipped(n, n), h200)
    kib = {model: crossing_kib(problem, model) for model in MODELS}
    text = labels("crossing")
    spec = crossing_spec(Crossing(point, kib, {}), text)
    go.Figure(spec)
    assert min(sizes(spec)) >= 12
    assert any(text["not_recorded"] in note["text"] for note in spec["layout"]["annotations"])
