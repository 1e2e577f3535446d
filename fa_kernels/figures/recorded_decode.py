"""Recorded decode steps of attention: rows of pass "decode", and the line through their times."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fa_kernels.device import Device
from fa_kernels.figures.recorded import runs_on
from fa_kernels.measure.records import OURS, Row
from fa_kernels.measure.verify_decode import DECODE
from fa_kernels.problem import ITEMSIZE

#: The decode kernel as rows name it, with the number of splits that it chooses by itself; what was
#: changed stands behind the name ("_page64", "_splits8", "_window4096"): `decode_points.Ours`.
KERNEL = DECODE
#: One step of several in a CUDA graph, as a server runs them.
_GRAPH = re.compile(rf"{KERNEL}_graph([2-9]|\d\d+)")
#: Fewer shapes than this make no line.
_LEAST = 3


@dataclass(frozen=True)
class DecodePoint:
    """One timed decode step of one layer: keys and values in bytes, its time, and its row."""

    row: Row
    cache_bytes: int
    ms: float

    @property
    def group(self) -> int:
        """Query heads for each head of keys and values."""
        return self.row.nheads // self.row.nheads_kv

    @property
    def flops(self) -> int:
        """Of q kᵀ and p v: 4 d for each pair of query row and key."""
        row = self.row
        return 4 * row.batch * row.nheads * row.seqlen_q * row.seqlen_k * row.head_dim

    @property
    def least_bytes(self) -> int:
        """Keys and values, q and out, each once: what no kernel avoids."""
        row = self.row
        ends = 2 * row.batch * row.nheads * row.seqlen_q * row.head_dim * ITEMSIZE[row.dtype]
        return self.cache_bytes + ends

    @property
    def tflops(self) -> float:
        """Reached."""
        return self.flops / self.ms / 1e9

    @property
    def gb_s(self) -> float:
        """Bytes of `least_bytes` a second."""
        return self.least_bytes / self.ms / 1e6


def points_of(rows: Iterable[Row], graphs: bool = False) -> tuple[DecodePoint, ...]:
    """The decode kernel's time at each shape, contiguous caches, in the rows' order.

    With `graphs` that of one step of several in a CUDA graph, where it was timed.
    """
    found: dict[tuple[object, ...], DecodePoint] = {}
    for row in rows:
        graph = _GRAPH.fullmatch(row.variant) is not None
        if row.provider != OURS or not (row.variant == KERNEL or (graphs and graph)):
            continue
        if (row.pass_, row.metric) != ("decode", "latency_ms") or row.median is None:
            continue
        nbytes = 2 * row.batch * row.nheads_kv * row.seqlen_k * row.head_dim * ITEMSIZE[row.dtype]
        shape = (row.batch, row.nheads, row.nheads_kv, row.seqlen_q, row.seqlen_k, row.head_dim,
                 row.dtype)  # fmt: skip
        if shape not in found or graph:
            found[shape] = DecodePoint(row, nbytes, row.median)
    return tuple(found.values())


@dataclass(frozen=True)
class DecodeLine:
    """time = fixed + bytes / bandwidth of a layer's decode step, and how far points lie from it.

    `run_id` "": nothing was recorded; the bandwidth is the data sheet's then, and `fixed_ms` 0.
    """

    fixed_ms: float
    gb_s: float
    run_id: str = ""
    points: int = 0
    #: The largest of |line / time - 1| over the points.
    worst: float = 0.0

    def ms(self, cache_bytes: float) -> float:
        """Of one layer."""
        return self.fixed_ms + cache_bytes / self.gb_s / 1e6


def line_through(points: Iterable[DecodePoint], run_id: str) -> DecodeLine | None:
    """The line with the least squares of relative errors; None: too few points, or no such line.

    Relative ones, because the times span orders of magnitude; neither part may be negative.
    """
    found = [point for point in points if point.row.seqlen_q == 1]
    if len(found) < _LEAST or len({point.cache_bytes for point in found}) < _LEAST:
        return None
    times = np.array([point.ms for point in found])
    nbytes = np.array([point.cache_bytes for point in found], float)
    parts = np.stack([1 / times, nbytes / times], axis=1)
    (fixed, per_byte), *_ = np.linalg.lstsq(parts, np.ones(len(times)), rcond=None)
    if fixed < 0:  # the line through the origin, then
        fixed, per_byte = 0.0, float(np.sum(nbytes / times) / np.sum((nbytes / times) ** 2))
    if per_byte <= 0:
        return None
    worst = float(np.max(np.abs((fixed + per_byte * nbytes) / times - 1)))
    return DecodeLine(float(fixed), 1e-6 / float(per_byte), run_id, len(found), worst)


@dataclass(frozen=True)
class RecordedDecode:
    """The newest run with decode steps of a device; no points: there is none."""

    run_id: str = ""
    points: tuple[DecodePoint, ...] = ()
    #: The same with steps in a graph, where they were timed so.
    in_graphs: tuple[DecodePoint, ...] = ()

    @classmethod
    def on(cls, device: Device, root: Path | None = None) -> RecordedDecode:
        """What was recorded on `device` in runs of kind "decode"."""
        for run in runs_on(device, "decode", root):
            if points := points_of(run.rows):
                return cls(run.run_id, points, points_of(run.rows, graphs=True))
        return cls()

    def line(self, device: Device) -> DecodeLine:
        """Through the recorded times; without them what the data sheet's bandwidth gives."""
        found = line_through(self.in_graphs or self.points, self.run_id)
        return found or DecodeLine(0.0, device.hbm_bandwidth_gb_s)
