"""What a visit of one tile reads besides q, k and v: its entry in a list, its cells, its masks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fa_kernels.extras import Extras
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.hbm import Hbm
from fa_kernels.reference.scores import tile_dropout, tile_scores
from fa_kernels.tile_list import FLAG_MIXED, TileLists

Array = np.ndarray


def read_list(lists: TileLists, index: int, problem: AttentionProblem, hbm: Hbm) -> list[int]:
    """One list of tiles. Without a block mask it follows from the sizes and is not in memory."""
    if problem.block_mask is None:
        return lists.of(index).tolist()
    hbm.fetch("mask", lists.start[index : index + 2])
    return hbm.fetch("mask", lists.of(index)).tolist()


@dataclass(frozen=True)
class VisitedTiles:
    """The tiles of one part, visited one at a time; `whole` is its problem without block mask."""

    problem: AttentionProblem
    whole: AttentionProblem
    extras: Extras
    hbm: Hbm

    @classmethod
    def of(cls, problem: AttentionProblem, extras: Extras, hbm: Hbm) -> VisitedTiles:
        """Those of `problem`."""
        whole = problem if problem.block_mask is None else replace(problem, block_mask=None)
        return cls(problem, whole, extras, hbm)

    def scores(self, q_i: Array, k_j: Array, rows: slice, cols: slice, entry: int) -> Array:
        """S of one tile, -inf where it is masked."""
        mask, problem = self.problem.block_mask, self._cutting(entry)
        if mask is not None and entry & FLAG_MIXED:
            block_rows = slice(rows.start // mask.block_m, (rows.stop - 1) // mask.block_m + 1)
            block_cols = slice(cols.start // mask.block_n, (cols.stop - 1) // mask.block_n + 1)
            self.hbm.fetch("mask", mask.keep[0, 0, block_rows, block_cols])
        return tile_scores(q_i, k_j, rows, cols, problem, self.extras, self.hbm)

    def dropout(self, rows: slice, cols: slice, entry: int, dtype: np.dtype) -> Array | None:
        """What dropout multiplies P of that tile with; None without it."""
        return tile_dropout(rows, cols, self._cutting(entry), self.extras, self.hbm, dtype)

    def _cutting(self, entry: int) -> AttentionProblem:
        """The problem whose masks cut the tile: a whole tile does not look at the block mask."""
        return self.problem if entry & FLAG_MIXED else self.whole
