"""Block-sparsity masks: which blocks of the attention matrix are kept."""

from __future__ import annotations

import functools
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from fa_kernels.patterns import best_blocks, block_states, blocks_kept, keep_blocks, reduce_blocks
from fa_kernels.problem import MAX_SEQLEN, checked_int

#: Blocks of one mask, q_blocks * k_blocks; more would take minutes to build and to walk.
MAX_BLOCKS = 2**26


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
        density: float | None = None,
    ) -> BlockMask:
        """A pattern of `fa_kernels.patterns.PATTERNS`; the diagonal is kept by every one.

        In most of them every block row keeps the same number of blocks, at least one.

        Args:
            name: "local": the blocks nearest the diagonal, where there are two choices the earlier
                keys (the sliding window of Longformer, arXiv 2004.05150). "dilated": the same with
                every second block, and the ones between where more are wanted (there, too).
                "strided": the diagonal and every n-th block before it, on from the end after the
                first (the column part of Sparse Transformers' strided attention, arXiv 1904.10509).
                "butterfly": first those whose index differs from the diagonal block's in no bit,
                then in one (the flat block butterfly of Pixelated Butterfly, arXiv 2112.00029,
                without its low-rank term); beyond that, to reach any density, in two bits and so
                on. "random": the diagonal and random others, always the same ones.
                "global": a local window, and the first block of keys, which all rows attend and
                whose rows attend all (Longformer). "bigbird": the same with half of the window
                replaced by random blocks (BigBird, arXiv 2007.14062).
                "dense" and "causal" keep all blocks, and those up to the diagonal.
                The diagonal is the one of `causal="bottom_right"`: the last row sees the last key.
            density: fraction of the blocks to keep, in (0, 1]; the nearest there is. "dense" and
                "causal" have one density and need none.

        Raises:
            ValueError: an unknown name, a density out of range or too many blocks.
        """
        remedy = "Give the lengths and blocks of the call that it is for."
        seqlen_q = checked_int("seqlen_q", seqlen_q, 0, MAX_SEQLEN, remedy)
        seqlen_k = checked_int("seqlen_k", seqlen_k, 0, MAX_SEQLEN, remedy)
        block_m, block_n = _checked_blocks(block_m, block_n)
        sizes = mask_blocks(seqlen_q, seqlen_k, block_m, block_n)
        last_rows = np.minimum(np.arange(1, sizes[0] + 1) * block_m, seqlen_q) - 1
        diagonal = np.maximum(last_rows + seqlen_k - seqlen_q, 0) // block_n
        keep = keep_blocks(name, sizes[1], tuple(diagonal.tolist()), density)
        return cls(keep, block_m, block_n, name)

    @classmethod
    def from_mask(cls, mask: Any, block_m: int, block_n: int) -> BlockMask:
        """The blocks in which an element mask keeps anything.

        A block that it keeps in part is kept: where there may be such, pass the element mask, too,
        `fa.attention(q, k, v, mask=mask, block_mask=fa.BlockMask.from_mask(mask, 128, 128))`. That
        is `mask` alone, without the work of what it drops.

        Args:
            mask: bool (seqlen_q, seqlen_k) or (batch or 1, nheads or 1, seqlen_q, seqlen_k), True =
                attend.

        Raises:
            ValueError: not boolean, not 2 or 4 axes, an empty axis, or as the class.
        """
        mask = np.asarray(mask)
        if mask.dtype != np.bool_:
            raise ValueError(
                f"mask is {mask.dtype}, it must be bool (True = attend): compare it with a "
                "threshold, or give scores to BlockMask.from_scores."
            )
        block_m, block_n = _checked_blocks(block_m, block_n)
        _refuse_other_axes("mask", mask.shape, block_m, block_n)
        return cls(block_states(mask, block_m, block_n)[0], block_m, block_n)

    @classmethod
    def from_scores(
        cls,
        scores: Any,
        block_m: int,
        block_n: int,
        *,
        threshold: float | None = None,
        density: float | None = None,
        by: str = "largest",
    ) -> BlockMask:
        """The blocks that matter by scores or probabilities of an attention map.

        Args:
            scores: real (seqlen_q, seqlen_k) or (batch or 1, nheads or 1, seqlen_q, seqlen_k);
                -inf marks what is masked, and a block of nothing else is dropped.
            threshold: keep a block if its value is at least this.
            density: instead, keep in every block row this fraction of the blocks, at least one:
                those with the greatest values. Of probabilities, `by="sum"` then keeps the most of
                them that any mask with as many blocks per row can.
            by: what a block's value is, its "largest" element or their "sum".

        Raises:
            ValueError: NaN, both or neither of threshold and density, an unknown `by`, not 2 or 4
                axes, or as the class.
        """
        scores = np.asarray(scores, np.float64)
        if (threshold is None) == (density is None):
            raise ValueError(
                f"threshold = {threshold!r} and density = {density!r}: give one of the two."
            )
        if by not in ("largest", "sum"):
            raise ValueError(f"by = {by!r} is not known: use 'largest' or 'sum'.")
        block_m, block_n = _checked_blocks(block_m, block_n)
        _refuse_other_axes("scores", scores.shape, block_m, block_n)
        if np.isnan(scores).any():
            raise ValueError("scores has NaN, which is neither kept nor dropped: remove it.")
        largest = reduce_blocks(np.maximum, scores, block_m, block_n)
        value = largest
        if by == "sum":
            seen = np.where(np.isneginf(scores), 0.0, scores)
            value = np.where(
                np.isneginf(largest), -np.inf, reduce_blocks(np.add, seen, block_m, block_n)
            )
        if threshold is not None:
            keep = value >= threshold
        else:
            keep = best_blocks(value, blocks_kept(density, value.shape[-1]))
        return cls(keep & ~np.isneginf(largest), block_m, block_n)

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
    def key(self) -> tuple[Any, ...]:
        """What equal masks share: a digest, not the mask, since keys of caches outlive it."""
        digest = hashlib.sha256(np.packbits(self.keep).tobytes()).digest()
        return self.keep.shape, self.block_m, self.block_n, digest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockMask) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def describe(self) -> str:
        """For captions: "local block mask 64 x 64, s = 0.25"."""
        name = f"{self.name} block mask" if self.name else "block mask"
        return f"{name} {self.block_m} x {self.block_n}, s = {self.density:.3g}"


