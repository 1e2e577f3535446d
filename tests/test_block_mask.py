"""Block masks as values: refusals in words, patterns against their definitions, equality."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_kernels import block_mask
from fa_kernels.block_mask import MAX_BLOCKS, PATTERNS, BlockMask, per_mask
from tests.reference.problems import bounded

names = st.sampled_from(PATTERNS)
counts = st.integers(1, 40)
each_pattern = pytest.mark.parametrize("name", PATTERNS)


def rows_of(name: str, q_blocks: int, k_blocks: int, density: float) -> np.ndarray:
    """The kept blocks of a pattern with blocks of one element, (q_blocks, k_blocks)."""
    return BlockMask.pattern(name, q_blocks, k_blocks, 1, 1, density).keep[0, 0]


# -- from_dense -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "sentence"),
    [
        (np.ones((2, 2), np.int8), r"keep_blocks is int8, it must be bool .*\.astype\(bool\)"),
        (np.ones((2, 2)), r"keep_blocks is float64, it must be bool"),
        ([[1, 0], [0, 1]], r"keep_blocks is int64, it must be bool"),
        (np.ones(4, bool), r"keep_blocks has shape \(4,\): it must be \(q_blocks, k_blocks\) or"),
        (np.ones((2, 2, 2), bool), r"keep_blocks has shape \(2, 2, 2\)"),
        (np.ones((0, 2), bool), r"shape \(0, 2\): .*with at least one block"),
        (np.ones((1, 0, 2, 2), bool), r"shape \(1, 0, 2, 2\)"),
        (np.bool_(True), r"keep_blocks has shape \(\)"),
    ],
)
def test_what_is_no_mask_is_refused_in_words(keep: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        BlockMask.from_dense(keep, 64, 64)


@pytest.mark.parametrize("block", [0, -1, 2**25, 0.5, "64", None])
def test_a_bad_block_size_is_refused_in_words(block: Any) -> None:
    for name, sizes in (("block_m", (block, 64)), ("block_n", (64, block))):
        with pytest.raises(ValueError, match=rf"^{name} = .*between 1 and \d+\. 64 is a good"):
            BlockMask.from_dense(np.ones((2, 2), bool), *sizes)


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


def test_a_list_of_lists_is_a_mask_for_every_head() -> None:
    mask = BlockMask.from_dense([[True, False, True], [False, False, True]], 16, 32.0)  # type: ignore[arg-type]
    assert (mask.blocks, mask.lead, mask.density) == ((2, 3), (1, 1), 0.5)
    assert (mask.block_m, mask.block_n) == (16, 32) and type(mask.block_n) is int
    assert mask.keep.shape == (1, 1, 2, 3)


def test_the_callers_array_may_change_afterwards() -> None:
    keep = np.ones((2, 3), bool)
    mask = BlockMask.from_dense(keep, 16, 16)
    before = hash(mask)
    keep[...] = False
    assert mask.keep.all() and hash(mask) == before
    with pytest.raises(ValueError, match="read-only"):
        mask.keep[...] = False
    with pytest.raises(dataclasses.FrozenInstanceError):
        mask.block_m = 3  # type: ignore[misc]
    keep.setflags(write=False)  # nor does one that cannot change share its memory
    assert not np.shares_memory(BlockMask.from_dense(keep, 16, 16).keep, keep)


# -- patterns -------------------------------------------------------------------------------


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


@given(names, counts, counts, st.floats(0.001, 1.0))
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
    for name in ("butterfly", "random"):
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
    block_mask._pattern.cache_clear()
    np.testing.assert_array_equal(rows_of("random", 64, 64, 0.25), keep)


@each_pattern
def test_patterns_do_not_depend_on_numpys_global_state(name: str) -> None:
    before = rows_of(name, 20, 30, 0.3)
    np.random.seed(1)  # noqa: NPY002  this is what must not matter
    block_mask._pattern.cache_clear()
    np.testing.assert_array_equal(rows_of(name, 20, 30, 0.3), before)


@each_pattern
def test_a_pattern_covers_ragged_sequences(name: str) -> None:
    mask = BlockMask.pattern(name, 113, 203, 64, 32, 0.3)
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


# -- values ---------------------------------------------------------------------------------


def test_equal_masks_are_equal_whatever_holds_them() -> None:
    keep = np.random.default_rng(0).random((2, 3, 5, 7)) < 0.5
    mask = BlockMask(keep, 16, 32, name="mine")
    same = BlockMask.from_dense(np.asfortranarray(keep), 16, 32)  # another memory order and name
    assert mask == same and hash(mask) == hash(same) and len({mask, same}) == 1


def test_masks_that_differ_in_anything_are_different() -> None:
    keep = np.zeros((4, 4), bool)
    one = keep.copy()
    one[3, 3] = True
    masks = [
        BlockMask.from_dense(keep, 16, 32),
        BlockMask.from_dense(one, 16, 32),
        BlockMask.from_dense(keep, 32, 16),
        BlockMask.from_dense(keep.reshape(2, 8), 16, 32),  # the same bits in another shape
        BlockMask.from_dense(keep[None, None].repeat(2, axis=0), 16, 32),
    ]
    assert len(set(masks)) == len(masks)
    assert masks[0] != "mask" and masks[0] != keep.tobytes()


@pytest.mark.parametrize("lead", [(1, 1), (1, 3), (2, 1), (2, 3)])
def test_at_gives_one_head_its_own_mask(lead: tuple[int, int]) -> None:
    keep = np.random.default_rng(1).random((*lead, 5, 7)) < 0.5
    mask = BlockMask(keep, 16, 32, "mine")
    whole = np.broadcast_to(keep, (2, 3, 5, 7))
    for batch, head in np.ndindex(2, 3):
        one = mask.at(batch, head)
        assert (one.lead, one.block_m, one.block_n, one.name) == ((1, 1), 16, 32, "mine")
        np.testing.assert_array_equal(one.keep[0, 0], whole[batch, head])


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ((2, 3, 80, 224), None),
        ((2, 3, 65, 193), None),
        ((2, 3, 81, 224), r"has 5 x 7 blocks of 16 x 32; .* needs 6 x 7\. Build it for these"),
        ((2, 3, 64, 224), r"needs 4 x 7"),
        ((2, 3, 80, 192), r"needs 5 x 6"),
        ((4, 3, 80, 224), r"is for \(batch, nheads\) = \(2, 3\), the call has \(4, 3\): each mus"),
        ((2, 1, 80, 224), r"is for .* the call has \(2, 1\)"),
    ],
)
def test_it_fits_its_own_sizes_alone(sizes: tuple[int, int, int, int], sentence: str) -> None:
    mask = BlockMask.from_dense(np.ones((2, 3, 5, 7), bool), 16, 32)
    if sentence is None:
        mask.fits(*sizes)
        return
    with pytest.raises(ValueError, match=sentence):
        mask.fits(*sizes)


def test_describe() -> None:
    mask = BlockMask.pattern("local", 256, 256, 64, 64, 0.25)
    assert mask.describe() == "local block mask 64 x 64, s = 0.25"
    assert BlockMask.from_dense([[True, False]], 8, 16).describe() == "block mask 8 x 16, s = 0.5"


# -- the constructor itself ---------------------------------------------------------------------


def test_the_class_is_as_careful_as_from_dense() -> None:
    keep = np.array([[[[True, False], [True, False]]]])
    mask = BlockMask(keep, 32, 32)
    before = (hash(mask), mask.density)
    keep[...] = True
    assert (hash(mask), mask.density) == before and mask == BlockMask.from_dense(mask.keep, 32, 32)
    assert BlockMask(keep[0, 0], 32, 32).lead == (1, 1)
    with pytest.raises(ValueError, match="it must be bool"):
        BlockMask(np.full((1, 1, 2, 2), 2, np.uint8), 32, 32)
    with pytest.raises(ValueError, match="block_m = 0 is out of range"):
        BlockMask(keep, 0, 32)


def test_a_read_only_view_of_memory_that_can_change_is_copied() -> None:
    keep = np.ones((1, 1, 2, 2), bool)
    view = keep[:]
    view.setflags(write=False)
    mask = BlockMask(view, 32, 32)
    keep[...] = False
    assert mask.keep.all()


def test_results_are_kept_by_content_and_do_not_keep_the_mask_alive() -> None:
    calls: list[int] = []

    @per_mask(entries=2)
    def blocks(mask: BlockMask | None, extra: int) -> int:
        calls.append(extra)
        return 0 if mask is None else int(mask.keep.sum())

    first = BlockMask(np.eye(3, dtype=bool), 8, 8)
    assert blocks(first, 1) == 3 and blocks(BlockMask(np.eye(3, dtype=bool), 8, 8), 1) == 3
    assert calls == [1]
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is None
    blocks(None, 1), blocks(None, 2), blocks(None, 3)  # the oldest of three goes
    blocks(None, 1)
    assert calls == [1, 1, 2, 3, 1]
