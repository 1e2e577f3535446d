"""A block-sparsity pattern whose blocks are the tiles, as in the paper: what it keeps and moves.

Every block row of a pattern keeps the same number of blocks, so its bytes and FLOPs have a closed
form: a knob can be dragged over sequences whose masks would take seconds to build. The tests hold
the closed forms against the models that walk a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from fa_kernels.block_mask import MAX_BLOCKS, BlockMask
from fa_kernels.patterns import blocks_kept
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic import model
from fa_kernels.traffic.model import Traffic

#: Masks of more blocks are built for nothing but a call: building one takes 0.1 s and more.
MAX_BUILT_BLOCKS = 2**20


@dataclass(frozen=True)
class Blocks:
    """One pattern over the tiles of one sequence: `count` of `k_blocks` are kept in every row."""

    name: str
    seqlen: int
    tiling: Tiling
    count: int

    @classmethod
    def of(cls, name: str, asked: float, seqlen: int, tiling: Tiling) -> Blocks:
        """The pattern of `BlockMask.pattern(name, seqlen, seqlen, block_m, block_n, asked)`.

        Raises:
            ValueError: a density outside (0, 1].
        """
        return cls(name, seqlen, tiling, blocks_kept(asked, -(-seqlen // tiling.block_n)))

    @property
    def q_blocks(self) -> int:
        """Block rows."""
        return -(-self.seqlen // self.tiling.block_m)

    @property
    def k_blocks(self) -> int:
        """Block columns."""
        return -(-self.seqlen // self.tiling.block_n)

    @property
    def density(self) -> float:
        """The kept fraction of the blocks, the paper's s: what rounding made of what was asked."""
        return self.count / self.k_blocks

    @property
    def refusal(self) -> str | None:
        """Why there is no such mask, in words, or None."""
        if self.q_blocks * self.k_blocks <= MAX_BLOCKS:
            return None
        return (
            f"N = {self.seqlen}: a mask of {self.q_blocks} x {self.k_blocks} blocks has more than "
            f"{MAX_BLOCKS}. Use larger blocks (raise M) or a shorter sequence."
        )

    @property
    def quick(self) -> bool:
        """True if the mask is built fast enough for a figure that is dragged."""
        return self.q_blocks * self.k_blocks <= MAX_BUILT_BLOCKS

    @property
    def counted_at_once(self) -> bool:
        """True if bytes and FLOPs need no mask, or one that is quick to build."""
        return self.quick or self._short == 0

    def mask(self) -> BlockMask:
        """The mask itself, for a call or a picture."""
        sizes = (self.seqlen, self.seqlen, self.tiling.block_m, self.tiling.block_n)
        return BlockMask.pattern(self.name, *sizes, self.density)

    def outline(self) -> BlockMask:
        """A mask of this size that takes no memory: a launch depends on the size alone."""
        keep = np.broadcast_to(np.bool_(True), (1, 1, self.q_blocks, self.k_blocks))
        return BlockMask(keep, self.tiling.block_m, self.tiling.block_n, self.name)

    @property
    def _short(self) -> int:
        """How many keys the last column lacks."""
        return self.k_blocks * self.tiling.block_n - self.seqlen

    def _kept_in_last(self) -> tuple[int, bool]:
        """How many rows keep the last, short column, and whether the last row does."""
        if self._short == 0:
            return 0, False  # nobody asks
        return _last_column(self)

    @property
    def tile_keys(self) -> int:
        """Keys in the kept tiles, summed over the Q tiles: how often a key is loaded."""
        kept, _ = self._kept_in_last()
        return self.q_blocks * self.count * self.tiling.block_n - kept * self._short

    @property
    def pairs(self) -> int:
        """Attended (row, key) pairs of one head."""
        kept, last_row = self._kept_in_last()
        missing_rows = self.q_blocks * self.tiling.block_m - self.seqlen
        rows = kept * self.tiling.block_m - (missing_rows if last_row else 0)
        return self.seqlen * self.count * self.tiling.block_n - rows * self._short

    @property
    def least_pairs(self) -> int:
        """`pairs`, or a little less where the mask would take too long to build."""
        if self.counted_at_once:
            return self.pairs
        return self.seqlen * (self.count * self.tiling.block_n - self._short)


