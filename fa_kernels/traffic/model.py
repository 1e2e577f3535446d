"""HBM traffic in closed form, under two names that are never mixed.

`paper_*`: the published algorithms, S, P and O in the io dtype, l and m in fp32, initialisation
uncounted. `launched_*`: our kernels with their tiles, matmul re-reads included; equal to the
counters, to the byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fa_kernels.masks import causal_offset, kept_pairs
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.standard import softmax_reads
from fa_kernels.tiling import Tiling

#: Tensors in the order of every table and legend.
TENSORS = ("q", "k", "v", "s", "p", "out", "lse")


@dataclass(frozen=True)
class Traffic:
    """Bytes moved between HBM and the chip, per tensor."""

    read_bytes: Mapping[str, int] = field(default_factory=dict)
    written_bytes: Mapping[str, int] = field(default_factory=dict)

    def of(self, tensor: str) -> int:
        """Bytes read plus bytes written of one tensor."""
        return self.read_bytes.get(tensor, 0) + self.written_bytes.get(tensor, 0)

    @property
    def total_bytes(self) -> int:
        """All bytes read plus all bytes written."""
        return sum(self.read_bytes.values()) + sum(self.written_bytes.values())

    def times(self, factor: int) -> Traffic:
        """The traffic of `factor` independent heads."""
        return Traffic(
            {name: factor * n for name, n in self.read_bytes.items()},
            {name: factor * n for name, n in self.written_bytes.items()},
        )

    def intensity(self, flops: int) -> float:
        """Arithmetic intensity in FLOP per byte; infinite where nothing moves."""
        return flops / self.total_bytes if self.total_bytes else float("inf")

    def same_as(self, other: Traffic) -> bool:
        """True if every tensor's reads and writes agree to the byte (absent counts as 0)."""
        return all(
            mine.get(t, 0) == theirs.get(t, 0)
            for mine, theirs in (
                (self.read_bytes, other.read_bytes),
                (self.written_bytes, other.written_bytes),
            )
            for t in TENSORS
        )


def paper_standard(problem: AttentionProblem) -> Traffic:
    """Algorithm 0 as published: Q, K -> S; S -> P; P, V -> O, each through HBM. Θ(Nd + N²)."""
    scores = problem.seqlen_q * problem.seqlen_k * problem.itemsize * problem.heads
    q, kv = problem.q_bytes, problem.kv_bytes
    return Traffic(
        {"q": q, "k": kv, "v": kv, "s": scores, "p": scores},
        {"s": scores, "p": scores, "out": q},
    )


def paper_flash_kv_outer(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    """FlashAttention Algorithm 1 as published: K, V once; Q, O, l, m per pass. Θ(N² d² / M)."""
    passes = -(-problem.seqlen_k // tiling.block_n)
    q, kv, stats = problem.q_bytes, problem.kv_bytes, 2 * problem.lse_bytes
    return Traffic(
        {"q": passes * q, "k": kv, "v": kv, "out": passes * q, "lse": passes * stats},
        {"out": passes * q, "lse": passes * stats},
    )


def paper_flash_q_outer(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    """FlashAttention-2 Algorithm 1 as published: Q, O, L once; K, V once per Q block."""
    passes = -(-problem.seqlen_q // tiling.block_m)
    q, kv = problem.q_bytes, problem.kv_bytes
    return Traffic(
        {"q": q, "k": passes * kv, "v": passes * kv}, {"out": q, "lse": problem.lse_bytes}
    )


def _row_tile_sizes(problem: AttentionProblem, block_m: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows, key_end) of every Q tile as int64 arrays."""
    starts = np.arange(0, problem.seqlen_q, block_m, dtype=np.int64)
    stops = np.minimum(starts + block_m, problem.seqlen_q)
    ends = np.clip(stops + causal_offset(problem), 0, problem.seqlen_k)
    return stops - starts, ends


def launched_standard_tiled(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    """02_standard_tiled: every tile of S re-reads its Q and K rows, every tile of O re-reads V.

    S and P count their kept elements only; S is read once or twice (`softmax_reads`).
    """
    rows, ends = _row_tile_sizes(problem, tiling.block_m)
    row_bytes = problem.head_dim * problem.itemsize
    kv = int(ends.sum()) * row_bytes
    q = int((rows * -(-ends // tiling.block_n)).sum()) * row_bytes
    kept = kept_pairs(problem) * problem.itemsize
    per_head = Traffic(
        {"q": q, "k": kv, "v": kv, "s": softmax_reads(problem.seqlen_k) * kept, "p": kept},
        {
            "s": kept,
            "p": kept,
            "out": problem.seqlen_q * row_bytes,
            "lse": 4 * problem.seqlen_q,
        },
    )
    return per_head.times(problem.heads)


def launched_flash_q_outer(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    """04_flash_q_outer: Q, O and lse once; the kept prefix of K and V once per Q tile."""
    _, ends = _row_tile_sizes(problem, tiling.block_m)
    row_bytes = problem.head_dim * problem.itemsize
    kv = int(ends.sum()) * row_bytes
    per_head = Traffic(
        {"q": problem.seqlen_q * row_bytes, "k": kv, "v": kv},
        {"out": problem.seqlen_q * row_bytes, "lse": 4 * problem.seqlen_q},
    )
    return per_head.times(problem.heads)
