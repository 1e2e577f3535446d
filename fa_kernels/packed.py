"""Packed sequences: many of different lengths behind one another, without padding."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Packed:
    """Where each sequence starts in q and in k, v: sequence i is rows cu_seqlens[i] ... [i + 1].

    q is (1, nheads, total_q, head_dim), k and v (1, nheads_kv, total_k, head_dim). Sequences may
    be empty on either side.

    Raises:
        ValueError: not whole numbers, not starting at 0, descending, or of different lengths.
    """

    cu_seqlens_q: tuple[int, ...]
    cu_seqlens_k: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("cu_seqlens_q", "cu_seqlens_k"):
            object.__setattr__(self, name, _checked(name, getattr(self, name)))
        if len(self.cu_seqlens_q) != len(self.cu_seqlens_k):
            raise ValueError(
                f"cu_seqlens_q names {len(self.cu_seqlens_q) - 1} sequences, cu_seqlens_k "
                f"{len(self.cu_seqlens_k) - 1}: give both one boundary per sequence and the end."
            )

    @property
    def sequences(self) -> int:
        """How many there are."""
        return len(self.cu_seqlens_q) - 1

    @property
    def total_q(self) -> int:
        """Rows of q, over all sequences."""
        return self.cu_seqlens_q[-1]

    @property
    def total_k(self) -> int:
        """Rows of k and v, over all sequences."""
        return self.cu_seqlens_k[-1]

    @property
    def longest_q(self) -> int:
        """Rows of q in the longest sequence."""
        return max(stop - start for start, stop in _pairs(self.cu_seqlens_q))

    @property
    def longest_k(self) -> int:
        """Rows of k in the sequence with most of them."""
        return max(stop - start for start, stop in _pairs(self.cu_seqlens_k))

    def slices(self) -> Iterator[tuple[slice, slice]]:
        """(rows of q, rows of k and v) of every sequence."""
        for q, k in zip(_pairs(self.cu_seqlens_q), _pairs(self.cu_seqlens_k), strict=True):
            yield slice(*q), slice(*k)


def _pairs(bounds: Sequence[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(bounds))


def _checked(name: str, bounds: Any) -> tuple[int, ...]:
    remedy = "give [0, end of sequence 0, end of sequence 1, ...]."
    try:
        whole = tuple(operator.index(bound) for bound in bounds)
    except TypeError:
        raise ValueError(f"{name} = {bounds!r} is not a row of whole numbers: {remedy}") from None
    if len(whole) < 2 or whole[0] != 0:
        raise ValueError(
            f"{name} = {list(whole)[:6]} must start with 0 and name a sequence: {remedy}"
        )
    for i, (start, stop) in enumerate(_pairs(whole)):
        if stop < start:
            raise ValueError(
                f"{name} falls from {start} to {stop} at sequence {i}: it may not fall; {remedy}"
            )
    if whole[-1] >= 2**31:
        raise ValueError(
            f"{name} ends at {whole[-1]}, kernels count to {2**31 - 1}: split the call; {remedy}"
        )
    return whole
