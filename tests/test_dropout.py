"""Philox against its published vectors, and the mask that dropout draws from it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_kernels.dropout import dropout_keep, keep_scale, philox, threshold
from tests.reference.problems import bounded

ONES = 0xFFFFFFFF
#: Random123's kat_vectors, "philox4x32 7": (counter, key, words).
KNOWN = (
    ((0, 0, 0, 0), (0, 0), (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
    ((ONES,) * 4, (ONES,) * 2, (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A),
    ),
)


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_gives_the_published_words(
    counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    drawn = philox(tuple(np.array(c, np.uint64) for c in counter), key[0] | key[1] << 32)
    assert tuple(int(word) for word in drawn) == words


def philox_in_plain_integers(counter: tuple[int, ...], seed: int) -> list[int]:
    """The seven rounds again, in Python's integers, from the paper."""
    c, key = list(counter), [seed % 2**32, seed >> 32]
    for _ in range(7):
        high0, low0 = divmod(0xD2511F53 * c[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c[2], 2**32)
        c = [high1 ^ c[1] ^ key[0], low1, high0 ^ c[3] ^ key[1], low0]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return c


@given(
    st.integers(0, 2**64 - 1), st.integers(0, 2**24 - 1), st.integers(0, 2**16 - 1),
    st.integers(0, 2**24 - 1), st.integers(0, 2**24 - 1), st.floats(0.01, 0.99),
)  # fmt: skip
@bounded
def test_an_element_is_kept_by_its_own_word(
    seed: int, batch: int, head: int, row: int, col: int, dropout_p: float
) -> None:
    """Counter, key, word and half of it of one element: what the kernels must do."""
    block, (i, j) = (row // 16, col // 16), (row % 16, col % 16)
    counter = (block[0] * 8 + i % 8, block[1] * 4 + j % 8 // 2, head, batch)
    word = philox_in_plain_integers(counter, seed)[i // 8 + j // 8 * 2]
    bits = word >> 16 if j % 2 else word % 2**16
    kept = dropout_keep(dropout_p, seed, batch, head, np.array([row]), np.array([col]))
    assert kept.shape == (1, 1) and kept.dtype == bool
    assert bool(kept[0, 0]) == (bits >= round(dropout_p * 2**16))


def whole(seed: int = 0, dropout_p: float = 0.3) -> np.ndarray:
    return dropout_keep(dropout_p, seed, np.arange(2), np.arange(3), np.arange(40), np.arange(50))


@given(st.integers(0, 39), st.integers(1, 40), st.integers(0, 49), st.integers(1, 50))
@bounded
def test_a_tile_of_the_mask_is_the_mask_of_the_tile(i: int, rows: int, j: int, cols: int) -> None:
    everything = whole()
    assert everything.shape == (2, 3, 40, 50)
    at = (np.arange(i, min(i + rows, 40)), np.arange(j, min(j + cols, 50)))
    tile = dropout_keep(0.3, 0, np.array([1]), np.array([2]), *at)
    np.testing.assert_array_equal(tile[0, 0], everything[1, 2][np.ix_(*at)])
    np.testing.assert_array_equal(dropout_keep(0.3, 0, 1, 2, *at), tile[0, 0])


def test_batch_and_head_may_be_numbers() -> None:
    at = (np.arange(40), np.arange(50))
    everything = whole()
    np.testing.assert_array_equal(dropout_keep(0.3, 0, 1, np.arange(3), *at), everything[1])
    np.testing.assert_array_equal(dropout_keep(0.3, 0, np.arange(2), 2, *at), everything[:, 2])
    np.testing.assert_array_equal(dropout_keep(0.3, 0, 1, 2, *at), everything[1, 2])


@pytest.mark.parametrize("dropout_p", [0.05, 0.1, 0.5, 0.9])
def test_the_kept_fraction_is_one_minus_p(dropout_p: float) -> None:
    kept = dropout_keep(dropout_p, 5, np.arange(4), np.arange(4), np.arange(100), np.arange(101))
    sigma = math.sqrt(dropout_p * (1 - dropout_p) / kept.size)
    assert abs(kept.mean() - (1 - dropout_p)) < 4 * sigma
    for axis in range(4):  # and so along every axis
        others = tuple(a for a in range(4) if a != axis)
        spread = 5 * math.sqrt(dropout_p * (1 - dropout_p) / (kept.size / kept.shape[axis]))
        assert (abs(kept.mean(axis=others) - (1 - dropout_p)) < spread).all()


def test_batches_heads_rows_columns_and_seeds_draw_apart() -> None:
    """Half of the elements of two fair masks agree, whatever they differ in."""
    at = (np.arange(64), np.arange(64))
    base = dropout_keep(0.5, 1, 0, 0, *at)
    others = {
        "seed": dropout_keep(0.5, 2, 0, 0, *at),
        "high half of the seed": dropout_keep(0.5, 1 + 2**32, 0, 0, *at),
        "batch": dropout_keep(0.5, 1, 1, 0, *at),
        "head": dropout_keep(0.5, 1, 0, 1, *at),
        "rows": dropout_keep(0.5, 1, 0, 0, at[0] + 64, at[1]),
        "columns": dropout_keep(0.5, 1, 0, 0, at[0], at[1] + 64),
        "transposed": base.T,
    }
    for name, other in others.items():
        assert abs((base == other).mean() - 0.5) < 4 * 0.5 / 64, name
    again = dropout_keep(0.5, 1, 0, 0, *at)
    np.testing.assert_array_equal(base, again)


def test_a_larger_p_drops_what_a_smaller_one_drops_and_more() -> None:
    masks = [whole(dropout_p=p) for p in (0.0, 0.1, 0.5, 0.9)]
    assert masks[0].all(), "p = 0 keeps everything"
    for more, fewer in itertools.pairwise(masks):
        assert not (fewer & ~more).any() and fewer.sum() < more.sum()


def test_the_threshold_stays_within_16_bits() -> None:
    assert threshold(0.0) == 0 and threshold(0.5) == 2**15
    assert threshold(math.nextafter(1.0, 0.0)) == 2**16 - 1


def test_the_bits_of_a_block_are_all_different_ones() -> None:
    """The 256 elements of a block of 16 x 16 use each half word of its 32 draws once."""
    seen = set()
    for row, col in itertools.product(range(16), range(32, 48)):
        draw = (row // 16 * 8 + row % 8, col // 16 * 4 + col % 8 // 2)
        seen.add((draw, row // 8 % 2 + col // 8 % 2 * 2, col % 2))
    assert len(seen) == 256 and len({draw for draw, _, _ in seen}) == 32


def test_neighbours_that_share_a_draw_are_independent() -> None:
    """Elements a fixed step apart agree as often as two coins do, whatever draw they share."""
    kept = dropout_keep(0.5, 3, 0, 0, np.arange(512), np.arange(512))
    for rows, cols in itertools.product((0, 1, 8, 16), (0, 1, 2, 8, 9, 16)):
        if rows or cols:
            same = kept[: 512 - rows, : 512 - cols] == kept[rows:, cols:]
            assert abs(same.mean() - 0.5) < 5 * 0.5 / 512, (rows, cols)


@pytest.mark.parametrize("dropout_p", [0.0, 1e-6, 0.1, 0.5, 0.999, 0.99999, 1 - 1e-9])
def test_what_is_kept_is_scaled_by_how_much_is_kept(dropout_p: float) -> None:
    """Over all 16-bit draws, kept ones times the scale are as many as there are draws."""
    kept = 2**16 - threshold(dropout_p)
    assert kept >= 1 and kept * keep_scale(dropout_p) == pytest.approx(2**16, rel=1e-15)
    assert keep_scale(dropout_p, given=True) == 1 / (1 - dropout_p)


@pytest.mark.parametrize("dropout_p", [1.0, -0.1, math.nan, "0.1", True, None])
def test_a_fraction_out_of_range_is_refused(dropout_p: object) -> None:
    with pytest.raises(ValueError, match=r"^dropout_p = .* at least 0 and below 1: .*e\.g\. 0\.1"):
        dropout_keep(dropout_p, 0, 0, 0, np.arange(2), np.arange(2))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [-1, 2**64, 0.5, "1", None])
def test_a_seed_that_is_no_64_bit_number_is_refused(seed: object) -> None:
    with pytest.raises(ValueError, match=r"^seed = .* between 0 and 18446744073709551615\. Pass"):
        dropout_keep(0.1, seed, 0, 0, np.arange(2), np.arange(2))  # type: ignore[arg-type]
