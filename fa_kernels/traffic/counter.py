"""Counts the bytes that the NumPy algorithms move, tile by tile, per tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.hbm import Hbm
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.model import Traffic

Algorithm = Callable[..., tuple[np.ndarray, np.ndarray]]


class CountingHbm(Hbm):
    """Main memory that adds up the valid elements of every load and store, in bytes."""

    def __init__(self) -> None:
        self.read_bytes: Counter[str] = Counter()
        self.written_bytes: Counter[str] = Counter()

    def load(self, tensor: str, tile: np.ndarray, valid: np.ndarray | None = None) -> np.ndarray:
        """As `Hbm.load`; counts the elements where `valid`."""
        self.read_bytes[tensor] += _nbytes(tile, valid)
        return super().load(tensor, tile, valid)

    def store(
        self,
        tensor: str,
        tile: np.ndarray,
        value: np.ndarray | float,
        valid: np.ndarray | None = None,
    ) -> None:
        """As `Hbm.store`; counts the elements where `valid`."""
        self.written_bytes[tensor] += _nbytes(tile, valid)
        super().store(tensor, tile, value, valid)

    def traffic(self) -> Traffic:
        """What was counted so far."""
        return Traffic(dict(self.read_bytes), dict(self.written_bytes))


def _nbytes(tile: np.ndarray, valid: np.ndarray | None) -> int:
    if valid is None:
        return tile.nbytes
    return int(np.count_nonzero(np.broadcast_to(valid, tile.shape))) * tile.itemsize


def count_traffic(algorithm: Algorithm, problem: AttentionProblem, tiling: Tiling) -> Traffic:
    """Run `algorithm` from `reference` on one (batch, head) and count; then scale to all heads.

    Every head moves the same bytes, so one is enough; the inputs' values do not matter.
    """
    dtype = np.dtype(problem.dtype)
    q = np.ones((1, 1, problem.seqlen_q, problem.head_dim), dtype)
    kv = np.ones((1, 1, problem.seqlen_k, problem.head_dim), dtype)
    hbm = CountingHbm()
    algorithm(q, kv, kv, problem, tiling, hbm)
    return hbm.traffic().times(problem.heads)
