"""Patterns in closed form, equal to the models that walk a mask: to the byte, over all shapes."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from fa_kernels.block_mask import BlockMask
from fa_kernels.masks import attended_pairs
from fa_kernels.patterns import EVEN_PATTERNS
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic import patterns
from fa_kernels.traffic.patterns import Blocks
from fa_kernels.variants import VARIANTS

SEQLENS = (1, 17, 113, 128, 1000, 1023)
TILES = ((1, 1), (16, 16), (8, 24), (32, 100), (64, 384), (48, 16))
DENSITIES = (1.0, 1 / 2, 0.3, 1 / 32)


@pytest.mark.parametrize("pattern", EVEN_PATTERNS)
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
            launched, paper = (
                model(variant.name, dense, blocks) for model in (patterns.launched, patterns.paper)
            )
            tall = tiling.block_m > tiling.block_n
            assert (launched is None) == tall, case
            if launched is not None:
                assert launched.same_as(variant.launched(problem, tiling)), case
            assert paper is not None, case
            assert paper.same_as(variant.paper(problem, tiling)), case


def test_masks_too_slow_for_a_curve_lose_a_tile_at_most() -> None:
    blocks = Blocks.of("random", 1 / 16, 65536 - 5, Tiling(48, 48))
    assert not blocks.quick
    assert 0.98 < blocks.least_pairs / blocks.pairs < 1


def test_what_takes_no_mask_or_is_causal_has_no_closed_form() -> None:
    dense = AttentionProblem(1, 1, 128, 128, 20, "float16")
    blocks = Blocks.of("local", 1 / 2, 128, Tiling(16, 16))
    for name, variant in VARIANTS.items():
        for model in (patterns.launched, patterns.paper):
            assert (model(name, dense, blocks) is None) != variant.block_sparse, name
        causal = replace(dense, causal="bottom_right")
        assert patterns.launched(name, causal, blocks) is None


@pytest.mark.parametrize("bad", [0.0, -0.5, 1.5, float("nan"), "1/4"])
def test_a_density_that_keeps_nothing_or_too_much_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="density = .* must be above 0 and at most 1"):
        Blocks.of("local", bad, 128, Tiling(16, 16))
