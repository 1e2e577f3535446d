"""What the online softmax holds for one row after every visit: in NumPy or in the CUDA kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fa_kernels.block_mask import BlockMask
from fa_kernels.call import checked_call
from fa_kernels.cuda import arrays
from fa_kernels.cuda.run import TRACE_HEADER, RowTrace
from fa_kernels.problem import AttentionProblem, checked_int
from fa_kernels.reference.online_softmax import OnlineSoftmax
from fa_kernels.tiling import Tiling
from fa_kernels.variants import Variant


@dataclass(frozen=True)
class Trace:
    """One row of one (batch, head), visit by visit.

    `key_start`, `key_stop` (visits,) int64: the keys of each visit. `m` (natural log), `l`, `alpha`
    (visits,) float32: running maximum and sum after the visit, and the factor that what was there
    before was scaled by. `acc` (visits, head_dim) float32: the accumulator; with `normalised` it
    has been divided by l already, as Algorithm 1 does at every visit.
    """

    variant: str
    backend: str
    normalised: bool
    batch: int
    head: int
    row: int
    key_start: np.ndarray
    key_stop: np.ndarray
    m: np.ndarray
    l: np.ndarray  # noqa: E741  the papers' name
    alpha: np.ndarray
    acc: np.ndarray

    @property
    def output(self) -> np.ndarray:
        """The row of the output after each visit, (visits, head_dim): softmax of the prefix @ V."""
        if self.normalised:
            return self.acc
        safe = np.where(self.l == 0.0, 1.0, self.l).astype(self.acc.dtype)
        return self.acc / safe[:, None]


def trace_row(
    q: Any,
    k: Any,
    v: Any,
    *,
    row: int,
    batch: int = 0,
    head: int = 0,
    variant: str = "flash_q_outer",
    causal: bool | str = False,
    softmax_scale: float | None = None,
    block_mask: BlockMask | None = None,
    tiling: Tiling | None = None,
    backend: str = "auto",
) -> Trace:
    """Run attention and record m, l, alpha and the accumulator of one query row.

    Args:
        q, k, v and options: as `fa.attention`, which has more of them.
        row, batch, head: which row to record.
        variant: a variant with `traced`; flash_kv_outer keeps acc normalised, flash_q_outer not.
        backend: "cuda" records inside the kernel (-DTRACE), "numpy" in the reference.

    Raises:
        ValueError, NotImplementedError, TypeError: as `fa.attention`; a row that is not there; a
            variant that keeps no online softmax.
    """
    call = checked_call(
        q, k, v, variant, tiling, backend, causal=causal, softmax_scale=softmax_scale,
        block_mask=block_mask,
    )  # fmt: skip
    if not call.variant.traced:
        raise NotImplementedError(
            f"variant = {variant!r} has no online softmax to trace: use 'flash_q_outer' or "
            "'flash_kv_outer'."
        )
    problem, remedy = call.problem, "Choose one that the arrays have."
    where = (
        checked_int("batch", batch, 0, problem.batch - 1, remedy),
        checked_int("head", head, 0, problem.nheads - 1, remedy),
        checked_int("row", row, 0, problem.seqlen_q - 1, remedy),
    )
    if problem.seqlen_k == 0:  # nothing is visited, by either backend
        nothing = np.empty((0, problem.head_dim), np.float32)
        return _trace(call.variant, call.backend, where, [[]] * 5, nothing)
    if call.backend == "numpy":
        return _trace_numpy(call.variant, (q, k, v), problem, call.tiling, where)
    return _trace_cuda(call.variant, (q, k, v), problem, call.tiling, where)


def _trace_numpy(
    variant: Variant,
    inputs: tuple[Any, Any, Any],
    problem: AttentionProblem,
    tiling: Tiling,
    where: tuple[int, int, int],
) -> Trace:
    batch, head, row = where
    mask = None if problem.block_mask is None else problem.block_mask.at(batch, head)
    one = AttentionProblem(
        1, 1, problem.seqlen_q, problem.seqlen_k, problem.head_dim, problem.dtype, problem.causal,
        problem.softmax_scale, block_mask=mask,
    )  # fmt: skip
    visits: list[tuple[Any, ...]] = []

    def on_step(rows: slice, cols: slice, state: OnlineSoftmax, alpha: np.ndarray) -> None:
        if rows.start <= row < rows.stop:
            at = (0, 0, row - rows.start)
            acc = (state.output() if variant.normalised else state.acc)[at].copy()
            visits.append((cols.start, cols.stop, state.m_i[at], state.l_i[at], alpha[at], acc))

    heads = (head, head // problem.group, head // problem.group)
    cut = [x[batch : batch + 1, h : h + 1] for x, h in zip(inputs, heads, strict=True)]
    arrays.run_on_host(variant.reference, cut, one, tiling, on_step=on_step)
    columns = [[visit[i] for visit in visits] for i in range(5)]
    acc = np.array([visit[5] for visit in visits], np.float32).reshape(-1, problem.head_dim)
    return _trace(variant, "numpy", where, columns, acc)


def _trace_cuda(
    variant: Variant,
    inputs: tuple[Any, Any, Any],
    problem: AttentionProblem,
    tiling: Tiling,
    where: tuple[int, int, int],
) -> Trace:
    record = RowTrace(*where)
    arrays.run_on_gpu(variant.run, inputs, problem, tiling, trace=record)
    assert record.records is not None
    table = record.records
    start, stop, normalised, *rest = (table[:, i] for i in range(TRACE_HEADER))
    if len(table) and bool(normalised.all()) != variant.normalised:
        raise RuntimeError(
            f"{variant.kernel} says normalised = {normalised.tolist()}, the registry says "
            f"{variant.normalised}: please report it."
        )
    return _trace(variant, "cuda", where, [start, stop, *rest], table[:, TRACE_HEADER:])


def _trace(
    variant: Variant,
    backend: str,
    where: tuple[int, int, int],
    columns: Any,
    acc: np.ndarray,
) -> Trace:
    start, stop = (np.array(column, np.int64) for column in columns[:2])
    m_i, l_i, alpha = (np.array(column, np.float32) for column in columns[2:])
    return Trace(
        variant.name, backend, variant.normalised, *where, start, stop, m_i, l_i, alpha, acc
    )
