"""Main memory as the algorithms see it: every load and store goes through here by tensor name."""

from __future__ import annotations

import numpy as np


class Hbm:
    """Plain memory; `traffic.counter.CountingHbm` also counts what moves."""

    def load(self, tensor: str, tile: np.ndarray, valid: np.ndarray | None = None) -> np.ndarray:
        """Read `tile` of `tensor` into SRAM as float32 (float64 stays float64).

        `valid` marks the elements that are really read, where a tile is read in part.
        """
        return tile.astype(compute_dtype(tile.dtype))

    def fetch(self, tensor: str, array: np.ndarray, valid: np.ndarray | None = None) -> np.ndarray:
        """Read indices or flags as they are, without conversion; only where `valid`."""
        return array

    def store(
        self,
        tensor: str,
        tile: np.ndarray,
        value: np.ndarray | float,
        valid: np.ndarray | None = None,
    ) -> None:
        """Write `value` to `tile` of `tensor`, rounding to its dtype; only where `valid`."""
        if valid is None:
            tile[...] = value
        else:
            # "unsafe", because to NumPy bfloat16 is a type of its own, not a kind of float.
            np.copyto(tile, value, casting="unsafe", where=valid)


def compute_dtype(io_dtype: np.dtype) -> np.dtype:
    """Accumulation dtype: float32 for 16- and 32-bit io, float64 for float64 (the oracle)."""
    return np.dtype(np.float64) if io_dtype == np.float64 else np.dtype(np.float32)
