"""Block-sparsity masks: which blocks of the attention matrix are kept, and patterns of them."""

from __future__ import annotations

import functools
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from fa_kernels.problem import MAX_SEQLEN, checked_int

#: Blocks of one mask, q_blocks * k_blocks; more would take minutes to build and to walk.
MAX_BLOCKS = 2**26
#: What `BlockMask.pattern` knows: a band about the diagonal, the paper's butterfly, random blocks.
PATTERNS = ("local", "butterfly", "random")


@dataclass(frozen=True, eq=False)
class BlockMask:
    """Keeps or drops whole blocks of the attention matrix, the same or another set per head.

    `keep` is bool (batch or 1, nheads or 1, q_blocks, k_blocks), True = attend; (q_blocks,
    k_blocks) is taken as one mask for all. Block (i, j) covers rows i block_m ... and keys
    j block_n ...; the last blocks may reach past the sequence. The blocks need not be the tiles of
    a kernel. `name` is the pattern that made it, "" for any other mask. The array is copied and
    frozen: lists that are cached for a mask would not follow a change.

    Raises:
        ValueError: not boolean, not 2 or 4 axes, an empty axis, too many blocks, a bad size.
    """

    keep: np.ndarray
    block_m: int
    block_n: int
    name: str = ""

    def __post_init__(self) -> None:
        keep = np.asarray(self.keep)
        if keep.dtype != np.bool_:
            raise ValueError(
                f"keep_blocks is {keep.dtype}, it must be bool (True = attend): "
                "compare scores with a threshold, or use .astype(bool)."
            )
        if keep.ndim not in (2, 4) or 0 in keep.shape:
            raise ValueError(
                f"keep_blocks has shape {keep.shape}: it must be (q_blocks, k_blocks) or "
                "(batch, nheads, q_blocks, k_blocks), with at least one block."
            )
        keep = keep.reshape((1,) * (4 - keep.ndim) + keep.shape)
        _refuse_many(keep.shape[2], keep.shape[3], masks=keep.shape[0] * keep.shape[1])
        if not _frozen(keep):
            keep = keep.copy()
            keep.setflags(write=False)
        object.__setattr__(self, "keep", keep)
        for name in ("block_m", "block_n"):
            value = checked_int(name, getattr(self, name), 1, MAX_SEQLEN, "64 is a good block.")
            object.__setattr__(self, name, value)

    @classmethod
    def from_dense(cls, keep_blocks: Any, block_m: int, block_n: int) -> BlockMask:
        """A mask from a bool array or nested list, shaped as `keep`.

        Raises:
            ValueError: as the class.
        """
        return cls(np.array(keep_blocks), block_m, block_n)

    @classmethod
    def pattern(
        cls,
        name: str,
        seqlen_q: int,
        seqlen_k: int,
        block_m: int,
        block_n: int,
        density: float,
    ) -> BlockMask:
        """A pattern of `PATTERNS` in which every block row keeps the same number of blocks.

        Args:
            name: "local": the blocks nearest the diagonal, where there are two choices the earlier
                keys. "butterfly": first those whose index differs from the diagonal block's in no
                bit, then in one (the flat block butterfly of Pixelated Butterfly, arXiv
                2112.00029, without its low-rank term); beyond that, to reach any density, in two
                bits and so on. "random": the diagonal and random others, always the same ones.
                The diagonal is the one of `causal="bottom_right"`: the last row sees the last key.
            density: fraction of the blocks to keep, in (0, 1]; rounded to at least one per row.

        Raises:
            ValueError: an unknown name, a density out of range or too many blocks.
        """
        if name not in PATTERNS:
            raise ValueError(f"pattern = {name!r} is not known: use one of {', '.join(PATTERNS)}.")
        remedy = "Give the lengths and blocks of the call that it is for."
        seqlen_q = checked_int("seqlen_q", seqlen_q, 0, MAX_SEQLEN, remedy)
        seqlen_k = checked_int("seqlen_k", seqlen_k, 0, MAX_SEQLEN, remedy)
        block_m = checked_int("block_m", block_m, 1, MAX_SEQLEN, "64 is a good block.")
        block_n = checked_int("block_n", block_n, 1, MAX_SEQLEN, "64 is a good block.")
        sizes = mask_blocks(seqlen_q, seqlen_k, block_m, block_n)
        count = blocks_kept(density, sizes[1])
        last_rows = np.minimum(np.arange(1, sizes[0] + 1) * block_m, seqlen_q) - 1
        diagonal = np.maximum(last_rows + seqlen_k - seqlen_q, 0) // block_n
        keep = _pattern(name, sizes[1], count, tuple(diagonal.tolist()))
        return cls(keep, block_m, block_n, name)

    @property
    def blocks(self) -> tuple[int, int]:
        """(q_blocks, k_blocks)."""
        return self.keep.shape[2], self.keep.shape[3]

    @property
    def lead(self) -> tuple[int, int]:
        """(batch or 1, nheads or 1): over what the mask differs."""
        return self.keep.shape[0], self.keep.shape[1]

    @property
    def density(self) -> float:
        """Kept fraction of the blocks, the paper's s."""
        return float(self.keep.mean())

    def fits(self, batch: int, nheads: int, seqlen_q: int, seqlen_k: int) -> None:
        """Raise if the mask does not belong to these sizes.

        Raises:
            ValueError: names shape, what is needed and the remedy.
        """
        need = mask_blocks(seqlen_q, seqlen_k, self.block_m, self.block_n)
        if self.blocks != need:
            raise ValueError(
                f"block_mask has {self.blocks[0]} x {self.blocks[1]} blocks of {self.block_m} x "
                f"{self.block_n}; seqlen_q = {seqlen_q}, seqlen_k = {seqlen_k} needs "
                f"{need[0]} x {need[1]}. Build it for these lengths."
            )
        if self.lead[0] not in (1, batch) or self.lead[1] not in (1, nheads):
            raise ValueError(
                f"block_mask is for (batch, nheads) = {self.lead}, the call has "
                f"({batch}, {nheads}): each must be equal or 1."
            )

    def at(self, batch: int, head: int) -> BlockMask:
        """The mask of one (batch, head), shared by all."""
        b, h = (0 if n == 1 else i for i, n in zip((batch, head), self.lead, strict=True))
        return BlockMask(self.keep[b : b + 1, h : h + 1], self.block_m, self.block_n, self.name)

    @functools.cached_property
    def _key(self) -> tuple[Any, ...]:
        # A digest, not the mask: keys of caches outlive it.
        digest = hashlib.sha256(np.packbits(self.keep).tobytes()).digest()
        return self.keep.shape, self.block_m, self.block_n, digest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockMask) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def describe(self) -> str:
        """For captions: "local block mask 64 x 64, s = 0.25"."""
        name = f"{self.name} block mask" if self.name else "block mask"
        return f"{name} {self.block_m} x {self.block_n}, s = {self.density:.3g}"


