"""Figures of the papers that are curves over blocks, density or N: what this GPU says of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fa_kernels.device import Device
from fa_kernels.device import device as find_device
from fa_kernels.masks import matmul_flops
from fa_kernels.measure.baselines import BASELINES
from fa_kernels.measure.paper import PublishedRow
from fa_kernels.measure.paper_calls import (
    FIG2_LEFT,
    MIDDLE_BLOCK_M,
    RIGHT_DENSITIES,
    SPARSE_IN_FIGURE,
    figure_2_right,
    masked,
)
from fa_kernels.measure.paper_numbers import STANDS_FOR, Number, PaperNumbers
from fa_kernels.measure.paper_verdicts import MISSING
from fa_kernels.measure.speed_run import problems
from fa_kernels.measure.verdict import (
    DIFFERS,
    NOT_COMPARED,
    REPRODUCES,
    TREND,
    Compared,
    Verdict,
    fit_exponent,
    judge,
    listed,
)
from fa_kernels.problem import SHORT_DTYPE, AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.model import launched_flash_kv_outer, paper_flash_kv_outer
from fa_kernels.units import significant, span
from fa_kernels.variants import FAST, VARIANTS

#: The kernel of figure 2's Algorithm 1, and what its rows are called.
ALGORITHM_1 = "flash_kv_outer"
#: The rung that follows FlashAttention-3.
AFTER_FA3 = "flash_wgmma"
#: GPU of a published figure -> data sheet.
SHEETS = {"A100": "a100-80gb", "A100-40GB": "a100-40gb", "H100": "h100-sxm"}
#: d of the grid in FlashAttention-2's figures, and products of matrices by pass.
FA2_HEAD_DIMS, PRODUCTS = (64, 128), {"fwd": 2, "bwd": 5}
PASS_WORDS = {"fwd": "forward", "bwd": "backward", "both": "forward and backward"}


@dataclass(frozen=True)
class BlockSize:
    """Figure 2 (middle) at one block size: bytes under each of their names, and times in ms.

    `paper_bytes` and `launched_bytes` are modelled, `counted` by the kernel; `l2` and `dram` by
    hardware counters, `dram` with what was written back later. `profiled_ms` is the time under the
    profiler, which is no latency. None: not recorded; `refused` says why, if a GPU cannot have it.
    """

    block_n: int
    paper_bytes: int
    launched_bytes: int
    counted: Number | None = None
    l2: Number | None = None
    dram: Number | None = None
    dram_bytes: float | None = None
    latency: Number | None = None
    profiled: Number | None = None
    refused: str = ""


def block_sizes(rows: Sequence[PublishedRow], numbers: PaperNumbers) -> tuple[BlockSize, ...]:
    """Figure 2 (middle), block size by block size."""
    sizes = sorted({row.block_n for row in rows if row.block_n is not None})
    return tuple(_block_size(block_n, numbers) for block_n in sizes)


def _block_size(block_n: int, numbers: PaperNumbers) -> BlockSize:
    tiling = Tiling(MIDDLE_BLOCK_M, block_n)

    def find(metric: str) -> Number | None:
        return numbers.find(ALGORITHM_1, "fwd", FIG2_LEFT, metric, tiling=tiling)

    dram, left = find("dram_bytes"), find("dram_writeback_bytes")
    return BlockSize(
        block_n, paper_flash_kv_outer(FIG2_LEFT, tiling).total_bytes,
        launched_flash_kv_outer(FIG2_LEFT, tiling).total_bytes, find("hbm_bytes"),
        find("l2_bytes"), dram, dram.value + left.value if dram and left else None,
        find("latency_ms"), find("ncu_latency_ms"),
        numbers.refused(ALGORITHM_1, FIG2_LEFT, tiling),
    )  # fmt: skip


def middle(rows: Sequence[PublishedRow], numbers: PaperNumbers) -> Verdict:
    """Figure 2 (middle) on this GPU: how time and bytes fall as the block grows."""
    found, about = block_sizes(rows, numbers), rows[0].source
    said, runs = [], []
    timed = [(one, one.latency or one.profiled) for one in found]
    by_latency = any(one.latency for one in found)
    times = [(one.block_n, at) for one, at in timed if at and bool(one.latency) == by_latency]
    if times:
        under = "" if by_latency else " (under the profiler; no plain time is recorded yet)"
        ms = ", ".join(significant(at.value) for _, at in times)
        sizes = ", ".join(str(block_n) for block_n, _ in times)
        best = min(times, key=lambda pair: pair[1].value)[0]
        said.append(f"at B_c = {sizes} it takes {ms} ms{under}, least at {best}")
        runs += [at.run_id for _, at in times]
    for name, numbers_of in (
        ("bytes counted in the kernel", [(o.block_n, o.counted, 0.0) for o in found]),
        ("bytes asked of the L2", [(o.block_n, o.l2, 0.0) for o in found]),
        ("DRAM bytes", [(o.block_n, o.dram, o.dram_bytes) for o in found]),
    ):
        known = [(float(b), whole or one.value, one) for b, one, whole in numbers_of if one]
        if len(known) > 1:
            power = fit_exponent((b, value) for b, value, _ in known)
            said.append(f"{name} go as B_c^{power:.2f}")
            runs += [number.run_id for _, _, number in known]
    said += [f"B_c = {one.block_n}: {one.refused}" for one in found if one.refused]
    if not said:
        said = [MISSING]
    said.append("the values of the figure were not transcribed")
    quantity = "time and bytes, measured"
    return Verdict(about, quantity, NOT_COMPARED, _sentence(said), (), _once(runs))


# -- figure 2, right -------------------------------------------------------------------------------


def sparse_curve(series: str, numbers: PaperNumbers) -> tuple[tuple[float, Number], ...]:
    """(kept fraction, forward and backward in ms) of figure 2 (right), the dense call last."""
    dense = figure_2_right()
    found = []
    for density in RIGHT_DENSITIES:
        problem = masked(dense, density)
        assert problem.block_mask is not None
        number = numbers.find(series, "both", problem)
        if number is not None:
            found.append((problem.block_mask.density, number))
    whole = numbers.find(series, "both", dense)
    return (*found, *([(1.0, whole)] if whole else []))


def right(rows: Sequence[PublishedRow], numbers: PaperNumbers) -> Verdict:
    """Figure 2 (right) on this GPU: speed of block-sparse over dense, against 1/s."""
    about, said, runs = rows[0].source, [], []
    for series in SPARSE_IN_FIGURE:
        curve = sparse_curve(series, numbers)
        if len(curve) < 2 or curve[-1][0] < 1.0:
            continue
        dense = curve[-1][1].value
        gains = [(s, dense / number.value) for s, number in curve[:-1]]
        (s, gain), ideal = gains[0], [100 * gain * s for s, gain in gains]
        slower = sum(gain < 1.0 for _, gain in gains)
        said.append(
            f"rung {VARIANTS[series].kernel[:2]} keeping {s:.3g} of the blocks is "
            f"{significant(gain)} times as fast as dense (1/s = {significant(1 / s)}, over all "
            f"densities {span(ideal)} % of 1/s"
            + (f", slower than dense at {slower})" if slower else ")")
        )
        runs += [number.run_id for _, number in curve]
    if not said:
        said = [MISSING]
    said.append(
        "the values of the figure were not transcribed, and its pattern, batch and heads not stated"
    )
    quantity = "forward and backward, block-sparse"
    return Verdict(about, quantity, NOT_COMPARED, _sentence(said), (), _once(runs))


# -- FlashAttention-2 and -3 -----------------------------------------------------------------------


def tflops(number: Number) -> float:
    """Rate of the matrix products of a timed call; of a causal one the attended pairs count."""
    products = PRODUCTS[number.row.pass_]
    return products * matmul_flops(number.row.problem) / 2 / number.value / 1e9


def grid_rates(series: str, numbers: PaperNumbers) -> Iterator[Number]:
    """Timed calls of a series on the grid of FlashAttention-2's figures 4-7."""
    for problem in problems(("fwd",)):
        if problem.head_dim in FA2_HEAD_DIMS:
            for pass_ in PRODUCTS:
                found = numbers.find(series, pass_, problem)
                if found is not None:
                    yield found


