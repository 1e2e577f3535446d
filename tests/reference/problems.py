"""Awkward shapes, random inputs and an independent formula, for every test of attention itself."""

from __future__ import annotations

import numpy as np
from hypothesis import settings

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.dropout import dropout_keep, keep_scale
from fa_kernels.extras import NO_EXTRAS, Extras
from fa_kernels.problem import AttentionProblem

#: (seqlen_q, seqlen_k): one element, below a tile, no multiple of anything, longer q than k
#: (causal bottom_right then masks whole rows), one key.
SHAPES = ((1, 1), (17, 17), (113, 203), (203, 113), (239, 1))
LONG = (1023, 1024)
HEAD_DIMS = (1, 20, 63, 64, 96, 128, 256)
MASKS = (None, "bottom_right", "top_left")

#: For property tests: few examples, the same ones every time, and nothing written to disk.
bounded = settings(deadline=None, max_examples=40, derandomize=True, database=None)

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


def random_inputs(problem: AttentionProblem, dtype: str = "float64", seed: int = 0) -> Arrays:
    """q (batch, nheads, seqlen_q, head_dim), k and v (batch, nheads_kv, ...), standard normal.

    Of packed sequences (1, nheads, total, head_dim).
    """
    rng = np.random.default_rng(seed)
    batch = 1 if problem.packed is not None else problem.batch

    def normal(nheads: int | None, rows: int) -> np.ndarray:
        assert nheads is not None
        shape = (batch, nheads, rows // max(1, batch * nheads), problem.head_dim)
        return rng.standard_normal(shape).astype(io_dtype(dtype))

    q, k, v = (
        normal(nheads, rows)
        for nheads, rows in (
            (problem.nheads, problem.q_rows),
            (problem.nheads_kv, problem.kv_rows),
            (problem.nheads_kv, problem.kv_rows),
        )
    )
    return q, k, v


def random_mask(
    nq: int,
    nk: int,
    block_m: int,
    block_n: int,
    lead: tuple[int, int] = (1, 1),
    *,
    density: float = 0.4,
    seed: int = 0,
) -> BlockMask:
    """A block mask of independent blocks: rows and columns of blocks may keep nothing."""
    shape = (*lead, max(1, -(-nq // block_m)), max(1, -(-nk // block_n)))
    return BlockMask.from_dense(
        np.random.default_rng(seed).random(shape) < density, block_m, block_n
    )


def allowed_pairs(problem: AttentionProblem) -> np.ndarray:
    """Bool (seqlen_q, seqlen_k) from the definition of the masks, without fa_kernels.masks.

    With a block mask (batch or 1, nheads or 1, seqlen_q, seqlen_k). Element masks are not in it.
    """
    shape = (problem.seqlen_q, problem.seqlen_k)
    allowed = np.ones(shape, bool)
    offset = problem.seqlen_k - problem.seqlen_q
    if problem.causal is not None:
        allowed = np.tril(allowed, k=offset if problem.causal == "bottom_right" else 0)
    left, right = problem.window or (None, None)
    if left is not None:
        allowed = np.triu(allowed, k=offset - left)
    if right is not None:
        allowed = np.tril(allowed, k=offset + right)
    mask = problem.block_mask
    if mask is None:
        return allowed
    elements = mask.keep.repeat(mask.block_m, axis=-2).repeat(mask.block_n, axis=-1)
    return allowed & elements[..., : shape[0], : shape[1]]


def plain_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    problem: AttentionProblem,
    extras: Extras = NO_EXTRAS,
    dtype: str = "float64",
) -> tuple[np.ndarray, np.ndarray]:
    """out and lse from the textbook formula; of the package only the drawn dropout mask is used.

    With an io `dtype` S, P and out are rounded to it, as a framework does; results are float64.
    """
    if problem.packed is None:
        return _plain_sequence(q, k, v, problem, extras, dtype)
    out, lse = np.zeros(q.shape), np.zeros(q.shape[:-1])
    ends_q, ends_k = problem.packed.cu_seqlens_q, problem.packed.cu_seqlens_k
    for n, one in enumerate(one for _, _, one in problem.sequences()):
        rows, keys = slice(*ends_q[n : n + 2]), slice(*ends_k[n : n + 2])
        mask, bias, keep = (
            None if x is None else x[n : n + 1, :, : one.seqlen_q, : one.seqlen_k]
            for x in (extras.mask, extras.bias, extras.dropout_keep)
        )
        own = Extras(mask, bias, keep, first_batch=n)
        tensors = (q[:, :, rows], k[:, :, keys], v[:, :, keys])
        out[:, :, rows], lse[:, :, rows] = _plain_sequence(*tensors, one, own, dtype)
    return out, lse


def _plain_sequence(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    problem: AttentionProblem,
    extras: Extras,
    dtype: str,
) -> tuple[np.ndarray, np.ndarray]:
    io = io_dtype(dtype)
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (x[:, [head // problem.group for head in range(problem.nheads)]] for x in (k, v))
    s = np.einsum("bhid,bhjd->bhij", q, k) * problem.scale
    if extras.bias is not None:
        bias = extras.bias.astype(np.float64)
        lowest = -(2 - 2.0**-7) * 2.0**127 if dtype == "bfloat16" else float(np.finfo(io).min)
        s = np.where(np.isneginf(bias), bias, np.maximum(s + bias, lowest))
    s = np.where(allowed_pairs(problem), s, -np.inf)
    s = (s if extras.mask is None else np.where(extras.mask, s, -np.inf)).astype(io).astype("f8")
    m = s.max(axis=-1, keepdims=True, initial=-np.inf)
    e = np.exp(s - np.where(np.isneginf(m), 0.0, m))
    total = e.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (m + np.log(total))[..., 0]
    p = (e / np.where(total == 0.0, 1.0, total)).astype(io).astype("f8")
    if extras.dropout_keep is not None:
        p = p * extras.dropout_keep / (1 - problem.dropout_p)
    elif problem.dropout_p:
        p = p * drawn_keep(problem, extras.first_batch) * keep_scale(problem.dropout_p)
    return np.einsum("bhij,bhjd->bhid", p, v).astype(io).astype("f8"), lse


def drawn_keep(problem: AttentionProblem, first_batch: int = 0) -> np.ndarray:
    """The keep mask of an unpacked problem with a seed, all of it."""
    assert problem.seed is not None
    lead = (first_batch + np.arange(problem.batch), np.arange(problem.nheads))
    rows, cols = np.arange(problem.seqlen_q), np.arange(problem.seqlen_k)
    return dropout_keep(problem.dropout_p, problem.seed, *lead, rows, cols)
