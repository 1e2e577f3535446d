"""Capacities and bandwidths of a device's levels, drawn on log axes."""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go
import pytest

from fa_kernels.device import Device, device, list_devices
from fa_kernels.figures import theme
from fa_kernels.figures.memory_levels import LEVELS, bandwidth, levels_of, levels_spec
from fa_kernels.figures.recorded_ceilings import MeasuredCeilings, register_gb_s
from fa_kernels.units import capacity
from fa_kernels.widgets.text import labels
from tests.figures.synthetic_ceilings import rate_of, write_ceilings_run
from tests.figures.test_explorer import sizes

TEXT = labels("memory_levels")


@pytest.fixture
def measured(tmp_path: Path, h200: Device) -> MeasuredCeilings:
    write_ceilings_run(tmp_path)
    return MeasuredCeilings.on(h200, tmp_path)


@pytest.mark.parametrize("slug", list_devices())
def test_levels_get_larger_and_slower_outwards(slug: str) -> None:
    found = levels_of(device(slug), MeasuredCeilings())
    assert list(found) == list(LEVELS) == list(TEXT["levels"]) == list(theme.LEVEL_COLOURS)
    rates = [level.sheet_gb_s for level in found.values() if level.sheet_gb_s is not None]
    assert rates == sorted(rates, reverse=True) and found["l2"].sheet_gb_s is None
    assert found["hbm"].total_bytes > 100 * found["l2"].total_bytes
    assert not [level for level in found.values() if level.measured_gb_s or level.ratio]


def test_measured_rates_stand_beside(h200: Device, measured: MeasuredCeilings) -> None:
    found = levels_of(h200, measured)
    assert found["l2"].measured_gb_s == rate_of("l2_read_apart") and found["l2"].ratio is None
    assert found["hbm"].ratio == pytest.approx(0.9) and found["shared"].ratio == pytest.approx(0.95)
    assert found["registers"].measured_gb_s is None, "no kernel measures registers by themselves"
    assert found["registers"].sheet_gb_s == register_gb_s(h200.fp32_tflops)


@pytest.mark.parametrize("slug", list_devices())
def test_plotly_takes_the_levels_and_what_is_missing_is_said(slug: str) -> None:
    spec = levels_spec(levels_of(device(slug), MeasuredCeilings()), TEXT)
    go.Figure(spec)
    assert min(sizes(spec)) >= 12
    words = [text for t in spec["data"] for text in t.get("text", [])]
    assert sum(TEXT["no_measured"] in text for text in words) == len(LEVELS)
    assert sum(TEXT["no_sheet"] in text for text in words) == 1
    low, high = (10.0**end for end in spec["layout"]["xaxis2"]["range"])
    for trace in spec["data"]:
        if trace["type"] == "bar" and trace["xaxis"] == "x2":
            ends = [x + base for x, base in zip(trace["x"], trace["base"], strict=True)]
            # The words right of a bar need the last decade and a half.
            assert all(low < end < high / 30 for end in ends)


def test_measured_bars_are_hatched_and_say_their_share(
    h200: Device, measured: MeasuredCeilings
) -> None:
    spec = levels_spec(levels_of(h200, measured), TEXT)
    go.Figure(spec)
    bars = {trace["name"]: trace for trace in spec["data"] if trace["type"] == "bar"}
    assert "pattern" in bars["measured"]["marker"] and "pattern" not in bars["GPU"]["marker"]
    assert len(bars["measured"]["x"]) == 3 and len(bars["data sheet"]["x"]) == 3
    words = " ".join(next(t["text"] for t in spec["data"] if t["name"] == "bandwidths"))
    assert "(90 %)" in words and words.count(TEXT["no_measured"]) == 1
    assert "5 TB/s to the SMs" in words and "4 operands an FMA" in words
    held = " ".join(next(t["text"] for t in spec["data"] if t["name"] == "capacities"))
    assert capacity(h200.l2_bytes) in held and capacity(h200.smem_per_sm_bytes) in held


def test_bandwidths_read_in_their_unit() -> None:
    assert (bandwidth(320.0), bandwidth(4800.0), bandwidth(33453.6)) == (
        "320 GB/s", "4.8 TB/s", "33.5 TB/s",
    )  # fmt: skip
