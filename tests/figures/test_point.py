"""The setting of the knobs: checked values, tiles, limits and the sentence."""

from __future__ import annotations

import math

import pytest

from fa_kernels.device import Device, device
from fa_kernels.figures.point import ARITHMETIC, SHOWN, Bound, Point, ratio_text, sentence
from fa_kernels.tiling import Tiling
from fa_kernels.variants import VARIANTS


def test_tiles_are_the_papers_cut_to_the_sequence(h200: Device) -> None:
    assert Point.of(4096, 64, 192, "float16", h200).tiling == Tiling(64, 384)
    assert Point.of(100, 64, 192, "float16", h200).tiling == Tiling(64, 112)


@pytest.mark.parametrize("value", [0, -3, 10**9, math.nan, 0.5, "abc", None])
def test_bad_values_are_named(h200: Device, value: object) -> None:
    for name, arguments in {
        "N": (value, 64, 192),
        "d": (64, value, 192),
        "M": (64, 64, value),
    }.items():
        with pytest.raises(ValueError, match=rf"^{name} = .*between") as refusal:
            Point.of(*arguments, "float16", h200)
        assert "range" in str(refusal.value) or "SRAM" in str(refusal.value)


def test_head_dim_257_is_refused(h200: Device) -> None:
    with pytest.raises(ValueError, match="d = 257 is out of range: .* between 1 and 256"):
        Point.of(4096, 257, 64, "float16", h200)


def test_a_launch_the_device_cannot_make_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match=r"NVIDIA T4 allows 64 KiB: lower M to \d+ KiB"):
        Point.of(4096, 64, 192, "float16", device("t4"))


def test_the_refusals_remedy_works() -> None:
    with pytest.raises(ValueError, match="lower M to") as refusal:
        Point.of(4096, 128, 192, "float16", device("a100-80gb"))
    kib = int(str(refusal.value).split("lower M to ")[1].split(" KiB")[0])
    assert Point.of(4096, 128, kib, "float16", device("a100-80gb")).sram_kib == kib


def test_bound_is_the_roofline(h200: Device) -> None:
    point = Point.of(4096, 64, 192, "float16", h200)
    bound = point.bound(VARIANTS[SHOWN])
    assert bound.ms == max(bound.hbm_ms, bound.fp32_ms)
    flops = 4 * 64 * 4096**2 * 128
    assert bound.fp32_ms == pytest.approx(flops / 67e12 * 1e3)
    assert Bound(1.0, 2.0).limit == ARITHMETIC


def test_sentence_names_sizes_ratio_and_limit(h200: Device) -> None:
    text = sentence(Point.of(4096, 64, 192, "float16", h200))
    assert text.startswith("At N = 4096, d = 64, M = 192 KiB (B_r = 64, B_c = 384) standard moves")
    assert "fp32 arithmetic binds standard and flash" in text


def test_sentence_names_bandwidth_where_it_binds() -> None:
    text = sentence(Point.of(4096, 64, 16, "float32", device("rtx-4090")))
    assert "HBM bandwidth binds standard" in text


def test_sentence_names_memory_where_it_does_not_fit(h200: Device) -> None:
    text = sentence(Point.of(65536, 64, 192, "float16", h200))
    assert "Memory capacity binds: standard needs 513 GiB, H200 SXM has 141 GiB." in text
    assert "binds flash" in text


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, "0.50×"), (1.0, "1.0×"), (3.04, "3.0×"), (123.4, "123×")]
)
def test_ratios_read_well(value: float, text: str) -> None:
    assert ratio_text(value) == text


@pytest.mark.parametrize("seqlen", [1, 2, 17, 127, 65537, 2**18])
def test_odd_lengths_work(h200: Device, seqlen: int) -> None:
    assert sentence(Point.of(seqlen, 64, 64, "float16", h200))
