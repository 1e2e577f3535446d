"""Keep P, compute the forward again, or rebuild P inside the kernel: three ways to pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fa_kernels.device import Device
from fa_kernels.figures.backward_cost import (
    DETERMINISTIC,
    FORWARD_PRODUCTS,
    READS_P,
    REBUILDS,
    Cost,
    faster_at,
    flops_of,
)
from fa_kernels.figures.point import ratio_text
from fa_kernels.session import Session
from fa_kernels.units import capacity, duration, flops, span, traffic
from fa_kernels.widgets.recompute_cost import Sizes
from fa_kernels.widgets.saved_memory import recorded_backward
from fa_kernels.widgets.text import html_table, labels, text_table

_COLUMNS = ("strategy", "kept", "peak", "products", "flops", "bytes", "time", "ratio")


@dataclass(frozen=True)
class Strategy:
    """A training step: forward, what is kept meanwhile, backward.

    `forwards` is 2 where the whole forward is computed once more before the backward.
    """

    key: str
    cost: Cost
    kept_bytes: int
    forwards: int = 1

    @property
    def products(self) -> int:
        """Products of matrices in all passes."""
        return self.forwards * FORWARD_PRODUCTS + self.cost.way.products

    @property
    def flops(self) -> int:
        """Their FLOPs over the attended pairs."""
        return flops_of(self.products, self.cost.at.problem)

    @property
    def moved_bytes(self) -> int:
        """HBM bytes of all passes, launched model."""
        forward = self.cost.forward_traffic.total_bytes
        return self.forwards * forward + self.cost.traffic.total_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that the step holds beside its inputs. A P computed again is held as well."""
        return self.cost.at.variant.step_bytes(self.cost.at.problem)

    @property
    def ms(self) -> float | None:
        """Sum of the recorded times of its passes, or None."""
        if self.cost.forward_ms is None or self.cost.backward_ms is None:
            return None
        return self.forwards * self.cost.forward_ms + self.cost.backward_ms


@dataclass(frozen=True)
class Checkpointing:
    """One line per strategy, shown as a table."""

    strategies: Sequence[Strategy]
    device: Device
    run_id: str | None
    #: (N, time of rebuilding P over time of reading it) of the recorded N.
    faster: Sequence[tuple[int, float]]

    def cells(self) -> list[list[str]]:
        """The table as text: a row of heads, then one row per strategy."""
        text = labels("checkpointing")
        rows, base = [[str(text[name]) for name in _COLUMNS]], self.strategies[0].ms
        for one in self.strategies:
            row = [text["strategies"][one.key], capacity(one.kept_bytes), capacity(one.peak_bytes)]
            row += [str(one.products), flops(one.flops), traffic(one.moved_bytes)]
            row.append(duration(one.ms) if one.ms else text["not_recorded"])
            rows.append([*row, f"{one.ms / base:.2f}" if one.ms and base else ""])
        return rows

    def caption(self) -> str:
        """The point, where times are from, and what they say."""
        text = labels("checkpointing")
        problem, timed = self.strategies[0].cost.at.problem, self.strategies[0].ms is not None
        source = text["source"].format(run=self.run_id) if timed else text["no_source"]
        return str(text["caption"]).format(
            problem=problem.describe(), device=self.device.name, source=source, said=self.verdict()
        )

    def verdict(self) -> str:
        """Where the recorded backward that rebuilds P is faster, and which limit that is about."""
        text, reads = labels("checkpointing"), self.strategies[0].cost
        binds = text["bytes_bind" if reads.bytes_ms > reads.arithmetic_ms else "arithmetic_binds"]
        binds = binds.format(
            bytes=duration(reads.bytes_ms), arithmetic=duration(reads.arithmetic_ms)
        )
        if not self.faster:
            return f"{text['said_nothing']} {binds}"
        ratios = [ratio for _, ratio in self.faster]
        quick = [str(n) for n, ratio in self.faster if ratio < 1]
        said = text["said"].format(
            count=len(ratios), ratios=span(ratios, ratio_text),
            where=text["faster"].format(ns=", ".join(quick)) if quick else text["never_faster"],
        )  # fmt: skip
        return f"{said} {binds}"

    def __str__(self) -> str:
        return text_table(self.caption(), self.cells())

    def _repr_html_(self) -> str:
        head, *body = self.cells()
        return html_table(
            "checkpointing", self.caption(), head, body, "falab-table falab-dense falab-ways"
        )


def checkpointing(
    N: int = 4096,
    d: int = 64,
    *,
    dtype: str = "fp16",
    device: str | None = None,
    session: Session | None = None,
) -> Checkpointing:
    """A training step of attention in four ways: keep P, checkpoint it, rebuild it in the kernel.

    Gradient checkpointing keeps nothing but the inputs and computes the forward once more; its
    time is the sum of recorded passes.

    Args and errors as `recompute_cost`.
    """
    sheet, runs = recorded_backward(device, session)
    problem = Sizes.of(N, d, dtype).problem
    reads, rebuilds, own_dq = (
        Cost.of(way, problem, sheet, runs) for way in (READS_P, REBUILDS, DETERMINISTIC)
    )

    def kept(cost: Cost) -> int:
        backward = cost.at.variant.backward
        assert backward is not None
        return backward.saved_bytes(problem)

    found = [
        Strategy("keep", reads, kept(reads)),
        Strategy("again", reads, 0, forwards=2),
        Strategy("rebuild", rebuilds, kept(rebuilds)),
        Strategy("rebuild_twice", own_dq, kept(own_dq)),
    ]
    return Checkpointing(found, sheet, runs.run_id, faster_at(problem, sheet, runs))
