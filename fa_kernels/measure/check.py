"""Correct before timed: hold an output against the float64 formula, on the GPU, row by row."""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.masks import keep_mask
from fa_kernels.problem import AttentionProblem

#: Rounding unit (spacing at 1) of each io dtype.
EPS = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
#: Rows checked per (batch, head) when a problem has more; the first and the last are among them.
SAMPLED_ROWS = 64
#: Scores (rows x keys, over some heads) that are held in float64 at once: 256 MiB an array.
SCORES_AT_ONCE = 2**25


@dataclass(frozen=True)
class Check:
    """Errors of out and lse against float64, and the limits they are held to.

    The limit of out is the project's rule: twice the error of a plain run in the same dtype (S and
    P rounded to it, as a framework does), plus one rounding unit of the largest value. A plain run
    may sum in any order (a library sums one column in parallel); kernels sum term by term in fp32,
    so each limit is widened by the probabilistic rounding of one such inner product, sqrt(n) u
    |x|.|y| (Higham & Mary 2019): of P V, n = seqlen_k, for out, and of a score, n = d, for lse,
    which does not average over keys.
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
    """Row indices to check, sorted int64: all rows, or a random `SAMPLED_ROWS` with both ends."""
    n = problem.seqlen_q
    if n <= 2 * SAMPLED_ROWS:
        return np.arange(n)
    inner = np.random.default_rng(seed).choice(n - 2, SAMPLED_ROWS - 2, replace=False) + 1
    return np.sort(np.concatenate([[0, n - 1], inner]))


class Truth:
    """The float64 result of sampled rows of one problem, to hold many outputs against.

    Args:
        inputs: q, k, v, (batch, nheads, seqlen, head_dim) arrays of `xp` (CuPy unless given).
        rows: row indices to check; default `sample_rows(problem)`.
    """

    def __init__(
        self,
        inputs: Sequence[Any],
        problem: AttentionProblem,
        *,
        xp: Any = None,
        rows: np.ndarray | None = None,
    ) -> None:
        xp = xp or importlib.import_module("cupy")
        q, k, v = inputs
        self.problem, self.xp = problem, xp
        self.rows = sample_rows(problem) if rows is None else rows
        self._index = xp.asarray(self.rows)
        keep = xp.asarray(keep_mask(problem, self.rows, slice(0, problem.seqlen_k)))
        self._score_rounding = self._sum_rounding = 0.0
        parts: list[list[Any]] = []
        # A few heads at a time: the scores in float64 stay within about a gigabyte.
        step = max(1, SCORES_AT_ONCE // (len(self.rows) * problem.seqlen_k))
        for b, h in itertools.product(range(problem.batch), range(0, problem.nheads, step)):
            heads = slice(h, h + step)
            q_rows = q[b, heads][:, self._index]
            kept = keep if keep.ndim == 2 else keep[min(b, len(keep) - 1)]
            kept = kept[heads] if kept.ndim == 3 and len(kept) > 1 else kept
            operands = (q_rows, k[b, heads], v[b, heads], kept, problem.scale)
            want = _formula(*operands, np.dtype(np.float64), xp)
            plain = _formula(*operands, io_dtype(problem.dtype), xp)
            parts.append([*want, *plain])
            self._score_rounding = max(self._score_rounding, _score_rounding(operands, xp))
            self._sum_rounding = max(self._sum_rounding, _sum_rounding(operands, xp))
        lead = (problem.batch, problem.nheads)
        columns = [xp.concatenate(column) for column in zip(*parts, strict=True)]
        columns = [column.reshape(*lead, *column.shape[1:]) for column in columns]
        self._out, self._lse, self._plain_out, self._plain_lse = columns
        self._largest_v = float(xp.abs(v).max())

    def check(self, out: Any, lse: Any = None, roundings: int = 1) -> Check:
        """Errors of out (batch, nheads, seqlen_q, head_dim) and of lse, if given.

        `roundings`: how often O was rounded to the io dtype on its way; each one beyond the last
        may add half a unit of the largest partial O, which is at most the largest V.
        """
        got = out[:, :, self._index].astype(np.float64)
        eps = EPS[self.problem.dtype]
        out_err, out_limit = _error_and_limit(got, self._out, self._plain_out, eps, self.xp)
        out_limit += self._sum_rounding + (roundings - 1) * eps / 2 * self._largest_v
        if lse is None:
            return Check(out_err, out_limit, 0.0, 0.0, len(self.rows))
        got = lse[:, :, self._index].astype(np.float64)
        eps = EPS["float32"]  # lse is fp32 for every io dtype
        lse_err, lse_limit = _error_and_limit(got, self._lse, self._plain_lse, eps, self.xp)
        lse_limit += self._score_rounding
        return Check(out_err, out_limit, lse_err, lse_limit, len(self.rows))


def _formula(
    q: Any, k: Any, v: Any, keep: Any, scale: float, dtype: np.dtype, xp: Any
) -> tuple[Any, Any]:
    """Attention of some rows, S and P rounded to `dtype`; results as float64."""
    wide = np.float64 if dtype == np.float64 else np.float32
    s = (scale * (q.astype(wide) @ xp.swapaxes(k.astype(wide), -1, -2))).astype(dtype).astype(wide)
    s = xp.where(keep, s, -np.inf)
    m = s.max(axis=-1, keepdims=True)
    m = xp.where(m == -np.inf, 0.0, m).astype(wide)
    p = xp.exp(s - m)
    total = p.sum(axis=-1, keepdims=True)
    lse = xp.where(total > 0, m + xp.log(xp.where(total > 0, total, 1.0)), -np.inf)[..., 0]
    p = (p / xp.where(total > 0, total, 1.0)).astype(dtype).astype(wide)
    out = (p @ v.astype(wide)).astype(dtype)
    return out.astype(np.float64), lse.astype(np.float64)


def _score_rounding(operands: tuple[Any, ...], xp: Any) -> float:
    """sqrt(d) u scale max |q|.|k| in fp32, which every kernel accumulates scores in."""
    q, k, _, _, scale = operands
    products = xp.abs(q).astype(np.float32) @ xp.swapaxes(xp.abs(k).astype(np.float32), -1, -2)
    return float(math.sqrt(q.shape[-1]) * EPS["float32"] / 2 * abs(scale) * products.max())


def _sum_rounding(operands: tuple[Any, ...], xp: Any) -> float:
    """sqrt(seqlen_k) u max P |V|, in fp32, which every kernel sums P V in."""
    q, k, v, keep, scale = operands
    out, _ = _formula(q, k, xp.abs(v), keep, scale, np.dtype(np.float32), xp)
    largest = float(xp.nan_to_num(out).max())
    return math.sqrt(k.shape[-2]) * EPS["float32"] / 2 * largest


def _error_and_limit(got: Any, want: Any, plain: Any, eps: float, xp: Any) -> tuple[float, float]:
    finite = xp.isfinite(want)
    # Where the truth is infinite (lse of a masked row), only the same infinity is right.
    if not bool(xp.all(xp.where(finite, True, got == want))) or bool(xp.any(xp.isnan(got))):
        return float("inf"), 0.0
    zero = xp.zeros_like(want)
    truth = xp.where(finite, want, zero)

    def worst(x: Any) -> float:
        return float(xp.abs(xp.where(finite, x, zero) - truth).max())

    return worst(got), 2.0 * worst(plain) + eps * float(xp.abs(truth).max())
