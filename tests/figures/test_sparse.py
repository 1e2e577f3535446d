"""Patterns in closed form, equal to the models that walk a mask: to the byte, over all shapes."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from fa_kernels.block_mask import PATTERNS, BlockMask
from fa_kernels.device import Device
from fa_kernels.figures import sparse
from fa_kernels.figures.point import Point
from fa_kernels.figures.sparse import Blocks, checked_density, checked_pattern
from fa_kernels.masks import attended_pairs, matmul_flops
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.variants import VARIANTS

SEQLENS = (1, 17, 113, 128, 1000, 1023)
TILES = ((1, 1), (16, 16), (8, 24), (32, 100), (64, 384), (48, 16))
DENSITIES = (1.0, 1 / 2, 0.3, 1 / 32)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_closed_forms_are_the_models(pattern: str) -> None:
    for n, tiles, density in itertools.product(SEQLENS, TILES, DENSITIES):
        tiling = Tiling(*tiles).clipped(n, n)
        sizes = (n, n, tiling.block_m, tiling.block_n)
        mask = BlockMask.pattern(pattern, *sizes, density)
        blocks = Blocks.of(pattern, density, n, tiling)
        assert blocks.mask() == mask
        assert blocks.density == pytest.approx(mask.density)
        dense = AttentionProblem(2, 3, n, n, 20, "float16")
        problem = replace(dense, block_mask=mask)
        assert blocks.pairs * dense.heads == attended_pairs(problem), (n, tiles, density)
        assert blocks.least_pairs <= blocks.pairs
        for variant in (v for v in VARIANTS.values() if v.block_sparse):
            case = (variant.name, n, tiles, density)
            found = sparse.launched(variant, dense, blocks)
            assert found.same_as(variant.launched(problem, tiling)), case
            paper = sparse.paper(variant, dense, blocks)
            assert paper.same_as(variant.paper(problem, tiling)), case


def test_masks_too_slow_for_a_curve_lose_a_tile_at_most() -> None:
    blocks = Blocks.of("random", 1 / 16, 65536 - 5, Tiling(48, 48))
    assert not blocks.quick
    assert 0.98 < blocks.least_pairs / blocks.pairs < 1


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_points_plan_is_that_of_the_real_mask(h200: Device, pattern: str) -> None:
    point = Point.of(1000, 64, 64, "float16", h200, pattern, 1 / 4)
    for variant in VARIANTS.values():
        problem = point.problem_of(variant)
        assert (problem.block_mask is not None) == variant.block_sparse
        assert point.plan(variant) == variant.plan(problem, point.tiling)
        assert point.flops(variant) == matmul_flops(problem)


def test_a_dense_point_has_no_density(h200: Device) -> None:
    point = Point.of(1000, 64, 64, "float16", h200, "dense", 1 / 4)
    assert point == Point.of(1000, 64, 64, "float16", h200)
    assert point.blocks is None
    assert point.sparse_words() == ""


def test_a_point_costs_no_mask(h200: Device) -> None:
    """Its hash is looked up at every move of a knob: 64 million blocks must not be in it."""
    point = Point.of(65536, 64, 4, "float16", h200, "local", 1 / 8)
    assert point.blocks is not None
    assert point.blocks.q_blocks * point.blocks.k_blocks == 2**26
    assert point.problem.block_mask is None
    assert point.bound_ms(VARIANTS["flash_q_outer"]) > 0


def test_too_many_blocks_are_refused_in_words(h200: Device) -> None:
    with pytest.raises(ValueError, match=r"N = 65536: a mask of \d+ x \d+ .* \(raise M\) or a"):
        Point.of(65536, 64, 3, "float16", h200, "local", 1 / 8)


def test_bad_names_and_densities_are_refused() -> None:
    with pytest.raises(ValueError, match="pattern = 'plaid' is not known: use one of dense, local"):
        checked_pattern("plaid")
    for bad in (0, -1, 1.01, float("nan"), "1/4", None, True):
        with pytest.raises(ValueError, match=r"^density = .*above 0 and at most 1\. It is"):
            checked_density(bad)
    assert checked_density(1) == 1.0
