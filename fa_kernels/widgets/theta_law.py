"""The Θ laws as a table: slopes of both models and of the recorded counts around one point."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from fa_kernels.figures.recorded import RecordedRuns
from fa_kernels.figures.recorded_numbers import RecordedNumbers
from fa_kernels.figures.theta_law import Growth, Slope, ThetaLaw, exponents
from fa_kernels.figures.theta_law import theta_law as fit
from fa_kernels.session import Session, in_use
from fa_kernels.widgets.explorer_point import opening_settings, point_of
from fa_kernels.widgets.text import html_table, labels, text_table

_POWER = re.compile(r"\^(−?\d+\.\d+)")


@dataclass(frozen=True)
class ThetaTable:
    """One line per algorithm; `values` holds the numbers.

    `table.lines["flash_kv_outer"].paper["M"].exponent` is one slope, `.values` where it was taken.
    """

    values: ThetaLaw

    @property
    def lines(self) -> Mapping[str, Growth]:
        """Growth of every algorithm, by variant name."""
        return self.values.lines

    def cells(self) -> list[list[str]]:
        """The table as text: a row of heads, then one row per algorithm."""
        text = labels("theta")
        heads = [str(text[name]) for name in ("variant", "law", "paper", "launched")]
        if self.values.run_id:
            heads.append(str(text["counted"]).format(run_id=self.values.run_id))
        if self.values.counters_id:
            heads.append(str(text["dram"]).format(run_id=self.values.counters_id))
        rows = [heads]
        for line in self.lines.values():
            row = [line.label, line.law, exponents(line.paper), exponents(line.launched)]
            if self.values.run_id:
                row.append(_recorded(line, line.counted) or str(text["not_recorded"]))
            if self.values.counters_id:
                row.append(_recorded(line, line.dram) or str(text["not_recorded"]))
            rows.append(row)
        return rows

    def caption(self) -> str:
        """Where the slopes were taken, in words."""
        return str(labels("theta")["caption"]).format(
            where=self.values.where, ranges=self.values.ranges, note=self.values.note
        )

    def html(self, css: str = "") -> str:
        """The table for a page, with exponents raised."""
        head, *body = self.cells()
        plain = html_table("theta", self.caption(), head, body, css)
        plain = plain.replace("B_r", "B<sub>r</sub>")
        return _POWER.sub(r"<sup>\1</sup>", plain)

    def __str__(self) -> str:
        return text_table(self.caption(), self.cells())

    def _repr_html_(self) -> str:
        return self.html("falab-table falab-dense falab-theta")


def _recorded(line: Growth, slopes: Mapping[str, Slope]) -> str:
    """Recorded slopes; where other points were recorded than modelled, between which."""

    def said(name: str, slope: Slope) -> str:
        text = exponents({name: slope})
        if slope.values == line.launched[name].values:
            return text
        return f"{text} ({min(slope.values):g} to {max(slope.values):g})"

    return " ".join(said(name, slope) for name, slope in slopes.items())


def theta_law(
    N: int = 4096,
    d: int = 64,
    M_kib: int | None = None,
    *,
    dtype: str = "fp16",
    device: str | None = None,
    pattern: str = "dense",
    density: float = 1 / 4,
    session: Session | None = None,
) -> ThetaTable:
    """By what powers of N, d and M the HBM bytes of each algorithm grow around one point.

    Slopes of log(bytes per head) fitted over N / 4 to 4 N, d / 2 to 2 d and M / 2 to 2 M (with a
    pattern also s / 2 to 2 s), beside the laws Θ(Nd + N²), Θ(N² d² / M) and
    Θ(Nd + N² d² s / M): in the paper's model, in the model of what is launched, and in what the
    recorded kernels counted, where a run has the rows; and of the bytes that DRAM delivered and
    took, by hardware counters, where these were read.

    Args and errors as `explorer`.

    Returns:
        A table; `.lines[variant].paper[quantity].exponent` (also `.launched`, `.counted`) are its
        numbers, `quantity` one of "N", "d", "M", "s"; `.dram` holds slopes of DRAM bytes.
    """
    used = in_use(session)
    settings = opening_settings(used, N, d, M_kib, dtype, device, "log", pattern, density)
    point = point_of(settings)
    run = RecordedRuns(used.run, used.root).on(point.device)
    return ThetaTable(fit(point, run, RecordedNumbers.of_counters(point.device, used.root)))
