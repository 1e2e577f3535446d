"""The setting of the knobs: checked values, tiles, limits and the sentence."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fa_kernels.device import Device, device
from fa_kernels.figures.point import (
    ARITHMETIC,
    BANDWIDTH,
    CACHED,
    COMPARED,
    SHOWN,
    Bound,
    Point,
    ratio_text,
)
from fa_kernels.figures.sentence import binding, sentence
from fa_kernels.masks import matmul_flops
from fa_kernels.measure.records import Run
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.units import MIB
from fa_kernels.variants import VARIANTS

STANDARD = COMPARED[0]


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


def test_flash_must_move_its_inputs_and_outputs_once(h200: Device) -> None:
    point = Point.of(4096, 64, 192, "float16", h200)
    bound = point.bound(VARIANTS[SHOWN])
    heads, rows = 128, 4096
    once = heads * rows * (4 * 64 * 2 + 4)  # q, k, v, out in 2 bytes and one fp32 lse per row
    assert point.compulsory_bytes(VARIANTS[SHOWN]) == once
    assert bound.compulsory_ms == pytest.approx(once / 4.8e12 * 1e3)
    assert bound.requested_ms == pytest.approx(
        point.traffic(VARIANTS[SHOWN]).total_bytes / 4.8e12 * 1e3
    )
    assert bound.fp32_ms == pytest.approx(4 * 64 * 4096**2 * heads / 67e12 * 1e3)
    assert bound.ms == max(bound.compulsory_ms, bound.fp32_ms)


@pytest.mark.parametrize("device_slug", ["h200", "t4"])
def test_what_the_cache_can_hold_of_s_and_p_is_not_compulsory(device_slug: str) -> None:
    gpu = device(device_slug)
    small = Point.of(128, 256, 16, "float16", gpu)  # S and P have 32 MiB each
    flash, standard = (small.compulsory_bytes(VARIANTS[name]) for name in (SHOWN, STANDARD))
    assert standard - flash == 4 * max(0, 32 * MIB - gpu.l2_bytes)
    long = Point.of(4096, 64, 16, "float32", gpu)
    flash, standard = (long.compulsory_bytes(VARIANTS[name]) for name in (SHOWN, STANDARD))
    assert standard - flash == 4 * (128 * 4096**2 * 4 - gpu.l2_bytes)


def test_the_limit_is_named_only_where_it_is_certain() -> None:
    assert Bound(3.0, 4.0, 2.0).limit == BANDWIDTH
    assert Bound(1.0, 2.0, 2.0).limit == ARITHMETIC
    assert Bound(1.0, 9.0, 2.0).limit == CACHED
    assert Bound(1.0, 9.0, 2.0).ms == 2.0, "what the cache answers must not enter the bound"


def test_no_recorded_time_is_below_its_bound(h200: Device, measured_run: Run) -> None:
    """The dotted line is called a lower bound: every latency of ours on the H200 must bear it."""
    budgets = set()
    rows = measured_run.select(provider="fa_kernels", metric="latency_ms", status="ok")
    for row in rows:
        sizes = (row.batch, row.nheads, row.seqlen_q, row.seqlen_k, row.head_dim)
        problem = AttentionProblem(*sizes, row.dtype)
        if row.block_mask:
            continue  # below, and their masks are slow to build
        tiling = Tiling(row.block_m or 1, row.block_n or 1)
        point = Point(problem, 1, tiling, h200)
        bound = point.bound(VARIANTS[row.variant])
        assert row.median is not None
        assert bound.compulsory_ms <= bound.requested_ms
        assert row.median > bound.ms, row
        assert point.flops(VARIANTS[row.variant]) == matmul_flops(problem)
        sizes_shown = (row.dtype, row.head_dim, row.seqlen_q)
        if row.block_m is not None and sizes_shown == ("float16", 64, 4096):
            budgets.add((row.block_m, row.block_n))
    assert len(rows) > 500
    assert len(budgets) == 5, "all five M"


def test_sentence_names_sizes_ratio_and_limit(h200: Device) -> None:
    text = sentence(Point.of(4096, 64, 192, "float16", h200))
    assert text.startswith("At N = 4096, d = 64, M = 192 KiB (B_r = 64, B_c = 384) standard moves")
    assert "fp32 arithmetic binds standard and flash" in text


def test_sentence_names_bandwidth_where_it_binds() -> None:
    text = sentence(Point.of(4096, 64, 16, "float32", device("rtx-4090")))
    assert "HBM bandwidth binds standard (34.3 ms, against 6.66 ms of fp32 arithmetic)" in text


def test_sentence_blames_no_bandwidth_for_what_the_cache_answers(h200: Device) -> None:
    text = binding(Point.of(4096, 64, 4, "float16", h200))
    assert text == (
        "On the H200 SXM fp32 arithmetic (8.21 ms) binds standard and flash as long as the L2 "
        "cache answers the re-reads of Q, K and V (25.1 ms and 14.3 ms requested at the HBM rate, "
        "3.58 ms and 56.4 µs of it compulsory)."
    )
    text = binding(Point.of(4096, 64, 16, "float32", device("rtx-4090")))
    assert "binds flash as long as the L2 cache answers the re-reads of K and V (" in text
    text = binding(Point.of(4096, 64, 16, "float16", h200))
    assert "fp32 arithmetic binds flash (8.21 ms, against at most 3.61 ms of HBM traffic); " in text
    assert "it binds standard as long as" in text


def test_sentence_names_memory_where_it_does_not_fit(h200: Device) -> None:
    text = sentence(Point.of(65536, 64, 192, "float16", h200))
    assert "Memory capacity binds: standard needs 513 GiB, H200 SXM has 141 GiB." in text
    assert "binds flash" in text


def test_a_launch_that_one_algorithm_cannot_make_is_no_refusal_of_the_point(h200: Device) -> None:
    """Tiles of 2 x 2 would need more blocks for standard's scores than a grid may have."""
    point = Point.of(16384, 64, 1, "float16", h200)
    assert list(point.refusals) == ["standard_tiled"]
    text = sentence(point)
    assert "standard cannot be launched: standard_tiled_scores would need 2147483648 blocks" in text
    assert "(raise M)" in text
    assert "binds standard" not in text
    assert Point.of(4096, 64, 64, "float16", h200).refusals == {}


