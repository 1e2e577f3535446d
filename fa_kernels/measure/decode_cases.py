"""What 07_decode_split_kv must pass on a GPU: lengths, pages, splits, rows, windows, layouts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.cuda.run_decode import DTYPES
from fa_kernels.decode_problem import DecodeProblem
from fa_kernels.problem import AttentionProblem
from fa_kernels.units import KIB

#: Tokens of the sequences of most cases: none, one, around a tile, ragged, full.
TOTALS = (0, 1, 16, 17, 333, 1000, 1024)
HEAD_DIMS = (1, 20, 63, 64, 96, 128, 160, 256)
PAGES = (16, 48, 64, 256, 528)
#: How the caches lie: contiguous; (batch, seqlen, heads, d) seen transposed; rows that do not start
#: at multiples of 16 bytes.
LAYOUTS = ("bhsd", "bshd", "unaligned")


@dataclass(frozen=True)
class DecodeCase:
    """One thing to verify: a problem, the tokens of each sequence (new ones included), splits.

    `little_smem`: planned for sm_86 and 89, with their shared memory and without clusters.
    """

    problem: DecodeProblem
    totals: tuple[int, ...]
    num_splits: int
    layout: str = "bhsd"
    scale_inputs: float = 1.0
    little_smem: bool = False

    @property
    def aligned(self) -> bool:
        """True if every row starts at a multiple of 16 bytes."""
        return self.layout != "unaligned" and self.problem.head_dim % 8 == 0

    @property
    def limits(self) -> dict[str, Any]:
        """What `plan_decode` is told of the GPU; empty: what it is."""
        little = {"limit_bytes": 99 * KIB, "sm_bytes": 100 * KIB, "clusters": False}
        return little if self.little_smem else {}

    @property
    def builds(self) -> dict[str, Any]:
        """What `plan_decode` wants to know of the layout and of shared memory."""
        return {"aligned": self.aligned, "whole_tiles": self.layout == "bhsd", **self.limits}

    def of_sequence(self, b: int) -> AttentionProblem:
        """Sequence b as the end of an attention call: what it is held against."""
        p = self.problem
        return AttentionProblem(
            1, p.nheads, p.seqlen_q, self.totals[b], p.head_dim, p.dtype, "bottom_right", p.scale,
            nheads_kv=p.nheads_kv, window=p.window,
        )  # fmt: skip


def problem_of(head_dim: int, dtype: str, **fields: Any) -> DecodeProblem:
    """Grouped heads over a cache of the longest of `TOTALS`; `fields` replace what they name."""
    p = DecodeProblem(len(TOTALS), 8, 2, 1, 0, TOTALS[-1], head_dim, dtype)
    if "page_size" in fields:
        pages = -(-TOTALS[-1] // fields["page_size"])
        fields = {"max_seqlen": None, "max_pages": pages, "num_pages": None} | fields
    return replace(p, **fields)


def decode_cases() -> Iterator[DecodeCase]:
    """All of them; those with new tokens leave room for these in every sequence."""
    for d, dtype, splits in itertools.product(HEAD_DIMS, DTYPES, (1, 3)):
        yield DecodeCase(problem_of(d, dtype), TOTALS, splits)
    # Up to 8 splits are merged in a cluster where the GPU has them, more in HBM.
    for d, dtype, page, splits in itertools.product((64, 128), DTYPES, PAGES, (1, 7, 12)):
        problem = problem_of(d, dtype, page_size=page, seqlen_new=1)
        yield DecodeCase(problem, _with_new(problem), splits)
    for d, splits in itertools.product((20, 63, 256), (1, 3, 9)):
        problem = problem_of(d, "float16", page_size=32, seqlen_new=3)
        yield DecodeCase(problem, _with_new(problem), splits)
    yield from _row_cases()
    for splits in (2, 5, 8, 9, 16, 64, 65, 128):
        yield DecodeCase(problem_of(128, "bfloat16"), TOTALS, splits)
    for d, layout, splits in itertools.product((63, 64, 128), LAYOUTS[1:], (1, 3, 9)):
        problem = problem_of(d, "float16", seqlen_new=2)
        yield DecodeCase(problem, _with_new(problem), splits, layout)
    for d, dtype, splits in itertools.product((64, 160, 256), DTYPES, (1, 3)):
        yield DecodeCase(problem_of(d, dtype), TOTALS, splits, little_smem=True)
    for scale in (-0.2, 0.0, 1.3):
        yield DecodeCase(problem_of(64, "float16", softmax_scale=scale), TOTALS, 3)
    for dtype in DTYPES:  # exp would overflow without the running maximum
        yield DecodeCase(problem_of(64, dtype), TOTALS, 3, scale_inputs=12.0)
    # Long: many tiles a split; more than 2^31 elements of k before the last sequence.
    long = DecodeProblem(1, 32, 8, 1, 1, 65536, 128, "bfloat16")
    yield DecodeCase(long, (65536,), 33)
    far = DecodeProblem(33, 8, 8, 1, 1, 65536, 128, "float16")
    yield DecodeCase(far, (*[1] * 32, 4000), 2)


def _row_cases() -> Iterator[DecodeCase]:
    """Several query rows, groups from one head to all, and windows: rows that end in one block, in
    the next, and before their sequence begins."""
    for rows, (nheads, nheads_kv) in itertools.product((2, 5, 17), ((3, 3), (8, 2), (8, 1))):
        heads = {"nheads": nheads, "nheads_kv": nheads_kv, "seqlen_q": rows}
        for dtype, splits in ((DTYPES[0], 1), (DTYPES[1], 4), (DTYPES[0], 10)):
            problem = problem_of(64, dtype, seqlen_new=rows, **heads)
            yield DecodeCase(problem, _with_new(problem), splits)
            yield DecodeCase(replace(problem, seqlen_new=0), TOTALS, splits)
    windows = ((0, 0), (5, None), (100, 7))
    for window, rows, page in itertools.product(windows, (1, 4), (None, 16)):
        pages = {} if page is None else {"page_size": page}
        for splits in (1, 3, 9):
            problem = problem_of(64, "bfloat16", window=window, seqlen_q=rows, **pages)
            yield DecodeCase(problem, TOTALS, splits)


def _with_new(problem: DecodeProblem) -> tuple[int, ...]:
    """`TOTALS` with at least the new tokens in each sequence."""
    return tuple(max(total, problem.seqlen_new) for total in TOTALS)


def small_decode_cases() -> Iterator[DecodeCase]:
    """For a tool that runs kernels hundreds of times slower."""
    totals = (0, 1, 77, 96)
    plain = DecodeProblem(4, 4, 2, 1, 0, 96, 64, "float16")
    for splits in (1, 3, 9):
        yield DecodeCase(plain, totals, splits)
    more: dict[str, Any] = {"seqlen_q": 3, "seqlen_new": 2, "dtype": "bfloat16"}
    totals = (2, 3, 77, 96)
    paged: dict[str, Any] = {"max_seqlen": None, "page_size": 32, "max_pages": 3}
    yield DecodeCase(replace(plain, window=(40, 0), **paged, **more), totals, 2)
    yield DecodeCase(replace(plain, head_dim=63, **more), totals, 2, "unaligned")
    yield DecodeCase(replace(plain, nheads=8, nheads_kv=1, head_dim=256, **more), totals, 1)


@dataclass(frozen=True, eq=False)
class DecodeInputs:
    """Arrays of one case on the GPU.

    Behind the tokens the caches are NaN, and so are pages of nobody. `k_all`, `v_all` (batch,
    nheads_kv, capacity, head_dim) hold all tokens, new ones too.
    """

    q: Any
    k: Any
    v: Any
    k_new: Any
    v_new: Any
    block_table: Any
    cache_seqlens: Any
    k_all: Any
    v_all: Any

    @property
    def options(self) -> dict[str, Any]:
        """What `run_decode` takes by name."""
        return {"k_new": self.k_new, "v_new": self.v_new, "block_table": self.block_table}


def make_decode_inputs(case: DecodeCase, seed: int) -> DecodeInputs:
    """Standard normal values times scale_inputs, in the case's layout, pages in random order."""
    import cupy

    p, rng = case.problem, cupy.random.default_rng(seed)
    kind = io_dtype(p.dtype)

    def normal(shape: tuple[int, ...]) -> Any:
        values = rng.standard_normal(shape, dtype=np.float32)
        values *= np.float32(case.scale_inputs)
        return values

    before = [total - p.seqlen_new for total in case.totals]
    table = None
    if p.page_size is not None:
        assert p.max_pages is not None and p.num_pages is not None
        pages = np.random.default_rng(seed).permutation(p.num_pages)[: p.batch * p.max_pages]
        table = cupy.asarray(pages.reshape(p.batch, p.max_pages).astype(np.int32))
    every: list[Any] = []
    caches: list[Any] = []
    new: list[Any] = []
    for _ in "kv":
        tokens = normal((p.batch, p.nheads_kv, p.capacity, p.head_dim))
        every.append(cupy.asarray(tokens.astype(kind)))
        spans = [tokens[b, :, n : n + p.seqlen_new] for b, n in enumerate(before)]
        new.append(cupy.asarray(cupy.stack(spans).astype(kind)) if p.seqlen_new else None)
        for b, n in enumerate(before):
            tokens[b, :, n:] = np.nan
        held = tokens if table is None else _in_pages(tokens, table, p)
        caches.append(_laid_out(held, case.layout, kind))
        del tokens, held  # the largest case takes gigabytes of each
    q, lengths = normal(p.q_shape).astype(kind), cupy.asarray(np.array(before, np.int32))
    (k, v), (k_new, v_new), (k_all, v_all) = caches, new, every
    return DecodeInputs(cupy.asarray(q), k, v, k_new, v_new, table, lengths, k_all, v_all)


def _in_pages(tokens: Any, table: Any, problem: DecodeProblem) -> Any:
    import cupy

    p = problem
    whole = cupy.full(p.cache_shape, np.nan, np.float32)
    cut = tokens.reshape(p.batch, p.nheads_kv, p.max_pages, p.page_size, p.head_dim)
    whole[table] = cut.transpose(0, 2, 1, 3, 4)
    return whole


def _laid_out(cache: Any, layout: str, kind: Any) -> Any:
    """The cache in the io dtype, its elements where `layout` says."""
    import cupy

    if layout == "bshd":
        rows = cupy.asarray(cupy.ascontiguousarray(cache.transpose(0, 2, 1, 3)).astype(kind))
        return rows.transpose(0, 2, 1, 3)
    if layout == "unaligned":
        wide = cupy.full((*cache.shape[:3], cache.shape[3] + 1), np.nan, np.float32)
        wide[..., 1:] = cache
        return cupy.asarray(wide.astype(kind))[..., 1:]
    return cupy.asarray(cache.astype(kind))
