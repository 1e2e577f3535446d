"""How well attention under a block mask stands for the whole, on maps of a trained model."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fa_kernels.block_mask import BlockMask
from fa_kernels.measure.maps import AttentionMaps, load_maps
from fa_kernels.patterns import PATTERNS, reduce_blocks

#: Rows and keys of a block: of 512 tokens 32 blocks, as many as a long call has of larger ones.
BLOCK = 16
#: The mask that knows the map: in every block row the blocks with the most probability.
BEST = "best"
#: What is compared, the mask that knows first.
NAMES = (BEST, *(name for name, pattern in PATTERNS.items() if not pattern.fixed))
#: Densities that are asked for.
ASKED = (1 / 32, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1.0)


@dataclass(frozen=True)
class Quality:
    """Of one mask on one head: `density`, the kept part of the blocks that causal leaves; `mass`,
    the kept part of the probabilities, a mean over rows; `error`, that of out relative to out, as
    vectors of all rows."""

    density: float
    mass: float
    error: float


def mask_for(name: str, p: np.ndarray, asked: float) -> np.ndarray:
    """bool (blocks, blocks): a pattern, or `BEST` for the probabilities p (seqlen, seqlen), without
    what causal drops."""
    seqlen = len(p)
    if name == BEST:
        seen = np.where(np.tri(seqlen, dtype=bool), p, -np.inf)
        mask = BlockMask.from_scores(seen, BLOCK, BLOCK, density=asked, by="sum")
    else:
        mask = BlockMask.pattern(name, seqlen, seqlen, BLOCK, BLOCK, asked)
    keep = mask.keep[0, 0]
    return np.asarray(keep & np.tri(len(keep), dtype=bool))


def best_like(p: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """The mask that keeps as many blocks in every block row as `keep`, those with the most of p."""
    order = np.argsort(-share_of_blocks(p), axis=-1, kind="stable")
    first = np.arange(len(keep)) < keep.sum(axis=-1, keepdims=True)
    best = np.zeros_like(keep)
    np.put_along_axis(best, order, first, axis=-1)
    return best & np.tri(len(keep), dtype=bool)


class Head:
    """One head cut into blocks of keys, so that any mask costs a sum over blocks.

    p (seqlen, seqlen) causal probabilities, v (seqlen, head_dim); seqlen a multiple of `BLOCK`.
    """

    def __init__(self, p: np.ndarray, v: np.ndarray) -> None:
        self.p, blocks = p, len(p) // BLOCK
        cut = p.reshape(len(p), blocks, BLOCK).swapaxes(0, 1)
        rows = (blocks, blocks, BLOCK)  # key block, query block, row in it
        self._mass = cut.sum(axis=-1).reshape(rows)
        self._out = (cut @ v.reshape(blocks, BLOCK, -1)).reshape(*rows, -1)
        self._full = self._out.sum(axis=0)

    def quality(self, keep: np.ndarray) -> Quality:
        """Of one mask, as `mask_for` gives it.

        Under a mask the softmax divides by what is kept, and a row that keeps nothing is 0.
        """
        mass = np.einsum("ij,jir->ir", keep, self._mass)
        sums = np.einsum("ij,jird->ird", keep, self._out, optimize=True)
        out = sums / np.where(mass > 0, mass, 1.0)[..., None]
        error = float(np.linalg.norm(out - self._full) / np.linalg.norm(self._full))
        causal = np.tri(len(keep), dtype=bool)
        return Quality(float(keep.sum() / causal.sum()), float(mass.mean()), error)


def share_of_blocks(p: np.ndarray) -> np.ndarray:
    """(blocks, blocks): of the probability of a block row, the part in each block."""
    sums = reduce_blocks(np.add, p, BLOCK, BLOCK)
    return np.asarray(sums / sums.sum(axis=-1, keepdims=True))


@dataclass(frozen=True)
class Compared:
    """A mask on one head, and the best one with as many blocks in every row."""

    own: Quality
    best: Quality


@functools.lru_cache(maxsize=32)
def curves(name: str, folder: Path | None, head: int) -> dict[str, tuple[Compared, ...]]:
    """Name of a mask -> its quality at every density of `ASKED`, on one head of recorded maps."""
    maps: AttentionMaps = load_maps(name, folder)
    one = Head(maps.probabilities[head], maps.v[head].astype(np.float64))
    found: dict[str, tuple[Compared, ...]] = {}
    for mask in NAMES:
        keeps = [mask_for(mask, one.p, asked) for asked in ASKED]
        found[mask] = tuple(
            Compared(one.quality(keep), one.quality(best_like(one.p, keep))) for keep in keeps
        )
    return found