def blocks_kept(density: float, k_blocks: int) -> int:
    """How many of `k_blocks` blocks a row of a pattern of this density keeps; at least one.

    Raises:
        ValueError: a density outside (0, 1].
    """
    try:
        fits = not isinstance(density, (bool, str)) and 0.0 < float(density) <= 1.0
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError(f"density = {density!r} must be above 0 and at most 1, e.g. 0.25.")
    return max(1, round(float(density) * k_blocks))


def _frozen(array: np.ndarray) -> bool:
    """True if nobody can write to the array's memory: it and what it is a view of are read-only."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    return base is None


def _refuse_many(q_blocks: int, k_blocks: int, masks: int = 1) -> None:
    if masks * q_blocks * k_blocks > MAX_BLOCKS:
        times = f"{masks} x " if masks > 1 else ""
        raise ValueError(
            f"a mask of {times}{q_blocks} x {k_blocks} blocks has more than {MAX_BLOCKS}: "
            "use larger blocks (raise M), a shorter sequence, or one mask for all heads."
        )


def mask_blocks(seqlen_q: int, seqlen_k: int, block_m: int, block_n: int) -> tuple[int, int]:
    """Blocks that cover queries and keys; at least one each, also of an empty sequence.

    Raises:
        ValueError: a block that is no block, or more blocks than `MAX_BLOCKS`.
    """
    if min(block_m, block_n) < 1:
        raise ValueError(f"mask blocks of {block_m} x {block_n} hold nothing: 64 x 64 is good.")
    counts = max(1, -(-seqlen_q // block_m)), max(1, -(-seqlen_k // block_n))
    _refuse_many(*counts)
    return counts


Result = TypeVar("Result")


class _PerMask(Generic[Result]):
    """A function of (mask, *sizes) that remembers its newest results."""

    def __init__(self, function: Callable[..., Result], entries: int) -> None:
        functools.update_wrapper(self, function)
        self._function, self._entries = function, entries
        self._known: OrderedDict[tuple[Any, ...], Result] = OrderedDict()

    def __call__(self, mask: BlockMask | None, *sizes: Any) -> Result:
        key = (None if mask is None else mask._key, *sizes)
        if key not in self._known:
            self._known[key] = self._function(mask, *sizes)
            if len(self._known) > self._entries:
                self._known.popitem(last=False)
        return self._known[key]

    def cache_clear(self) -> None:
        """Forget all results."""
        self._known.clear()


def per_mask(entries: int) -> Callable[[Callable[..., Result]], _PerMask[Result]]:
    """Cache a function of (mask, *sizes) by what the mask holds, without keeping the mask alive.

    The oldest of `entries` results goes first. Results may be large: choose few.
    """
    return lambda function: _PerMask(function, entries)


@functools.lru_cache(maxsize=16)
def _pattern(name: str, k_blocks: int, count: int, diagonal: tuple[int, ...]) -> np.ndarray:
    """bool (1, 1, q_blocks, k_blocks); row i keeps `count` blocks around or by diagonal[i]."""
    centre, cols = np.array(diagonal), np.arange(k_blocks)
    if name == "local":
        first = np.clip(centre - count // 2, 0, k_blocks - count)[:, None]
        keep = (cols >= first) & (cols < first + count)
    else:
        keep = np.zeros((len(centre), k_blocks), bool)
        rng = np.random.default_rng(0)
        for row, middle in enumerate(centre):
            if name == "butterfly":
                differs = cols ^ middle
                rank = _bit_counts(differs) * (2 * k_blocks) + differs
            else:
                rank = rng.permutation(k_blocks) + 1
                rank[middle] = 0
            keep[row, np.argpartition(rank, count - 1)[:count]] = True
    keep = keep[None, None]
    keep.setflags(write=False)
    return keep


def _bit_counts(values: np.ndarray) -> np.ndarray:
    counts = np.zeros_like(values)
    while values.any():
        counts += values & 1
        values = values >> 1
    return counts
