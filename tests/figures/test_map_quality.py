"""Quality under masks: by sums over blocks as by the formula, and the best mask is the best."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fa_kernels.figures.map_quality import (
    ASKED,
    BEST,
    BLOCK,
    NAMES,
    Head,
    best_like,
    curves,
    mask_for,
    share_of_blocks,
)
from fa_kernels.measure.maps import causal_probabilities, load_maps
from fa_kernels.patterns import PATTERNS
from tests.measure.synthetic_maps import NAME, write

BLOCKS = 8


@pytest.fixture(scope="module")
def p() -> np.ndarray:
    q, k = np.random.default_rng(0).standard_normal((2, 1, BLOCK * BLOCKS, 8)) * 2
    return causal_probabilities(q, k)[0]


V = np.random.default_rng(1).standard_normal((BLOCK * BLOCKS, 8))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("asked", ASKED)
def test_sums_over_blocks_are_the_formula(name: str, asked: float, p: np.ndarray) -> None:
    keep = mask_for(name, p, asked)
    found = Head(p, V).quality(keep)
    kept = p * np.repeat(np.repeat(keep, BLOCK, axis=0), BLOCK, axis=1)
    mass = kept.sum(axis=-1)
    out = kept @ V / np.maximum(mass, 1e-300)[:, None]
    assert found.mass == pytest.approx(mass.mean())
    error = np.linalg.norm(out - p @ V) / np.linalg.norm(p @ V)
    assert found.error == pytest.approx(error, abs=1e-12)
    assert found.density == keep.sum() / (BLOCKS * (BLOCKS + 1) / 2)
    assert not np.triu(keep, 1).any(), "the future is no part of it"


def test_everything_kept_is_no_error(p: np.ndarray) -> None:
    for name in NAMES:
        found = Head(p, V).quality(mask_for(name, p, 1.0))
        assert found.density == 1.0 and found.mass == pytest.approx(1.0)
        assert found.error < 1e-14


def test_a_row_that_keeps_nothing_is_zero(p: np.ndarray) -> None:
    found = Head(p, V).quality(np.zeros((BLOCKS, BLOCKS), bool))
    assert (found.density, found.mass, found.error) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("asked", ASKED)
def test_no_mask_with_as_many_blocks_keeps_more(name: str, asked: float, p: np.ndarray) -> None:
    head, keep = Head(p, V), mask_for(name, p, asked)
    best = best_like(p, keep)
    np.testing.assert_array_equal(best.sum(axis=-1), keep.sum(axis=-1))
    assert head.quality(best).mass >= head.quality(keep).mass - 1e-12
    if name == BEST:
        assert head.quality(best).mass == pytest.approx(head.quality(keep).mass)


def test_shares_of_a_block_row_add_up(p: np.ndarray) -> None:
    np.testing.assert_allclose(share_of_blocks(p).sum(axis=-1), 1.0)


def test_curves_are_those_of_the_head_asked_for(tmp_path: Path) -> None:
    write(tmp_path)
    maps = load_maps(NAME, tmp_path)
    for number in range(2):
        found = curves(NAME, tmp_path, number)
        assert tuple(found) == NAMES and BEST in NAMES
        assert {n for n in NAMES if n != BEST} == {n for n, x in PATTERNS.items() if not x.fixed}
        head = Head(maps.probabilities[number], maps.v[number].astype(float))
        keep = mask_for("local", head.p, ASKED[3])
        assert found["local"][3].own == head.quality(keep)
