"""Published times, memory and rates beside what recorded runs of one GPU say of the same calls.

Another GPU's milliseconds cannot be equal: what is judged is which algorithm is the faster one, how
time and memory grow over N, and how much speed a block mask brings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fa_kernels.measure.paper import PublishedRow, select
from fa_kernels.measure.paper_numbers import (
    ON_CUDA_CORES,
    SPARSE,
    STANDS_FOR,
    PaperNumbers,
    number_for,
)
from fa_kernels.measure.verdict import (
    CLOSE,
    DIFFERS,
    FLASH,
    NOT_COMPARED,
    PYTORCH,
    STANDARD,
    TREND,
    Compared,
    Verdict,
    fit_exponent,
    judge,
    listed,
)
from fa_kernels.units import significant, span

#: Powers of N are fitted from here on: below, launches and idle multiprocessors set the time.
FITTED_FROM = 2048
#: Two powers of N are the same law if they differ by no more than this.
SAME_POWER = 0.25
MISSING = "not measured on this GPU: run `python -m fa_kernels measure --paper`"
_Curve = dict[int, Compared]


def _compared(
    rows: Iterable[PublishedRow], numbers: PaperNumbers, names: dict[str, str] | None = None
) -> tuple[tuple[Compared, ...], tuple[str, ...]]:
    """(rows that have a number here, the runs that hold them)."""
    points, runs = [], []
    for row in rows:
        found = number_for(row, numbers, (names or STANDS_FOR).get(row.algorithm))
        if found is not None:
            points.append(Compared(row, found[0]))
            runs.append(found[1].run_id)
    return tuple(points), tuple(dict.fromkeys(runs))


def _curve(points: Sequence[Compared], algorithm: str) -> _Curve:
    return {p.row.seqlen or 0: p for p in points if p.row.algorithm == algorithm}


def _printed(point: Compared) -> float:
    return point.row.value or 0.0


def _ours(point: Compared) -> float:
    return point.ours


# -- time and memory over N ------------------------------------------------------------------------


def time_table(rows: Sequence[PublishedRow], numbers: PaperNumbers) -> Verdict:
    """One of tables 9-20: which algorithm is the faster one, and how time grows over N."""
    first, (points, runs) = rows[0], _compared(rows, numbers)
    if not points:
        return Verdict(first.source, "latency", NOT_COMPARED, f"{MISSING}.", (), runs)
    said: list[str] = []
    holds: list[bool] = []
    for slow, fast in ((PYTORCH, FLASH), (FLASH, SPARSE)):
        same, words = _speedup(_curve(points, slow), _curve(points, fast), slow, fast)
        holds += same if fast != SPARSE else []
        said += [words] if words else []
    grown, words = _growth(points)
    # The density of our mask was fitted to the printed times: that they agree says nothing.
    holds += [one for algorithm, one in grown.items() if algorithm != SPARSE]
    said += [words] if words else []
    said.append(_absolute(points))
    said.append("FlashAttention here is rung 05, with FlashAttention-2's loop order")
    if first.mask == "key padding":
        said.append("keys were padded there and are not here, because a row cannot say so")
    if any(p.row.algorithm == SPARSE for p in points):
        said.append(
            "the block mask's density is not printed: here min(1/8, 256/N), from the times of "
            "tables 9-17, so block-sparse FlashAttention has no part in the verdict"
        )
    return Verdict(
        first.source, "latency", _trend_word(points, holds), f"{'; '.join(said)}.", points, runs
    )


def table_21_memory(rows: Sequence[PublishedRow], numbers: PaperNumbers) -> Verdict:
    """Table 21 beside the memory of forward and backward here: how it grows over N."""
    of_table = [r for r in select(rows, where="table 21") if r.algorithm in (PYTORCH, FLASH)]
    points, runs = _compared(of_table, numbers)
    about = of_table[0].source
    if not points:
        return Verdict(about, "memory, measured", NOT_COMPARED, f"{MISSING}.", (), runs)
    grown, growth = _growth(points, "memory")
    holds = list(grown.values())
    said = [growth] if growth else []
    ratios = [p.ratio or 0.0 for p in points]
    said.append(
        f"forward and backward with q, k, v and the gradient of out hold {span(ratios)} times "
        "the MB that are printed"
    )
    word = _trend_word(points, holds)
    return Verdict(about, "memory, measured", word, f"{'; '.join(said)}.", points, runs)


def _trend_word(points: Sequence[Compared], holds: Sequence[bool]) -> str:
    """REPRODUCES only as `judge` says; else TREND if there is something to hold and all holds."""
    word = judge(points)
    if word in (TREND, DIFFERS):
        word = TREND if holds and all(holds) else DIFFERS
    return word if holds else NOT_COMPARED


def _speedup(slow: _Curve, fast: _Curve, of: str, by: str) -> tuple[list[bool], str]:
    """(whether the same of two algorithms is faster, N by N; the factors in words)."""
    both = sorted(slow.keys() & fast.keys())
    if not both:
        return [], ""
    printed, ours = ([value(slow[n]) / value(fast[n]) for n in both] for value in (_printed, _ours))
    same = [_same_side(p, o) for p, o in zip(printed, ours, strict=True)]
    words = (
        f"{by} is {span(printed)} times as fast as {of} in print and {span(ours)} times here "
        f"({_over(both)})"
    )
    if not all(same):
        other = ", ".join(str(n) for n, one in zip(both, same, strict=True) if not one)
        words += f", on the other side of 1 at N = {other}"
    return same, words


def _same_side(printed: float, ours: float) -> bool:
    """True if both ratios say that the same one is faster; a tie agrees with either."""
    tie = min(abs(printed - 1.0), abs(ours - 1.0)) <= CLOSE
    return tie or (printed > 1.0) == (ours > 1.0)


def _growth(points: Sequence[Compared], what: str = "time") -> tuple[dict[str, bool], str]:
    """(which algorithms grow alike; the powers of N in words)."""
    same: dict[str, bool] = {}
    parts = []
    for algorithm in dict.fromkeys(p.row.algorithm for p in points):
        curve = {n: p for n, p in _curve(points, algorithm).items() if n >= FITTED_FROM}
        if len(curve) < 2:
            continue
        powers = [
            fit_exponent((float(n), value(point)) for n, point in curve.items())
            for value in (_printed, _ours)
        ]
        same[algorithm] = abs(powers[0] - powers[1]) <= SAME_POWER
        parts.append(f"N^{powers[1]:.2f} for {algorithm} (printed N^{powers[0]:.2f})")
    if not parts:
        return {}, ""
    return same, f"from N = {FITTED_FROM} on {what} grows as {listed(parts)}"


def _absolute(points: Sequence[Compared]) -> str:
    ratios = [p.ratio or 0.0 for p in points]
    return f"the times are {span(ratios)} times those of the {points[0].row.gpu}"


# -- figure 2, left --------------------------------------------------------------------------------


def left_time(rows: Sequence[PublishedRow], numbers: PaperNumbers) -> Verdict:
    """Time of fig. 2 left: FlashAttention over standard, on tensor cores and on CUDA cores."""
    about, (points, runs) = rows[0].source, _compared(rows, numbers)
    by = {point.row.algorithm: point for point in points}
    if set(by) != {STANDARD, FLASH}:
        why = MISSING
        if FLASH in by:
            mine = by[FLASH]
            why = (
                f"forward and backward of FlashAttention take {significant(mine.ours)} ms here "
                f"(printed {significant(_printed(mine))}); standard attention is {MISSING}"
            )
        return Verdict(about, "latency", NOT_COMPARED, f"{why}.", points, runs)
    printed, ours = (value(by[STANDARD]) / value(by[FLASH]) for value in (_printed, _ours))
    why = (
        f"FlashAttention is {significant(ours)} times as fast as standard attention of torch here, "
        f"{significant(printed)} times in print ({_both(by)})"
    )
    cores, more = _compared(rows, numbers, ON_CUDA_CORES)
    slow = {point.row.algorithm: point for point in cores}
    if set(slow) == {STANDARD, FLASH}:
        ratio = slow[STANDARD].ours / slow[FLASH].ours
        why += (
            f"; on CUDA cores alone, Algorithms 1 and 4 against 0 and 3, {significant(ratio)} times"
        )
    word = _trend_word(points, [_same_side(printed, ours)])
    return Verdict(about, "latency", word, f"{why}.", points, tuple(dict.fromkeys((*runs, *more))))


def _both(by: dict[str, Compared]) -> str:
    parts = [f"{significant(p.ours)} ms, printed {significant(_printed(p))}" for p in by.values()]
    return " and ".join(f"{name} {part}" for name, part in zip(by, parts, strict=True))


def left_counted(rows: Sequence[PublishedRow], numbers: PaperNumbers) -> Verdict:
    """Bytes of fig. 2 left, counted in the kernels that are the paper's algorithms: no verdict.

    They are what our tiles ask for before any cache, which is not what the paper counts.
    """
    about, (points, runs) = rows[0].source, _compared(rows, numbers, ON_CUDA_CORES)
    quantity = "hbm, counted"
    if len(points) < len(rows):
        return Verdict(about, quantity, NOT_COMPARED, f"{MISSING}.", points, runs)
    by = {point.row.algorithm: point for point in points}
    parts = [
        f"{significant(p.ours)} GB for {p.row.algorithm} (printed {significant(_printed(p))}, "
        f"ratio {significant(p.ratio or 0.0)})"
        for p in points
    ]
    printed, ours = (value(by[STANDARD]) / value(by[FLASH]) for value in (_printed, _ours))
    why = (
        f"our kernels ask HBM for {listed(parts)}; standard over FlashAttention is "
        f"{significant(ours)}, printed {significant(printed)}; tiles are ours, and products of "
        "matrices read their operands again, which the published count leaves out"
    )
    return Verdict(about, quantity, NOT_COMPARED, f"{why}.", points, runs)


def _over(seqlens: Sequence[int]) -> str:
    if len(seqlens) == 1:
        return f"N = {seqlens[0]}"
    return f"N = {seqlens[0]} to {seqlens[-1]}"
