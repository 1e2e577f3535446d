"""Mask predicates. A causal mask keeps a prefix of the keys of every row: its length says all."""

from __future__ import annotations

import numpy as np

from fa_kernels.problem import AttentionProblem


def causal_offset(problem: AttentionProblem) -> int:
    """Row i attends keys j <= i + offset: 0 for top_left, seqlen_k - seqlen_q for bottom_right.

    Without a mask the offset is seqlen_k, which keeps every key of every row.
    """
    if problem.causal is None:
        return problem.seqlen_k
    return 0 if problem.causal == "top_left" else problem.seqlen_k - problem.seqlen_q


def key_end(problem: AttentionProblem, row: int) -> int:
    """How many leading keys row `row` attends, in 0..seqlen_k."""
    return max(0, min(problem.seqlen_k, row + causal_offset(problem) + 1))


def key_ends(problem: AttentionProblem) -> np.ndarray:
    """`key_end` of every row, (seqlen_q,) int64."""
    rows = np.arange(problem.seqlen_q, dtype=np.int64)
    return np.clip(rows + causal_offset(problem) + 1, 0, problem.seqlen_k)


def kept_pairs(problem: AttentionProblem) -> int:
    """Number of (query row, key) pairs that are attended, per (batch, head)."""
    return int(key_ends(problem).sum())


def matmul_flops(problem: AttentionProblem) -> int:
    """FLOPs of Q K^T and P V over the kept pairs: 4 d per pair, all batches and heads.

    Convention: exact kept pairs, so a square causal problem counts N (N + 1) / 2 pairs,
    not N^2 / 2. Softmax work is not counted (as in the papers).
    """
    return 4 * problem.head_dim * kept_pairs(problem) * problem.heads


def keep_mask(problem: AttentionProblem, rows: slice, cols: slice) -> np.ndarray:
    """The boolean mask of one tile, (rows, cols), True = attend."""
    ends = key_ends(problem)[rows]
    keys = np.arange(cols.start, cols.stop)
    return keys[None, :] < ends[:, None]