def test_what_does_not_fit_is_not_refused_as_well(h200: Device) -> None:
    """The naive grid at 262144 tokens is beyond CUDA's limit, but its S and P beyond memory."""
    assert Point.of(2**18, 64, 64, "float16", h200).refusals == {}


def test_sentence_names_the_pattern(h200: Device) -> None:
    point = Point.of(4096, 64, 192, "float16", h200, "local", 1 / 4)
    standard, flash = (VARIANTS[name] for name in COMPARED)
    times = ratio_text(point.traffic(standard).total_bytes / point.traffic(flash).total_bytes)
    text = sentence(point)
    moves = f"dense standard moves {times} the HBM bytes of block-sparse flash."
    assert f", with local blocks at s = 0.273, {moves}" in text
    assert "fp32 arithmetic binds standard and flash (8.21 ms and 2.2" in text


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, "0.50×"), (1.0, "1.0×"), (3.04, "3.0×"), (123.4, "123×")]
)
def test_ratios_read_well(value: float, text: str) -> None:
    assert ratio_text(value) == text


@pytest.mark.parametrize("seqlen", [1, 2, 17, 127, 65537, 2**18])
def test_odd_lengths_work(h200: Device, seqlen: int) -> None:
    assert sentence(Point.of(seqlen, 64, 64, "float16", h200))


def test_scores_on_chip_decide_what_is_compulsory(h200: Device) -> None:
    """Not whether a variant takes a block mask: that is another thing."""
    point = Point.of(4096, 64, 64, "float16", h200)
    flash, standard = VARIANTS["flash_q_outer"], VARIANTS["standard_tiled"]
    least = point.compulsory_bytes(flash)
    assert point.compulsory_bytes(replace(flash, block_sparse=False)) == least
    assert point.compulsory_bytes(replace(standard, block_sparse=True)) > least
    assert point.compulsory_bytes(replace(standard, keeps_scores_on_chip=True)) == least


def test_a_refusal_says_why_or_nothing(h200: Device) -> None:
    flash, naive = VARIANTS["flash_q_outer"], VARIANTS["standard_naive"]
    problem = AttentionProblem.of_tokens(4096, 256)
    point = Point(problem, 1024 * 1024, Tiling(256, 512), h200)
    assert "fp32 registers per thread" in (point.refusal(flash) or "")
    assert point.refusal(naive) is None
