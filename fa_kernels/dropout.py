"""Which probabilities dropout keeps: Philox indexed by (seed, batch, head, row, column).

Never by tile, so every backend, tiling and the backward pass draw the same mask and none is stored.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), Philox4x32-10;
philox.cuh is the same in CUDA.
"""

from __future__ import annotations

import numpy as np

from fa_kernels.problem import checked_dropout_p, checked_seed

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter: tuple[np.ndarray, ...], seed: int) -> tuple[np.ndarray, ...]:
    """Philox4x32-10: four random words for four counter words.

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
    """A probability is dropped where its 32-bit random word is below this: dropout_p 2^32."""
    return min(round(dropout_p * 2**32), 2**32 - 1)


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
        bool (B, H, rows, cols), without the axes of a batch or head given as a number. Kept values
        are to be scaled by 1 / (1 - dropout_p).

    Raises:
        ValueError: dropout_p outside [0, 1), a seed that is no 64-bit whole number.
    """
    limit, seed = threshold(checked_dropout_p(dropout_p)), checked_seed(seed)
    cols = np.asarray(cols, np.uint64)
    # One draw serves four neighbouring keys, wherever a tile starts.
    groups, back = np.unique(cols // np.uint64(4), return_inverse=True)
    counter = (
        np.asarray(rows, np.uint64)[:, None],
        groups[None, :],
        np.asarray(head, np.uint64)[..., None, None],
        np.asarray(batch, np.uint64)[..., None, None],
    )
    if np.ndim(batch) and np.ndim(head):
        counter = (*counter[:3], counter[3][:, None])
    words = np.stack(np.broadcast_arrays(*philox(counter, seed)), axis=-1)
    picked = words[..., back, (cols % np.uint64(4)).astype(np.intp)]
    return picked >= np.uint64(limit)
