"""One tile of S with everything that masks or shifts a score, and the dropout of one tile of P."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fa_kernels.extras import Extras
from fa_kernels.masks import keep_mask, parts
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.hbm import Hbm, compute_dtype

Array = np.ndarray
#: The most negative finite bfloat16, which NumPy does not know by itself.
_BFLOAT16_LOWEST = -(2.0 - 2.0**-7) * 2.0**127


def empty_outputs(q: Array) -> tuple[Array, Array]:
    """out like q and lse (batch, nheads, seqlen_q), as for rows that attend nothing: 0 and -inf."""
    return np.zeros(q.shape, q.dtype), np.full(q.shape[:-1], -np.inf, compute_dtype(q.dtype))


def each_part(
    problem: AttentionProblem, extras: Extras, of_q: Sequence[Array], of_k: Sequence[Array]
) -> Iterator[tuple[AttentionProblem, Extras, list[Array], list[Array]]]:
    """The sequences of a packed call, or its groups of heads that share a block mask, one by one.

    Args:
        of_q: arrays (batch, nheads, seqlen_q, ...); the parts are views, to be written to.
        of_k: arrays (batch, nheads_kv, seqlen_k, ...); the parts have a head for each head of q.

    Yields:
        The part's problem, its extras, and its parts of `of_q` and of `of_k`.
    """
    spread = [per_query_head(array, problem) for array in of_k]
    for part in parts(problem):
        rows, cols = slice(0, part.problem.seqlen_q), slice(0, part.problem.seqlen_k)
        yield (
            part.problem,
            extras.part(part.masks, part.heads, rows, cols),
            [part.of_q(array) for array in of_q],
            [part.of_k(array) for array in spread],
        )


def per_query_head(array: Array, problem: AttentionProblem) -> Array:
    """k or v (batch, nheads_kv, ...) with one head for each head of q: head h gets h // group."""
    if problem.group == 1:
        return array
    return np.repeat(array, problem.group, axis=1)


def tile_scores(
    q_i: Array,
    k_j: Array,
    rows: slice,
    cols: slice,
    problem: AttentionProblem,
    extras: Extras,
    hbm: Hbm,
) -> Array:
    """S of one tile, (batch, nheads, rows, cols) in q_i's dtype; -inf where it is masked.

    Args:
        q_i, k_j: tiles (batch, nheads, rows or cols, head_dim) in the compute dtype.
        rows, cols: where the tile lies in the sequence.
        problem: gives scale, causal, window and, if it has one, block mask.
        extras: mask and bias over the whole sequence; read from `hbm` where causal, window and
            block mask keep the element.
    """
    s = problem.scale * (q_i @ np.swapaxes(k_j, -1, -2))
    return masked_scores(s.astype(q_i.dtype, copy=False), rows, cols, problem, extras, hbm)


def masked_scores(
    s: Array, rows: slice, cols: slice, problem: AttentionProblem, extras: Extras, hbm: Hbm
) -> Array:
    """Scaled products of one tile with the bias added, -inf where they are masked; as s."""
    kept = keep_mask(problem, rows, cols)
    if extras.bias is not None:
        s = add_bias(s, hbm.load("mask", extras.bias[..., rows, cols], valid=kept))
    if extras.mask is not None:
        kept = kept & hbm.fetch("mask", extras.mask[..., rows, cols], valid=kept)
    return s if kept.all() else np.where(kept, s, -np.inf).astype(s.dtype, copy=False)


def storable_scores(s: Array, extras: Extras, io_dtype: np.dtype) -> Array:
    """S as the standard algorithms round it to the io dtype: a bias never rounds to -inf.

    -3.4e38 would become -inf in fp16 and mask the element, which only a bias of -inf may.
    """
    if extras.bias is None:
        return s
    lowest = lowest_of(io_dtype)
    return np.where(np.isneginf(s), s, np.where(s < lowest, lowest, s)).astype(s.dtype)


def lowest_of(io_dtype: np.dtype) -> float:
    """finfo.min of an io dtype, which NumPy alone cannot say for bfloat16."""
    return float(np.finfo(io_dtype).min) if io_dtype.kind == "f" else _BFLOAT16_LOWEST


def add_bias(s: Array, bias: Array) -> Array:
    """s + bias, where only a bias of -inf masks.

    finfo.min plus a very negative score would overflow to -inf; it stays the lowest finite number,
    so a row of nothing else still attends its keys.
    """
    lowest = np.finfo(s.dtype).min
    with np.errstate(over="ignore"):
        total = s + bias.astype(s.dtype)
    total = np.where(total < lowest, lowest, total)  # and not np.maximum: NaN stays NaN
    return np.where(np.isneginf(bias), -np.inf, total).astype(s.dtype)


def tile_dropout(
    rows: slice, cols: slice, problem: AttentionProblem, extras: Extras, hbm: Hbm, dtype: np.dtype
) -> Array | None:
    """What dropout multiplies one tile of P with, (batch, nheads, rows, cols); None without it.

    A mask that is given is read from `hbm`; one that is drawn costs no memory.
    """
    if extras.dropout_keep is not None:
        kept = keep_mask(problem, rows, cols)
        hbm.fetch("mask", extras.dropout_keep[..., rows, cols], valid=kept)
    return extras.keep_factor(problem, rows, cols, np.dtype(dtype))
