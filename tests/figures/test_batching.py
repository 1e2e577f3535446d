"""Requests as bars: everybody is drawn, from arrival to the last token."""

from __future__ import annotations

import plotly.graph_objects as go
import pytest

from fa_kernels.figures.batching import batching_spec, waits
from fa_kernels.serving import POLICIES, StepTimes, request_trace, serve
from fa_kernels.widgets.text import labels
from tests.figures.test_explorer import sizes

TEXT = labels("batching")
TIMES = StepTimes(3.0, 0.02, 1e-5, 0.1)


@pytest.mark.parametrize("count", [1, 48])
@pytest.mark.parametrize("slots", [2048, 65536])
def test_plotly_takes_every_trace(count: int, slots: int) -> None:
    requests = request_trace(1, count, 40)
    served = [serve(requests, policy, TIMES, slots) for policy in POLICIES]
    spec = batching_spec(served, TEXT)
    go.Figure(spec)
    assert min(sizes(spec)) >= 12
    for one, axis in zip(served, ("x", "x3"), strict=True):
        bars = {t["name"]: t for t in spec["data"] if t["type"] == "bar" and t["xaxis"] == axis}
        drawn = sum(sum(trace["x"]) for trace in bars.values()) * 1e3
        lived = sum(s.done_ms - s.request.arrival_ms for s in one.services)
        assert drawn == pytest.approx(lived)
        assert len(bars["decode"]["x"]) == count + one.sent_back
        assert len(bars["sent back"]["x"]) == one.sent_back


def test_the_cache_is_drawn_in_percent_of_its_slots() -> None:
    served = [serve(request_trace(1), policy, TIMES, 8192) for policy in POLICIES]
    for trace in batching_spec(served, TEXT)["data"]:
        if trace["type"] == "scatter":
            assert min(trace["y"]) >= 0 and max(trace["y"]) <= 100


def test_a_wait_ends_where_a_stay_begins() -> None:
    found = serve(request_trace(5, 48, 40), "continuous", TIMES, 4096)
    assert found.sent_back
    for service in found.services:
        ends = [end for _, end in waits(service)]
        assert ends == [start for start, _ in service.spans]
        assert waits(service)[0][0] == service.request.arrival_ms