def _highest(series: str, numbers: PaperNumbers) -> Number | None:
    return max(grid_rates(series, numbers), key=tflops, default=None)


def _highest_of_both(series: str, numbers: PaperNumbers) -> float | None:
    """The highest rate of forward and backward together, from the times of each."""
    by_problem: dict[AttentionProblem, dict[str, Number]] = {}
    for number in grid_rates(series, numbers):
        by_problem.setdefault(number.row.problem, {})[number.row.pass_] = number
    return max(
        (
            sum(PRODUCTS.values()) * matmul_flops(problem) / 2
            / sum(number.value for number in of.values()) / 1e9
            for problem, of in by_problem.items()
            if of.keys() == PRODUCTS.keys()
        ),
        default=None,
    )  # fmt: skip


def fa2_rates(rows: Sequence[PublishedRow], numbers: PaperNumbers, device: Device) -> Verdict:
    """Figures 4-7: the highest rate of the grid, judged against the GPU of this architecture.

    Rows do not say which pass theirs is of: every reading has to agree.
    """
    series = STANDS_FOR["FlashAttention-2"]
    about, best, both = rows[0].source, _highest(series, numbers), _highest_of_both(series, numbers)
    if best is None:
        why = "not measured on this GPU: run `python -m fa_kernels measure --speed`."
        return Verdict(about, "rate", NOT_COMPARED, why, ())
    rates = [tflops(best), *([both] if both else [])]
    points = tuple(Compared(row, rate) for row in rows for rate in rates)
    alike = [p for p in points if _sheet(p.row).sm == device.sm]
    share = 100 * tflops(best) / device.peak_tflops(best.row.dtype, tensor_cores=True)
    said = [
        f"torch's FlashAttention-2 reaches at most {significant(tflops(best))} TFLOP/s "
        f"({_point_words(best)}), {share:.0f} % of the peak of the {device.name}"
    ]
    if both:
        said.append(f"forward and backward together reach {significant(both)}")
    said += [f"read off the figure: {_printed_rate(row)}" for row in rows]
    runs = [best.run_id]
    for ours in filter(None, (_highest(series, numbers) for series in FAST)):
        rate = significant(tflops(ours))
        said.append(f"{rung_words(ours)} reaches {rate} TFLOP/s here ({_point_words(ours)})")
        runs.append(ours.run_id)
    word = judge(alike) if alike else NOT_COMPARED
    if alike and len(alike) < len(points):
        said.append(
            "the verdict is about the GPU of the same architecture, whichever of the two passes "
            "the figure's number is of"
        )
    return Verdict(about, "rate", word, _sentence(said), points, _once(runs))


