"""The trace of one row, NumPy's beside the CUDA kernel's, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fa_kernels.measure.traces import (
    MAX_HEAD_DIM,
    MAX_SEQLEN,
    TraceError,
    TraceProblem,
    differences,
    recorded,
)
from fa_kernels.problem import checked_int
from fa_kernels.session import Session, in_use
from fa_kernels.tiling import MAX_BLOCK
from fa_kernels.trace import Trace
from fa_kernels.widgets.seed import checked_seed
from fa_kernels.widgets.text import html_table, labels, scientific, text_table


@dataclass(frozen=True)
class TraceTable:
    """NumPy's trace, and the kernel's if there is one; `source` says where that comes from."""

    problem: TraceProblem
    numpy: Trace
    cuda: Trace | None
    source: str
    apart: dict[str, float] = field(default_factory=dict)

    def cells(self) -> list[list[str]]:
        """The table as text: a row of heads, then one row per step."""
        text = labels("trace")
        traces = [("numpy", self.numpy)] + ([("cuda", self.cuda)] if self.cuda else [])
        head = [str(text["keys"])]
        for name in ("m", "l", "alpha"):
            head += [f"{text[name]} {text[kind]}" for kind, _ in traces]
        rows = [head + ([str(text["acc"])] if self.cuda else [str(text["acc_alone"])])]
        for step, (start, stop) in enumerate(
            zip(self.numpy.key_start, self.numpy.key_stop, strict=True)
        ):
            row = [f"{start + 1} … {stop}"]
            for name in ("m", "l", "alpha"):
                row += [f"{getattr(trace, name)[step]:.7g}" for _, trace in traces]
            acc = self.numpy.acc[step]
            if self.cuda is None:
                row.append(", ".join(f"{x:.4f}" for x in acc[:2]) + " …")
            else:
                row.append(scientific(float(np.abs(acc - self.cuda.acc[step]).max())))
            rows.append(row)
        return rows

    def caption(self) -> str:
        """The problem, what acc is, and where the kernel's numbers come from."""
        text, p = labels("trace"), self.problem
        words = text["caption"].format(
            variant=p.variant, row=p.row, seqlen=p.seqlen, head_dim=p.head_dim,
            tiles=f"{p.block_m} × {p.block_n}",
        )  # fmt: skip
        acc = text["normalised" if self.numpy.normalised else "unnormalised"]
        parts = [words, acc, self.source]
        if self.apart:
            found = ", ".join(f"{name} {scientific(value)}" for name, value in self.apart.items())
            parts.append(text["apart"].format(differences=found))
        return " ".join(parts)

    def __str__(self) -> str:
        return text_table(self.caption(), self.cells())

    def _repr_html_(self) -> str:
        head, *body = self.cells()
        return html_table("trace", self.caption(), head, body, css="falab-table falab-dense")


def checked_problem(
    N: object, d: object, row: object, block_m: object, block_n: object, seed: object, variant: str
) -> TraceProblem:
    """The arguments of `trace_table` as whole numbers.

    Raises:
        ValueError: one that is none, or out of range; value, limit and remedy.
    """
    words = labels("trace")
    seqlen = checked_int("N", N, 1, MAX_SEQLEN, words["other_seqlen"])
    head_dim = checked_int("d", d, 1, MAX_HEAD_DIM, words["other_head_dim"])
    which = checked_int("row", row, 0, seqlen - 1, words["other_row"])
    rows, keys = (
        checked_int(name, block, 1, MAX_BLOCK, words["other_block"])
        for name, block in (("block_m", block_m), ("block_n", block_n))
    )
    return TraceProblem(seqlen, head_dim, which, rows, keys, checked_seed(seed), variant)


def trace_table(
    N: int = 256,
    d: int = 64,
    *,
    row: int = 100,
    block_m: int = 64,
    block_n: int = 64,
    variant: str = "flash_q_outer",
    seed: int = 0,
    session: Session | None = None,
) -> TraceTable:
    """m, l, alpha and acc of one query row after every block of keys.

    With a GPU the CUDA kernel is traced, too (compiled with -DTRACE); without one, a recorded
    trace of the same problem is shown if there is one.

    Args:
        N, d: sequence length, at most 4096, and head dimension; one head, float32.
        row: the query row.
        block_m, block_n: rows of Q and of K, V in a tile.
        variant: "flash_q_outer" (acc unnormalised) or "flash_kv_outer" (normalised each pass).
        seed: draws q, k and v.
        session: what `fa.session` returned; default: the current one.

    Raises:
        ValueError, NotImplementedError: a bad value; value, limit and remedy.
        TypeError: `session` is not one.
    """
    used, text = in_use(session), labels("trace")
    problem = checked_problem(N, d, row, block_m, block_n, seed, variant)
    numpy_ = problem.trace("numpy")
    if used.backend == "cuda":
        cuda = problem.trace("cuda")
        source = text["live"].format(gpu=used.gpu)
        return TraceTable(problem, numpy_, cuda, source, differences(numpy_, cuda))
    try:
        found = recorded(problem)
    except TraceError as error:
        return TraceTable(problem, numpy_, None, f"{text['nothing']} {error}")
    if found is None:
        return TraceTable(problem, numpy_, None, str(text["nothing"]))
    source = text["recorded"].format(gpu=found.device, name=found.name)
    return TraceTable(problem, numpy_, found.cuda, source, differences(numpy_, found.cuda))
