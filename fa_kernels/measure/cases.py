"""The cases that every kernel must pass on a GPU: awkward shapes, tilings, masks and layouts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling, default_tiling
from fa_kernels.units import KIB

SEQLENS = ((1, 1), (17, 17), (113, 203), (203, 113), (1023, 1024), (239, 1))
HEAD_DIMS = (1, 20, 63, 64, 96, 128, 256)
DTYPES = ("float16", "float32")
MASKS = (None, "bottom_right", "top_left")
#: How q, k, v lie in memory: contiguous; (batch, seqlen, heads, d) seen transposed; rows that do
#: not start at multiples of 16 bytes; every other row of a longer tensor; rows from last to first;
#: one head seen as many (stride 0).
LAYOUTS = ("bhsd", "bshd", "unaligned", "strided", "reversed", "broadcast")


@dataclass(frozen=True)
class Case:
    """One thing to verify: a problem, a tiling and a memory layout."""

    problem: AttentionProblem
    tiling: Tiling
    layout: str = "bhsd"
    scale_inputs: float = 1.0


def cases() -> Iterator[Case]:
    """The shapes, dtypes, masks, tilings and layouts that every variant must pass."""
    for (nq, nk), d, dtype, causal in itertools.product(SEQLENS, HEAD_DIMS, DTYPES, MASKS):
        problem = AttentionProblem(2, 3, nq, nk, d, dtype, causal)
        yield Case(problem, default_tiling(d, problem.itemsize).clipped(nq, nk))
    for d, dtype, layout in itertools.product((20, 63, 64, 128), DTYPES, LAYOUTS[1:]):
        problem = AttentionProblem(2, 3, 113, 203, d, dtype, "bottom_right")
        yield Case(problem, Tiling(64, 64), layout)
    for d, dtype, tiling in itertools.product((20, 64, 128), DTYPES, _odd_tilings()):
        yield Case(AttentionProblem(1, 2, 203, 331, d, dtype, "bottom_right"), tiling)
    for d, dtype, kib in itertools.product((32, 64, 128), DTYPES, (1, 16, 64, 128, 192)):
        problem = AttentionProblem(1, 2, 1000, 1000, d, dtype)
        yield Case(problem, Tiling.from_sram(kib * KIB, d, dtype))
    # Large scores: exp would overflow without the running maximum.
    for dtype in DTYPES:
        yield Case(AttentionProblem(1, 2, 256, 256, 64, dtype), Tiling(64, 64), scale_inputs=12.0)
    # Longer than one row of S in shared memory: the softmax launch of 02 reads S twice.
    yield Case(AttentionProblem(1, 2, 65, 20000, 64, "float16"), Tiling(64, 64))
    # 64-bit offsets: S of one head has 2^32 elements; q has more than 2^31.
    yield Case(AttentionProblem(1, 1, 65536, 65536, 64, "float16"), Tiling(64, 64))
    yield Case(AttentionProblem(1, 528, 65536, 64, 64, "float16"), Tiling(64, 64))


def _odd_tilings() -> tuple[Tiling, ...]:
    return (Tiling(1, 1), Tiling(17, 33), Tiling(33, 17), Tiling(16, 130), Tiling(100, 20))


def make_inputs(case: Case, seed: int, xp: Any) -> list[Any]:
    """q, k, v as arrays of `xp` in the case's memory layout, standard normal times scale_inputs."""
    p = case.problem
    rng = np.random.default_rng(seed) if xp is np else xp.random.default_rng(seed)
    arrays = []
    for n in (p.seqlen_q, p.seqlen_k, p.seqlen_k):
        shape = {
            "bhsd": (p.batch, p.nheads, n, p.head_dim),
            "bshd": (p.batch, n, p.nheads, p.head_dim),
            "unaligned": (p.batch, p.nheads, n, p.head_dim + 1),
            "strided": (p.batch, p.nheads, 2 * n, p.head_dim),
            "reversed": (p.batch, p.nheads, n, p.head_dim),
            "broadcast": (p.batch, 1, n, p.head_dim),
        }[case.layout]
        full = rng.standard_normal(shape, dtype=np.float32)
        full = (full * np.float32(case.scale_inputs)).astype(p.dtype)
        view = {
            "bhsd": lambda a: a,
            "bshd": lambda a: a.transpose(0, 2, 1, 3),
            "unaligned": lambda a: a[..., 1:],
            "strided": lambda a: a[:, :, ::2],
            "reversed": lambda a: a[:, :, ::-1],
            "broadcast": lambda a: xp.broadcast_to(a, (a.shape[0], p.nheads, *a.shape[2:])),
        }[case.layout](full)
        arrays.append(view)
    return arrays