@lru_cache(maxsize=4096)
def _last_column(blocks: Blocks) -> tuple[int, bool]:
    keep = blocks.mask().keep[0, 0, :, -1]
    return int(keep.sum()), bool(keep[-1])


def _q_outer(problem: AttentionProblem, blocks: Blocks) -> Traffic:
    row_bytes = problem.head_dim * problem.itemsize
    kv = blocks.tile_keys * row_bytes * problem.heads
    lists = 16 * blocks.q_blocks + 4 * blocks.q_blocks * blocks.count
    read = {"q": problem.q_bytes, "k": kv, "v": kv, "mask": lists * problem.heads}
    return Traffic(read, {"out": problem.q_bytes, "lse": problem.lse_bytes})


def _kv_outer(problem: AttentionProblem, blocks: Blocks, o_itemsize: int = 4) -> Traffic:
    lists = 16 * (blocks.k_blocks + 1) + 4 * blocks.q_blocks * blocks.count
    again = (blocks.count - 1) * problem.heads * blocks.seqlen
    partial, stats = again * problem.head_dim * o_itemsize, again * 8
    read = {"q": blocks.count * problem.q_bytes, "k": problem.kv_bytes, "v": problem.kv_bytes}
    read |= {"out": partial, "lse": stats, "mask": lists * problem.heads}
    written = {"out": partial + problem.q_bytes, "lse": stats + problem.lse_bytes}
    return Traffic(read, written)


def _kv_outer_io(problem: AttentionProblem, blocks: Blocks) -> Traffic:
    return _kv_outer(problem, blocks, problem.itemsize)


def _paper_q_outer(problem: AttentionProblem, blocks: Blocks) -> Traffic:
    dense = model.paper_flash_q_outer(problem, blocks.tiling)
    kv = round(dense.read_bytes["k"] * Fraction(blocks.count, blocks.k_blocks))
    return Traffic({**dense.read_bytes, "k": kv, "v": kv}, dense.written_bytes)


def _paper_kv_outer(problem: AttentionProblem, blocks: Blocks) -> Traffic:
    q, kv = blocks.count * problem.q_bytes, problem.kv_bytes
    moved = {"out": q, "lse": blocks.count * 2 * problem.lse_bytes}
    return Traffic({"q": q, "k": kv, "v": kv, **moved}, moved)


ClosedForm = Callable[[AttentionProblem, Blocks], Traffic]
#: Variant -> its `launched` and its `paper` model in closed form; the tests hold every block-sparse
#: variant against the models that walk a mask.
_LAUNCHED: Mapping[str, ClosedForm] = MappingProxyType(
    {
        "flash_kv_outer": _kv_outer,
        "flash_kv_outer_io": _kv_outer_io,
        "flash_q_outer": _q_outer,
        "flash_q_outer_one_block": _q_outer,
        "flash_mma": _q_outer,
        "flash_wgmma": _q_outer,  # whole tiles are what a dense problem loads anyway
    }
)
_PAPER: Mapping[str, ClosedForm] = MappingProxyType(
    {
        "flash_kv_outer": _paper_kv_outer,
        "flash_kv_outer_io": _paper_kv_outer,
        "flash_q_outer": _paper_q_outer,
        "flash_q_outer_one_block": _paper_q_outer,
        "flash_mma": _paper_q_outer,
        "flash_wgmma": _paper_q_outer,
    }
)


def launched(variant: str, problem: AttentionProblem, blocks: Blocks) -> Traffic | None:
    """The `launched` model of the dense `problem` with this pattern on it, without walking a mask.

    None where there is no closed form: the model has to walk `blocks.mask()`.
    """
    closed = _LAUNCHED.get(variant)
    # The diagonal of tiles that are not taller than wide is in every column: all are loaded.
    tall = blocks.tiling.block_m > blocks.tiling.block_n
    if closed is None or tall or problem.causal is not None:
        return None
    return closed(problem, blocks)


def paper(variant: str, problem: AttentionProblem, blocks: Blocks) -> Traffic | None:
    """The `paper` model of the dense `problem` with this pattern on it; None: no closed form.

    Q outer keeps a fraction of K and V, K/V outer (the paper's Algorithm 5) of the visits.
    """
    closed = _PAPER.get(variant)
    return closed(problem, blocks) if closed else None
