"""Block patterns: against their definitions, their density, and attention under each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_kernels import patterns
from fa_kernels.attention import attention
from fa_kernels.block_mask import MAX_BLOCKS, BlockMask
from fa_kernels.patterns import EVEN_PATTERNS, PATTERNS
from fa_kernels.tiling import Tiling
from tests.reference.problems import bounded

names = st.sampled_from(EVEN_PATTERNS)
counts = st.integers(1, 40)
each_pattern = pytest.mark.parametrize("name", PATTERNS)
UNEVEN = ("global", "bigbird")


def density_for(name: str, density: float) -> float | None:
    """`density`, or nothing for a pattern that has one of its own."""
    return None if PATTERNS[name].fixed else density


def rows_of(name: str, q_blocks: int, k_blocks: int, density: float) -> np.ndarray:
    """The kept blocks of a pattern with blocks of one element, (q_blocks, k_blocks)."""
    asked = density_for(name, density)
    return BlockMask.pattern(name, q_blocks, k_blocks, 1, 1, asked).keep[0, 0]


# -- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [-1, 2**25, 0.5, "64", None])
def test_a_pattern_of_bad_sizes_is_refused_in_words(size: Any) -> None:
    good = {"seqlen_q": 128, "seqlen_k": 128, "block_m": 64, "block_n": 64}
    for name in good:
        with pytest.raises(ValueError, match=rf"^{name} = .*between \d+ and \d+\. \w"):
            BlockMask.pattern("local", **{**good, name: size}, density=0.5)
    with pytest.raises(ValueError, match=r"^block_m = 0 is out of range"):
        BlockMask.pattern("local", 128, 128, 0, 64, 0.5)


def test_too_many_blocks_are_refused_before_they_are_made() -> None:
    n = 2**24
    assert n * n > MAX_BLOCKS
    with pytest.raises(ValueError, match=rf"{n} x {n} blocks has more than {MAX_BLOCKS}: use lar"):
        BlockMask.pattern("random", n, n, 1, 1, 0.5)


# -- what each keeps ------------------------------------------------------------------------


@given(names, counts, counts, st.floats(0.001, 1.0))
@bounded
def test_every_block_row_keeps_the_same_number_of_blocks(
    name: str, q_blocks: int, k_blocks: int, density: float
) -> None:
    keep = rows_of(name, q_blocks, k_blocks, density)
    count = max(1, round(density * k_blocks))
    assert keep.shape == (q_blocks, k_blocks) and keep.dtype == np.bool_
    assert (keep.sum(axis=1) == count).all()
    mask = BlockMask.pattern(name, q_blocks, k_blocks, 1, 1, density)
    assert mask.density == pytest.approx(count / k_blocks)


@given(st.sampled_from(list(PATTERNS)), counts, counts, st.floats(0.001, 1.0))
@bounded
def test_the_diagonal_is_always_kept(
    name: str, q_blocks: int, k_blocks: int, density: float
) -> None:
    """That of causal bottom_right: the last row sees the last key."""
    keep = rows_of(name, q_blocks, k_blocks, density)
    assert all(keep[i, max(0, i + k_blocks - q_blocks)] for i in range(q_blocks))


@given(counts, counts, st.floats(0.001, 1.0), st.floats(0.001, 1.0))
@bounded
def test_a_denser_pattern_contains_the_sparser_one(
    q_blocks: int, k_blocks: int, one: float, other: float
) -> None:
    for name in ("butterfly", "random", "dilated"):
        sparse, dense = (rows_of(name, q_blocks, k_blocks, s) for s in sorted((one, other)))
        assert (dense | sparse == dense).all()


@pytest.mark.parametrize("n", [1, 2, 5, 16, 33])
def test_local_is_a_band_about_the_diagonal(n: int) -> None:
    for count in range(1, n + 1):
        keep = rows_of("local", n, n, count / n)
        for i in range(n):
            kept = np.flatnonzero(keep[i])
            assert (np.diff(kept) == 1).all(), "a band has no holes"
            left, right = i - kept[0], kept[-1] - i
            # As many to the left as to the right, an odd one to the left, unless an edge is near.
            if kept[0] > 0 and kept[-1] < n - 1:
                assert left - right == (count - 1) % 2
        if count % 2:
            np.testing.assert_array_equal(keep, keep[::-1, ::-1], err_msg="the same from both ends")


@pytest.mark.parametrize("bits", [0, 1, 2, 3, 4, 5, 6])
def test_the_flat_butterfly_keeps_what_differs_in_at_most_one_bit(bits: int) -> None:
    """Pixelated Butterfly's flat block butterfly: |i xor j| is 0 or a power of two."""
    n = 2**bits
    keep = rows_of("butterfly", n, n, (bits + 1) / n)
    powers = {0, *(2**b for b in range(bits))}
    want = [[(i ^ j) in powers for j in range(n)] for i in range(n)]
    np.testing.assert_array_equal(keep, want)
    np.testing.assert_array_equal(keep, keep.T)


