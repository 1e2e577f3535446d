"""Hold gradients against the float64 chain rule: all rows and keys, of all heads or a sample."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.extras import NO_EXTRAS, Extras
from fa_kernels.masks import Part, keep_mask, parts
from fa_kernels.measure.check import (
    EPS,
    HUGE_LSE,
    SCORES_AT_ONCE,
    error_and_limit,
    largest,
    rounding,
    score_rounding,
)
from fa_kernels.measure.formula import FLOAT64, Gradients, Operands, backward
from fa_kernels.problem import AttentionProblem

#: Scores of a call from which on only some of its k/v heads are checked: seconds on a GPU.
SCORES_OF_ALL_HEADS = 2**33
#: Elements of q, k and v from which on likewise: their gradients are held in float64 four times.
ELEMENTS_OF_ALL_HEADS = 2**28
NAMES = ("dq", "dk", "dv")


@dataclass(frozen=True)
class GradientCheck:
    """Errors of dq, dk, dv against float64 and the limits they are held to, by name.

    The limit is the project's rule: three times the error of a plain run in the same dtype (S, P
    and dS rounded to it), plus one rounding unit of the largest value, widened as for out by the
    probabilistic rounding of one inner product that is summed term by term in fp32: sqrt(n) u
    |x|.|y|, n = seqlen_k for dq = dS K and n = seqlen_q times the heads of a group for dk = dSᵀ Q
    and dv = Pᵀ dO. dS = P (dP - delta) is a difference, and every term of it is rounded before:
    |dS| stands there for P (|dP| + |delta|). P is rebuilt as exp(s - lse) from a score that is
    summed a second time and an lse in fp32: the roundings of both, absolute in s and so relative
    in P, times the same |x|.|y|, come on top. So does that of out, which is in the io dtype where
    delta = rowsum(d_out out) reads it: half a unit of |d_out|.|out|, times P, in every dS.

    `heads` counts the (batch, k/v head) pairs that were looked at.
    """

    errors: dict[str, float]
    limits: dict[str, float]
    heads: int

    @property
    def ok(self) -> bool:
        """True if every error is finite and within its limit."""
        return all(
            math.isfinite(error) and error <= self.limits[name]
            for name, error in self.errors.items()
        )


def sample_kv_heads(problem: AttentionProblem, seed: int = 0) -> list[tuple[int, int]]:
    """(batch, k/v head) pairs to check: all, or of huge calls a random few with both ends.

    Packed sequences lie in one batch.
    """
    assert problem.nheads_kv is not None
    batches = 1 if problem.packed is not None else problem.batch
    count = batches * problem.nheads_kv
    scores = problem.heads * problem.seqlen_q * problem.seqlen_k
    elements = math.prod(problem.q_shape) + 2 * math.prod(problem.kv_shape)
    by_scores = count * SCORES_OF_ALL_HEADS // max(1, scores)
    some = max(2, min(by_scores, count * ELEMENTS_OF_ALL_HEADS // max(1, elements)))
    chosen = np.arange(count)
    if some < count:
        inner = np.random.default_rng(seed).choice(count - 2, some - 2, replace=False) + 1
        chosen = np.sort(np.concatenate([[0, count - 1], inner]))
    return [divmod(int(one), problem.nheads_kv) for one in chosen]


class BackwardTruth:
    """The float64 gradients of one problem, to hold many backward passes against.

    Args:
        inputs: q, k, v as `fa.attention` takes them, arrays of `xp` (CuPy unless given).
        d_out: gradient of out, like q.
        extras: mask, bias and dropout mask of the call, over the whole attention matrix.
        kv_heads: (batch, k/v head) pairs to check; default `sample_kv_heads(problem)`.
    """

    def __init__(
        self,
        inputs: Sequence[Any],
        d_out: Any,
        problem: AttentionProblem,
        extras: Extras = NO_EXTRAS,
        xp: Any = None,
        kv_heads: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        xp = xp or importlib.import_module("cupy")
        q, k, v = inputs
        self.problem, self.xp = problem, xp
        self.kv_heads = sample_kv_heads(problem) if kv_heads is None else list(kv_heads)
        self._operands, self._d_out = Operands((q, k, v), problem, extras, xp), d_out
        self._p_rounding = 0.0
        n, d = len(self.kv_heads), problem.head_dim
        of_q, of_k = (n, problem.group, q.shape[2], d), (n, k.shape[2], d)
        # float64 truth, plain run, magnitudes of the sums and of what out adds to them, of dq, dk
        # and dv each.
        self._want, self._plain, self._sums, self._of_out = (
            [xp.zeros(shape) for shape in (of_q, of_k, of_k)] for _ in range(4)
        )
        with np.errstate(over="ignore", invalid="ignore"):
            for part in parts(problem):
                self._fill(part)
        narrow = io_dtype(problem.dtype)
        self._plain = [x.astype(narrow).astype(np.float64) for x in self._plain]

    def _fill(self, part: Part) -> None:
        """Add what one part of the call gives, head by head, some rows at a time."""
        one, group = part.problem, self.problem.group
        if 0 in (one.seqlen_q, one.seqlen_k):
            return
        step = max(1, SCORES_AT_ONCE // one.seqlen_k)
        for first in range(0, one.seqlen_q, step):
            rows = np.arange(first, min(first + step, one.seqlen_q))
            keep = self.xp.asarray(keep_mask(one, rows, slice(0, one.seqlen_k)))
            keep = keep.reshape(1, *keep.shape[-2:])
            for number, (b, kv_head) in enumerate(self.kv_heads):
                if not part.batches.start <= b < part.batches.stop:
                    continue
                for member in range(group):
                    head = kv_head * group + member
                    if part.heads.start <= head < part.heads.stop:
                        self._add(part, number, b, head, rows, keep)

    def _add(
        self, part: Part, number: int, batch: int, head: int, rows: np.ndarray, keep: Any
    ) -> None:
        piece = self._operands.piece(part, batch, slice(head, head + 1), rows, keep)
        of_q = slice(part.q_rows.start + int(rows[0]), part.q_rows.start + int(rows[-1]) + 1)
        d_out = self._d_out[batch, head : head + 1, of_q]
        narrow = io_dtype(self.problem.dtype)
        truth = backward(piece, d_out, FLOAT64)
        plain = backward(piece, d_out, narrow, with_sums=True)
        assert plain.of_sums is not None and plain.of_out is not None
        unit, usual = rounding(self.problem), self.xp.abs(truth.lse) < HUGE_LSE
        of_p = score_rounding(piece, unit) + unit * largest(truth.lse[usual], self.xp)
        self._p_rounding = max(self._p_rounding, of_p)
        at = (number, head % self.problem.group, of_q), (number, part.k_rows)
        for sums, found in (
            (self._want, _three(truth)),
            (self._plain, _three(plain)),
            (self._sums, plain.of_sums),
            (self._of_out, plain.of_out),
        ):
            for total, where, more in zip(sums, (at[0], at[1], at[1]), found, strict=True):
                total[where] += more[0]

    def check(self, dq: Any, dk: Any, dv: Any) -> GradientCheck:
        """Errors of gradients shaped like q, k and v."""
        xp, problem = self.xp, self.problem
        batch, kv_head = (xp.asarray(column) for column in np.array(self.kv_heads).T)
        heads = kv_head[:, None] * problem.group + xp.arange(problem.group)
        got = (dq[batch[:, None], heads], dk[batch, kv_head], dv[batch, kv_head])
        per_key = problem.seqlen_q * problem.group
        terms = (problem.seqlen_k, per_key, per_key)
        errors, limits = {}, {}
        for i, name in enumerate(NAMES):
            mine = got[i].astype(np.float64)
            eps = EPS[problem.dtype]
            error, limit = error_and_limit(mine, self._want[i], self._plain[i], eps, xp, 3.0)
            relative = math.sqrt(terms[i]) * rounding(problem) + self._p_rounding
            limit += eps / 2 * largest(self._of_out[i], xp)
            errors[name], limits[name] = error, limit + relative * largest(self._sums[i], xp)
        return GradientCheck(errors, limits, len(self.kv_heads))


def _three(gradients: Gradients) -> tuple[Any, Any, Any]:
    return gradients.dq, gradients.dk, gradients.dv
