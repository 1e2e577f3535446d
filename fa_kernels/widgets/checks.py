"""Claim, then check: one call that puts predicted beside counted bytes, with the ratio."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fa_kernels.figures.point import Point
from fa_kernels.figures.recorded import RecordedRuns
from fa_kernels.session import Session, in_use
from fa_kernels.traffic.counter import count_traffic
from fa_kernels.units import traffic
from fa_kernels.variants import ALGORITHMS
from fa_kernels.widgets.explorer_point import opening_settings, point_of
from fa_kernels.widgets.text import html_table, labels, text_table

#: Longer sequences keep NumPy busy for minutes.
MAX_SEQLEN = 2048


@dataclass(frozen=True)
class TrafficLine:
    """HBM bytes of one variant: both models, the NumPy count and the recorded in-kernel count."""

    label: str
    paper_bytes: int
    launched_bytes: int
    counted_bytes: int
    kernel_bytes: int | None

    @property
    def ratio(self) -> float:
        """Counted in the NumPy tiles over predicted: 1 when the model is right."""
        return self.counted_bytes / self.launched_bytes

    @property
    def kernel_ratio(self) -> float | None:
        """Counted in the kernel over predicted, or None where nothing was recorded."""
        return None if self.kernel_bytes is None else self.kernel_bytes / self.launched_bytes


@dataclass(frozen=True)
class TrafficCheck:
    """One line per variant, shown as a table."""

    point: Point
    lines: Mapping[str, TrafficLine]
    run_id: str | None

    @property
    def ok(self) -> bool:
        """True if all counts equal the `launched` model to the byte."""
        return all(
            line.counted_bytes == line.launched_bytes
            and line.kernel_bytes in (None, line.launched_bytes)
            for line in self.lines.values()
        )

    def cells(self) -> list[list[str]]:
        """The table as text: a row of heads, then one row per variant."""
        text = labels("check")
        kernel = text["kernel"]
        if self.run_id:
            kernel = text["kernel_source"].format(run_id=self.run_id)
        heads = ("variant", "paper", "launched", "counted", "ratio")
        rows = [[*(str(text[name]) for name in heads), kernel, text["ratio_kernel"]]]
        missing = text["not_recorded" if self.run_id else "no_run"]
        for line in self.lines.values():
            amounts = (line.paper_bytes, line.launched_bytes, line.counted_bytes)
            row = [line.label, *(traffic(n) for n in amounts), f"{line.ratio:.6f}"]
            if line.kernel_bytes is None:
                rows.append([*row, missing, ""])
            else:
                rows.append([*row, traffic(line.kernel_bytes), f"{line.kernel_ratio:.6f}"])
        return rows

    def caption(self) -> str:
        """The point that was checked, in words."""
        tiling = self.point.tiling
        return str(labels("check")["caption"]).format(
            problem=self.point.describe(),
            sram=self.point.sram_kib,
            tiles=f"{tiling.block_m} × {tiling.block_n}",
        )

    def __str__(self) -> str:
        return text_table(self.caption(), self.cells())

    def _repr_html_(self) -> str:
        head, *body = self.cells()
        return html_table("check", self.caption(), head, body)


def check_traffic(
    N: int = 512,
    d: int = 64,
    M_kib: int = 32,
    *,
    dtype: str = "fp16",
    device: str | None = None,
    pattern: str = "dense",
    density: float = 1 / 4,
    session: Session | None = None,
) -> TrafficCheck:
    """Count the bytes of every algorithm in NumPy and hold them against the models.

    Args:
        N, d, M_kib, dtype: as `fa.explorer`; N at most 2048, because NumPy executes every tile.
        pattern, density: as `fa.explorer`; the variants without block mask stay dense.
        device: slug of the GPU whose recorded run supplies the in-kernel counts.
        session: what `fa.session` returned; default: the current one.

    Raises:
        ValueError: a bad value; value, limit and remedy.
        TypeError: `session` is not one.
    """
    used = in_use(session)
    settings = opening_settings(used, N, d, M_kib, dtype, device, "log", pattern, density)
    if settings.N > MAX_SEQLEN:
        text = labels("check")["too_long"]
        raise ValueError(text.format(seqlen=settings.N, limit=MAX_SEQLEN))
    point = point_of(settings)
    run = RecordedRuns(used.run, used.root).on(point.device)
    lines = {}
    for name, variant in ALGORITHMS.items():
        row = run.row(name, point, "hbm_bytes") if run else None
        recorded = None if row is None or row.median is None else round(row.median)
        problem = point.problem_of(variant)
        lines[name] = TrafficLine(
            point.label(variant),
            variant.paper(problem, point.tiling).total_bytes,
            variant.launched(problem, point.tiling).total_bytes,
            count_traffic(variant.reference, problem, point.tiling).total_bytes,
            recorded,
        )
    return TrafficCheck(point, lines, run.run_id if run else None)
