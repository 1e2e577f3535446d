"""HBM traffic of the backward: published figures, growth laws, and models equal to the counters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from fa_kernels.extras import Extras
from fa_kernels.masks import attended_pairs
from fa_kernels.packed import Packed
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.backward_flash import (
    flash_kv_outer_backward,
    flash_q_outer_backward,
    flash_q_outer_boxes_backward,
)
from fa_kernels.reference.backward_standard import gradient_reads, standard_tiled_backward
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.backward import (
    launched_flash_kv_outer_backward,
    launched_flash_q_outer_backward,
    launched_flash_wgmma_backward,
    launched_standard_tiled_backward,
    paper_flash_kv_outer_backward,
    paper_flash_q_outer_backward,
    paper_standard_backward,
)
from fa_kernels.traffic.backward_counter import count_backward_traffic
from fa_kernels.traffic.counter import CountingHbm
from fa_kernels.traffic.model import Traffic, launched_standard_tiled, paper_flash_kv_outer
from fa_kernels.traffic.model import paper_standard as paper_standard_forward
from fa_kernels.units import KIB
from tests.reference.calls import ODD, problems, tilings
from tests.reference.problems import HEAD_DIMS, MASKS, SHAPES, bounded, random_mask

#: GPT-2 medium, the shape of FlashAttention, fig. 2: batch 64, 16 heads, N = 1024, d = 64, fp16.
GPT2_MEDIUM = AttentionProblem(64, 16, 1024, 1024, 64, "float16")

WAYS: dict[str, tuple[Any, Any, dict[str, bool]]] = {
    "standard": (standard_tiled_backward, launched_standard_tiled_backward, {}),
    "kv_outer": (flash_kv_outer_backward, launched_flash_kv_outer_backward, {}),
    "q_outer": (flash_q_outer_backward, launched_flash_q_outer_backward, {}),
    "q_outer, deterministic": (
        flash_q_outer_backward, launched_flash_q_outer_backward, {"deterministic": True},
    ),
    "q_outer, boxes": (flash_q_outer_boxes_backward, launched_flash_wgmma_backward, {}),
}  # fmt: skip
each_way = pytest.mark.parametrize("way", WAYS)
each_flash = pytest.mark.parametrize("way", list(WAYS)[1:])


def assert_counted_is_modelled(way: str, problem: AttentionProblem, tiling: Tiling) -> None:
    reference, launched, options = WAYS[way]
    counted = count_backward_traffic(reference, problem, tiling, **options)
    model = launched(problem, tiling, **options)
    assert counted.same_as(model), f"counted {counted}, modelled {model}"


def launched_by(way: str, problem: AttentionProblem, tiling: Tiling) -> Traffic:
    _, launched, options = WAYS[way]
    return launched(problem, tiling, **options)


# -- as published ---------------------------------------------------------------------------


def test_the_totals_of_fig_2() -> None:
    """Forward + backward at M = 192 KiB, B_c = 384: 4.10 GB against 25.2 GB (printed 4.4, 40.3)."""
    tiling = Tiling.from_sram(192 * KIB, 64, "float16")
    assert tiling.block_n == 384
    flash = paper_flash_kv_outer(GPT2_MEDIUM, tiling).plus(
        paper_flash_kv_outer_backward(GPT2_MEDIUM, tiling)
    )
    standard = paper_standard_forward(GPT2_MEDIUM).plus(paper_standard_backward(GPT2_MEDIUM))
    assert flash.total_bytes / 1e9 == pytest.approx(4.10, abs=0.005)
    assert standard.total_bytes / 1e9 == pytest.approx(25.2, abs=0.05)


def test_algorithm_3_by_hand() -> None:
    traffic = paper_standard_backward(AttentionProblem(1, 1, 10, 7, 4, "float16"))
    rows, keys, scores = 80, 56, 140
    assert traffic.read_bytes == {
        "q": rows, "k": keys, "v": keys, "d_out": 2 * rows,
        "p": 2 * scores, "dp": scores, "ds": 2 * scores,
    }  # fmt: skip
    written = {"dq": rows, "dk": keys, "dv": keys, "dp": scores, "ds": scores}
    assert traffic.written_bytes == written


def test_algorithm_4_by_hand() -> None:
    problem = AttentionProblem(1, 1, 10, 7, 4, "float16")
    traffic = paper_flash_kv_outer_backward(problem, Tiling(2, 3))  # ceil(7 / 3) = 3 passes
    q = 3 * 80
    assert traffic.read_bytes == {
        "q": q, "k": 56, "v": 56, "out": q, "d_out": q, "dq": q, "lse": 3 * 2 * 40,
    }  # fmt: skip
    assert traffic.written_bytes == {"dq": q, "dk": 56, "dv": 56}


def test_algorithm_2_of_flashattention_2_by_hand() -> None:
    problem = AttentionProblem(1, 1, 10, 7, 4, "float16")
    traffic = paper_flash_q_outer_backward(problem, Tiling(2, 3))
    q = 3 * 80
    assert traffic.read_bytes == {
        "q": q, "k": 56, "v": 56, "out": 80, "d_out": q + 80, "dq": q, "lse": 120, "delta": 120,
    }  # fmt: skip
    assert traffic.written_bytes == {"dq": q, "dk": 56, "dv": 56, "delta": 40}


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent a of y = c x^a, fitted on logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def test_the_backward_grows_as_the_forward_does() -> None:
    """Theta(N d + N²) against Theta(N² d² / M): FlashAttention, theorem 5."""

    def square(n: int) -> AttentionProblem:
        return AttentionProblem(1, 1, n, n, 64, "float16")

    lengths = (2**13, 2**14, 2**15, 2**16)
    standard = [paper_standard_backward(square(n)).total_bytes for n in lengths]
    assert slope(lengths, standard) == pytest.approx(2.0, abs=0.02)
    budgets = (32, 64, 128, 256)
    for paper in (paper_flash_kv_outer_backward, paper_flash_q_outer_backward):
        tilings_of = [Tiling.from_sram(kib * KIB, 64, "fp16") for kib in budgets]
        flash = [paper(square(2**16), tiling).total_bytes for tiling in tilings_of]
        assert slope(budgets, flash) == pytest.approx(-1.0, abs=0.02)
        flash = [paper(square(n), tilings_of[0]).total_bytes for n in lengths]
        assert slope(lengths, flash) == pytest.approx(2.0, abs=0.02)


def test_the_papers_skip_by_the_block_mask_alone() -> None:
    mask = random_mask(64, 64, 16, 16, seed=3)
    kept = int(mask.keep.sum())
    dense = AttentionProblem(1, 2, 64, 64, 8, "float16")
    sparse = replace(dense, causal="bottom_right", window=(9, 0), block_mask=mask)
    for paper in (paper_flash_kv_outer_backward, paper_flash_q_outer_backward):
        whole, part = (paper(p, Tiling(16, 16)) for p in (dense, sparse))
        assert part.of("dq") == whole.of("dq") * kept // 16
        assert part.of("k") == whole.of("k")


# -- launched, by hand ----------------------------------------------------------------------


def test_launched_standard_re_reads_by_tile() -> None:
    """The header of 02_standard_tiled_backward, no mask."""
    nq, nk, d, tiling = 113, 203, 20, Tiling(32, 48)
    problem = AttentionProblem(3, 4, nq, nk, d, "float16", nheads_kv=2)
    traffic = launched_standard_tiled_backward(problem, tiling, p_given=True)
    q, k, kv, scores = 24 * nq * d, 24 * nk * d, 12 * nk * d, 24 * nq * nk
    over_keys, over_rows = math.ceil(nk / 48), math.ceil(nq / 32)
    assert traffic.read_bytes == {
        "q": q * over_keys, "d_out": 2 * q * over_keys, "k": k * over_rows, "v": k * over_rows,
        "p": 2 * scores, "dp": scores, "ds": 2 * scores, "mask": 0,
    }  # fmt: skip
    written = {"dq": q, "dk": kv, "dv": kv, "dp": scores, "ds": scores}
    assert traffic.written_bytes == written


def test_p_is_rebuilt_by_the_forwards_first_two_launches() -> None:
    problem = AttentionProblem(2, 3, 50, 70, 8, causal="bottom_right", masked=True)
    rebuilt = launched_standard_tiled_backward(problem, ODD)
    kept = launched_standard_tiled_backward(problem, ODD, p_given=True)
    forward = launched_standard_tiled(problem, ODD)
    output = Traffic(
        {"p": forward.read_bytes["p"], "v": forward.read_bytes["v"]},
        {"out": forward.written_bytes["out"]},
    )
    assert rebuilt.plus(output).same_as(kept.plus(forward))


@pytest.mark.parametrize(("dtype", "itemsize"), [("float16", 2), ("float32", 4)])
def test_launched_kv_outer_carries_dq(dtype: str, itemsize: int) -> None:
    """The header of 03_flash_kv_outer_backward."""
    nq, nk, d, visits = 113, 203, 20, math.ceil(203 / 48)
    problem = AttentionProblem(3, 4, nq, nk, d, dtype, nheads_kv=2)
    traffic = launched_flash_kv_outer_backward(problem, Tiling(32, 48))
    rows, kv = 12 * nq * d * itemsize, 6 * nk * d * itemsize
    carried = 12 * (visits - 1) * nq * d * 4
    assert traffic.read_bytes == {
        "q": visits * rows, "out": visits * rows, "d_out": visits * rows, "k": kv, "v": kv,
        "lse": 12 * visits * nq * 4, "dq": carried, "mask": 0,
    }  # fmt: skip
    assert traffic.written_bytes == {"dq": carried + rows, "dk": kv, "dv": kv}


@pytest.mark.parametrize(("dtype", "itemsize"), [("float16", 2), ("float32", 4)])
def test_launched_q_outer_adds_dq(dtype: str, itemsize: int) -> None:
    """The header of 04_flash_q_outer_backward, both ways."""
    nq, nk, d, visits = 113, 203, 20, math.ceil(203 / 48)
    problem = AttentionProblem(3, 4, nq, nk, d, dtype, nheads_kv=2)
    traffic = launched_flash_q_outer_backward(problem, Tiling(32, 48))
    rows, kv, stats = 12 * nq * d * itemsize, 6 * nk * d * itemsize, 12 * nq * 4
    added = 12 * visits * nq * d * 4
    converted = (12 * nq * d * 4, rows) if itemsize == 2 else (0, 0)
    assert traffic.read_bytes == {
        "q": visits * rows, "out": rows, "d_out": (visits + 1) * rows, "k": kv, "v": kv,
        "lse": visits * stats, "delta": visits * stats, "dq": added + converted[0], "mask": 0,
    }  # fmt: skip
    written = {"dq": added + converted[1], "dk": kv, "dv": kv, "delta": stats}
    assert traffic.written_bytes == written
    owned = launched_flash_q_outer_backward(problem, Tiling(32, 48), deterministic=True)
    per_q_tile = 2 * kv * math.ceil(nq / 32)  # for every head of q, two of which share k and v
    assert owned.read_bytes == {
        "q": (visits + 1) * rows, "out": rows, "d_out": (visits + 2) * rows,
        "k": kv + per_q_tile, "v": kv + per_q_tile, "lse": (visits + 1) * stats,
        "delta": (visits + 1) * stats, "mask": 0,
    }  # fmt: skip
    assert owned.written_bytes == {"dq": rows, "dk": kv, "dv": kv, "delta": stats}


# -- launched = counted ---------------------------------------------------------------------


@pytest.mark.parametrize("causal", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
@each_way
def test_the_model_is_the_counter_on_awkward_shapes(
    way: str, shape: tuple[int, int], causal: str | None
) -> None:
    for head_dim in HEAD_DIMS[1:4]:
        for dtype in ("float16", "float32"):
            problem = AttentionProblem(2, 4, *shape, head_dim, dtype, causal, nheads_kv=2)
            assert_counted_is_modelled(way, problem, Tiling(16, 24))


@each_way
def test_the_model_is_the_counter_under_any_options(way: str) -> None:
    """Window, GQA, packed sequences, element mask, bias, dropout, and block mask where taken."""

    @given(problems(block_masks=way != "standard"), tilings)
    @bounded
    def over_problems(problem: AttentionProblem, tiling: Tiling) -> None:
        assert_counted_is_modelled(way, problem, tiling)

    over_problems()


@each_flash
def test_the_model_is_the_counter_when_heads_of_a_group_differ(way: str) -> None:
    """K and V are loaded if one head of the group attends their tile."""
    for lead in ((1, 6), (2, 6), (2, 1)):
        for seed in range(4):
            mask = random_mask(50, 70, 16, 10, lead, density=0.15, seed=seed)
            problem = AttentionProblem(2, 6, 50, 70, 8, block_mask=mask, nheads_kv=2)
            for tiling in (Tiling(16, 10), Tiling(24, 32)):
                assert_counted_is_modelled(way, problem, tiling)


@pytest.mark.parametrize(("nk", "reads"), [(8064, 1), (8065, 2)])
def test_long_rows_of_p_and_dp_are_read_twice(nk: int, reads: int) -> None:
    assert gradient_reads(nk) == reads
    problem, tiling = AttentionProblem(1, 1, 2, nk, 1, "float16"), Tiling(2, 4096)
    traffic = launched_standard_tiled_backward(problem, tiling, p_given=True)
    assert traffic.read_bytes["dp"] == reads * 2 * nk * 2 == traffic.written_bytes["dp"] * reads
    assert_counted_is_modelled("standard", problem, tiling)
    # Of packed sequences the longest decides for all.
    packed = Packed((0, 1, 3), (0, nk, nk + 5))
    assert_counted_is_modelled("standard", replace(problem, batch=2, packed=packed), tiling)


@each_way
def test_packed_sequences_move_what_they_move_alone(way: str) -> None:
    packed = Packed((0, 40, 40, 47, 60), (0, 50, 57, 57, 107))
    problem = AttentionProblem(4, 2, 40, 50, 8, causal="bottom_right", masked=True, packed=packed)
    alone = Traffic()
    for _, _, one in problem.sequences():
        alone = alone.plus(launched_by(way, one, ODD))
    assert launched_by(way, problem, ODD).same_as(alone)
    assert_counted_is_modelled(way, problem, ODD)


@pytest.mark.parametrize(("way", "looks"), [
    ("standard", (1, 1, 2)), ("kv_outer", (1, 1, 1)), ("q_outer", (1, 1, 1)),
    ("q_outer, deterministic", (2, 2, 2)),
])  # fmt: skip
def test_values_are_read_by_every_launch_that_looks_at_them(
    way: str, looks: tuple[int, int, int]
) -> None:
    """Element mask and bias where S is made, an explicit dropout mask where P and dP are."""
    plain = AttentionProblem(2, 6, 50, 70, 8, "float16", "bottom_right", window=(30, 0))
    before, pairs = launched_by(way, plain, ODD), attended_pairs(plain)
    cases: tuple[tuple[dict[str, Any], int], ...] = (
        ({"masked": True}, looks[0]),
        ({"dropout_p": 0.5, "keep_given": True}, looks[2]),
        ({"dropout_p": 0.5, "seed": 3}, 0),
    )
    for options, each in cases:
        after = launched_by(way, replace(plain, **options), ODD)
        assert after.same_as(before.plus(Traffic({"mask": each * pairs})))
    after = launched_by(way, replace(plain, bias_dtype="float32"), ODD)
    assert after.of("mask") == 4 * looks[1] * pairs


# -- rows that are looked at twice ----------------------------------------------------------


@each_flash
def test_a_bias_of_finfo_min_costs_its_tiles_the_scores_once_more(way: str) -> None:
    """The models leave it out: it depends on values. Counted, it is a pass of those Q tiles."""
    reference, launched, options = WAYS[way]
    problem = AttentionProblem(1, 1, 64, 96, 8, "float16", bias_dtype="float32")
    tiling, hbm = Tiling(16, 32), CountingHbm()
    q, kv = np.ones((1, 1, 64, 8), np.float16), np.ones((1, 1, 96, 8), np.float16)
    lse = np.zeros((1, 1, 64), np.float32)
    lse[..., 20] = np.finfo(np.float32).min  # one row of the second of four Q tiles
    bias = np.zeros((1, 1, 64, 96), np.float32)
    reference(q, q, kv, kv, q, lse, problem, tiling, hbm, extras=Extras(bias=bias), **options)
    again = Traffic({"q": 16 * 8 * 2, "k": 96 * 8 * 2, "mask": 16 * 96 * 4})
    assert hbm.traffic().same_as(launched(problem, tiling, **options).plus(again))


def test_an_empty_problem_moves_nothing_of_the_other_side() -> None:
    for launched in (launched_flash_kv_outer_backward, launched_flash_q_outer_backward):
        no_rows = launched(AttentionProblem(1, 2, 0, 5, 8), Tiling(16, 16))
        assert no_rows.of("k") == no_rows.of("q") == 0 and no_rows.of("dk") == 2 * 5 * 8 * 2
        no_keys = launched(AttentionProblem(1, 2, 5, 0, 8), Tiling(16, 16))
        assert no_keys.of("k") == no_keys.of("dk") == no_keys.read_bytes["q"] == 0
