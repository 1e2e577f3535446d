"""The roofline of prefill and decode: sentences follow from sizes, device and records."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

import fa_kernels as fa
from fa_kernels.device import device
from fa_kernels.figures.provenance import Provenance, Shown
from fa_kernels.figures.recorded_ceilings import MeasuredCeilings
from fa_kernels.figures.recorded_decode import RecordedDecode, points_of
from fa_kernels.figures.recorded_speed import RecordedSpeed
from fa_kernels.session import Session
from fa_kernels.widgets.regimes import Records, Regimes, Served
from tests.figures.synthetic_decode import decode_rows


def plain(text: str) -> str:
    return html.unescape(re.sub("<[^>]*>", "", text))


def test_without_records_the_model_and_the_data_sheet_speak(bare: Session) -> None:
    widget = fa.regimes(device="h200", session=bare)
    said = plain(widget.sentence.value)
    assert "the H200 SXM could do 206: arithmetic binds" in said
    assert "it does 4 (query heads on each head of keys and values: 4): bandwidth binds" in said
    assert "more than 19.2 TFLOP/s there, 1.9 % of the peak" in said and "Recorded" not in said
    table = plain(widget.table.value)
    for kind in ("ceilings", "decode", "speed"):
        assert f"make measure ARGS=--{kind}" in table


def test_recorded_steps_of_the_same_sharing_are_named() -> None:
    gpu = device("h200")
    recorded = RecordedDecode("20260108-h200-decode", points_of(decode_rows()))
    records = Records(MeasuredCeilings(), recorded, RecordedSpeed())
    widget = Regimes(Served("llama-3-8b", 8192, 16), gpu, records)
    best = max(recorded.points, key=lambda point: point.gb_s)
    said, table = plain(widget.sentence.value), plain(widget.table.value)
    assert f"Recorded at most: {best.gb_s:.0f} GB/s (64 sequences, N = 8192)" in said
    assert "20260108-h200-decode" in table
    widget.model.value = "llama-2-7b"  # no heads are shared there
    assert "Recorded" not in plain(widget.sentence.value)
    assert "20260108-h200-decode" not in widget.table.value


def test_a_short_prompt_is_bound_by_bytes(bare: Session) -> None:
    widget = fa.regimes("gpt2", 128, 1, device="h200", session=bare)
    assert plain(widget.sentence.value).count("bandwidth binds") == 2
    widget.tokens.value = 8192
    assert "arithmetic binds" in plain(widget.sentence.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": "gpt5"}, "model = 'gpt5'"),
        ({"tokens": 0}, "tokens = 0"),
        ({"batch": 0}, "batch = 0"),
        ({"device": "h300"}, "device = 'h300'"),
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fa.regimes(**changed)


def test_an_exported_figure_says_its_parameters(bare: Session) -> None:
    found = Provenance.of(Shown.of(fa.regimes("gpt2", 512, 2, session=bare)))
    assert found.parameters == {"model": "gpt2", "tokens": 512, "batch": 2}
