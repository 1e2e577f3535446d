"""The cases that every kernel must pass on a GPU: awkward shapes, tilings, masks and layouts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import HOPPER_SMEM_PER_BLOCK, Tiling, default_tiling
from fa_kernels.units import KIB
from fa_kernels.variants import Variant

SEQLENS = ((1, 1), (17, 17), (113, 203), (203, 113), (1023, 1024), (239, 1))
HEAD_DIMS = (1, 20, 63, 64, 96, 128, 256)
#: bf16 differs from fp16 in two conversions alone: fewer head dimensions show as much.
BF16_HEAD_DIMS = (20, 63, 64, 128)
DTYPES = ("float16", "bfloat16", "float32")
MASKS = (None, "bottom_right", "top_left")
#: How q, k, v lie in memory: contiguous; (batch, seqlen, heads, d) seen transposed; rows that do
#: not start at multiples of 16 bytes; every other row of a longer tensor; rows from last to first;
#: one head seen as many (stride 0).
LAYOUTS = ("bhsd", "bshd", "unaligned", "strided", "reversed", "broadcast")
#: Those that TMA reads in place (`cuda.tensor_map.mappable`); it copies the others first.
MAPPED_LAYOUTS = ("bhsd", "bshd", "strided")


@dataclass(frozen=True)
class Case:
    """One thing to verify: a problem, a tiling and a memory layout.

    `extras`: shape of mask, bias and dropout mask, if the problem has them (`option_cases`).
    `lowest`: a row of the bias is finfo.min, which S in 16 bits cannot hold beside its scores.
    `own_tiles`: the tiles are a variant's own default, where it has one; `tiling` says nothing.
    """

    problem: AttentionProblem
    tiling: Tiling
    layout: str = "bhsd"
    scale_inputs: float = 1.0
    extras: str = ""
    lowest: bool = False
    own_tiles: bool = False


def can_run(variant: Variant, case: Case) -> bool:
    """True if `variant` takes the problem, the layout and the kind of tiles of this case."""
    if case.own_tiles and variant.default_tiling is default_tiling:
        return False  # its default tiles are among the others
    in_place = case.layout in MAPPED_LAYOUTS or not variant.whole_rows
    return in_place and variant.takes(case.problem)


def suits(variant: Variant, case: Case) -> bool:
    """True if `variant` can run this case, and holds the range of its scores."""
    small = not case.lowest or case.problem.itemsize == 4 or variant.keeps_scores_on_chip
    return can_run(variant, case) and small


def suited(variant: Variant, case: Case) -> Case:
    """The case with the tiles of `variant`: its own, or the nearest that it can have."""
    if case.own_tiles:
        return replace(case, tiling=variant.tiling_for(case.problem, HOPPER_SMEM_PER_BLOCK))
    return replace(case, tiling=variant.nearest_tiling(case.problem, case.tiling))


def is_aligned(case: Case) -> bool:
    """True if every row starts at a multiple of 16 bytes, so that kernels load 16 at once."""
    return case.layout != "unaligned" and case.problem.head_dim % 8 == 0


def cases() -> Iterator[Case]:
    """The shapes, dtypes, masks, tilings and layouts that every variant must pass."""
    for (nq, nk), d, dtype, causal in itertools.product(SEQLENS, HEAD_DIMS, DTYPES, MASKS):
        if dtype == "bfloat16" and d not in BF16_HEAD_DIMS:
            continue
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
    yield from _block_mask_cases()
    # Many heads: kernels with one block per head are built for a full GPU then.
    for dtype in DTYPES:
        yield Case(AttentionProblem(8, 67, 113, 203, 64, dtype, "bottom_right"), Tiling(32, 32))
        yield Case(AttentionProblem(8, 67, 113, 203, 64, dtype), Tiling(64, 128))
    yield from _own_tiles()
    # Longer than one row of S in shared memory: the softmax launch of 02 reads S twice.
    yield Case(AttentionProblem(1, 2, 65, 20000, 64, "float16"), Tiling(64, 64))
    # A row that with its two reductions passes 48 KiB, from where CUDA wants to be asked.
    yield Case(AttentionProblem(1, 2, 17, 12288, 64, "float16"), Tiling(64, 64))
    # 64-bit offsets: S of one head has 2^32 elements; q has more than 2^31.
    yield Case(AttentionProblem(1, 1, 65536, 65536, 64, "float16"), Tiling(64, 64))
    yield Case(AttentionProblem(1, 528, 65536, 64, 64, "float16"), Tiling(64, 64))
    yield from uncut_cases()


#: (mask blocks, tiles, axes of batch and head that the mask differs over, causal).
_BLOCK_MASKS = (
    ((64, 64), (64, 64), (1, 1), None),
    ((64, 64), (64, 64), (2, 3), "bottom_right"),
    ((16, 16), (64, 32), (1, 3), "top_left"),
    ((24, 40), (64, 64), (2, 1), "bottom_right"),
    ((128, 32), (32, 64), (2, 3), None),
    ((1, 1), (17, 33), (1, 1), "bottom_right"),
    ((100, 7), (33, 17), (1, 1), None),
)


def _block_mask_cases() -> Iterator[Case]:
    """Random block masks with an empty row and an empty column of blocks."""
    rng = np.random.default_rng(0)
    for number, (blocks, tiles, lead, causal) in enumerate(_BLOCK_MASKS):
        for d, dtype in itertools.product((20, 64) if number < 2 else (64,), DTYPES):
            keep = rng.random((*lead, -(-203 // blocks[0]), -(-331 // blocks[1]))) < 0.4
            keep[..., 1, :] = keep[..., :, 2] = False
            mask = BlockMask.from_dense(keep, *blocks)
            problem = AttentionProblem(2, 3, 203, 331, d, dtype, causal, block_mask=mask)
            yield Case(problem, Tiling(*tiles))


def _own_tiles() -> Iterator[Case]:
    """Where a variant has default tiles of its own: shapes, masks, layouts, block masks, scales."""
    any_tiling = Tiling(1, 1)
    dims, shapes = (20, 64, 96, 128, 192, 256), ((113, 203), (203, 113), (1023, 1024))
    for (nq, nk), d, dtype, causal in itertools.product(shapes, dims, DTYPES, MASKS):
        yield Case(AttentionProblem(2, 3, nq, nk, d, dtype, causal), any_tiling, own_tiles=True)
    for d, dtype, layout in itertools.product((63, 64, 256), DTYPES, LAYOUTS[1:]):
        problem = AttentionProblem(2, 3, 203, 331, d, dtype, "top_left", nheads_kv=3)
        yield Case(problem, any_tiling, layout, own_tiles=True)
    for d, dtype, scale in itertools.product((64, 256), DTYPES, (-0.2, 0.0, 1.3)):
        problem = AttentionProblem(2, 4, 203, 331, d, dtype, None, scale, nheads_kv=2)
        yield Case(problem, any_tiling, own_tiles=True)
    for d, dtype in itertools.product((64, 128, 256), DTYPES):
        problem = AttentionProblem(1, 2, 600, 600, d, dtype)
        yield Case(problem, any_tiling, scale_inputs=12.0, own_tiles=True)
    for case in _block_mask_cases():
        yield replace(case, own_tiles=True)


def uncut_cases() -> Iterator[Case]:
    """Block masks whose blocks are whole tiles, longer lists than any ring, one list empty."""
    rng = np.random.default_rng(7)
    heads: tuple[tuple[tuple[int, int], int], ...] = (((1, 1), 1), ((2, 4), 4), ((1, 4), 2))
    for d, dtype, (lead, kv) in itertools.product((64, 128, 256), DTYPES, heads):
        keep = rng.random((*lead, 6, 8)) < 0.5
        keep[..., 1, :] = keep[..., :, 2] = False
        mask, causal = BlockMask.from_dense(keep, 128, 128), "bottom_right" if kv == 2 else None
        problem = AttentionProblem(2, 4, 700, 1000, d, dtype, causal, nheads_kv=kv, block_mask=mask)
        yield Case(problem, Tiling(1, 1), own_tiles=True)


def _odd_tilings() -> tuple[Tiling, ...]:
    return (Tiling(1, 1), Tiling(17, 33), Tiling(33, 17), Tiling(16, 130), Tiling(100, 20))


def make_inputs(case: Case, seed: int, xp: Any) -> list[Any]:
    """q, k, v as arrays of `xp` in the case's memory layout, standard normal times scale_inputs."""
    p = case.problem
    rng = np.random.default_rng(seed) if xp is np else xp.random.default_rng(seed)
    arrays = []
    for batch, nheads, n, head_dim in (p.q_shape, p.kv_shape, p.kv_shape):
        shape = {
            "bhsd": (batch, nheads, n, head_dim),
            "bshd": (batch, n, nheads, head_dim),
            "unaligned": (batch, nheads, n, head_dim + 1),
            "strided": (batch, nheads, 2 * n, head_dim),
            "reversed": (batch, nheads, n, head_dim),
            "broadcast": (batch, 1, n, head_dim),
        }[case.layout]
        full = rng.standard_normal(shape, dtype=np.float32)
        full = (full * np.float32(case.scale_inputs)).astype(io_dtype(p.dtype))
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
