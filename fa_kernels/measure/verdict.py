"""Published numbers beside what our formulas say of the same call, and a verdict from the two."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fa_kernels.masks import matmul_flops
from fa_kernels.measure.paper import PublishedRow, load_paper, select
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.backward import paper_flash_kv_outer_backward, paper_standard_backward
from fa_kernels.traffic.model import Traffic, paper_flash_kv_outer, paper_standard
from fa_kernels.units import KIB, MIB, significant

REPRODUCES = "reproduces"
TREND = "trend reproduces"
DIFFERS = "does not reproduce as captioned"
#: Of a curve whose values we do not hold: agreeing with its law is no agreement with the figure.
NOT_COMPARED = "not compared"
#: "Reproduces" allows this much beside 1 in every ratio, "trend reproduces" this factor.
CLOSE, FACTOR = 0.1, 2.0
#: M of fig. 2's A100, which its data sheet calls SRAM per SM: B_c = 384 at d = 64 in fp16.
SRAM_BYTES = 192 * KIB
STANDARD, FLASH, PYTORCH = "standard", "FlashAttention", "PyTorch"
#: Products of matrices of (forward, backward), 2 d FLOP a pair each; flash rebuilds S, one more.
PRODUCTS = {STANDARD: (2, 4), FLASH: (2, 5)}


@dataclass(frozen=True)
class Compared:
    """One published row, and our number for the same call, in the unit of that row."""

    row: PublishedRow
    ours: float

    @property
    def ratio(self) -> float | None:
        """Ours over the published one; None where that was not transcribed."""
        return None if self.row.value is None else self.ours / self.row.value


@dataclass(frozen=True)
class Verdict:
    """Whether a table or figure reproduces: `word` is one of the four above.

    `about` is table or figure with paper and version, `quantity` what of it, `why` one sentence;
    all follow from `points`. `runs` are the recorded runs that hold our numbers, if any do.
    """

    about: str
    quantity: str
    word: str
    why: str
    points: tuple[Compared, ...]
    runs: tuple[str, ...] = ()


def pytorch_memory_bytes(problem: AttentionProblem) -> int:
    """What table 21 prints for PyTorch: four matrices (B, H, N, N) and ten (B, H, N, d)."""
    rows = _table21_rows(problem)
    return 4 * rows * problem.seqlen_q * 2 + 10 * rows * problem.head_dim * 2


def flash_memory_bytes(problem: AttentionProblem) -> int:
    """What table 21 prints for FlashAttention: 13 (B, H, N, d), 11 for N <= 256; l and m, fp32."""
    rows = _table21_rows(problem)
    matrices = 11 if problem.seqlen_q <= 256 else 13
    return matrices * rows * problem.head_dim * 2 + 2 * rows * 4


#: Algorithm -> its closed form of table 21.
TABLE_21: dict[str, Callable[[AttentionProblem], int]] = {
    PYTORCH: pytorch_memory_bytes,
    FLASH: flash_memory_bytes,
}


def _table21_rows(problem: AttentionProblem) -> int:
    square = problem.seqlen_q == problem.seqlen_k and problem.nheads == problem.nheads_kv
    if not square or problem.itemsize != 2 or problem.packed is not None:
        raise ValueError(
            f"{problem.dtype}, q {problem.q_shape}, k and v {problem.kv_shape}: table 21 is of "
            "16-bit q, k and v of one shape. Use float16 with seqlen_q = seqlen_k and "
            "nheads = nheads_kv."
        )
    return problem.q_rows


def call_flops(row: PublishedRow) -> int:
    """FLOPs of the matrix products of the captioned call: all its passes, exact pairs."""
    forward, backward = PRODUCTS[_known(row, PRODUCTS)]
    products = {"fwd": forward, "bwd": backward, "both": forward + backward}[_pass(row)]
    return products * matmul_flops(row.problem) // 2


def call_traffic(row: PublishedRow) -> Traffic:
    """The `paper` model of the captioned call, all its passes.

    Algorithms 0 and 3 for standard; 1 and 4 for FlashAttention, with the row's `block_n` or that
    of `SRAM_BYTES`.
    """
    problem, d = row.problem, row.problem.head_dim
    if _known(row, PRODUCTS) == STANDARD:
        forward, backward = paper_standard(problem), paper_standard_backward(problem)
    else:
        tiling = Tiling.from_sram(SRAM_BYTES, d, problem.dtype, rule="paper")
        if row.block_n is not None:
            tiling = Tiling(min(row.block_n, d), row.block_n)
        forward = paper_flash_kv_outer(problem, tiling)
        backward = paper_flash_kv_outer_backward(problem, tiling)
    return {"fwd": forward, "bwd": backward, "both": forward.plus(backward)}[_pass(row)]


def _known(row: PublishedRow, known: Iterable[str]) -> str:
    if row.algorithm not in known:
        raise ValueError(
            f"{row.source}: there is no model of {row.algorithm!r}; choose one of "
            f"{', '.join(known)}."
        )
    return row.algorithm


def _pass(row: PublishedRow) -> str:
    if not row.pass_:
        raise ValueError(f"{row.source} does not say which pass it is of: choose another row.")
    return row.pass_


def fit_exponent(points: Iterable[tuple[float, float]]) -> float:
    """The power of x by which y grows: least squares through (log x, log y).

    Raises:
        ValueError: fewer than two different x, or a number that is not above 0.
    """
    pairs = list(points)
    if len({x for x, _ in pairs}) < 2:
        raise ValueError(f"{pairs} has fewer than two different x: an exponent needs two points.")
    if not all(number > 0 for pair in pairs for number in pair):
        raise ValueError(f"{pairs} has numbers that are not above 0: they have no logarithm.")
    xs, ys = ([math.log(pair[i]) for pair in pairs] for i in (0, 1))
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    over = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    return over / sum((x - x_mean) ** 2 for x in xs)


def judge(points: Sequence[Compared]) -> str:
    """REPRODUCES: every ratio within `CLOSE` of 1. TREND: within `FACTOR`, in the same order."""
    ratios = [point.ratio for point in points if point.ratio is not None]
    if not ratios or len(ratios) < len(points):
        raise ValueError("some of these numbers were not transcribed: there is no ratio to judge.")
    if all(abs(ratio - 1) <= CLOSE for ratio in ratios):
        return REPRODUCES
    by_ours = sorted(points, key=lambda point: point.ours)
    ordered = by_ours == sorted(by_ours, key=lambda point: point.row.value or 0.0)
    near = all(1 / FACTOR <= ratio <= FACTOR for ratio in ratios)
    return TREND if near and ordered else DIFFERS


def verdicts(rows: Sequence[PublishedRow] | None = None) -> tuple[Verdict, ...]:
    """Every verdict that needs no GPU, in the order table 21, fig. 2 left, fig. 2 middle.

    Raises:
        ValueError: `rows` lacks one of them.
    """
    rows = load_paper() if rows is None else rows
    rows = select(rows, paper="FlashAttention")
    left = select(rows, where="fig. 2 left")
    found = [table_21(rows)]
    for metric, verdict in (("flops", left_flops), ("hbm", left_hbm)):
        of_metric = select(left, metric=metric)
        if not of_metric:
            verdict(of_metric)  # says what is missing
        versions = dict.fromkeys(row.version for row in of_metric)
        found += [verdict(select(of_metric, version=version)) for version in versions]
    return (*found, middle_hbm(rows))


def table_21(rows: Iterable[PublishedRow]) -> Verdict:
    """Memory of PyTorch and FlashAttention: the closed forms, floored to MiB, cell by cell."""
    of_table = [r for r in select(rows, where="table 21") if r.algorithm in TABLE_21]
    points = tuple(Compared(r, TABLE_21[r.algorithm](r.problem) // MIB) for r in of_table)
    off = [p for p in points if p.ours != p.row.value]
    word = judge(_not_empty(points, "table 21"))
    why = f"the closed forms, floored to MiB, equal {len(points) - len(off)} of {len(points)} cells"
    if off:
        first = off[0]
        word = TREND if word == REPRODUCES else word  # a closed form is exact or is none
        why += (
            f"; the first that differs is {first.row.algorithm}, N = {first.row.seqlen}: "
            f"{first.ours:.0f} MiB, printed {first.row.value:.0f}"
        )
    why += "; they were found from these cells: they describe them, and measure nothing"
    return Verdict(points[0].row.source, "memory", word, f"{why}.", points)


def left_flops(rows: Sequence[PublishedRow]) -> Verdict:
    """GFLOPs of fig. 2 left against the matrix products of the captioned shape."""
    points = tuple(Compared(row, call_flops(row) / 1e9) for row in rows)
    word = judge(_not_empty(points, "fig. 2 left, flops"))
    shape = points[0].row.problem
    why = (
        f"the matrix products of B = {shape.batch}, H = {shape.nheads}, N = {shape.seqlen_q}, "
        f"d = {shape.head_dim} are {_beside(points)}."
    )
    return Verdict(points[0].row.source, "flops", word, why, points)


def left_hbm(rows: Sequence[PublishedRow]) -> Verdict:
    """HBM traffic of fig. 2 left against the `paper` models of the captioned shape."""
    points = tuple(Compared(row, call_traffic(row).total_bytes / 1e9) for row in rows)
    word = judge(_not_empty(points, "fig. 2 left, hbm"))
    why = f"the published algorithms move {_beside(points)}"
    for point in points:
        problem, printed = point.row.problem, point.row.value or 0.0
        matrix = problem.heads * problem.seqlen_q * problem.seqlen_k * problem.itemsize / 1e9
        if point.row.algorithm == STANDARD and printed > point.ours:
            passes = significant((printed - point.ours) / matrix, 2)
            unfused = "scale and mask" if point.row.dropout_p == 0 else "scale, mask and dropout"
            why += (
                f"; the difference for {STANDARD} is as large as {passes} passes over an N x N "
                f"matrix (unfused {unfused} would be some; what was counted is not said)"
            )
    return Verdict(points[0].row.source, "hbm", word, f"{why}.", points)


def middle_hbm(rows: Iterable[PublishedRow]) -> Verdict:
    """HBM traffic of fig. 2 middle over the block size, by the model of Algorithm 1 and its law."""
    of_figure = select(rows, where="fig. 2 middle", metric="hbm")
    points = tuple(Compared(row, call_traffic(row).total_bytes / 1e9) for row in of_figure)
    _not_empty(points, "fig. 2 middle, hbm")
    curve = [(float(p.row.block_n or 0), p.ours) for p in points]
    exponent = fit_exponent(curve)
    sizes = ", ".join(f"{block_n:.0f}" for block_n, _ in curve)
    why = (
        f"over B_c = {sizes} the model of Algorithm 1 moves "
        f"{', '.join(significant(gb) for _, gb in curve)} GB, which falls as B_c^{exponent:.2f} "
        "where the law Θ(N² d² / M) says -1"
    )
    word = NOT_COMPARED
    if all(point.ratio is not None for point in points):
        word = judge(points)
        why += f"; published {', '.join(significant(p.row.value or 0.0) for p in points)} GB"
    else:
        why += "; the values of the figure were not transcribed"
    return Verdict(points[0].row.source, "hbm", word, f"{why}.", points)


def _not_empty(points: tuple[Compared, ...], what: str) -> tuple[Compared, ...]:
    if not points:
        raise ValueError(f"there are no published rows of {what}: pass those of load_paper().")
    return points


def _beside(points: Sequence[Compared]) -> str:
    """ "25.2 GB for standard (printed 40.3, ratio 0.625) and ...", and one over the other."""
    parts = [
        f"{significant(p.ours)} {p.row.unit} for {p.row.algorithm} ({p.row.how} "
        f"{significant(p.row.value or 0.0)}, ratio {significant(p.ratio or 0.0)})"
        for p in points
    ]
    text = " and ".join(parts)
    if len(points) == 2:
        (a, b), printed = points, [p.row.value or 0.0 for p in points]
        text += (
            f"; {b.row.algorithm} over {a.row.algorithm} is {significant(b.ours / a.ours)}, "
            f"{a.row.how} {significant(printed[1] / printed[0])}"
        )
    return text


def listed(parts: Sequence[str]) -> str:
    """ "a, b and c"."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
