"""What the Run button does: the real kernels where there is a GPU, NumPy elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.figures.point import SHOWN, Point
from fa_kernels.measure.records import Row, mask_text
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.standard import attention_float64
from fa_kernels.session import Session
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.counter import CountingHbm
from fa_kernels.traffic.model import TENSORS
from fa_kernels.variants import ALGORITHMS, VARIANTS, Variant

#: The longest sequence the NumPy backend executes; longer ones are cut to it, and it says so.
NUMPY_SEQLEN = 1024
NUMPY_PROVIDER = "fa_kernels_numpy"

Progress = Callable[[float, str], None]
Cancelled = Callable[[], bool]


class Backend(Protocol):
    """Measures one point: yields rows as they become known."""

    def measure(
        self, point: Point, on_progress: Progress, cancelled: Cancelled
    ) -> Iterator[Row]: ...


def backend_of(session: Session) -> Backend:
    """The backend that belongs to a session."""
    return CudaBackend() if session.backend == "cuda" else NumpyBackend()


class CudaBackend:
    """The kernels on the GPU that is here."""

    def measure(self, point: Point, on_progress: Progress, cancelled: Cancelled) -> Iterator[Row]:
        """Latency, memory and counted bytes of every algorithm, masked if it takes a mask."""
        from fa_kernels.measure.live import measure_point

        problem = point.problem_of(VARIANTS[SHOWN])
        yield from measure_point(problem, point.tiling, on_progress, cancelled)


class _Stopped(Exception):
    """Raised inside an algorithm, at its next load, when Cancel was pressed."""


class _WatchedHbm(CountingHbm):
    """Counts, reports progress by bytes, and stops the algorithm when asked to."""

    def __init__(self, report: Callable[[int], None], cancelled: Cancelled) -> None:
        super().__init__()
        self._report, self._cancelled, self._loads, self._bytes = report, cancelled, 0, 0

    def load(self, tensor: str, tile: np.ndarray, valid: np.ndarray | None = None) -> np.ndarray:
        """As `CountingHbm.load`."""
        self._loads += 1
        self._bytes += tile.nbytes
        if self._loads % 64 == 0:
            if self._cancelled():
                raise _Stopped
            self._report(self._bytes)
        return super().load(tensor, tile, valid)


@dataclass(frozen=True)
class NumpyBackend:
    """Every algorithm, tile by tile, on one (batch, head) slice of at most `cap` tokens."""

    cap: int = NUMPY_SEQLEN

    def slice_of(self, point: Point) -> Point:
        """The point that is executed: one (batch, head) of at most `cap` tokens."""
        cut = point.at(min(point.seqlen, self.cap))
        return replace(cut, problem=replace(cut.problem, batch=1, nheads=1, nheads_kv=1))

    def measure(self, point: Point, on_progress: Progress, cancelled: Cancelled) -> Iterator[Row]:
        """Counted bytes per tensor and in all, with the largest error against float64.

        Raises:
            ModuleNotFoundError: bf16 without ml_dtypes; the message holds the remedy.
        """
        one = self.slice_of(point)
        rng = np.random.default_rng(0)
        shape, dtype = (1, 1, one.seqlen, one.problem.head_dim), io_dtype(one.problem.dtype)
        q, k, v = (rng.standard_normal(shape).astype(dtype) for _ in range(3))
        truths: dict[AttentionProblem, np.ndarray] = {}
        for i, variant in enumerate(ALGORITHMS.values()):
            problem, tiling = one.problem_of(variant), one.tiling
            if problem not in truths:
                truths[problem] = attention_float64(q, k, v, problem)[0]
            expected = max(1, one.traffic(variant).total_bytes)

            def report(nbytes: int, i: int = i, of: int = expected, v: Variant = variant) -> None:
                share = min(1.0, nbytes / of)
                on_progress((i + share) / len(ALGORITHMS), f"{v.label}, tile by tile")

            report(0)
            hbm = _WatchedHbm(report, cancelled)
            try:
                out, _ = variant.reference(q, k, v, problem, tiling, hbm)
            except _Stopped:
                return
            error = float(np.abs(out.astype(np.float64) - truths[problem]).max())
            yield from _counted_rows(variant, problem, tiling, hbm, error)
        on_progress(1.0, "")


def _counted_rows(
    variant: Variant, problem: AttentionProblem, tiling: Tiling, hbm: CountingHbm, error: float
) -> Iterator[Row]:
    traffic = hbm.traffic()
    values = {"hbm_bytes": traffic.total_bytes}
    values |= {
        f"hbm_{tensor}_bytes": traffic.of(tensor) for tensor in TENSORS if traffic.of(tensor)
    }
    density = problem.block_mask.density if problem.block_mask else 1.0
    block_m, block_n = (tiling.block_m, tiling.block_n) if variant.tiled else (None, None)
    for metric, value in values.items():
        yield Row(
            provider=NUMPY_PROVIDER, variant=variant.name, pass_="fwd", dtype=problem.dtype,
            batch=1, nheads=1, nheads_kv=1, seqlen_q=problem.seqlen_q, seqlen_k=problem.seqlen_k,
            head_dim=problem.head_dim, causal="none", dropout_p=0.0, density=density,
            block_m=block_m, block_n=block_n, metric=metric, unit="B",
            p20=value, median=value, p80=value, n=1, status="ok", detail="counted in NumPy",
            max_abs_err=error, block_mask=mask_text(problem),
        )  # fmt: skip
