"""Every published table and figure we hold numbers of: what is printed, ours, and the verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fa_kernels.device import Device
from fa_kernels.measure import paper_figures
from fa_kernels.measure.paper import PublishedRow, load_paper, select
from fa_kernels.measure.paper_bytes import (
    BY_HARDWARE,
    LEVELS,
    Moved,
    left_bytes,
    left_counters,
    right_bytes,
    right_moved,
)
from fa_kernels.measure.paper_calls import SPARSE_IN_FIGURE, TIME_TABLES
from fa_kernels.measure.paper_figures import PASS_WORDS
from fa_kernels.measure.paper_numbers import (
    ON_CUDA_CORES,
    SPARSE,
    STANDS_FOR,
    PaperNumbers,
    number_for,
    why_not,
)
from fa_kernels.measure.paper_verdicts import left_counted, left_time, table_21_memory, time_table
from fa_kernels.measure.verdict import Verdict, left_flops, left_hbm, middle_hbm, table_21
from fa_kernels.problem import SHORT_DTYPE
from fa_kernels.variants import FAST

#: Series that are shown beside those that stand for a published one, where they were measured.
BESIDE = ("standard_tiled", "torch_flash", "torch_cudnn")


@dataclass(frozen=True)
class Line:
    """One series of a result: (x, value) in the unit of the result.

    `algorithm` is what the paper calls it, "" for a series of ours that stands for none. `level`
    is one of `paper_bytes.LEVELS`, if the line is of bytes that are known in several ways. `series`
    is a variant or provider; of a published line that of its stand-in, "" if it has none. `absent`
    says where a call was recorded without a number, and why: (x, "does not fit").
    """

    algorithm: str
    series: str
    published: bool
    points: tuple[tuple[float, float], ...]
    absent: tuple[tuple[float, str], ...] = ()
    level: str = ""

    @property
    def by_x(self) -> Mapping[float, float]:
        """x -> value."""
        return dict(self.points)


@dataclass(frozen=True)
class Dot:
    """One number of a result that is no curve: printed or read off, and ours; None: there is none.

    `name` is a variant's or provider's, or an algorithm's as printed; `about` the version, GPU or
    mask that it belongs to. `beside` are bytes by hardware counters: ("dram", 1.9).
    """

    name: str
    about: str
    printed: float | None
    ours: float | None
    series: str
    beside: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Result:
    """A table or figure: either `lines` over `axis` ("N" or "s"), or `dots`; and its verdicts.

    `moved`: of bytes, how they are known, pass by pass.
    """

    key: str
    title: str
    gpu: str
    quantity: str
    unit: str
    axis: str
    lines: tuple[Line, ...]
    dots: tuple[Dot, ...]
    verdicts: tuple[Verdict, ...]
    moved: tuple[Moved, ...] = ()

    @property
    def runs(self) -> tuple[str, ...]:
        """The recorded runs that hold our numbers."""
        return tuple(dict.fromkeys(run for verdict in self.verdicts for run in verdict.runs))


_Rows = Sequence[PublishedRow]
_Builder = Callable[[_Rows, PaperNumbers, Device], Result]


def result(
    key: str, numbers: PaperNumbers, device: Device, rows: Sequence[PublishedRow] | None = None
) -> Result:
    """One of `RESULTS`.

    Raises:
        ValueError: no such table or figure; the message lists those there are.
    """
    if key not in RESULTS:
        raise ValueError(f"result = {key!r} is not known: use one of {', '.join(RESULTS)}.")
    return RESULTS[key](load_paper() if rows is None else rows, numbers, device)


def all_verdicts(
    numbers: PaperNumbers, device: Device, rows: Sequence[PublishedRow] | None = None
) -> tuple[Verdict, ...]:
    """Every verdict, paper by paper; those of figures without a whole curve, too."""
    rows = load_paper() if rows is None else rows
    found = [v for key in RESULTS for v in RESULTS[key](rows, numbers, device).verdicts]
    middle = _of(rows, "FlashAttention", "fig. 2 middle")
    found += [middle_hbm(middle), paper_figures.middle(middle, numbers)]
    speedup = _of(rows, "FlashAttention", "fig. 1 right")
    errors = _of(rows, "FlashAttention-3", "table 3")
    for some, quantity in ((speedup, "speedup"), (errors, "error against float64")):
        found.append(paper_figures.not_stated(some, quantity))
    order = {name: i for i, name in enumerate(dict.fromkeys(row.paper for row in rows))}
    return tuple(sorted(found, key=lambda v: order[v.about.split(" (arXiv")[0]]))


def version_words(version: str) -> str:
    """ "version 2022-06", or "another version" where we hold no date of it."""
    return "another version" if version == "another" else f"version {version}"


def _of(rows: _Rows, paper: str, where: str) -> tuple[PublishedRow, ...]:
    found = select(rows, paper=paper, where=where)
    if not found:
        raise ValueError(f"there are no published rows of {paper}, {where}: pass load_paper().")
    return found


def _lines(rows: _Rows, numbers: PaperNumbers) -> tuple[Line, ...]:
    """Printed and ours of every algorithm over N, then what else was measured of the same calls.

    Ours go on where a printed column ends, and say where they end themselves.
    """
    columns = {
        name: select(rows, algorithm=name) for name in dict.fromkeys(r.algorithm for r in rows)
    }
    longest = max((some for name, some in columns.items() if name != SPARSE), key=len)
    found = []
    for algorithm, some in columns.items():
        name = STANDS_FOR.get(algorithm, "")
        printed = [(float(r.seqlen or 0), r.value) for r in some if r.value is not None]
        found.append(Line(algorithm, name, True, tuple(printed)))
        calls = some if algorithm == SPARSE else longest
        found.append(_measured(calls, numbers, name, algorithm))
    found += [_measured(longest, numbers, name) for name in BESIDE]
    return tuple(line for line in found if line.points)


def _measured(rows: _Rows, numbers: PaperNumbers, series: str, algorithm: str = "") -> Line:
    points, absent = [], []
    for row in rows if series else ():
        found, n = number_for(row, numbers, series), float(row.seqlen or 0)
        if found is not None:
            points.append((n, found[0]))
        elif why := why_not(row, numbers, series):
            absent.append((n, why))
    return Line(algorithm, series, False, tuple(points), tuple(absent))


def _time_table(where: str) -> _Builder:
    def build(rows: _Rows, numbers: PaperNumbers, device: Device) -> Result:
        some = _of(rows, "FlashAttention", where)
        first = some[0]
        dropout = f"dropout {first.dropout_p:g}" if first.dropout_p else "no dropout"
        mask = "keys padded in print" if first.mask == "key padding" else "no mask"
        title = f"{first.paper}, {where}: {PASS_WORDS[first.pass_]}, {dropout}, {mask}"
        return Result(
            where, title, first.gpu, "time", first.unit, "N", _lines(some, numbers), (),
            (time_table(some, numbers),),
        )  # fmt: skip

    return build


def _memory_table(rows: _Rows, numbers: PaperNumbers, device: Device) -> Result:
    some = _of(rows, "FlashAttention", "table 21")
    title = f"{some[0].paper}, table 21: memory of forward and backward"
    found = (table_21(some), table_21_memory(some, numbers))
    return Result(
        "table 21", title, some[0].gpu, "memory", some[0].unit, "N", _lines(some, numbers), (),
        found,
    )  # fmt: skip


def _left(metric: str, key: str, quantity: str) -> _Builder:
    names = ON_CUDA_CORES if metric == "hbm" else STANDS_FOR

    def build(rows: _Rows, numbers: PaperNumbers, device: Device) -> Result:
        left = _of(rows, "FlashAttention", "fig. 2 left")
        some, dots, verdicts = select(left, metric=metric), [], []
        for version in dict.fromkeys(row.version for row in some):
            of_version = select(some, version=version)
            for row in of_version:
                found, name = number_for(row, numbers, names[row.algorithm]), names[row.algorithm]
                ours = found[0] if found else None
                dots.append(Dot(row.algorithm, version_words(version), row.value, ours, name))
            if metric == "hbm":
                verdicts += [left_hbm(of_version), left_counted(of_version, numbers)]
            else:
                verdicts.append(left_time(of_version, numbers))
        dots += _left_beside(some, numbers, names)
        moved: tuple[Moved, ...] = ()
        if metric == "hbm":
            moved = left_bytes(numbers, device)
            dots = _with_counters(dots, moved)
            verdicts.append(left_counters(some, numbers, device))
            verdicts.append(left_flops(select(left, metric="flops")))
        title = f"{some[0].paper}, fig. 2 left: {quantity} of forward and backward"
        return Result(
            key, title, some[0].gpu, quantity, some[0].unit, "", (), tuple(dots), tuple(verdicts),
            moved,
        )  # fmt: skip

    return build


def _left_beside(rows: _Rows, numbers: PaperNumbers, shown: Mapping[str, str]) -> list[Dot]:
    """Everybody else who computed the call, standard attention first."""
    standard, flash = (select(rows, algorithm=name)[0] for name in ("standard", "FlashAttention"))
    others = [(standard, name) for name in ("standard_tiled", "torch_eager")]
    kernels = ("flash_kv_outer", "flash_q_outer", "flash_mma", "torch_flash", "torch_cudnn")
    others += [(flash, name) for name in kernels]
    found = []
    for row, name in others:
        number = number_for(row, numbers, name)
        if number is not None and shown[row.algorithm] != name:
            found.append(Dot(name, "", None, number[0], name))
    return found


def _right(rows: _Rows, numbers: PaperNumbers, device: Device) -> Result:
    some = _of(rows, "FlashAttention", "fig. 2 right")
    lines = []
    for series in SPARSE_IN_FIGURE:
        curve = paper_figures.sparse_curve(series, numbers)
        points = tuple((s, number.value) for s, number in curve)
        lines += [Line("", series, False, points)] if points else []
    title = f"{some[0].paper}, fig. 2 right: block-sparse, forward and backward"
    return Result(
        "fig. 2 right", title, some[0].gpu, "time", "ms", "s", tuple(lines), (),
        (paper_figures.right(some, numbers),),
    )  # fmt: skip


def _with_counters(dots: Sequence[Dot], moved: Sequence[Moved]) -> list[Dot]:
    """Rows with what hardware counters say, once for each series; rows of who has that alone."""
    read = {
        one.series: tuple((name, one.by_level[name] / 1e9) for name in BY_HARDWARE)
        for one in moved
        if one.pass_ == "both" and all(name in one.by_level for name in BY_HARDWARE)
    }
    found = [replace(dot, beside=read.pop(dot.series, ())) for dot in dots]
    return found + [Dot(name, "", None, None, name, beside) for name, beside in read.items()]


def _right_bytes(rows: _Rows, numbers: PaperNumbers, device: Device) -> Result:
    some = _of(rows, "FlashAttention", "fig. 2 right")
    found, lines = right_bytes(numbers, device), []
    for series in SPARSE_IN_FIGURE:
        mine = [one for one in found if one.series == series]
        for level in LEVELS:
            known = [(m.kept, m.by_level[level] / 1e9) for m in mine if level in m.by_level]
            lines += [Line("", series, False, tuple(known), level=level)] if known else []
    title = f"{some[0].paper}, fig. 2 right: bytes of forward and backward"
    return Result(
        "fig. 2 right, bytes", title, "", "bytes", "GB", "s", tuple(lines), (),
        (right_moved(some, numbers, device),), found,
    )  # fmt: skip


def _fa2(rows: _Rows, numbers: PaperNumbers, device: Device) -> Result:
    some = _of(rows, "FlashAttention-2", "figs. 4-7")
    dots = [Dot(row.algorithm, row.gpu, row.value, None, STANDS_FOR[row.algorithm]) for row in some]
    for series in ("torch_flash", *FAST, "torch_cudnn"):
        rates = [paper_figures.tflops(n) for n in paper_figures.grid_rates(series, numbers)]
        if rates:
            dots.append(Dot(series, "", None, max(rates), series))
    title = f"{some[0].paper}, figs. 4-7: the highest rate of the grid"
    verdict = paper_figures.fa2_rates(some, numbers, device)
    return Result(
        "FA2 figs. 4-7", title, _gpus(some), "rate", some[0].unit, "", (), tuple(dots), (verdict,)
    )  # fmt: skip


def _fa3(rows: _Rows, numbers: PaperNumbers, device: Device) -> Result:
    some = _of(rows, "FlashAttention-3", "figs. 5-7")
    dots = []
    for row in some:
        number = paper_figures.fa3_number(row, numbers)
        ours = paper_figures.tflops(number) if number else None
        mask = "causal" if row.causal == "causal" else "no mask"
        other = paper_figures.other_dtype(row, number) if number else ""
        series = STANDS_FOR.get(row.algorithm, "")
        about = f"{mask}, here{other.removeprefix(' in')}" if other else mask
        dots.append(Dot(row.algorithm, about, row.value, ours, series))
        for rung, _ in paper_figures.rungs_beside(row, number, numbers) if number else ():
            name, rate = rung.row.series, paper_figures.tflops(rung)
            about = f"{mask} in {SHORT_DTYPE[rung.row.dtype]}"
            dots.append(Dot(name, about, None, rate, name))
    first = some[0]
    title = f"{first.paper}, figs. 5-7: forward, N = {first.seqlen}, d = {first.head_dim}"
    verdict = paper_figures.fa3_rates(some, numbers)
    return Result(
        "FA3 figs. 5-7", title, _gpus(some), "rate", first.unit, "", (), tuple(dots), (verdict,)
    )


def _gpus(rows: _Rows) -> str:
    return " and ".join(dict.fromkeys(row.gpu for row in rows))


#: Table or figure -> what builds its result; a page offers them in this order.
RESULTS: Mapping[str, _Builder] = {
    "fig. 2 left": _left("latency", "fig. 2 left", "time"),
    "fig. 2 left, bytes": _left("hbm", "fig. 2 left, bytes", "HBM bytes"),
    "fig. 2 right": _right,
    "fig. 2 right, bytes": _right_bytes,
    **{where: _time_table(where) for where in TIME_TABLES},
    "table 21": _memory_table,
    "FA2 figs. 4-7": _fa2,
    "FA3 figs. 5-7": _fa3,
}
