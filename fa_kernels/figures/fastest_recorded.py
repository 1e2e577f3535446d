"""The fastest recorded kernel of a GPU, which no measured ceiling of its tensor cores may hide."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fa_kernels.device import Device
from fa_kernels.figures import theme
from fa_kernels.figures.recorded import runs_on
from fa_kernels.masks import matmul_flops
from fa_kernels.measure.records import Row


@dataclass(frozen=True)
class FastestKernel:
    """A dense forward pass: whose, TFLOP/s of its matrix products, where, and by which run."""

    series: str
    tflops: float
    seqlen: int
    head_dim: int
    run_id: str

    @classmethod
    def of_each_dtype(cls, device: Device, root: Path | None = None) -> dict[str, FastestKernel]:
        """By dtype, the fastest among all runs of a GPU that can be read."""
        found: dict[str, FastestKernel] = {}
        for run in runs_on(device, None, root):
            for row in run.rows:
                if not row.median or not _is_dense_forward(row):
                    continue
                tflops, known = matmul_flops(row.problem) / row.median / 1e9, found.get(row.dtype)
                if known is None or tflops > known.tflops:
                    found[row.dtype] = cls(
                        row.series, tflops, row.seqlen_q, row.head_dim, run.run_id
                    )
        return found

    @property
    def name(self) -> str:
        """As legends call it."""
        return theme.style_of(self.series).label


def _is_dense_forward(row: Row) -> bool:
    plain = row.causal == "none" and not row.dropout_p and not row.block_mask
    return plain and (row.pass_, row.metric, row.status) == ("fwd", "latency_ms", "ok")
