"""The textbook formula on some rows of some heads, forward and backward, in any precision.

In float64 it is the truth; with S, P and dS rounded to an io dtype it is the plain run of a
framework that the tolerance rule compares with. Written for CuPy and NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fa_kernels.dropout import dropout_keep, keep_scale
from fa_kernels.extras import Extras
from fa_kernels.masks import Part, keep_mask
from fa_kernels.problem import AttentionProblem

FLOAT64 = np.dtype(np.float64)


@dataclass(frozen=True, eq=False)
class Piece:
    """Some heads and rows of a call, with all keys.

    q (heads, rows, head_dim); k, v (heads, keys, head_dim); keep (heads or 1, rows, keys) bool;
    bias and keep_factor alike or None; `keep_factor` is 0 or `dropout.keep_scale`.
    """

    q: Any
    k: Any
    v: Any
    keep: Any
    bias: Any
    keep_factor: Any
    scale: float
    xp: Any

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return self.k.shape[-2]


@dataclass(frozen=True, eq=False)
class Operands:
    """q, k, v and extras of one call as arrays of `xp`, cut into pieces."""

    inputs: tuple[Any, Any, Any]
    problem: AttentionProblem
    extras: Extras
    xp: Any

    def of_part(self, part: Part, rows: np.ndarray, at_once: int) -> Iterator[tuple[Any, Piece]]:
        """(where, piece) for the heads of a part; `where` cuts (batch, nheads) arrays.

        Args:
            rows: rows within the part's sequence.
            at_once: how many scores a piece may have; it has a head at least.
        """
        n, heads = part.problem.seqlen_k, part.heads
        step = max(1, at_once // (len(rows) * n))
        keep = self.xp.asarray(keep_mask(part.problem, rows, slice(0, n)))
        keep = keep.reshape(1, *keep.shape[-2:])
        for b in range(part.batches.start, part.batches.stop):
            for h in range(heads.start, heads.stop, step):
                some = slice(h, min(h + step, heads.stop))
                yield (b, some), self.piece(part, b, some, rows, keep)

    def piece(self, part: Part, batch: int, heads: slice, rows: np.ndarray, keep: Any) -> Piece:
        """The piece of some heads of one batch; `keep` is what the structural masks leave."""
        xp, extras = self.xp, self.extras
        q, k, v = self.inputs
        index = xp.asarray(part.q_rows.start + rows)
        kv_heads = xp.asarray(np.arange(heads.start, heads.stop) // self.problem.group)
        of_masks = part.masks.start + batch - part.batches.start
        keys = slice(0, part.problem.seqlen_k)

        def cut(array: Any) -> Any:
            if array is None:
                return None
            at = rows if isinstance(array, np.ndarray) else index - part.q_rows.start
            return xp.asarray(array[of_masks, heads][:, at, keys])

        mask = cut(extras.mask)
        return Piece(
            q[batch, heads][:, index],
            k[batch, :, part.k_rows][kv_heads],
            v[batch, :, part.k_rows][kv_heads],
            keep if mask is None else keep & mask,
            cut(extras.bias),
            self._keep_factor(cut(extras.dropout_keep), of_masks, heads, rows, keys.stop),
            self.problem.scale,
            xp,
        )

    def _keep_factor(
        self, given: Any, batch: int, heads: slice, rows: np.ndarray, keys: int
    ) -> Any:
        p, extras, drawn = self.problem, self.extras, given is None
        if drawn:
            if not p.dropout_p:
                return None
            assert p.seed is not None
            of_heads = extras.first_head + np.arange(heads.start, heads.stop)
            where = (extras.first_batch + batch, of_heads, rows, np.arange(keys))
            given = self.xp.asarray(dropout_keep(p.dropout_p, p.seed, *where))
        return given * keep_scale(p.dropout_p, not drawn)


def _wide(dtype: np.dtype) -> type:
    return np.float64 if dtype == FLOAT64 else np.float32


def softmax(piece: Piece, dtype: np.dtype, with_bias: bool = False) -> tuple[Any, Any]:
    """P before dropout, unrounded, and lse; S is rounded to `dtype`, sums are fp32 or float64.

    `with_bias`: S is rounded once more with the bias in it, as where it goes through memory.
    """
    xp, wide = piece.xp, _wide(dtype)
    s = piece.scale * (piece.q.astype(wide) @ xp.swapaxes(piece.k.astype(wide), -1, -2))
    s = s.astype(dtype).astype(wide)
    if piece.bias is not None:  # only -inf masks: finfo.min and a negative score stay finite
        bias, lowest = piece.bias.astype(wide), float(np.finfo(wide).min)
        total = s + bias
        total = xp.where(total < lowest, lowest, total)
        if with_bias:
            total = _stored(total, dtype, xp).astype(wide)
        s = xp.where(bias == -np.inf, -np.inf, total)
    s = xp.where(piece.keep, s, -np.inf).astype(wide)
    m = s.max(axis=-1, keepdims=True)
    m = xp.where(m == -np.inf, 0.0, m).astype(wide)
    p = xp.exp(s - m)
    total = p.sum(axis=-1, keepdims=True)
    some = xp.where(total > 0, total, 1.0).astype(wide)
    lse = xp.where(total > 0, m + xp.log(some), -np.inf)[..., 0]
    return p / some, lse.astype(np.float64)


#: The lowest number of each 16-bit dtype; NumPy does not know that of bfloat16.
_LOWEST = {"float16": -65504.0, "bfloat16": -(2 - 2.0**-7) * 2.0**127}


def _stored(s: Any, dtype: np.dtype, xp: Any) -> Any:
    """S in `dtype`, where what lies below its range is its lowest number, not -inf, a mask."""
    lowest = _LOWEST.get(dtype.name)
    return s.astype(dtype) if lowest is None else xp.where(s < lowest, lowest, s).astype(dtype)


def dropped(piece: Piece, p: Any) -> Any:
    """P, or what else stands at its place, after dropout."""
    return p if piece.keep_factor is None else p * piece.keep_factor.astype(p.dtype)


def forward(piece: Piece, dtype: np.dtype, with_bias: bool = False) -> tuple[Any, Any]:
    """out and lse as float64; S, P and out are rounded to `dtype` on their way."""
    p, lse = softmax(piece, dtype, with_bias)
    p = dropped(piece, p.astype(dtype).astype(p.dtype))
    out = (p @ piece.v.astype(p.dtype)).astype(dtype)
    return out.astype(np.float64), lse


@dataclass(frozen=True, eq=False)
class Gradients:
    """Of one piece, before the last rounding: dq (heads, rows, head_dim); dk, dv (heads, keys, -).

    dk and dv hold what the piece's rows add; lse (heads, rows) is that of the forward. `of_sums`
    are the same three products over magnitudes, which bound how far rounding can move them;
    `of_out` over those alone that come from delta = rowsum(d_out out), with out as it was rounded.
    """

    dq: Any
    dk: Any
    dv: Any
    lse: Any
    of_sums: tuple[Any, Any, Any] | None
    of_out: tuple[Any, Any, Any] | None


def backward(piece: Piece, d_out: Any, dtype: np.dtype, with_sums: bool = False) -> Gradients:
    """Gradients of a piece by the chain rule; S, P and dS are rounded to `dtype` on their way."""
    xp, wide = piece.xp, _wide(dtype)
    q, k, v, d_out = (x.astype(wide) for x in (piece.q, piece.k, piece.v, d_out))
    p, lse = softmax(piece, dtype)
    p_dropped = dropped(piece, p.astype(dtype).astype(wide))
    dp = dropped(piece, d_out @ xp.swapaxes(v, -1, -2))
    delta = (p * dp).sum(axis=-1, keepdims=True)
    ds = (p * (dp - delta)).astype(dtype).astype(wide)
    sums = of_out = None
    if with_sums:
        # dS is a difference: its terms, and with them its rounding, may be larger than it is.
        ds_terms = p * (xp.abs(dp) + xp.abs(delta))
        sizes = [xp.abs(x) for x in (q, k, d_out)]
        sums = _products(abs(piece.scale), ds_terms, p_dropped, *sizes, xp=xp)
        delta_terms = (sizes[2] * xp.abs(p_dropped @ v)).sum(axis=-1, keepdims=True)
        of_out = _products(abs(piece.scale), p * delta_terms, xp.zeros_like(p), *sizes, xp=xp)
    exact = _products(piece.scale, ds, p_dropped, q, k, d_out, xp=xp)
    return Gradients(*exact, lse, sums, of_out)


def _products(
    scale: float, ds: Any, p: Any, q: Any, k: Any, d_out: Any, *, xp: Any
) -> tuple[Any, Any, Any]:
    ds_t, p_t = xp.swapaxes(ds, -1, -2), xp.swapaxes(p, -1, -2)
    return scale * (ds @ k), scale * (ds_t @ q), p_t @ d_out
