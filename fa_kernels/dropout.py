"""Which probabilities dropout keeps: Philox indexed by (seed, batch, head, row, column).

Never by tile, so every backend, tiling and the backward pass draw the same mask and none is stored.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), Philox4x32-7: seven
rounds are the fewest that pass BigCrush there. philox.cuh is the same in CUDA.

16 bits decide about an element: p is rounded to a multiple of 2^-16 below 1, and what is kept is
scaled by what that rounding keeps, so the mean holds for every p. A draw serves eight elements:
rows r, r + 8 and keys c, c + 1, c + 8, c + 9 of a block of 16 x 16, which one lane of a tensor core
holds.
"""

from __future__ import annotations

import numpy as np

from fa_kernels.problem import checked_dropout_p, checked_seed

_ROUNDS = 7
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter: tuple[np.ndarray, ...], seed: int) -> tuple[np.ndarray, ...]:
    """Philox4x32-7: four random words for four counter words.

    Args:
        counter: four uint64 arrays below 2^32 that broadcast together.
        seed: the 64-bit key, its low half first.

    Returns:
        Four uint64 arrays below 2^32.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(_ROUNDS):
        a, b = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (b >> _HALF) ^ c1 ^ np.uint64(k0),
            b & _LOW,
            (a >> _HALF) ^ c3 ^ np.uint64(k1),
            a & _LOW,
        )
        k0, k1 = (k0 + _KEY_STEPS[0]) & 0xFFFFFFFF, (k1 + _KEY_STEPS[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3


def threshold(dropout_p: float) -> int:
    """A probability is dropped where its 16 random bits are below this: dropout_p 2^16."""
    return min(round(dropout_p * 2**16), 2**16 - 1)


def keep_scale(dropout_p: float, given: bool = False) -> float:
    """What kept probabilities are multiplied with, so that dropout leaves the mean as it was.

    `given`: by a mask of the caller's, of which `dropout_p` says how much it drops; a drawn one
    drops `threshold(dropout_p)` of 2^16.
    """
    return 1.0 / (1.0 - dropout_p) if given else 2**16 / (2**16 - threshold(dropout_p))


def dropout_keep(
    dropout_p: float,
    seed: int,
    batch: int | np.ndarray,
    head: int | np.ndarray,
    rows: np.ndarray,
    cols: np.ndarray,
) -> np.ndarray:
    """The keep mask that dropout draws, True = keep, for any part of the attention matrix.

    Args:
        dropout_p, seed: as `fa.attention`.
        batch, head: indices, numbers or arrays (B,) and (H,); of packed sequences, batch is the
            number of the sequence. Heads are those of q.
        rows, cols: row and key indices within the sequence, 1-D.

    Returns:
        bool (B, H, rows, cols), without the axes of a batch or head given as a number. Attention
        scales kept values by `keep_scale`: 1 / (1 - dropout_p), rounded as the drawing rounds.

    Raises:
        ValueError: dropout_p outside [0, 1), a seed that is no 64-bit whole number.
    """
    limit, seed = threshold(checked_dropout_p(dropout_p)), checked_seed(seed)
    rows, cols = np.asarray(rows, np.int64), np.asarray(cols, np.int64)
    # Each draw once, wherever a tile starts; then every element's word and half of it.
    row_groups, row_at = np.unique(rows // 16 * 8 + rows % 8, return_inverse=True)
    col_groups, col_at = np.unique(cols // 16 * 4 + cols % 8 // 2, return_inverse=True)
    counter = (
        row_groups.astype(np.uint64)[:, None],
        col_groups.astype(np.uint64)[None, :],
        np.asarray(head, np.uint64)[..., None, None],
        np.asarray(batch, np.uint64)[..., None, None],
    )
    if np.ndim(batch) and np.ndim(head):
        counter = (*counter[:3], counter[3][:, None])
    words = np.stack(np.broadcast_arrays(*philox(counter, seed)), axis=-1)
    which = (rows // 8 % 2)[:, None] + (cols // 8 % 2 * 2)[None, :]
    picked = words[..., row_at[:, None], col_at[None, :], which]
    bits = picked >> (cols % 2 * 16).astype(np.uint64) & np.uint64(0xFFFF)
    return bits >= np.uint64(limit)
