"""Claim, then check: bytes of backward passes, predicted, counted in NumPy and in the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fa_kernels.figures.backward_cost import READS_P, Cost, costs, given, recorded_in
from fa_kernels.problem import AttentionProblem
from fa_kernels.session import Session
from fa_kernels.traffic.backward_counter import count_backward_traffic
from fa_kernels.traffic.counter import countable
from fa_kernels.units import duration, flops, traffic
from fa_kernels.widgets.recompute_cost import Sizes, fast_times, tiles_words
from fa_kernels.widgets.saved_memory import recorded_backward
from fa_kernels.widgets.text import html_table, labels, text_table

#: Longer sequences keep NumPy busy for minutes.
MAX_SEQLEN = 2048
_COLUMNS = (
    "way", "flops", "predicted", "counted", "ratio", "kernel", "ratio_kernel", "time", "against"
)  # fmt: skip


@dataclass(frozen=True)
class BackwardLine:
    """One way: predicted (`launched`), counted in the NumPy tiles, and what was recorded."""

    cost: Cost
    counted_bytes: int
    base_ms: float | None

    @property
    def predicted_bytes(self) -> int:
        """By the `launched` model."""
        return self.cost.traffic.total_bytes

    @property
    def kernel_bytes(self) -> int | None:
        """Counted in the kernel, or None where that was not recorded."""
        counted = self.cost.counted_bytes
        return None if counted is None else round(counted)

    @property
    def ratio(self) -> float:
        """Counted in NumPy over predicted: 1 when the model is right."""
        return self.counted_bytes / self.predicted_bytes


@dataclass(frozen=True)
class BackwardCheck:
    """One line per way, shown as a table."""

    problem: AttentionProblem
    lines: Sequence[BackwardLine]
    #: Those that the times and the kernels' counts come from.
    run_ids: Sequence[str]

    @property
    def ok(self) -> bool:
        """True if all counts equal the model to the byte."""
        return all(
            line.counted_bytes == line.predicted_bytes
            and line.kernel_bytes in (None, line.predicted_bytes)
            for line in self.lines
        )

    def cells(self) -> list[list[str]]:
        """The table as text: a row of heads, then one row per way."""
        text = labels("backward_check")
        ways = labels("recompute_cost")["ways"]
        rows = [[str(text[name]) for name in _COLUMNS]]
        for line in self.lines:
            kernel, ms = line.kernel_bytes, line.cost.backward_ms
            row = [ways[line.cost.way.key], flops(line.cost.flops)]
            row += [traffic(n) for n in (line.predicted_bytes, line.counted_bytes)]
            row.append(f"{line.ratio:.6f}")
            if kernel is None:
                row += [text["not_recorded"], ""]
            else:
                row += [traffic(kernel), f"{kernel / line.predicted_bytes:.6f}"]
            row.append(duration(ms) if ms else text["not_recorded"])
            rows.append([*row, f"{ms / line.base_ms:.3f}" if ms and line.base_ms else ""])
        return rows

    def caption(self) -> str:
        """What was counted, where the recorded numbers are from, and the verdict."""
        text = labels("backward_check")
        runs = ", ".join(self.run_ids)
        source = text["source"].format(run=runs) if runs else text["no_source"]
        verdict = text["holds" if self.ok else "fails"]
        return str(text["caption"]).format(
            problem=self.problem.describe(), source=source, verdict=verdict,
            tiles=tiles_words([line.cost for line in self.lines]),
        )  # fmt: skip

    def __str__(self) -> str:
        return text_table(self.caption(), self.cells())

    def _repr_html_(self) -> str:
        head, *body = self.cells()
        return html_table(
            "backward-check", self.caption(), head, body, "falab-table falab-dense falab-ways"
        )


def counted_bytes(cost: Cost) -> int:
    """Run the way's NumPy specification tile by tile on one head and count; then for all heads."""
    at, backward = cost.at, cost.at.variant.backward
    assert backward is not None
    options: dict[str, object] = dict(given(cost.way))
    if cost.way == READS_P:
        sizes = (1, 1, at.problem.seqlen_q, at.problem.seqlen_k)
        options = {"p": np.zeros(sizes, countable(at.problem.dtype))}
    with np.errstate(all="ignore"):  # the values do not matter
        counted = count_backward_traffic(backward.reference, at.problem, at.tiling, **options)
    return counted.total_bytes


def check_backward(
    N: int = 512,
    d: int = 64,
    *,
    dtype: str = "fp16",
    device: str | None = None,
    session: Session | None = None,
) -> BackwardCheck:
    """Count the bytes of every backward pass in NumPy and hold them against the models.

    Beside them what the kernels counted and the time they took, where a run holds them.

    Args:
        N, d, dtype: as `recompute_cost`; N at most 2048, because NumPy executes every tile.
        device, session: as `traffic_ways`.

    Raises:
        ValueError: a bad value; value, limit and remedy.
        TypeError: `session` is not one.
    """
    sizes = Sizes.of(N, d, dtype)
    if sizes.N > MAX_SEQLEN:
        text = labels("check")["too_long"]
        raise ValueError(text.format(seqlen=sizes.N, limit=MAX_SEQLEN))
    sheet, runs = recorded_backward(device, session)
    fast = fast_times(sheet, session)
    found = costs(sizes.problem, sheet, runs, fast)
    base = found[0].backward_ms
    lines = [BackwardLine(cost, counted_bytes(cost), base) for cost in found]
    return BackwardCheck(sizes.problem, lines, recorded_in(found, runs, fast))
