"""Prefill and decode: FLOP and bytes by hand, and which limit binds."""

from __future__ import annotations

import math

import plotly.graph_objects as go
import pytest

from fa_kernels.device import Device, readable_devices
from fa_kernels.figures.recorded_decode import points_of
from fa_kernels.figures.recorded_speed import Curve
from fa_kernels.figures.regimes import DTYPE, decode_of, prefill_of, regimes_spec
from fa_kernels.figures.roofline import Ceilings
from fa_kernels.model_shape import list_models, model_shape
from fa_kernels.widgets.text import labels
from tests.figures.synthetic_decode import decode_rows
from tests.figures.test_explorer import sizes

TEXT = {**labels("roofline"), **labels("regimes")}
every_model = pytest.mark.parametrize("slug", list_models())


@every_model
def test_a_decode_step_is_counted_by_hand(slug: str) -> None:
    model, tokens, batch = model_shape(slug), 1000, 3
    one = decode_of(model, tokens, batch)
    cache = 2 * batch * model.nheads_kv * tokens * model.head_dim * 2
    ends = 2 * batch * model.nheads * model.head_dim * 2 + batch * model.nheads * 4
    assert one.least_bytes == one.asked_bytes == cache + ends
    assert one.flops == 2 * 2 * batch * model.nheads * tokens * model.head_dim
    # As many FLOP for each byte of a 16-bit cache as query heads share it, and a little less.
    assert 0.8 * model.group < one.intensity < model.group


@every_model
def test_a_prefill_is_counted_by_hand(slug: str, h200: Device) -> None:
    model, tokens = model_shape(slug), 512
    one = prefill_of(model, tokens, 2, h200)
    pairs = tokens * (tokens + 1) // 2
    assert one.flops == 4 * 2 * model.nheads * pairs * model.head_dim
    rows = 2 * tokens * model.head_dim * 2
    least = 2 * rows * (model.nheads + model.nheads_kv) + 2 * model.nheads * tokens * 4
    assert one.least_bytes == least <= one.asked_bytes


@pytest.mark.parametrize("device", readable_devices(), ids=lambda gpu: gpu.slug)
def test_the_regimes_are_bound_by_different_limits(device: Device) -> None:
    if device.bf16_tensor_tflops is None:
        pytest.skip("no bf16 on its tensor cores")
    ceilings, model = Ceilings.of(device, DTYPE), model_shape("llama-3-8b")
    prefill, decode = prefill_of(model, 8192, 1, device), decode_of(model, 8192, 64)
    assert prefill.binds(ceilings) == "arithmetic" and decode.binds(ceilings) == "bytes"
    ridge = ceilings.peak(True) * 1e3 / ceilings.bandwidth_gb_s
    for one in (prefill, decode):
        assert (one.intensity > ridge) == (one.binds(ceilings) == "arithmetic")
        longest = max(one.arithmetic_ms(ceilings), one.bytes_ms(ceilings))
        assert one.flops / longest / 1e9 == pytest.approx(ceilings.roof(one.intensity, True))


@pytest.mark.parametrize("slug", ["gpt2", "falcon-7b", "llama-3.1-405b"])
@pytest.mark.parametrize("tokens", [1, 128, 131072])
def test_plotly_takes_every_shape_and_marks_stand_inside(
    slug: str, tokens: int, h200: Device
) -> None:
    model, ceilings = model_shape(slug), Ceilings.of(h200, DTYPE)
    regimes = (prefill_of(model, tokens, 1, h200), decode_of(model, tokens, 1))
    steps = points_of(decode_rows())
    spec = regimes_spec(regimes, ceilings, None, steps, Curve("flash_mma", ()), TEXT)
    go.Figure(spec)
    assert min(sizes(spec)) >= 12
    axes = (spec["layout"]["xaxis"]["range"], spec["layout"]["yaxis"]["range"])
    for one in regimes:
        assert axes[0][0] < math.log10(one.intensity) < axes[0][1]
    recorded = next(t for t in spec["data"] if t["name"] == TEXT["recorded_decode"])
    assert len(recorded["x"]) == len(steps)
    assert all(axes[1][0] < math.log10(y) < axes[1][1] for y in recorded["y"])
    drop = next(t for t in spec["data"] if t["name"] == "decode")
    assert drop["y"][1] == pytest.approx(ceilings.roof(regimes[1].intensity, True))


@pytest.mark.parametrize(("tokens", "apart"), [(8192, True), (128, False)])
def test_words_at_the_fp32_ceiling_end_left_of_prefill(
    tokens: int, apart: bool, h200: Device
) -> None:
    model, ceilings = model_shape("llama-3-8b"), Ceilings.of(h200, DTYPE)
    regimes = (prefill_of(model, tokens, 1, h200), decode_of(model, tokens, 1))
    spec = regimes_spec(regimes, ceilings, None, (), Curve("flash_mma", ()), TEXT)
    words = next(trace for trace in spec["data"] if trace["name"] == "ceiling words")
    assert (words["x"][1] < regimes[0].intensity) == apart
    assert words["x"][1] <= 10.0 ** spec["layout"]["xaxis"]["range"][1]