def rung_words(number: Number) -> str:
    """The rung that a number of ours is of: "rung 05"."""
    return f"rung {VARIANTS[number.row.series].kernel[:2]}"


def _sheet(row: PublishedRow) -> Device:
    return find_device(SHEETS[row.gpu])


def _printed_rate(row: PublishedRow) -> str:
    share = 100 * (row.value or 0.0) / _sheet(row).fp16_tensor_tflops
    return f"{significant(row.value or 0.0)} on an {row.gpu} ({share:.0f} % of its peak)"


def _point_words(number: Number) -> str:
    row = number.row
    mask = "" if row.causal == "none" else ", causal"
    return (
        f"{PASS_WORDS[row.pass_]}, N = {row.seqlen_q}, d = {row.head_dim}, "
        f"{SHORT_DTYPE[row.dtype]}{mask}"
    )


def fa3_rates(rows: Sequence[PublishedRow], numbers: PaperNumbers) -> Verdict:
    """Figures 5-7 of FlashAttention-3: the forward at N = 16384, d = 128."""
    about = rows[0].source
    pairs = [(row, number) for row in rows if (number := fa3_number(row, numbers))]
    if not pairs:
        why = "not measured on this GPU: run `python -m fa_kernels measure --speed`."
        return Verdict(about, "rate", NOT_COMPARED, why, ())
    points = [Compared(row, tflops(number)) for row, number in pairs]
    parts = [
        f"{significant(point.ours)} for {row.algorithm}{other_dtype(row, number)}"
        f"{_causal_words(row)} (read off {significant(row.value or 0.0)}, ratio "
        f"{significant(point.ratio or 0.0)})"
        for point, (row, number) in zip(points, pairs, strict=True)
    ]
    said = [f"TFLOP/s here are {listed(parts)}"]
    beside: dict[tuple[str, str], list[str]] = {}
    runs = [number.run_id for _, number in pairs]
    for row, number in pairs:
        for ours, where in rungs_beside(row, number, numbers):
            rate = f"{significant(tflops(ours))}{_causal_words(row)}"
            beside.setdefault((rung_words(ours), where), []).append(rate)
            runs.append(ours.run_id)
    said += [f"{rung} reaches {listed(rates)} {at}" for (rung, at), rates in beside.items()]
    absent = {row.algorithm for row in rows} - {p.row.algorithm for p in points}
    said += [f"{name} is not measured here" for name in sorted(absent)]
    word = by_mask(points)
    if word != judge(points):
        said.append(
            "the order is the figure's without a mask and with one, each by itself, but not over "
            "both together"
        )
    return Verdict(about, "rate", word, _sentence(said), tuple(points), _once(runs))


