"""The softmax of a whole row: what the online softmax of every widget is held against."""

from __future__ import annotations

import numpy as np

#: Largest difference between acc / l and the softmax of the prefix, in float64, with values near 1.
LIMIT = 1e-14


def softmax_output(s: np.ndarray, v: np.ndarray) -> np.ndarray:
    """softmax(s) @ v of a whole row with its maximum subtracted: (keys,), (keys, d) -> (d,).

    0 where every key is masked.
    """
    if s.max(initial=-np.inf) == -np.inf:
        return np.zeros(v.shape[-1], v.dtype)
    e = np.exp(s - s.max())
    return (e @ v) / e.sum()
