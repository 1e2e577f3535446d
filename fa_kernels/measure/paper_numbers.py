"""What recorded runs of one GPU hold of the published calls, and who stands for whose algorithm."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fa_kernels.measure.paper import PublishedRow
from fa_kernels.measure.paper_calls import MIN_SPARSE_SEQLEN, masked, table_density
from fa_kernels.measure.records import Row, Run
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.units import MIB

#: Kinds of runs that hold such numbers; where two hold the same call, the earlier kind answers.
KINDS = ("paper", "speed", "counters", "peers")
#: Published algorithm -> series of ours or of a peer: the same algorithm, on tensor cores as there.
#: Megatron is not measured here.
STANDS_FOR = {
    "PyTorch": "torch_eager",
    "standard": "torch_eager",
    "FlashAttention": "flash_mma",
    "block-sparse FlashAttention": "flash_mma",
    "FlashAttention-2": "torch_flash",
    "cuDNN": "torch_cudnn",
    "FlashAttention-3": "fa3",
}
#: Of figure 2, also on CUDA cores: Algorithms 0 and 3, and Algorithms 1 and 4 as published.
ON_CUDA_CORES = {"standard": "standard_tiled", "FlashAttention": "flash_kv_outer"}
SPARSE = "block-sparse FlashAttention"
_Key = tuple[str, str, float, str, AttentionProblem]


@dataclass(frozen=True)
class Number:
    """A recorded number, in the unit of its row, and where it comes from."""

    value: float
    run_id: str
    row: Row


class PaperNumbers:
    """Recorded numbers by series, pass, dropout, metric and problem; nothing is interpolated.

    Of a series of ours the tiles count that it takes by itself, which a run measures first, unless
    tiles are asked for.
    """

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self.runs = tuple(sorted(runs, key=lambda run: KINDS.index(run.kind)))
        self._found: dict[_Key, Number] = {}
        self._tiled: dict[tuple[_Key, int | None, int | None], Number] = {}
        self._untimed: dict[_Key, Row] = {}
        for run in self.runs:
            for row in run.rows:
                self._add(row, run.run_id)

    def _add(self, row: Row, run_id: str) -> None:
        key = (row.series, row.pass_, row.dropout_p, row.metric, row.problem)
        if row.status != "ok" or row.median is None:
            self._untimed.setdefault(key, row)
            return
        number = Number(row.median, run_id, row)
        self._found.setdefault(key, number)
        self._tiled.setdefault((key, row.block_m, row.block_n), number)

    def find(
        self,
        series: str,
        pass_: str,
        problem: AttentionProblem,
        metric: str = "latency_ms",
        dropout_p: float = 0.0,
        tiling: Tiling | None = None,
    ) -> Number | None:
        """The number at exactly this point (`problem` without dropout), or None."""
        key = (series, pass_, dropout_p, metric, problem)
        if tiling is None:
            return self._found.get(key)
        return self._tiled.get((key, tiling.block_m, tiling.block_n))

    def beside(self, number: Number, series: str) -> Number | None:
        """The same call of another series in the run, and so the process, of `number`; or None."""
        at = number.row
        for row in (row for run in self.runs if run.run_id == number.run_id for row in run.rows):
            same = (row.series, row.pass_, row.metric, row.dropout_p) == (
                series, at.pass_, at.metric, at.dropout_p,
            )  # fmt: skip
            if same and row.median is not None and row.problem == at.problem:
                return Number(row.median, number.run_id, row)
        return None

    def why_not(
        self, series: str, pass_: str, problem: AttentionProblem, dropout_p: float = 0.0
    ) -> str:
        """ "does not fit", "refused" ... where a call was recorded without a time; "" otherwise."""
        row = self._untimed.get((series, pass_, dropout_p, "latency_ms", problem))
        return row.status if row else ""

    def refused(self, series: str, problem: AttentionProblem, tiling: Tiling) -> str:
        """Why a forward with these tiles was refused, in words; "" where none was."""
        for run in self.runs:
            for row in run.rows:
                tiles = (row.block_m, row.block_n)
                if (
                    (row.series, row.pass_, row.status) == (series, "fwd", "refused")
                    and tiles == (tiling.block_m, tiling.block_n)
                    and row.problem == problem
                ):
                    return row.detail
        return ""

    @property
    def has_paper_run(self) -> bool:
        """True if a run of the published calls is among them."""
        return any(run.kind == "paper" for run in self.runs)


def call_of(row: PublishedRow) -> AttentionProblem | None:
    """The call that is measured for a published row; None: of a mask with too few blocks.

    Raises:
        ValueError: the row gives no whole shape.
    """
    problem = row.problem
    if row.algorithm != SPARSE:
        return problem
    n = problem.seqlen_q
    return masked(problem, table_density(n)) if n >= MIN_SPARSE_SEQLEN else None


def number_for(
    row: PublishedRow, numbers: PaperNumbers, series: str | None = None
) -> tuple[float, Number] | None:
    """(our number in the unit of a row of time, memory or bytes, one of its records), or None.

    `series` stands for its algorithm unless it is given. Bytes are those counted in our kernels, of
    both passes if the row is of both.
    """
    name, problem = series or STANDS_FOR.get(row.algorithm, ""), call_of(row)
    if problem is None:
        return None
    dropout_p = row.dropout_p or 0.0
    if row.metric == "latency":
        found = numbers.find(name, row.pass_, problem, dropout_p=dropout_p)
        return (found.value, found) if found else None
    if row.metric == "memory":
        found = numbers.find(name, "both", problem, "peak_mem_bytes", dropout_p)
        return (found.value / MIB, found) if found else None
    if row.metric == "hbm":
        passes = ("fwd", "bwd") if row.pass_ == "both" else (row.pass_,)
        parts = [numbers.find(name, pass_, problem, "hbm_bytes") for pass_ in passes]
        known = [part for part in parts if part]
        return (sum(p.value for p in known) / 1e9, known[0]) if len(known) == len(parts) else None
    return None


def why_not(row: PublishedRow, numbers: PaperNumbers, series: str) -> str:
    """Why a recorded call of a published row has no time ("does not fit"); "" if none is said."""
    problem = call_of(row)
    if problem is None:
        return ""
    pass_ = row.pass_ or "both"
    return numbers.why_not(series, pass_, problem, row.dropout_p or 0.0)