def rungs_beside(
    row: PublishedRow, number: Number, numbers: PaperNumbers
) -> Iterator[tuple[Number, str]]:
    """Our rungs beside a number of FlashAttention-3, and where: in its run and dtype, if they are.

    Of the rung that follows its paper else the row's own call, in whichever run has it.
    """
    if row.algorithm != "FlashAttention-3":
        return
    for series in FAST:
        if found := numbers.beside(number, series):
            yield found, "in that run and dtype"
        elif series == AFTER_FA3 and (found := numbers.find(series, row.pass_, row.problem)):
            yield found, f"in {SHORT_DTYPE[found.row.dtype]} and a run without {row.algorithm}"


def by_mask(points: Sequence[Compared]) -> str:
    """The least favourable word of the panels: one is without a mask, one causal.

    Which of two algorithms is faster is asked of calls with the same mask alone.
    """
    panels = dict.fromkeys(p.row.causal for p in points)
    words = [judge([p for p in points if p.row.causal == mask]) for mask in panels]
    return max(words, key=(REPRODUCES, TREND, DIFFERS).index)


def fa3_number(row: PublishedRow, numbers: PaperNumbers) -> Number | None:
    """The forward of the series that stands for a row's algorithm, at its point.

    In the first dtype that the series has, where it has no kernel for the row's: `other_dtype`.
    """
    series, problem = STANDS_FOR.get(row.algorithm, ""), row.problem
    if series in BASELINES and problem.dtype not in BASELINES[series].dtypes:
        problem = replace(problem, dtype=BASELINES[series].dtypes[0])
    return numbers.find(series, row.pass_, problem)


def other_dtype(row: PublishedRow, number: Number) -> str:
    """ " in bf16" where a number is of another dtype than the row that it stands beside, or ""."""
    mine = number.row.dtype
    return "" if mine == row.problem.dtype else f" in {SHORT_DTYPE[mine]}"


def _causal_words(row: PublishedRow) -> str:
    return ", causal" if row.causal == "causal" else ""


def not_stated(rows: Sequence[PublishedRow], quantity: str) -> Verdict:
    """A published number whose shape is not stated: there is nothing to measure beside it."""
    printed = listed(
        [f"{significant(r.value or 0.0)} {r.unit}".rstrip() + f" for {r.algorithm}" for r in rows]
    )
    why = f"{printed} {rows[0].how}; {rows[0].note}: nothing here is the same call."
    return Verdict(rows[0].source, quantity, NOT_COMPARED, why, ())


def _sentence(parts: Sequence[str]) -> str:
    return f"{'; '.join(part.removesuffix('.') for part in parts)}."


def _once(runs: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(runs))
