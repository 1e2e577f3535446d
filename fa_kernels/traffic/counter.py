"""Counts the bytes that the NumPy algorithms move, tile by tile, per tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fa_kernels.extras import Extras
from fa_kernels.masks import parts
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

    def fetch(self, tensor: str, array: np.ndarray, valid: np.ndarray | None = None) -> np.ndarray:
        """As `Hbm.fetch`; counts the elements where `valid`."""
        self.read_bytes[tensor] += _nbytes(array, valid)
        return super().fetch(tensor, array, valid)

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
    """Run `algorithm` from `reference` on one head per mask and count; then scale to all heads.

    Heads that share a mask move the same bytes, so one of them is enough; the values do not matter.
    """
    # Dropout that is drawn moves nothing.
    problem = replace(problem, dropout_p=0.0, nheads_kv=problem.nheads)
    if problem.packed is not None:
        one = replace(problem, nheads=1, nheads_kv=1)
        return _count(algorithm, one, tiling).times(problem.nheads)
    total = Traffic()
    for part in parts(problem):
        one = replace(part.problem, batch=1, nheads=1, nheads_kv=1)
        total = total.plus(_count(algorithm, one, tiling).times(part.problem.heads))
    return total


def _count(algorithm: Algorithm, problem: AttentionProblem, tiling: Tiling) -> Traffic:
    q = np.ones((1, 1, problem.q_rows, problem.head_dim), countable(problem.dtype))
    kv = np.ones((1, 1, problem.kv_rows, problem.head_dim), q.dtype)
    hbm = CountingHbm()
    # Some BLAS compute with lanes that hold nothing, and then NumPy warns of what nobody looks at.
    with np.errstate(invalid="ignore"):
        algorithm(q, kv, kv, problem, tiling, hbm, extras=extras_of_ones(problem))
    return hbm.traffic()


def countable(dtype: str) -> np.dtype:
    """A dtype of the same size that NumPy has."""
    # Bytes are what counts, and NumPy has no bfloat16 of its own.
    return np.dtype("float16" if dtype == "bfloat16" else dtype)


def extras_of_ones(problem: AttentionProblem) -> Extras:
    """The arrays that the problem says it has: everything attended and kept, a bias of 1."""
    shape = (problem.batch, problem.nheads, problem.seqlen_q, problem.seqlen_k)

    def ones(dtype: np.dtype) -> np.ndarray:
        return np.broadcast_to(np.ones((), dtype), shape)

    everything = ones(np.dtype(bool))
    return Extras(
        mask=everything if problem.masked else None,
        bias=None if problem.bias_dtype is None else ones(countable(problem.bias_dtype)),
        dropout_keep=everything if problem.keep_given else None,
    )
