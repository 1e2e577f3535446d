"""What a call may bring besides q, k and v: arrays over the attention matrix."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fa_kernels.dropout import dropout_keep, keep_scale
from fa_kernels.problem import AttentionProblem


@dataclass(frozen=True, eq=False)
class Extras:
    """Element mask, bias and explicit dropout mask of one call, None where there is none.

    Each is a view (batch, nheads, seqlen_q, seqlen_k), with stride 0 along what it does not differ
    over; of packed sequences (sequences, nheads, longest_q, longest_k), in indices within the
    sequence. mask and dropout_keep are bool, True = attend, keep; bias is a float of the io dtype
    or fp32, added to the scaled scores; -inf in it masks. `first_batch` and `first_head` say where
    a `part` lies in the whole: dropout is drawn by the indices of the whole.
    """

    mask: Any = None
    bias: Any = None
    dropout_keep: Any = None
    first_batch: int = 0
    first_head: int = 0

    def part(self, batches: slice, heads: slice, rows: slice, cols: slice) -> Extras:
        """The same arrays over some of the batches, heads, rows and keys."""
        at = (batches, heads, rows, cols)
        cut = {
            name: None if array is None else array[at]
            for name, array in (
                ("mask", self.mask),
                ("bias", self.bias),
                ("dropout_keep", self.dropout_keep),
            )
        }
        first_batch = self.first_batch + (batches.start or 0)
        first_head = self.first_head + (heads.start or 0)
        return replace(self, **cut, first_batch=first_batch, first_head=first_head)

    def keep_factor(
        self, problem: AttentionProblem, rows: slice, cols: slice, dtype: np.dtype
    ) -> np.ndarray | None:
        """What dropout multiplies P with: 0 or `dropout.keep_scale`; None without dropout.

        (batch, nheads, rows, cols) of `dtype`; rows and cols lie within the sequence.
        """
        if self.dropout_keep is not None:
            kept = self.dropout_keep[..., rows, cols]
        elif problem.dropout_p:
            assert problem.seed is not None
            kept = dropout_keep(
                problem.dropout_p,
                problem.seed,
                self.first_batch + np.arange(problem.batch),
                self.first_head + np.arange(problem.nheads),
                np.arange(rows.start, rows.stop),
                np.arange(cols.start, cols.stop),
            )
        else:
            return None
        scale = keep_scale(problem.dropout_p, self.dropout_keep is not None)
        return kept.astype(dtype) * dtype.type(scale)


#: A call without any.
NO_EXTRAS = Extras()
