"""Gradients of attention from the chain rule in float64, one head at a time, for tests."""

from __future__ import annotations

import numpy as np

from fa_kernels.dropout import keep_scale
from fa_kernels.extras import NO_EXTRAS, Extras
from fa_kernels.problem import AttentionProblem
from tests.reference.problems import Arrays, allowed_pairs, drawn_keep


def plain_gradients(
    d_out: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    problem: AttentionProblem,
    extras: Extras = NO_EXTRAS,
) -> Arrays:
    """dq, dk, dv in float64; of the package only the drawn dropout mask is used."""
    wide = [x.astype(np.float64) for x in (d_out, q, k, v)]
    dq, dk, dv = (np.zeros_like(x) for x in wide[1:])
    calls = [(0, slice(None), slice(None), problem)]
    if problem.packed is not None:
        calls = [(n, *one) for n, one in enumerate(problem.sequences())]
    for first, rows, keys, one in calls:
        at = [rows, rows, keys, keys]
        parts = [x[:, :, cut] for x, cut in zip(wide, at, strict=True)]
        sums = (dq[:, :, rows], dk[:, :, keys], dv[:, :, keys])
        if one.seqlen_q and one.seqlen_k:
            _one_sequence(parts, sums, one, extras, first)
    return dq, dk, dv


def _one_sequence(
    tensors: list[np.ndarray], sums: Arrays, problem: AttentionProblem, extras: Extras, first: int
) -> None:
    d_out, q, k, v = tensors
    allowed = np.broadcast_to(allowed_pairs(problem), (*q.shape[:3], k.shape[2]))
    drawn = None
    if problem.dropout_p and not problem.keep_given:
        drawn = drawn_keep(problem, first)
    over = (slice(0, problem.seqlen_q), slice(0, problem.seqlen_k))
    for b, h in np.ndindex(q.shape[:2]):
        at, kv = (first + b, h, *over), (b, h // problem.group)
        s = problem.scale * (q[b, h] @ k[kv].T)
        if extras.bias is not None:
            s = s + extras.bias[at].astype(np.float64)
        kept = allowed[b, h] if extras.mask is None else allowed[b, h] & extras.mask[at]
        s = np.where(kept, s, -np.inf)
        top = s.max(axis=-1, keepdims=True)
        e = np.exp(s - np.where(np.isneginf(top), 0.0, top))
        p = e / np.maximum(e.sum(axis=-1, keepdims=True), 1e-300)
        factor = np.ones_like(p)
        if extras.dropout_keep is not None:
            factor = extras.dropout_keep[at] / (1 - problem.dropout_p)
        elif drawn is not None:
            factor = drawn[b, h] * keep_scale(problem.dropout_p)
        sums[2][kv] += (p * factor).T @ d_out[b, h]
        dp = factor * (d_out[b, h] @ v[kv].T)
        ds = p * (dp - (p * dp).sum(axis=-1, keepdims=True))
        sums[0][b, h] += problem.scale * ds @ k[kv]
        sums[1][kv] += problem.scale * ds.T @ q[b, h]
