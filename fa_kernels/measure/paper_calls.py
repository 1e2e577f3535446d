"""Which calls of the published tables and figures are measured on this GPU, and who makes each.

A row cannot say that keys are padded, so tables 9-14 are measured without padding: every sequence
is as long as the longest, which the tables' are to within 20 tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fa_kernels.block_mask import BlockMask
from fa_kernels.measure.paper import PublishedRow, load_paper, select
from fa_kernels.measure.speed_backward import FIG2_LEFT
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling

#: Tables 9-20 are of time, over N and of one shape; 9-11 and 15-17 with dropout.
TIME_TABLES = tuple(f"table {number}" for number in range(9, 21))
#: The seed of our dropout; no other has the same mask.
SEED = 0
PEERS = ("torch_eager", "torch_flash", "torch_cudnn")
#: Ours in the tables: the standard algorithm, and the kernel that "auto" takes.
IN_TABLES = ("standard_tiled", "flash_mma")
#: Figure 2 shows the algorithms: Algorithm 1 as published and with its loops swapped, too.
IN_FIGURE = ("standard_tiled", "flash_kv_outer", "flash_q_outer", "flash_mma")
SPARSE_IN_FIGURE = ("flash_q_outer", "flash_mma")
#: Figure 2 (middle): rows of Q in a tile; the block size is that of K/V.
MIDDLE_BLOCK_M = 64
#: Figure 2 (right): where between the two ends of its caption the curve is measured.
RIGHT_DENSITIES = (0.2, 0.3, 0.4, 0.5, 0.6)
#: No table or figure states the pattern, nor its blocks: the paper's section 3.3 uses butterflies.
PATTERN, BLOCK = "butterfly", 128
#: Fewer blocks in a row than this have no density near what the tables' times say.
MIN_SPARSE_SEQLEN = 1024


@dataclass(frozen=True)
class PaperCall:
    """A problem without dropout, the dropouts it is measured with, and who measures it.

    `tilings` are forward tiles of Algorithm 1 beside its default; `counted`: bytes are counted in
    our kernels, forward and backward.
    """

    problem: AttentionProblem
    variants: tuple[str, ...]
    peers: tuple[str, ...] = ()
    dropouts: tuple[float, ...] = (0.0,)
    tilings: tuple[Tiling, ...] = ()
    counted: bool = False


def table_density(seqlen: int) -> float:
    """Kept fraction that the block-sparse rows of tables 9-17 fit; the paper states none."""
    return min(1 / 8, 256 / seqlen)


def masked(problem: AttentionProblem, density: float) -> AttentionProblem:
    """`problem` with a block mask of this density; few blocks in a row round it."""
    sizes = (problem.seqlen_q, problem.seqlen_k, BLOCK, BLOCK)
    return replace(problem, block_mask=BlockMask.pattern(PATTERN, *sizes, density))


def figure_2_right(rows: Iterable[PublishedRow] | None = None) -> AttentionProblem:
    """The dense problem of fig. 2 right: its caption gives N alone, the tables the rest."""
    (seqlen,) = {row.seqlen for row in select(_flash(rows), where="fig. 2 right")}
    return next(p for p in table_problems(rows) if p.seqlen_q == seqlen)


def table_problems(rows: Iterable[PublishedRow] | None = None) -> tuple[AttentionProblem, ...]:
    """The calls of tables 9-20, each once and without dropout, N growing."""
    found = {row.problem for row in _flash(rows) if row.where in TIME_TABLES}
    return tuple(sorted(found, key=lambda problem: problem.seqlen_q))


def _flash(rows: Iterable[PublishedRow] | None) -> tuple[PublishedRow, ...]:
    return select(load_paper() if rows is None else rows, paper="FlashAttention")


def _dropouts(rows: Sequence[PublishedRow]) -> tuple[float, ...]:
    of_tables = {row.dropout_p for row in rows if row.where in TIME_TABLES}
    return tuple(sorted(p for p in of_tables if p is not None))


def paper_calls(rows: Iterable[PublishedRow] | None = None) -> tuple[PaperCall, ...]:
    """Figure 2 first, then the tables from short to long, dense before block-sparse.

    So estimates of a call come from shorter ones, and a run that is stopped lacks the longest.
    """
    flash = _flash(rows)
    middle = {r.block_n for r in select(flash, where="fig. 2 middle") if r.block_n is not None}
    tilings = tuple(Tiling(MIDDLE_BLOCK_M, block_n) for block_n in sorted(middle))
    calls = [PaperCall(FIG2_LEFT, IN_FIGURE, PEERS, tilings=tilings, counted=True)]
    dropouts, right = _dropouts(flash), figure_2_right(flash)
    for density in RIGHT_DENSITIES:
        calls.append(PaperCall(masked(right, density), SPARSE_IN_FIGURE, counted=True))
    for problem in table_problems(flash):
        n, figure = problem.seqlen_q, problem == right
        ours = tuple(dict.fromkeys((*IN_TABLES, *(SPARSE_IN_FIGURE if figure else ()))))
        calls.append(PaperCall(problem, ours, PEERS, dropouts, counted=figure))
        if n >= MIN_SPARSE_SEQLEN:
            sparse = masked(problem, table_density(n))
            calls.append(PaperCall(sparse, ("flash_mma",), dropouts=dropouts))
    return tuple(calls)