def test_the_butterfly_goes_on_with_two_bits_and_reaches_near_before_far() -> None:
    keep = rows_of("butterfly", 8, 8, 1 / 8)
    np.testing.assert_array_equal(keep, np.eye(8, dtype=bool))
    assert np.flatnonzero(rows_of("butterfly", 8, 8, 3 / 8)[0]).tolist() == [0, 1, 2]
    assert np.flatnonzero(rows_of("butterfly", 8, 8, 5 / 8)[0]).tolist() == [0, 1, 2, 3, 4]


def test_random_differs_from_row_to_row_and_is_always_the_same() -> None:
    keep = rows_of("random", 64, 64, 0.25)
    assert len({row.tobytes() for row in keep}) > 60
    patterns._kept.cache_clear()
    np.testing.assert_array_equal(rows_of("random", 64, 64, 0.25), keep)


@each_pattern
def test_patterns_do_not_depend_on_numpys_global_state(name: str) -> None:
    before = rows_of(name, 20, 30, 0.3)
    np.random.seed(1)  # noqa: NPY002  this is what must not matter
    patterns._kept.cache_clear()
    np.testing.assert_array_equal(rows_of(name, 20, 30, 0.3), before)


@each_pattern
def test_a_pattern_covers_ragged_sequences(name: str) -> None:
    mask = BlockMask.pattern(name, 113, 203, 64, 32, density_for(name, 0.3))
    assert mask.blocks == (2, 7) and (mask.block_m, mask.block_n) == (64, 32)
    mask.fits(4, 5, 113, 203)
    assert BlockMask.pattern(name, 0, 0, 64, 64, 1.0).blocks == (1, 1), "of nothing, too"


