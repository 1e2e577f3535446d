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

from fa_kernels.attention import attention, attention_backward
from fa_kernels.block_mask import BlockMask, per_mask
from fa_kernels.tiling import Tiling
from tests.reference.problems import bounded

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


# -- from element masks and scores -----------------------------------------------------------

sizes = st.integers(1, 40)


def masked_oracle(q: Any, k: Any, v: Any, kept: np.ndarray) -> np.ndarray:
    """softmax over the kept scores in float64; rows that keep nothing are 0."""
    s = np.where(kept, q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]), -np.inf)
    top = np.maximum(s.max(axis=-1, keepdims=True), -1e300)
    p = np.exp(s - top)
    return (p @ v) / np.maximum(p.sum(axis=-1, keepdims=True), 1e-300)


@given(sizes, sizes, st.integers(1, 17), st.integers(1, 17), st.integers(0, 2**16), st.booleans())
@bounded
def test_a_block_is_kept_if_an_element_of_it_is(
    n: int, m: int, block_m: int, block_n: int, seed: int, per_head: bool
) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random((2, 3, n, m) if per_head else (n, m)) < 0.05
    found = BlockMask.from_mask(mask, block_m, block_n)
    assert found.lead == ((2, 3) if per_head else (1, 1))
    four = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    for i, j in np.ndindex(found.blocks):
        rows, keys = np.s_[i * block_m : (i + 1) * block_m], np.s_[j * block_n : (j + 1) * block_n]
        want = four[:, :, rows, keys].any(axis=(-1, -2))
        np.testing.assert_array_equal(found.keep[:, :, i, j], want)


@given(sizes, sizes, st.integers(1, 17), st.integers(1, 17), st.integers(0, 2**16))
@bounded
def test_beside_its_element_mask_it_changes_nothing(
    n: int, m: int, block_m: int, block_n: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    q, d_out = rng.standard_normal((2, 1, 2, n, 4))
    k, v = rng.standard_normal((2, 1, 2, m, 4))
    mask = rng.random((n, m)) < 0.3
    mask[0] = False
    both: dict[str, Any] = {"mask": mask, "block_mask": BlockMask.from_mask(mask, block_m, block_n)}
    tiling = Tiling(8, 8)
    out, lse = attention(q, k, v, **both, tiling=tiling, return_lse=True)
    np.testing.assert_allclose(out, masked_oracle(q, k, v, mask), atol=1e-12)
    assert not out[..., 0, :].any() and np.isneginf(lse[..., 0]).all()
    alone, alone_lse = attention(q, k, v, mask=mask, tiling=tiling, return_lse=True)
    for one, other in zip(
        attention_backward(d_out, q, k, v, out, lse, **both, tiling=tiling),
        attention_backward(d_out, q, k, v, alone, alone_lse, mask=mask, tiling=tiling),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, atol=1e-12)


def test_scores_above_a_threshold() -> None:
    scores = np.zeros((4, 6))
    scores[1, 2], scores[3, 5], scores[2, 0] = 0.5, 0.4, -np.inf
    mask = BlockMask.from_scores(scores, 2, 3, threshold=0.4)
    np.testing.assert_array_equal(mask.keep[0, 0], [[True, False], [False, True]])
    by_sum = BlockMask.from_scores(scores, 2, 3, threshold=0.5, by="sum")
    np.testing.assert_array_equal(by_sum.keep[0, 0], [[True, False], [False, False]])


@given(sizes, sizes, st.floats(0.01, 1.0), st.integers(0, 2**16))
@bounded
def test_the_best_blocks_by_sum_keep_the_most_of_any_mask_as_dense(
    n: int, m: int, density: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    p = rng.random((n, m)) ** 4
    p /= p.sum(axis=-1, keepdims=True)

    def kept(mask: BlockMask) -> float:
        return float((p * np.kron(mask.keep[0, 0], np.ones((3, 5)))[:n, :m]).sum())

    best = BlockMask.from_scores(p, 3, 5, density=density, by="sum")
    count = max(1, round(density * best.blocks[1]))
    assert (best.keep.sum(axis=-1) == count).all()
    for name in ("local", "butterfly", "random", "strided", "dilated"):
        assert kept(best) >= kept(BlockMask.pattern(name, n, m, 3, 5, density)) - 1e-12
    assert kept(best) >= kept(BlockMask.from_scores(p, 3, 5, density=density)) - 1e-12


def test_what_is_masked_in_the_scores_is_never_kept() -> None:
    scores = np.full((4, 4), -np.inf)
    scores[2, 1] = -7.0
    for by in ("largest", "sum"):
        mask = BlockMask.from_scores(scores, 2, 2, density=1.0, by=by)
        np.testing.assert_array_equal(mask.keep[0, 0], [[False, False], [True, False]])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: BlockMask.from_mask(np.ones((2, 2)), 1, 1),
            r"mask is float64, .*BlockMask.from_scores",
        ),
        (lambda: BlockMask.from_mask(np.ones(3, bool), 1, 1), r"mask has shape \(3,\): it must"),
        (lambda: BlockMask.from_mask(np.ones((0, 3), bool), 1, 1), r"with at least one element"),
        (lambda: BlockMask.from_mask(np.ones((2, 2), bool), 0, 1), r"block_m = 0 is out of range"),
        (lambda: BlockMask.from_scores([[1.0]], 1, 1), r"threshold = None and density = None: giv"),
        (
            lambda: BlockMask.from_scores([[1.0]], 1, 1, threshold=1, density=1),
            r"give one of the two",
        ),
        (lambda: BlockMask.from_scores([[np.nan]], 1, 1, density=1), r"scores has NaN"),
        (lambda: BlockMask.from_scores([[1.0]], 1, 1, density=0), r"density = 0 must be above 0"),
        (
            lambda: BlockMask.from_scores([[1.0]], 1, 1, density=1, by="max"),
            r"by = 'max' is not known: use 'largest' or 'sum'",
        ),
    ],
)
def test_bad_masks_and_scores_are_refused_in_words(call: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()


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
    blocks(None, 1), blocks(None, 2), blocks(None, 1), blocks(None, 3)  # one of three goes
    blocks(None, 1), blocks(None, 3)
    assert calls == [1, 1, 2, 3], "the one that was not used for longest"
    blocks(None, 2)
    assert calls == [1, 1, 2, 3, 2]
