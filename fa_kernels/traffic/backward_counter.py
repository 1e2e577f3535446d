"""Counts the bytes that the backward passes in NumPy move, tile by tile, per tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fa_kernels.block_mask import BlockMask
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.counter import CountingHbm, countable, extras_of_ones
from fa_kernels.traffic.model import Traffic


def count_backward_traffic(
    algorithm: Callable[..., Any], problem: AttentionProblem, tiling: Tiling, **options: Any
) -> Traffic:
    """Run `algorithm`, a backward from `reference`, on as few heads as differ; scale to all.

    The heads that share k and v stay together: one block goes over all of them. `options` go on to
    the algorithm. The values do not matter, but no row of a bias is looked at twice.
    """
    problem = replace(problem, dropout_p=0.0)  # dropout that is drawn moves nothing
    group, mask = problem.group, problem.block_mask
    if mask is None:
        batch = problem.batch if problem.packed is not None else 1
        one = replace(problem, batch=batch, nheads=group, nheads_kv=1)  # heads of one k/v head
        times = problem.heads // (batch * group)
        return _count(algorithm, one, tiling, options).times(times)
    total = Traffic()
    nheads = group if mask.lead[1] == 1 else problem.nheads  # masks of their own are all counted
    for number in range(mask.lead[0]):
        own = BlockMask(mask.keep[number : number + 1], mask.block_m, mask.block_n)
        one = replace(problem, batch=1, nheads=nheads, nheads_kv=nheads // group, block_mask=own)
        times = problem.heads // (mask.lead[0] * nheads)
        total = total.plus(_count(algorithm, one, tiling, options).times(times))
    return total


def _count(
    algorithm: Callable[..., Any],
    problem: AttentionProblem,
    tiling: Tiling,
    options: dict[str, Any],
) -> Traffic:
    lead, tokens_q = _lead_and_tokens(problem)
    q = np.ones((lead, problem.nheads, tokens_q, problem.head_dim), countable(problem.dtype))
    rows = problem.kv_rows // (lead * (problem.nheads // problem.group))
    kv = np.ones((lead, problem.nheads // problem.group, rows, problem.head_dim), q.dtype)
    lse = np.full(q.shape[:-1], 64.0, np.float32)  # P is small: nothing overflows
    hbm = CountingHbm()
    extras = extras_of_ones(problem)
    with np.errstate(invalid="ignore"):  # as in counter.py
        algorithm(q, q, kv, kv, q, lse, problem, tiling, hbm, extras=extras, **options)
    return hbm.traffic()


def _lead_and_tokens(problem: AttentionProblem) -> tuple[int, int]:
    """The batch axis of the arrays, 1 of packed sequences, and their rows of q."""
    lead = problem.batch if problem.packed is None else 1
    return lead, problem.q_rows // (lead * problem.nheads)