def _checked_blocks(block_m: Any, block_n: Any) -> tuple[int, int]:
    return (
        checked_int("block_m", block_m, 1, MAX_SEQLEN, "64 is a good block."),
        checked_int("block_n", block_n, 1, MAX_SEQLEN, "64 is a good block."),
    )


def _refuse_other_axes(name: str, shape: tuple[int, ...], block_m: int, block_n: int) -> None:
    """Before the blocks are made: 2 or 4 axes, nothing empty, not too many blocks."""
    if len(shape) not in (2, 4) or 0 in shape:
        raise ValueError(
            f"{name} has shape {shape}: it must be (seqlen_q, seqlen_k) or (batch, nheads, "
            "seqlen_q, seqlen_k), with at least one element."
        )
    blocks = mask_blocks(shape[-2], shape[-1], block_m, block_n)
    _refuse_many(*blocks, masks=shape[0] * shape[1] if len(shape) == 4 else 1)


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
    """A function of (mask, *sizes) that remembers the results that were used last."""

    def __init__(self, function: Callable[..., Result], entries: int) -> None:
        functools.update_wrapper(self, function)
        self._function, self._entries = function, entries
        self._known: OrderedDict[tuple[Any, ...], Result] = OrderedDict()

    def __call__(self, mask: BlockMask | None, *sizes: Any) -> Result:
        key = (None if mask is None else mask.key, *sizes)
        if key not in self._known:
            self._known[key] = self._function(mask, *sizes)
            if len(self._known) > self._entries:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]

    def cache_clear(self) -> None:
        """Forget all results."""
        self._known.clear()


def per_mask(entries: int) -> Callable[[Callable[..., Result]], _PerMask[Result]]:
    """Cache a function of (mask, *sizes) by what the mask holds, without keeping the mask alive.

    Of more than `entries` results the least recently used goes. They may be large: choose few.
    """
    return lambda function: _PerMask(function, entries)