@pytest.mark.parametrize(
    ("name", "density", "sentence"),
    [
        ("diagonal", 0.5, r"pattern = 'diagonal' is not known: use one of local, butterfly, ran"),
        (None, 0.5, r"pattern = None is not known"),
        ("local", 0.0, r"density = 0\.0 must be above 0 and at most 1"),
        ("local", 1.5, r"density = 1\.5 must"),
        ("local", -0.1, r"density = -0\.1 must"),
        ("local", float("nan"), r"density = nan must"),
        ("local", "0.5", r"density = '0\.5' must"),
        ("local", None, r"density = None must"),
    ],
)
def test_a_bad_pattern_is_refused_in_words(name: Any, density: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        BlockMask.pattern(name, 64, 64, 16, 16, density)


# -- the newer ones -------------------------------------------------------------------------


def test_dense_and_causal_have_one_density() -> None:
    assert rows_of("dense", 3, 5, 1.0).all()
    np.testing.assert_array_equal(rows_of("causal", 5, 5, 1.0), np.tri(5, dtype=bool))
    np.testing.assert_array_equal(rows_of("causal", 3, 5, 1.0), np.tri(3, 5, 2, dtype=bool))
    for name, own in (("dense", 1.0), ("causal", 0.6)):
        same = BlockMask.pattern(name, 5, 5, 1, 1, own)
        assert same == BlockMask.pattern(name, 5, 5, 1, 1) and same.density == own
        with pytest.raises(
            ValueError, match=rf"density = 0\.25: the pattern '{name}' keeps {own:g}"
        ):
            BlockMask.pattern(name, 5, 5, 1, 1, 0.25)


@pytest.mark.parametrize("bits", [0, 1, 3, 4])
def test_strided_keeps_every_nth_block_from_the_diagonal(bits: int) -> None:
    n, stride = 16, 2**bits
    i, j = np.indices((n, n))
    np.testing.assert_array_equal(rows_of("strided", n, n, 1 / stride), (i - j) % stride == 0)


def test_dilated_takes_every_second_block_first() -> None:
    assert np.flatnonzero(rows_of("dilated", 16, 16, 5 / 16)[8]).tolist() == [4, 6, 8, 10, 12]
    assert np.flatnonzero(rows_of("dilated", 16, 16, 10 / 16)[8]).tolist() == [
        0, 2, 4, 6, 7, 8, 9, 10, 12, 14,
    ]  # fmt: skip


@pytest.mark.parametrize("name", UNEVEN)
@pytest.mark.parametrize("n", [1, 2, 3, 16, 64])
def test_a_global_block_sees_all_and_is_seen_by_all(name: str, n: int) -> None:
    for density in (1.0, 0.5, 0.25, 0.01):
        keep = rows_of(name, n, n, density)
        assert keep[0].all() and keep[:, 0].all()
        assert len(set(keep[1:].sum(axis=1).tolist())) <= 1, "the other rows are even"


def test_bigbird_is_part_window_part_random() -> None:
    keep = rows_of("bigbird", 64, 64, 0.2)
    near = np.abs(np.subtract.outer(np.arange(64), np.arange(64))) <= 3
    beside = keep & ~near
    beside[0], beside[:, 0] = False, False
    assert (keep & near)[8:-8].sum(axis=1).min() >= 5
    assert beside[8:-8].sum(axis=1).min() >= 4
    assert len({row.tobytes() for row in beside[8:-8]}) == 48, "another set in each row"


@given(st.sampled_from(UNEVEN), st.integers(2, 40), st.floats(0.001, 1.0))
@bounded
def test_of_an_uneven_pattern_the_density_is_that_of_the_whole(
    name: str, n: int, density: float
) -> None:
    """The nearest of those it has, and asked for that it is the same mask: a recorded row is."""
    mask = BlockMask.pattern(name, n, n, 1, 1, density)
    others = [(n + (n - 1) * count) / n**2 for count in range(2, n + 1)]
    assert abs(mask.density - density) <= min(abs(x - density) for x in others) + 1e-12
    assert BlockMask.pattern(name, n, n, 1, 1, float(f"{mask.density:.6g}")) == mask


# -- attention under each -------------------------------------------------------------------


@each_pattern
@pytest.mark.parametrize("variant", ["flash_q_outer", "flash_kv_outer"])
@pytest.mark.parametrize("sizes", [(1, 1, 8, 8), (40, 40, 8, 8), (23, 37, 8, 5), (37, 23, 5, 8)])
def test_attention_is_the_dense_masked_formula(
    name: str, variant: str, sizes: tuple[int, int, int, int]
) -> None:
    n, m, block_m, block_n = sizes
    rng = np.random.default_rng(n)
    q = rng.standard_normal((1, 2, n, 4))
    k, v = rng.standard_normal((2, 1, 2, m, 4))
    mask = BlockMask.pattern(name, *sizes, density_for(name, 0.3))
    kept = np.kron(mask.keep[0, 0], np.ones((block_m, block_n), bool))[:n, :m].astype(bool)
    s = np.where(kept, q @ np.swapaxes(k, -1, -2) / 2, -np.inf)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    options: dict[str, Any] = {"variant": variant, "block_mask": mask, "tiling": Tiling(8, 8)}
    np.testing.assert_allclose(attention(q, k, v, **options), p @ v, atol=1e-12)
