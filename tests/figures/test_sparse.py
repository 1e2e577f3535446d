"""A point under a block pattern: its plan, its cost, its traffic, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fa_kernels.device import Device
from fa_kernels.figures.point import Point
from fa_kernels.figures.sparse import checked_density, checked_pattern, launched, paper, row_name
from fa_kernels.masks import matmul_flops
from fa_kernels.measure.records import mask_text
from fa_kernels.patterns import EVEN_PATTERNS
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.patterns import Blocks
from fa_kernels.variants import VARIANTS


@pytest.mark.parametrize("pattern", EVEN_PATTERNS)
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


@pytest.mark.parametrize("tiles", [(16, 32), (32, 16)])
def test_every_variant_has_its_traffic_with_or_without_a_closed_form(
    tiles: tuple[int, int],
) -> None:
    """The second tiles are taller than wide: there the mask is walked."""
    dense, blocks = (
        AttentionProblem(1, 2, 200, 200, 20),
        Blocks.of("local", 0.3, 200, Tiling(*tiles)),
    )
    masked = replace(dense, block_mask=blocks.mask())
    for variant in (v for v in VARIANTS.values() if v.block_sparse):
        assert launched(variant, dense, blocks).same_as(variant.launched(masked, blocks.tiling))
        assert paper(variant, dense, blocks).same_as(variant.paper(masked, blocks.tiling))
    assert mask_text(masked) == row_name(blocks)
