"""The models: published figures reproduced, growth laws fitted, Traffic as a value."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fa_kernels.block_mask import BlockMask
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.model import (
    TENSORS,
    Traffic,
    launched_flash_kv_outer,
    launched_flash_kv_outer_io,
    launched_flash_q_outer,
    launched_standard_naive,
    launched_standard_tiled,
    paper_flash_kv_outer,
    paper_flash_q_outer,
    paper_standard,
)
from fa_kernels.units import KIB
from fa_kernels.variants import VARIANTS
from tests.reference.problems import random_mask

#: GPT-2 medium, the shape of FlashAttention, fig. 2: batch 64, 16 heads, N = 1024, d = 64, fp16.
GPT2_MEDIUM = AttentionProblem(64, 16, 1024, 1024, 64, "float16")


@pytest.mark.parametrize(
    ("block_n", "gigabytes"), [(64, 6.98), (128, 3.62), (256, 1.95), (512, 1.11)]
)
def test_algorithm_1_gives_the_accesses_of_fig_2(block_n: int, gigabytes: float) -> None:
    """FlashAttention, fig. 2 (middle): HBM accesses of the forward pass over the block size."""
    traffic = paper_flash_kv_outer(GPT2_MEDIUM, Tiling(64, block_n))
    assert traffic.total_bytes / 1e9 == pytest.approx(gigabytes, abs=0.005)


def test_algorithm_0_by_hand() -> None:
    traffic = paper_standard(GPT2_MEDIUM)
    rows, scores = 64 * 16 * 1024 * 64 * 2, 64 * 16 * 1024 * 1024 * 2
    assert traffic.read_bytes == {"q": rows, "k": rows, "v": rows, "s": scores, "p": scores}
    assert traffic.written_bytes == {"s": scores, "p": scores, "out": rows}
    assert traffic.total_bytes == 4 * rows + 4 * scores


def test_algorithm_1_by_hand() -> None:
    problem = AttentionProblem(1, 1, 10, 7, 4, "float16")
    traffic = paper_flash_kv_outer(problem, Tiling(2, 3))  # ceil(7 / 3) = 3 passes
    assert traffic.read_bytes == {"q": 240, "k": 56, "v": 56, "out": 240, "lse": 3 * 2 * 40}
    assert traffic.written_bytes == {"out": 240, "lse": 240}


def test_the_loop_order_of_flashattention_2_by_hand() -> None:
    problem = AttentionProblem(1, 1, 10, 7, 4, "float16")
    traffic = paper_flash_q_outer(problem, Tiling(4, 3))  # ceil(10 / 4) = 3 passes
    assert traffic.read_bytes == {"q": 80, "k": 3 * 56, "v": 3 * 56}
    assert traffic.written_bytes == {"out": 80, "lse": 40}


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent a of y = c x^a, fitted on logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def square(n: int, d: int = 64) -> AttentionProblem:
    return AttentionProblem(1, 1, n, n, d, "float16")


LONG = (2**13, 2**14, 2**15, 2**16)


def test_standard_grows_with_n_squared_and_not_with_d() -> None:
    assert slope(LONG, [paper_standard(square(n)).total_bytes for n in LONG]) == pytest.approx(
        2.0, abs=0.02
    )
    dims = (16, 32, 64, 128)
    by_d = [paper_standard(square(2**16, d)).total_bytes for d in dims]
    assert slope(dims, by_d) == pytest.approx(0.0, abs=0.01)


def test_flash_grows_with_n_squared_d_squared_over_m() -> None:
    """Theta(N^2 d^2 / M), FlashAttention, theorem 2; M >= d^2, or B_r is no longer d."""

    def total(n: int, d: int, kib: int) -> int:
        problem = square(n, d)
        return paper_flash_kv_outer(problem, Tiling.from_sram(kib * KIB, d, "fp16")).total_bytes

    assert slope(LONG, [total(n, 64, 64) for n in LONG]) == pytest.approx(2.0, abs=0.02)
    budgets = (32, 64, 128, 256)
    assert slope(budgets, [total(2**16, 64, m) for m in budgets]) == pytest.approx(-1.0, abs=0.02)
    dims = (64, 128, 256)
    assert slope(dims, [total(2**16, d, 256) for d in dims]) == pytest.approx(2.0, abs=0.1)


def test_launched_flash_reads_k_and_v_once_per_q_tile() -> None:
    """The header of 04: 2 N_q d + 2 N_k d ceil(N_q / BLOCK_M) elements and N_q fp32."""
    for nq, nk, d, block_m in ((113, 203, 20, 32), (239, 1, 63, 64), (1, 1, 1, 1)):
        problem = AttentionProblem(3, 2, nq, nk, d, "float16")
        elements = 2 * nq * d + 2 * nk * d * math.ceil(nq / block_m)
        total = launched_flash_q_outer(problem, Tiling(block_m, 16)).total_bytes
        assert total == 6 * (2 * elements + 4 * nq)


@pytest.mark.parametrize(("nk", "reads_of_s"), [(203, 1), (20000, 2)])
def test_launched_standard_re_reads_q_and_k_per_tile(nk: int, reads_of_s: int) -> None:
    """The header of 02, no mask."""
    nq, d, tiling = 113, 20, Tiling(32, 48)
    problem = AttentionProblem(3, 2, nq, nk, d, "float32")
    traffic = launched_standard_tiled(problem, tiling)
    q_passes, k_passes = math.ceil(nk / 48), math.ceil(nq / 32)
    assert traffic.read_bytes == {
        "q": 6 * 4 * nq * d * q_passes,
        "k": 6 * 4 * nk * d * k_passes,
        "v": 6 * 4 * nk * d * k_passes,
        "s": 6 * 4 * nq * nk * reads_of_s,
        "p": 6 * 4 * nq * nk,
    }
    assert traffic.written_bytes == {
        "s": 6 * 4 * nq * nk, "p": 6 * 4 * nq * nk, "out": 6 * 4 * nq * d, "lse": 6 * 4 * nq,
    }  # fmt: skip


def test_launched_naive_reads_a_row_for_every_element() -> None:
    """The header of 01, no mask: 2 N K d; 4 N K; N K (d + 1); N K d; N d; and N fp32."""
    nq, nk, d = 113, 203, 20
    problem = AttentionProblem(3, 2, nq, nk, d, "bfloat16")
    elements = 2 * nq * nk * d + 4 * nq * nk + nq * nk * (d + 1) + nq * nk * d + nq * d
    assert launched_standard_naive(problem, Tiling(1, 1)).total_bytes == 6 * (2 * elements + 4 * nq)


@pytest.mark.parametrize(("launched", "o_itemsize"), [
    (launched_flash_kv_outer, 4), (launched_flash_kv_outer_io, 2),
])  # fmt: skip
def test_launched_kv_outer_carries_o(launched: Callable[..., Traffic], o_itemsize: int) -> None:
    """The header of 03, no mask, T visits of a Q tile."""
    nq, nk, d = 113, 203, 20
    problem = AttentionProblem(3, 2, nq, nk, d, "float16")
    visits = math.ceil(nk / 48)
    traffic = launched(problem, Tiling(32, 48))
    assert traffic.of("k") == traffic.of("v") == 6 * 2 * nk * d
    assert traffic.of("q") == 6 * 2 * visits * nq * d
    assert traffic.of("out") == 6 * (2 * (visits - 1) * nq * d * o_itemsize + nq * d * 2)
    assert traffic.of("lse") == 6 * 4 * (4 * (visits - 1) * nq + nq)


# -- published figures ----------------------------------------------------------------------


def test_the_swapped_loops_move_more_unless_a_cache_answers() -> None:
    """N = 1024, B_r = 64: 4.57 GB against a floor of 0.54 GB when each tensor is touched once."""
    swapped = paper_flash_q_outer(GPT2_MEDIUM, Tiling(64, 64))
    assert swapped.total_bytes / 1e9 == pytest.approx(4.57, abs=0.005)
    floor = 2 * GPT2_MEDIUM.q_bytes + 2 * GPT2_MEDIUM.kv_bytes + GPT2_MEDIUM.lse_bytes
    assert floor / 1e9 == pytest.approx(0.54, abs=0.005)
    # Algorithm 1 with the same B_r and the B_c of an A100's SRAM moves less than that.
    algorithm_1 = paper_flash_kv_outer(GPT2_MEDIUM, Tiling.from_sram(192 * KIB, 64, "float16"))
    assert floor < algorithm_1.total_bytes < swapped.total_bytes


def test_flash_moves_a_ninth_of_standard_at_the_shape_of_fig_2() -> None:
    """FlashAttention, fig. 2 (left) prints 40.3 and 4.4 GB for both passes; this is the forward."""
    standard = paper_standard(GPT2_MEDIUM).total_bytes
    tiling = Tiling.from_sram(192 * KIB, 64, "float16")
    flash = paper_flash_kv_outer(GPT2_MEDIUM, tiling).total_bytes
    assert tiling == Tiling(64, 384)
    assert standard / 1e9 == pytest.approx(9.13, abs=0.005)
    assert standard / flash > 5


def test_fewer_blocks_move_fewer_bytes_in_proportion() -> None:
    """FlashAttention, fig. 2 (right) and proposition 4: block-sparse, Theta(Nd + N^2 d^2 s / M)."""
    n, tiling = 4096, Tiling(64, 384)
    dense = AttentionProblem(4, 8, n, n, 64, "float16")
    whole = paper_flash_kv_outer(dense, tiling)
    for percent in (20, 30, 40, 50, 60, 100):
        mask = BlockMask.pattern("butterfly", n, n, 64, 384, percent / 100)
        traffic = paper_flash_kv_outer(replace(dense, block_mask=mask), tiling)
        for tensor in ("q", "out", "lse"):
            assert traffic.of(tensor) == pytest.approx(mask.density * whole.of(tensor), rel=1e-9)
        assert traffic.of("k") == whole.of("k") and traffic.of("v") == whole.of("v")
    assert traffic.same_as(whole)


def test_algorithm_5_by_hand() -> None:
    """Three passes of 5 Q tiles, 15 visits; 6 are kept. K and V are still read once."""
    keep = [
        [True, False, False],
        [True, True, False],
        [False] * 3,
        [False, False, True],
        [True] * 3,
    ]
    keep[4][1] = False
    mask = BlockMask.from_dense(keep, 2, 3)
    problem = AttentionProblem(1, 1, 10, 7, 4, "float16", block_mask=mask)
    traffic = paper_flash_kv_outer(problem, Tiling(2, 3))
    assert mask.keep.sum() == 6
    assert traffic.read_bytes == {"q": 6 * 16, "k": 56, "v": 56, "out": 6 * 16, "lse": 6 * 16}
    assert traffic.written_bytes == {"out": 6 * 16, "lse": 6 * 16}
    swapped = paper_flash_q_outer(problem, Tiling(2, 3))
    assert swapped.read_bytes == {"q": 80, "k": 112, "v": 112}  # 6 of 15 visits, 5 dense passes


def test_the_paper_skips_by_the_block_mask_alone() -> None:
    """Algorithm 5 knows no causal mask and no window: the model of the paper does not either."""
    mask = random_mask(113, 203, 32, 32)
    sizes = (2, 3, 113, 203, 20, "float16")
    plain, causal = (AttentionProblem(*sizes, c, block_mask=mask) for c in (None, "bottom_right"))
    for model in (paper_flash_kv_outer, paper_flash_q_outer):
        for skipping in (causal, replace(causal, window=(20, 0))):
            assert model(plain, Tiling(32, 32)).same_as(model(skipping, Tiling(32, 32)))


@pytest.mark.parametrize("launched", [
    launched_flash_q_outer, launched_standard_tiled, launched_standard_naive,
])  # fmt: skip
def test_traffic_beyond_32_bits_does_not_overflow(launched: Callable[..., Traffic]) -> None:
    huge = AttentionProblem(1, 64, 2**20, 2**20, 128, "float32", "bottom_right")
    total = launched(huge, Tiling(1, 1)).total_bytes
    assert total > 64 * 2**19 * 2**20 * 128 * 4 * 2  # K and V: half of N rows, N times, two tensors


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("options", [{}, {"causal": "bottom_right"}, {"window": (1000, 0)}])
def test_a_model_costs_a_redraw_next_to_nothing(variant: str, options: dict[str, Any]) -> None:
    """Arrays over tiles, never over elements: a slider of the explorer asks for many of these."""
    problem = AttentionProblem(1, 16, 2**24, 2**24, 64, "float16", **options)
    tracemalloc.start()
    try:
        for model in (VARIANTS[variant].paper, VARIANTS[variant].launched):
            assert model(problem, Tiling(64, 64)).total_bytes > 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 2**24 / 64, "a few arrays of one number for each of 2^18 Q tiles"


@pytest.mark.parametrize("sizes", [(0, 5), (0, 0)])
def test_without_rows_k_and_v_stay_where_they_are(sizes: tuple[int, int]) -> None:
    for launched in (launched_flash_q_outer, launched_flash_kv_outer, launched_standard_tiled):
        assert launched(AttentionProblem(1, 2, *sizes, 8), Tiling(16, 16)).total_bytes == 0


# -- Traffic --------------------------------------------------------------------------------

SOME = Traffic({"q": 10, "s": 5}, {"s": 5, "out": 20})


def test_of_and_total() -> None:
    assert [SOME.of(t) for t in TENSORS] == [10, 0, 0, 10, 0, 20, 0, 0]
    assert SOME.total_bytes == 40 == sum(SOME.of(t) for t in TENSORS)


def test_times() -> None:
    assert SOME.times(3).read_bytes == {"q": 30, "s": 15}
    assert SOME.times(3).written_bytes == {"s": 15, "out": 60}
    assert SOME.times(0).total_bytes == 0


def test_plus() -> None:
    both = SOME.plus(Traffic({"q": 1, "mask": 7}, {"lse": 3}))
    assert both.read_bytes == {"q": 11, "s": 5, "mask": 7}
    assert both.written_bytes == {"s": 5, "out": 20, "lse": 3}
    assert list(both.read_bytes) == ["q", "s", "mask"], "in the order of every table"
    assert SOME.plus(Traffic()).same_as(SOME)


def test_intensity() -> None:
    assert SOME.intensity(400) == 10.0
    assert Traffic().intensity(400) == math.inf


def test_same_as_is_exact_and_counts_absent_as_zero() -> None:
    assert SOME.same_as(Traffic({"q": 10, "s": 5, "k": 0}, {"s": 5, "out": 20}))
    assert not SOME.same_as(Traffic({"q": 11, "s": 5}, {"s": 5, "out": 20}))
    assert not SOME.same_as(Traffic({"q": 10, "s": 5}, {"s": 5, "out": 20, "lse": 1}))
    # A read is not a write, though the totals agree.
    assert not SOME.same_as(Traffic({"q": 10, "s": 10}, {"out": 20}))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(0, 5), (5, 0), (0, 0)])
def test_an_empty_problem_has_a_model(variant: str, seqlen_q: int, seqlen_k: int) -> None:
    problem = AttentionProblem(1, 2, seqlen_q, seqlen_k, 8)
    for model in (VARIANTS[variant].paper, VARIANTS[variant].launched):
        assert model(problem, Tiling(16, 16)).total_bytes >= 0
