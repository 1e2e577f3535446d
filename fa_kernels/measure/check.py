"""Correct before timed: hold an output against the float64 formula, on the GPU, row by row."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.extras import NO_EXTRAS, Extras
from fa_kernels.masks import Part, parts
from fa_kernels.measure.formula import FLOAT64, Operands, Piece, dropped, forward, softmax
from fa_kernels.problem import AttentionProblem

#: Rounding unit (spacing at 1) of each dtype.
EPS = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7, "float64": 2.0**-52}
#: Rows checked per (batch, head) when a problem has more; the first and the last are among them.
SAMPLED_ROWS = 64
#: Scores (rows x keys, over some heads) that are held in float64 at once: 256 MiB an array.
SCORES_AT_ONCE = 2**25
#: From here on fp32 cannot tell lse from the row's maximum: rows of nothing but finfo.min biases.
HUGE_LSE = 2.0**20


@dataclass(frozen=True)
class Check:
    """Errors of out and lse against float64, and the limits they are held to.

    The limit of out is the project's rule: twice the error of a plain run in the same dtype (S and
    P rounded to it, as a framework does), plus one rounding unit of the largest value. A plain run
    may sum in any order (a library sums one column in parallel); kernels sum term by term in fp32,
    so each limit is widened by the probabilistic rounding of one such inner product, sqrt(n) u
    |x|.|y| (Higham & Mary 2019): of P V, n = seqlen_k, for out, and of a score, n = d, for lse,
    which does not average over keys. A row whose lse is huge counts by itself: its lse must be
    right to a few units, and it does not widen the limit of the others.
    """

    out_err: float
    out_limit: float
    lse_err: float
    lse_limit: float
    rows: int

    @property
    def ok(self) -> bool:
        """True if both errors are finite and within their limits."""
        finite = math.isfinite(self.out_err) and math.isfinite(self.lse_err)
        return finite and self.out_err <= self.out_limit and self.lse_err <= self.lse_limit


def sample_rows(problem: AttentionProblem, seed: int = 0) -> np.ndarray:
    """Row indices to check, sorted int64: all rows, or a random `SAMPLED_ROWS` with both ends.

    Of packed sequences so many of each, as indices into the rows of q.
    """
    if problem.packed is None:
        return _sample(problem.seqlen_q, seed)
    spans = [(rows.start, rows.stop - rows.start) for rows, _ in problem.packed.slices()]
    return np.concatenate([start + _sample(n, seed) for start, n in spans])


def _sample(n: int, seed: int) -> np.ndarray:
    if n <= 2 * SAMPLED_ROWS:
        return np.arange(n)
    inner = np.random.default_rng(seed).choice(n - 2, SAMPLED_ROWS - 2, replace=False) + 1
    return np.sort(np.concatenate([[0, n - 1], inner]))


class Truth:
    """The float64 result of sampled rows of one problem, to hold many outputs against.

    Args:
        inputs: q, k, v as `fa.attention` takes them, arrays of `xp` (CuPy unless given).
        extras: mask, bias and dropout mask of the call, over the whole attention matrix.
        rows: row indices of q to check; default `sample_rows(problem)`.
    """

    def __init__(
        self,
        inputs: Sequence[Any],
        problem: AttentionProblem,
        *,
        extras: Extras = NO_EXTRAS,
        xp: Any = None,
        rows: np.ndarray | None = None,
    ) -> None:
        xp = xp or importlib.import_module("cupy")
        q, k, v = inputs
        self.problem, self.xp = problem, xp
        self.rows = sample_rows(problem) if rows is None else rows
        self._index = xp.asarray(self.rows)
        self._score_rounding = self._sum_rounding = 0.0
        shape = (*q.shape[:2], len(self.rows), problem.head_dim)
        # The truth, a plain run, and one that rounds S with the bias in it.
        self._out, self._plain_out, self._stored_out = (xp.zeros(shape) for _ in range(3))
        self._lse, self._plain_lse, self._stored_lse = (
            xp.full(shape[:3], -np.inf) for _ in range(3)
        )
        operands = Operands((q, k, v), problem, extras, xp)
        with np.errstate(over="ignore", invalid="ignore"):
            for part in parts(problem):
                self._fill(operands, part)
        self._largest_v = largest(v, xp)

    @property
    def out(self) -> Any:
        """The float64 result of the checked rows, (batch, nheads, rows, head_dim)."""
        return self._out

    def checked(self, out: Any) -> Any:
        """The checked rows of an output, as float64."""
        return out[:, :, self._index].astype(np.float64)

    def _fill(self, operands: Operands, part: Part) -> None:
        """The results of one part of the call; rows that attend nothing stay 0 and -inf."""
        start, stop = part.q_rows.start, part.q_rows.stop
        at = np.flatnonzero((self.rows >= start) & (self.rows < stop))
        if not len(at) or not part.problem.seqlen_k:
            return
        narrow, index = io_dtype(self.problem.dtype), self.xp.asarray(at)
        rows = self.rows[at] - start
        for (b, heads), piece in operands.of_part(part, rows, SCORES_AT_ONCE):
            want, plain = forward(piece, FLOAT64), forward(piece, narrow)
            stored = plain if piece.bias is None else forward(piece, narrow, with_bias=True)
            for (out, lse), (to_out, to_lse) in (
                (want, (self._out, self._lse)),
                (plain, (self._plain_out, self._plain_lse)),
                (stored, (self._stored_out, self._stored_lse)),
            ):
                to_out[b][heads, index], to_lse[b][heads, index] = out, lse
            unit = rounding(self.problem)
            self._score_rounding = max(self._score_rounding, score_rounding(piece, unit))
            self._sum_rounding = max(self._sum_rounding, _sum_rounding(piece, unit))

    def check(
        self, out: Any, lse: Any = None, roundings: int = 1, scores_in_io: bool = False
    ) -> Check:
        """Errors of out (batch, nheads, seqlen_q, head_dim) and of lse, if given.

        `roundings`: how often O was rounded to the io dtype on its way; each one beyond the last
        may add half a unit of the largest partial O, which is at most the largest V.
        `scores_in_io`: S went through memory in the io dtype, with the bias in it, and so it does
        in the plain run; where a row attends one key, lse is that score, so its limit gains the
        half unit of the largest.
        """
        plain = (self._plain_out, self._plain_lse)
        if scores_in_io:
            plain = (self._stored_out, self._stored_lse)
        got = out[:, :, self._index].astype(np.float64)
        eps = EPS[self.problem.dtype]
        out_err, out_limit = error_and_limit(got, self._out, plain[0], eps, self.xp)
        out_limit += self._sum_rounding + (roundings - 1) * eps / 2 * self._largest_v
        if lse is None:
            return Check(out_err, out_limit, 0.0, 0.0, len(self.rows))
        got = lse[:, :, self._index].astype(np.float64)
        lse_err, lse_limit = self._lse_error_and_limit(got, plain[1])
        if scores_in_io:
            usual = self.xp.abs(self._lse[self.xp.isfinite(self._lse)])
            lse_limit += eps / 2 * largest(usual[usual <= HUGE_LSE], self.xp)
        return Check(out_err, out_limit, lse_err, lse_limit, len(self.rows))

    def _lse_error_and_limit(self, got: Any, plain: Any) -> tuple[float, float]:
        xp, want = self.xp, self._lse
        eps = EPS["float64"] if self.problem.dtype == "float64" else EPS["float32"]
        huge = xp.isfinite(want) & (xp.abs(want) > HUGE_LSE)
        right = xp.abs(got[huge] - want[huge]) <= 4 * eps * xp.abs(want[huge])
        if not bool(right.all()):  # NaN is not right either
            return float("inf"), 0.0
        got, want, plain = (xp.where(huge, 0.0, lse) for lse in (got, want, plain))
        lse_err, lse_limit = error_and_limit(got, want, plain, eps, xp)
        return lse_err, lse_limit + self._score_rounding


def rounding(problem: AttentionProblem) -> float:
    """u of what kernels and references sum in: fp32, or float64 for float64."""
    return EPS["float64" if problem.dtype == "float64" else "float32"] / 2


def largest(array: Any, xp: Any) -> float:
    """The largest magnitude in an array; 0 in an empty one."""
    return float(xp.abs(array).max()) if array.size else 0.0


def score_rounding(piece: Piece, unit: float) -> float:
    """sqrt(d) u scale max |q|.|k|, for the inner product of a score."""
    xp = piece.xp
    q, k = (xp.abs(x).astype(np.float32) for x in (piece.q, piece.k))
    products = q @ xp.swapaxes(k, -1, -2)
    return math.sqrt(q.shape[-1]) * unit * abs(piece.scale) * float(products.max())


def _sum_rounding(piece: Piece, unit: float) -> float:
    """sqrt(seqlen_k) u max P |V|, for the sum over keys."""
    p, _ = softmax(piece, np.dtype(np.float32))
    sums = dropped(piece, p) @ piece.xp.abs(piece.v).astype(p.dtype)
    return math.sqrt(piece.keys) * unit * float(piece.xp.nan_to_num(sums).max())


def error_and_limit(
    got: Any, want: Any, plain: Any, eps: float, xp: Any, times: float = 2.0
) -> tuple[float, float]:
    """The largest error of `got`, and `times` that of a plain run plus a unit of the largest value.

    Infinite where `got` is not finite although the truth is, or is another infinity.
    """
    finite = xp.isfinite(want)
    # Where the truth is infinite (lse of a masked row), only the same infinity is right.
    if not bool(xp.all(xp.where(finite, True, got == want))) or bool(xp.any(xp.isnan(got))):
        return float("inf"), 0.0
    truth = xp.where(finite, want, 0.0)

    def worst(x: Any, known: Any) -> float:
        return largest(xp.where(known, x, 0.0) - xp.where(known, truth, 0.0), xp)

    # Where a plain run overflows, its error says nothing.
    usual = worst(plain, finite & xp.isfinite(plain))
    return worst(got, finite), times * usual + eps * largest(truth, xp)
