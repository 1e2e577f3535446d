"""The figure of O's drift: a panel per dtype, the same axis of errors."""

from __future__ import annotations

import plotly.graph_objects as go

from fa_kernels.figures.o_drift import NARROW, WIDE, Drift, o_drift_spec
from fa_kernels.widgets.text import labels
from tests.figures.test_explorer import sizes

TEXT = labels("o_drift")


def drift(dtype: str, recorded: bool) -> Drift:
    points = {WIDE: [(32.0, 1e-4)], NARROW: [(32.0, 4e-4)]} if recorded else {}
    errors = {WIDE: [1e-4, 1e-4], NARROW: [1e-4, 3e-4]}
    return Drift(dtype, [1, 2], errors, [1e-3, 2e-3], points)


def test_growth_is_the_ratio_at_the_most_passes() -> None:
    assert abs(drift("fp16", False).growth - 3) < 1e-9


def test_one_and_two_panels() -> None:
    for names in (["fp16"], ["fp16", "bf16"]):
        spec = o_drift_spec([drift(name, False) for name in names], TEXT)
        go.Figure(spec)
        assert min(sizes(spec)) >= 12
        assert len(spec["layout"]["annotations"]) == len(names)


def test_recorded_errors_are_named_where_they_are() -> None:
    for recorded in (True, False):
        spec = o_drift_spec([drift("fp16", recorded)], TEXT)
        assert (TEXT["legend_recorded"] in spec["layout"]["annotations"][0]["text"]) == recorded
    open_marks = next(
        t
        for t in o_drift_spec([drift("fp16", True)], TEXT)["data"]
        if t["name"] == f"{NARROW}, recorded"
    )
    assert open_marks["x"] == [32.0] and open_marks["marker"]["symbol"].endswith("-open")
