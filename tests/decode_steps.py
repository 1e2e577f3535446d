"""Random decoding steps, contiguous and paged, and the float64 formula that they are held to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.decode_problem import DecodeProblem


@dataclass(frozen=True, eq=False)
class Step:
    """A problem with its arrays; `totals` counts the new tokens, which the caches do not hold yet.

    What lies behind the tokens of a cache, and in pages of nobody, is NaN.
    """

    problem: DecodeProblem
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    totals: np.ndarray
    k_new: np.ndarray | None = None
    v_new: np.ndarray | None = None
    block_table: np.ndarray | None = None

    @property
    def cache_seqlens(self) -> np.ndarray:
        """Tokens before the new ones."""
        return (self.totals - self.problem.seqlen_new).astype(np.int32)

    def call(self, door: Any, **options: Any) -> Any:
        """`door`, which is `fa.decode` or like it, on copies of the caches."""
        p = self.problem
        given = {
            "k_new": self.k_new, "v_new": self.v_new, "block_table": self.block_table,
            "window": p.window, "softmax_scale": p.scale, "return_lse": True,
        }  # fmt: skip
        caches = (self.k.copy(), self.v.copy())
        return door(self.q, *caches, self.cache_seqlens, **given | options)

    def sequence(self, b: int) -> tuple[np.ndarray, np.ndarray]:
        """k and v of one sequence, new tokens included, (nheads_kv, total, head_dim) float64."""
        p, before = self.problem, int(self.cache_seqlens[b])
        found = []
        for cache, new in ((self.k, self.k_new), (self.v, self.v_new)):
            whole = cache[b] if self.block_table is None else gathered(cache, self.block_table[b])
            parts = [whole[:, :before]] + ([] if new is None else [new[b]])
            found.append(np.concatenate(parts, axis=1).astype(np.float64))
        assert found[0].shape[1] == self.totals[b] and p.nheads_kv == len(found[0])
        return found[0], found[1]


def gathered(cache: np.ndarray, pages: np.ndarray) -> np.ndarray:
    """Pages (num_pages, nheads_kv, page_size, d) as one sequence (nheads_kv, tokens, d)."""
    return np.concatenate(list(cache[pages]), axis=1)


def formula(step: Step) -> tuple[np.ndarray, np.ndarray]:
    """out and lse in float64, row by row, as the definition has it."""
    p = step.problem
    out = np.zeros(p.q_shape)
    lse = np.full(p.q_shape[:3], -np.inf)
    left = np.inf if p.left is None else p.left
    for b in range(p.batch):
        k, v = step.sequence(b)
        for h in range(p.nheads):
            k_h, v_h = k[h // p.group], v[h // p.group]
            for i in range(p.seqlen_q):
                position = int(step.totals[b]) - p.seqlen_q + i
                keys = [j for j in range(len(k_h)) if position - left <= j <= position]
                if not keys:
                    continue
                s = p.scale * (k_h[keys] @ step.q[b, h, i].astype(np.float64))
                weights = np.exp(s - s.max())
                lse[b, h, i] = s.max() + np.log(weights.sum())
                out[b, h, i] = weights @ v_h[keys] / weights.sum()
    return out, lse


def make(problem: DecodeProblem, totals: Sequence[int], seed: int = 0, dtype: str = "") -> Step:
    """Standard normal arrays in the problem's dtype; of a paged problem shuffled pages."""
    rng, p = np.random.default_rng(seed), problem
    kind = io_dtype(dtype or p.dtype)

    def normal(shape: tuple[int, ...]) -> np.ndarray:
        return rng.standard_normal(shape).astype(kind)

    lengths = np.asarray(totals, np.int32)
    contiguous = (p.batch, p.nheads_kv, p.capacity, p.head_dim)
    k, v = normal(contiguous), normal(contiguous)
    for b, before in enumerate(lengths - p.seqlen_new):
        k[b, :, before:] = v[b, :, before:] = np.nan
    new = (normal(p.new_shape), normal(p.new_shape)) if p.seqlen_new else (None, None)
    step = Step(p, normal(p.q_shape), k, v, lengths, *new)
    return step if p.page_size is None else _paged(step, rng)


def _paged(step: Step, rng: np.random.Generator) -> Step:
    """The same step with its contiguous caches cut into pages that lie anywhere."""
    p = step.problem
    assert p.page_size is not None and p.max_pages is not None and p.num_pages is not None
    table = rng.permutation(p.num_pages)[: p.batch * p.max_pages].reshape(p.batch, p.max_pages)
    pages = []
    for cache in (step.k, step.v):
        whole = np.full(p.cache_shape, np.nan, cache.dtype)
        cut = cache.reshape(p.batch, p.nheads_kv, p.max_pages, p.page_size, p.head_dim)
        whole[table] = cut.transpose(0, 2, 1, 3, 4)
        pages.append(whole)
    k, v = pages
    return replace(step, k=k, v=v, block_table=table.astype(np.int32))


@st.composite
def steps(draw: st.DrawFn, dtype: str = "float64") -> Step:
    """Small steps with everything at once: groups, rows, windows, pages, appends, empty ones."""
    page_size = draw(st.sampled_from((None, 16, 32)))
    nheads_kv, group = draw(st.integers(1, 3)), draw(st.sampled_from((1, 2, 4)))
    batch, seqlen_q = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    capacity = draw(st.integers(1, 5)) * (page_size or 17)
    seqlen_new = draw(st.integers(0, min(4, capacity)))
    window = draw(st.sampled_from((None, (0, 0), (5, None), (40, 3), (None, 2))))
    pages = None if page_size is None else capacity // page_size
    spare = None if pages is None else batch * pages + draw(st.integers(0, 3))
    problem = DecodeProblem(
        batch, group * nheads_kv, nheads_kv, seqlen_q, seqlen_new, capacity, 8, dtype,
        page_size, pages, window, draw(st.sampled_from((None, 0.0, -0.7))), spare,
    )  # fmt: skip
    totals = [draw(st.integers(seqlen_new, capacity)) for _ in range(batch)]
    return make(problem, totals, draw(st.integers(0, 99)))
