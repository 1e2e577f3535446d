"""Gradients of sum(out * d_out) by central differences: the definition, without any derivative."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Array = np.ndarray
Loss = Callable[[Array, Array, Array], Array]

#: Half the distance of the two points in float64: rounding (eps / STEP) and the third derivative
#: (STEP²) then both stay far below the limits here.
STEP = 1e-5
#: Perturbed copies that are evaluated at once.
_AT_ONCE = 256


def central_differences(loss: Loss, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """(loss(x + STEP e) - loss(x - STEP e)) / (2 STEP) for every entry of q, k and v.

    Args:
        loss: takes arrays with any batch axis, (batch, 1, N, d) each, and gives (batch,): all
            heads of the batch are independent problems.
        q, k, v: (1, 1, N, d) float64.

    Returns:
        dq, dk, dv, shaped like q, k, v.
    """
    return (_of_one(loss, (q, k, v), 0), _of_one(loss, (q, k, v), 1), _of_one(loss, (q, k, v), 2))


def _of_one(loss: Loss, tensors: tuple[Array, Array, Array], which: int) -> Array:
    moved = tensors[which]
    found = np.empty(moved.size)
    for start in range(0, moved.size, _AT_ONCE):
        entries = np.arange(start, min(start + _AT_ONCE, moved.size))
        found[entries] = _slopes(loss, tensors, which, entries)
    return found.reshape(moved.shape)


def _slopes(loss: Loss, tensors: tuple[Array, Array, Array], which: int, entries: Array) -> Array:
    """One batch entry for every perturbed entry of a tensor, first all up, then all down."""
    count, values = len(entries), []
    for sign in (1.0, -1.0):
        batch = [np.repeat(x, count, axis=0) for x in tensors]
        batch[which].reshape(count, -1)[np.arange(count), entries] += sign * STEP
        values.append(loss(*batch))
    return (values[0] - values[1]) / (2 * STEP)
