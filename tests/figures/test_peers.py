"""The figure of any peers: one run's points are joined, another run's stand open beside them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from fa_kernels.figures import theme
from fa_kernels.figures.peers import peers_spec
from fa_kernels.figures.recorded_peers import curves_by_run, peers_runs
from fa_kernels.widgets.text import labels
from tests.figures.synthetic_peers import (
    FLEX_ID,
    FLEX_SEQLENS,
    PEERS_ID,
    RATES,
    SEQLENS,
    write_flex_run,
    write_peers_run,
)
from tests.figures.test_explorer import sizes

TEXT = labels("peers")
AT: dict[str, Any] = {"head_dim": 64, "causal": None, "dtype": "bfloat16"}


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    from fa_kernels.device import device

    root: Path = tmp_path_factory.mktemp("peers")
    write_peers_run(root)
    write_flex_run(root)
    return peers_spec(curves_by_run(peers_runs(device("h200"), None, root), **AT), TEXT)


def test_plotly_takes_the_figure(spec: dict[str, Any]) -> None:
    go.Figure(spec)
    assert min(sizes(spec)) >= 12
    assert max(max(mark["y"]) for mark in spec["data"]) < spec["layout"]["yaxis"]["range"][1]


def test_only_points_of_the_first_run_are_joined(spec: dict[str, Any]) -> None:
    first, further = (
        [mark for mark in spec["data"] if mark["mode"] == mode]
        for mode in ("lines+markers", "markers")
    )
    assert [mark["name"] for mark in first] == list(RATES[PEERS_ID])
    assert [mark["name"] for mark in further] == list(RATES[FLEX_ID])
    for mark in first:
        assert mark["x"] == [math.log2(n) for n in SEQLENS]
        assert mark["y"] == pytest.approx([RATES[PEERS_ID][mark["name"]]] * 3, rel=1e-4)
    for mark in further:
        style = theme.style_of(mark["name"])
        assert mark["marker"]["symbol"] == f"{style.marker}-open" and "line" not in mark
        assert mark["x"] == [math.log2(n) for n in FLEX_SEQLENS]
        assert FLEX_ID in mark["hovertext"][0]


def test_both_runs_stand_in_the_legend_with_their_own_series(spec: dict[str, Any]) -> None:
    words = spec["layout"]["annotations"][0]["text"]
    filled, opened = (
        TEXT[k].format(run_id=i) for k, i in (("filled", PEERS_ID), ("open", FLEX_ID))
    )
    _, _, after = words.partition(filled)
    of_first, _, of_further = after.partition(opened)
    assert "fa3" in of_first and "flex" not in of_first
    assert "flex" in of_further and "fa3" not in of_further
    assert "05 flash, tensor cores" in of_first and "05 flash, tensor cores" in of_further


def test_a_hover_names_the_kernel_in_full(spec: dict[str, Any]) -> None:
    (flash,) = (mark for mark in spec["data"] if mark["name"] == "torch_flash")
    assert "flash_fwd_kernel&lt;Traits&lt;64, 128&gt;, false&gt;(Params)" in flash["hovertext"][0]


def test_without_a_run_the_axes_are_bare() -> None:
    bare = peers_spec({}, TEXT)
    go.Figure(bare)
    assert bare["data"] == [] and not bare["layout"]["yaxis"]["showticklabels"]
    assert TEXT["not_recorded"] in bare["layout"]["annotations"][0]["text"]
