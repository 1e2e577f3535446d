"""VARIANTS: the one list of algorithms. Every table, legend, test and widget loops over it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fa_kernels.cuda.launch import run_flash_q_outer, run_standard_tiled
from fa_kernels.cuda.plan import PLANS, LaunchPlan
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.flash import flash_q_outer
from fa_kernels.reference.standard import standard_tiled
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.model import (
    Traffic,
    launched_flash_q_outer,
    launched_standard_tiled,
    paper_flash_q_outer,
    paper_standard,
)


@dataclass(frozen=True)
class Memory:
    """Bytes of device memory of one forward call."""

    input_bytes: int
    output_bytes: int
    workspace_bytes: int

    @property
    def extra_bytes(self) -> int:
        """What the call allocates on top of its inputs: out, lse and the workspace."""
        return self.output_bytes + self.workspace_bytes

    @property
    def total_bytes(self) -> int:
        """Inputs, outputs and workspace."""
        return self.input_bytes + self.extra_bytes


@dataclass(frozen=True)
class Variant:
    """One algorithm: its kernel, its specification in NumPy and its models.

    `reference(q, k, v, problem, tiling, hbm)` and `run(q, k, v, problem, tiling, count_traffic=)`
    share one signature over NumPy and CuPy arrays; `paper` and `launched` give HBM traffic;
    `plan` gives what would be compiled and launched; `workspace_bytes` the memory for S and P.
    """

    name: str
    kernel: str
    label: str
    summary: str
    source: str
    reference: Callable[..., tuple[Any, Any]]
    run: Callable[..., tuple[Any, Any, Traffic | None]]
    plan: Callable[..., LaunchPlan]
    paper: Callable[[AttentionProblem, Tiling], Traffic]
    launched: Callable[[AttentionProblem, Tiling], Traffic]
    workspace_bytes: Callable[[AttentionProblem], int]
    dtypes: tuple[str, ...] = ("float32", "float16")
    min_arch: int = 75

    def memory(self, problem: AttentionProblem) -> Memory:
        """Predicted device memory of one call, in bytes."""
        return Memory(
            input_bytes=problem.q_bytes + 2 * problem.kv_bytes,
            output_bytes=problem.q_bytes + problem.lse_bytes,
            workspace_bytes=self.workspace_bytes(problem),
        )


def _scores_and_probabilities(problem: AttentionProblem) -> int:
    return 2 * problem.heads * problem.seqlen_q * problem.seqlen_k * problem.itemsize


def _nothing(problem: AttentionProblem) -> int:
    return 0


def _paper_standard(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    return paper_standard(problem)


VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant(
            name="standard_tiled",
            kernel="02_standard_tiled",
            label="standard",
            summary="three tiled launches, S and P through HBM",
            source="FlashAttention, Algorithm 0",
            reference=standard_tiled,
            run=run_standard_tiled,
            plan=PLANS["02_standard_tiled"],
            paper=_paper_standard,
            launched=launched_standard_tiled,
            workspace_bytes=_scores_and_probabilities,
        ),
        Variant(
            name="flash_q_outer",
            kernel="04_flash_q_outer",
            label="flash",
            summary="one launch, S and P stay on chip, Q blocks outside",
            source="FlashAttention-2, Algorithm 1",
            reference=flash_q_outer,
            run=run_flash_q_outer,
            plan=PLANS["04_flash_q_outer"],
            paper=paper_flash_q_outer,
            launched=launched_flash_q_outer,
            workspace_bytes=_nothing,
        ),
    )
}


def find_variant(name: str) -> Variant:
    """The variant called `name`.

    Raises:
        ValueError: no such variant; the message lists those there are.
    """
    if not isinstance(name, str) or name not in VARIANTS:
        known = ", ".join(repr(known) for known in VARIANTS)
        raise ValueError(f"variant = {name!r} is not known: use 'auto' or one of {known}.")
    return VARIANTS[name]
