"""What the Run button does: the real kernels where there is a GPU, NumPy elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fa_kernels.figures.point import Point
from fa_kernels.measure.records import Row
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.standard import attention_float64
from fa_kernels.session import Session
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.counter import CountingHbm
from fa_kernels.traffic.model import TENSORS
from fa_kernels.variants import VARIANTS, Variant

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
        """Latency, memory and counted bytes of every variant."""
        from fa_kernels.measure.live import measure_point

        yield from measure_point(point.problem, point.tiling, on_progress, cancelled)


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
    """Both algorithms tile by tile on one (batch, head) slice of at most `cap` tokens."""

    cap: int = NUMPY_SEQLEN

    def slice_of(self, point: Point) -> tuple[AttentionProblem, Tiling]:
        """The problem that is executed, and its tiles."""
        n, problem = min(point.seqlen, self.cap), point.problem
        one = AttentionProblem(1, 1, n, n, problem.head_dim, problem.dtype)
        tiling = Tiling.from_sram(point.sram_bytes, problem.head_dim, problem.dtype)
        return one, tiling.clipped(n, n)

    def measure(self, point: Point, on_progress: Progress, cancelled: Cancelled) -> Iterator[Row]:
        """Counted bytes per tensor and in all, with the largest error against float64."""
        problem, tiling = self.slice_of(point)
        rng = np.random.default_rng(0)
        shape = (1, 1, problem.seqlen_q, problem.head_dim)
        q, k, v = (rng.standard_normal(shape).astype(problem.dtype) for _ in range(3))
        truth, _ = attention_float64(q, k, v, problem)
        for i, variant in enumerate(VARIANTS.values()):
            expected = max(1, variant.launched(problem, tiling).total_bytes)

            def report(nbytes: int, i: int = i, of: int = expected, v: Variant = variant) -> None:
                share = min(1.0, nbytes / of)
                on_progress((i + share) / len(VARIANTS), f"{v.label}, tile by tile")

            report(0)
            hbm = _WatchedHbm(report, cancelled)
            try:
                out, _ = variant.reference(q, k, v, problem, tiling, hbm)
            except _Stopped:
                return
            error = float(np.abs(out.astype(np.float64) - truth).max())
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
    for metric, value in values.items():
        yield Row(
            provider=NUMPY_PROVIDER, variant=variant.name, pass_="fwd", dtype=problem.dtype,
            batch=1, nheads=1, nheads_kv=1, seqlen_q=problem.seqlen_q, seqlen_k=problem.seqlen_k,
            head_dim=problem.head_dim, causal="none", dropout_p=0.0, density=1.0,
            block_m=tiling.block_m, block_n=tiling.block_n, metric=metric, unit="B",
            p20=value, median=value, p80=value, n=1, status="ok", detail="counted in NumPy",
            max_abs_err=error,
        )  # fmt: skip
