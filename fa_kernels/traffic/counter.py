"""Counts the bytes that the NumPy algorithms move, tile by tile, per tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fa_kernels.masks import split_by_mask
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

    def fetch(self, tensor: str, array: np.ndarray) -> np.ndarray:
        """As `Hbm.fetch`; counts every element."""
        self.read_bytes[tensor] += array.nbytes
        return super().fetch(tensor, array)

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

    Heads that share a mask move the same bytes, so one of them is enough; the values do not matter.
    """
    # Bytes are what counts, and NumPy has no bfloat16 of its own.
    dtype = np.dtype("float16" if problem.itemsize == 2 else problem.dtype)
    q = np.ones((1, 1, problem.seqlen_q, problem.head_dim), dtype)
    kv = np.ones((1, 1, problem.seqlen_k, problem.head_dim), dtype)
    total = Traffic()
    for _, _, group in split_by_mask(problem):
        hbm = CountingHbm()
        one = replace(group, batch=1, nheads=1, nheads_kv=1)
        algorithm(q, kv, kv, one, tiling, hbm)
        total = total.plus(hbm.traffic().times(group.heads))
    return total
