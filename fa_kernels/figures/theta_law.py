"""The Θ laws as slopes: by what power of N, d, M (and s) HBM bytes grow around one point.

Laws of FlashAttention (section 3): Θ(Nd + N²) standard, Θ(N² d² / M) flash, Θ(Nd + N² d² s / M)
block-sparse flash, per (batch, head). M enters the models through whole tiles, B_c = ceil(M / 4d)
and B_r = min(B_c, d), so slopes are near the laws' exponents and not equal to them; and with Q
tiles outside it is B_r that saves bytes, Θ(N² d / B_r): once B_r has reached d, a larger M saves
nothing. What DRAM delivers is another quantity, with slopes of its own: the L2 answers re-reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fa_kernels.figures.point import Point, device_words
from fa_kernels.figures.recorded import RecordedRun
from fa_kernels.figures.recorded_numbers import RecordedNumbers
from fa_kernels.measure.verdict import fit_exponent
from fa_kernels.problem import MAX_HEAD_DIM, MAX_SEQLEN, SHORT_DTYPE
from fa_kernels.tiling import MAX_SRAM_BYTES
from fa_kernels.units import KIB
from fa_kernels.variants import ALGORITHMS, Variant

#: By what each quantity is multiplied to get the points of its fit.
_STEPS: Mapping[str, tuple[float, ...]] = {
    "N": (1 / 4, 1 / 2, 1, 2, 4),
    "d": (1 / 2, 1, 2),
    "M": (1 / 2, 1, 2),
    "s": (1 / 2, 1, 2),
}
#: The same for hardware counters, which were read at fewer points, further apart.
_WIDE_STEPS: Mapping[str, tuple[float, ...]] = {
    "N": (1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8),
    "d": (1 / 2, 1, 2),
    "M": (1 / 12, 1 / 4, 1 / 3, 1, 3, 4, 12),
}


@dataclass(frozen=True)
class Slope:
    """Least-squares slope of log(bytes) over log(quantity), and the values it was taken at."""

    exponent: float
    values: tuple[float, ...]


@dataclass(frozen=True)
class Growth:
    """How one variant's bytes per (batch, head) grow: quantity -> slope, from four sources.

    `counted` holds what the recorded kernels counted, at those of the same points that were
    recorded; a quantity with fewer than two of them is not in it. `dram` likewise holds what
    hardware counters say that DRAM delivered and took: no HBM bytes of an algorithm, but what the
    L2 left of them.
    """

    label: str
    law: str
    paper: Mapping[str, Slope]
    launched: Mapping[str, Slope]
    counted: Mapping[str, Slope]
    dram: Mapping[str, Slope] = field(default_factory=dict)


@dataclass(frozen=True)
class ThetaLaw:
    """The growth of every algorithm around `point`."""

    point: Point
    lines: Mapping[str, Growth]
    run_id: str | None
    counters_id: str | None = None

    @property
    def ranges(self) -> str:
        """Over what the slopes were taken: "N from 1024 to 16384, d from 32 to 128, ..."."""
        said = []
        for quantity in quantities(self.point):
            values = [_value(p, quantity) for p in around(self.point, quantity)]
            unit, digits = " KiB" if quantity == "M" else "", ".3g" if quantity == "s" else "g"
            said.append(f"{quantity} {min(values):{digits}} to {max(values):{digits}}{unit}")
        return ", ".join(said)

    @property
    def note(self) -> str:
        """From which d on the launched tiles of flash grow with M; M counts elements."""
        point = self.point
        limit = math.sqrt(point.sram_bytes / point.problem.itemsize / 4)
        return (
            f"B_r = min(M / 4d, d): here d up to d = {limit:.0f}, where a larger M saves flash "
            "nothing; beyond it M / 4d."
        )

    @property
    def where(self) -> str:
        """The point in words."""
        point = self.point
        sizes = f"N = {point.seqlen}, d = {point.problem.head_dim}, M = {point.sram_kib} KiB"
        words = f", {point.sparse_words()}" if point.blocks else ""
        name = device_words(point.device)
        return f"{sizes}, {SHORT_DTYPE[point.problem.dtype]}{words}, {name}"


def theta_law(
    point: Point, run: RecordedRun | None = None, counters: Sequence[RecordedNumbers] = ()
) -> ThetaLaw:
    """Fit all slopes around `point`; `run` supplies the counted bytes where it has the rows.

    `counters`: runs of hardware counters, one each; the one with the most points around this one
    gives all slopes of DRAM. They are dense, and so are none of them beside a pattern.
    """
    chosen = max(counters, key=lambda one: _points_of(one, point), default=None)
    if chosen is not None and (point.blocks or not _points_of(chosen, point)):
        chosen = None
    lines = {
        name: _growth(name, variant, point, run, chosen) for name, variant in ALGORITHMS.items()
    }
    counted = any(line.counted for line in lines.values())
    read = chosen is not None and any(line.dram for line in lines.values())
    return ThetaLaw(
        point,
        lines,
        run.run_id if run is not None and counted else None,
        chosen.run_ids[0] if chosen is not None and read else None,
    )


def _points_of(numbers: RecordedNumbers, point: Point) -> int:
    """How many points around this one the run has DRAM bytes of."""
    found = (_dram(name, numbers, p) for q in _WIDE_STEPS for p in around(point, q, _WIDE_STEPS)
             for name in ALGORITHMS)  # fmt: skip
    return sum(nbytes is not None for nbytes in found)


def _dram(name: str, numbers: RecordedNumbers, at: Point) -> float | None:
    """DRAM bytes of a call with what it left in the L2 to be written."""
    moved, left = (
        numbers.find(name, at.problem, at.tiling, metric)
        for metric in ("dram_bytes", "dram_writeback_bytes")
    )
    return moved.value + left.value if moved and left else None


def quantities(point: Point) -> tuple[str, ...]:
    """What is varied: N, d and M, and s where the point is block-sparse."""
    return ("N", "d", "M", "s") if point.blocks else ("N", "d", "M")


def around(
    point: Point, quantity: str, steps: Mapping[str, Sequence[float]] = _STEPS
) -> list[Point]:
    """The points of one fit: `point` with one quantity halved, doubled and so on, if allowed.

    Masks that would keep a dragged knob waiting are left out, as those are that cannot be.
    """
    found = {}
    for factor in steps[quantity]:
        moved = _moved(point, quantity, factor)
        blocks = moved.blocks if moved is not None else None
        slow = blocks is not None and (blocks.refusal or not blocks.counted_at_once)
        if moved is not None and not (slow and factor != 1):
            found[_value(moved, quantity)] = moved
    return [found[value] for value in sorted(found)]


def _moved(point: Point, quantity: str, factor: float) -> Point | None:
    n, d, m = point.seqlen, point.problem.head_dim, point.sram_bytes
    if quantity == "s":
        asked = factor * point.density
        return replace(point, density=asked) if asked <= 1.0 else None
    sizes = {"N": n, "d": d, "M": m}
    sizes[quantity] = math.floor(sizes[quantity] * factor + 1e-9)  # a third of 192 KiB is 64
    most = {"N": MAX_SEQLEN, "d": MAX_HEAD_DIM, "M": MAX_SRAM_BYTES}[quantity]
    if not 1 <= sizes[quantity] <= most:
        return None
    return point.with_sizes(sizes["N"], sizes["d"], sizes["M"])


def _value(point: Point, quantity: str) -> float:
    return {
        "N": point.seqlen,
        "d": point.problem.head_dim,
        "M": point.sram_bytes / KIB,
        "s": point.blocks.density if point.blocks else 1.0,
    }[quantity]


def _growth(
    name: str,
    variant: Variant,
    point: Point,
    run: RecordedRun | None,
    counters: RecordedNumbers | None,
) -> Growth:
    def counted(at: Point) -> float | None:
        row = run.row(name, at, "hbm_bytes") if run is not None else None
        return row.median if row is not None else None

    # A kernel without tiles is the same at every M, recorded or not.
    wide = _WIDE_STEPS if variant.tiled else {**_WIDE_STEPS, "M": _STEPS["M"]}
    return Growth(
        variant.label,
        law(variant, point),
        _slopes(point, lambda at: at.paper_traffic(variant).total_bytes),
        _slopes(point, lambda at: at.traffic(variant).total_bytes),
        _slopes(point, counted) if run is not None else {},
        _slopes(point, lambda at: _dram(name, counters, at), wide) if counters else {},
    )


def _slopes(
    point: Point,
    nbytes: Callable[[Point], float | None],
    steps: Mapping[str, Sequence[float]] = _STEPS,
) -> dict[str, Slope]:
    found = {}
    for quantity in quantities(point):
        points = [(_value(p, quantity), p, nbytes(p)) for p in around(point, quantity, steps)]
        # Batch and heads follow N and d so that the tokens stay the same: divide them out.
        pairs = [(x, b / p.problem.heads) for x, p, b in points if b]
        if len(pairs) >= 2:
            found[quantity] = Slope(fit_exponent(pairs), tuple(x for x, _ in pairs))
    return found


def law(variant: Variant, point: Point) -> str:
    """What the paper says of the variant's bytes, as plain text: "N² d² / M"."""
    if not (point.blocks and variant.block_sparse):
        return variant.law
    return f"N d + {variant.law.replace(' /', ' s /')}"


def exponents(slopes: Mapping[str, Slope], digits: int = 2) -> str:
    """Slopes as text: "N^1.98 d^0.02 M^0.00"; empty where there are none."""
    return " ".join(f"{name}^{_signed(one.exponent, digits)}" for name, one in slopes.items())


def _signed(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    if not text.strip("-0."):
        text = text.lstrip("-")  # no "-0.00"
    return text.replace("-", "−")
