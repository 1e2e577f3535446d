"""The simulated server as a widget: sentences follow from the simulation, sources are named."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

import fa_kernels as fa
from fa_kernels.device import device
from fa_kernels.figures.provenance import Provenance, Shown
from fa_kernels.figures.recorded_decode import RecordedDecode, points_of
from fa_kernels.model_shape import list_models, model_shape
from fa_kernels.session import Session
from fa_kernels.widgets.batching import LONGEST, Asked, Batching, step_times
from tests.figures.synthetic_decode import FIXED_MS, GB_S, decode_rows

SETTING = Asked(40, 2, 64, 1)


def plain(text: str) -> str:
    return html.unescape(re.sub("<[^>]*>", "", text))


def test_without_a_run_the_model_is_named_as_such(bare: Session) -> None:
    widget = fa.batching(device="h200", session=bare)
    static, continuous = widget.served
    said = plain(widget.sentence.value)
    assert f"gives {continuous.tokens_per_s:.0f} tokens a second" in said
    assert f"static batches {static.tokens_per_s:.0f}" in said
    table = plain(widget.table.value)
    assert "No decode kernel was timed on the H200 SXM yet" in table and "4800 GB/s" in table


def test_recorded_steps_give_the_times_of_attention() -> None:
    gpu, model = device("h200"), model_shape("llama-3-8b")
    recorded = RecordedDecode("20260108-h200-decode", points_of(decode_rows()))
    times = step_times(model, gpu, recorded.line(gpu))
    assert times.fixed_ms == pytest.approx(32 * FIXED_MS)
    assert times.token_ms == pytest.approx(131072 / GB_S / 1e6)
    assert times.weights_ms == pytest.approx(2 * model.parameters / 4.8e9)
    widget = Batching(SETTING, model, gpu, recorded)
    table = plain(widget.table.value)
    assert (
        "a line through 5 recorded decode steps over caches in one piece (20260108-h200-decode)"
        in table
    )
    assert "8 µs + bytes of the cache / 4000 GB/s" in table


def test_the_figure_follows_the_controls(bare: Session) -> None:
    widget = fa.batching(session=bare)
    before = widget.served
    widget.per_s.value = 5
    assert widget.served != before and widget.setting.per_s == 5
    widget.cache_gib.value = 1
    assert widget.served[0].slots == 8192 and "8192 slots" in plain(widget.table.value)
    widget.per_s.value, widget.seed.value = 40, 5
    assert "Times that a request had to make room: 2." in plain(widget.sentence.value)


def test_the_smallest_cache_holds_the_longest_request_of_every_dense_model(bare: Session) -> None:
    for slug in list_models():
        shape = model_shape(slug)
        if shape.experts == 1 and not shape.window:
            widget = fa.batching(model=slug, cache_gib=1, session=bare)
            assert widget.served[0].slots >= LONGEST and not widget.figure.stale


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"per_s": 0}, "per_s = 0"),
        ({"cache_gib": 0}, "cache_gib = 0"),
        ({"page_size": 100}, "page_size = 100 is not offered"),
        ({"model": "mixtral-8x7b"}, "has experts or windowed layers"),
        ({"model": "gemma-2-9b"}, "has experts or windowed layers"),
        ({"device": "h300"}, "device = 'h300'"),
        ({"seed": -1}, "seed = -1"),
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fa.batching(**changed)


def test_an_exported_figure_says_its_parameters(bare: Session) -> None:
    found = Provenance.of(Shown.of(fa.batching(20, 4, 16, seed=2, session=bare)))
    assert found.parameters == {"per_s": 20, "cache_gib": 4, "page_size": 16, "seed": 2}
