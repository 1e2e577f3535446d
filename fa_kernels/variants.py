"""VARIANTS: the one list of algorithms. Every table, legend, test and widget loops over it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fa_kernels.cuda import plan as plans
from fa_kernels.cuda import plan_backward, run_backward
from fa_kernels.cuda import run as runs
from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.problem import ITEMSIZE, AttentionProblem
from fa_kernels.reference import backward_flash, backward_standard, flash
from fa_kernels.reference.naive import standard_naive
from fa_kernels.reference.standard import standard_tiled
from fa_kernels.tiling import Tiling
from fa_kernels.traffic import backward, model
from fa_kernels.traffic.model import Traffic


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


@dataclass(frozen=True, repr=False)
class Backward:
    """The gradients of one algorithm: its kernel, its specification in NumPy and its models.

    `reference(d_out, q, k, v, out, lse, problem, tiling, hbm, extras=, deterministic=)` and
    `run(d_out, q, k, v, out, lse, problem, tiling, extras=, deterministic=, count_traffic=)` share
    one signature over NumPy and CuPy arrays and give dq, dk, dv; `paper` and `launched`, which also
    takes `deterministic=`, give HBM traffic; `plan` gives what would be compiled and launched;
    `default_tiling(head_dim, itemsize, limit_bytes)` what a tiling of None stands for.
    `workspace_bytes` is the memory of a call beside dq, dk and dv. `saved` names the tensors that
    the algorithm keeps from its forward beside q, k and v; the front door gives every algorithm
    out and lse, and 02 rebuilds its p, which its workspace then holds.
    """

    kernel: str
    summary: str
    source: str
    reference: Callable[..., tuple[Any, Any, Any]]
    run: Callable[..., tuple[Any, Any, Any, Traffic | None]]
    plan: Callable[..., LaunchPlan]
    paper: Callable[[AttentionProblem, Tiling], Traffic]
    launched: Callable[..., Traffic]
    workspace_bytes: Callable[[AttentionProblem], int]
    saved: tuple[str, ...]
    default_tiling: Callable[[int, int, int], Tiling] = plan_backward.default_backward_tiling

    def __repr__(self) -> str:
        return f"<backward: {self.summary} ({self.source}; kernel {self.kernel})>"

    def tiling_for(self, problem: AttentionProblem, limit_bytes: int) -> Tiling:
        """The default tiling for a GPU that gives a block `limit_bytes`, clipped to the lengths."""
        tiling = self.default_tiling(problem.head_dim, problem.itemsize, limit_bytes)
        return tiling.clipped(problem.seqlen_q, problem.seqlen_k)

    def has_loose_dq(self, problem: AttentionProblem, tiling: Tiling) -> bool:
        """True if dq is repeatable only where `deterministic` asks for another build."""
        off, on = (self.plan(problem, tiling, deterministic=d) for d in (False, True))
        return off.macros != on.macros

    def saved_bytes(self, problem: AttentionProblem) -> int:
        """Bytes that live from the forward to the backward pass, beside q, k and v."""
        sizes = {
            "p": _scores(problem),
            "out": problem.q_bytes,
            "lse": problem.lse_bytes,
        }
        return sum(sizes[name] for name in self.saved)


@dataclass(frozen=True, repr=False)
class Variant:
    """One algorithm: its kernel, its specification in NumPy and its models.

    `reference(q, k, v, problem, tiling, hbm)` and `run(q, k, v, problem, tiling, count_traffic=)`
    share one signature over NumPy and CuPy arrays; `paper` and `launched` give HBM traffic;
    `plan` gives what would be compiled and launched; `workspace_bytes` the memory beside the
    outputs: S and P, or partial O and l. `control_for` names the variant that this one differs
    from in one way only, to show what that one thing costs: it is in every check and table, but no
    page that compares algorithms shows it and "auto" never takes it. `tiled`: tile sizes mean
    something. `block_sparse`, `traced`: it takes a block mask, it can record a row for the stepper.
    `normalised`: the accumulator is divided by l at every visit, not once at the end.
    `keeps_scores_on_chip`: S and P never reach HBM. `law` is how its HBM accesses grow, as the
    papers state it. `roundings` counts how often O is rounded to the io dtype on its way.
    `backward` gives the gradients, for those that have a backward pass of their own.
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
    dtypes: tuple[str, ...] = tuple(ITEMSIZE)
    min_arch: int = 75
    control_for: str | None = None
    tiled: bool = True
    block_sparse: bool = False
    traced: bool = False
    normalised: bool = False
    keeps_scores_on_chip: bool = False
    law: str = "N d + N²"
    roundings: Callable[[AttentionProblem, Tiling], int] = lambda problem, tiling: 1
    backward: Backward | None = None

    def __repr__(self) -> str:
        return f"<{self.name}: {self.summary} ({self.source}; kernel {self.kernel})>"

    def memory(self, problem: AttentionProblem) -> Memory:
        """Predicted device memory of one call, in bytes."""
        return Memory(
            input_bytes=problem.q_bytes + 2 * problem.kv_bytes,
            output_bytes=problem.q_bytes + problem.lse_bytes,
            workspace_bytes=self.workspace_bytes(problem),
        )

    def step_bytes(self, problem: AttentionProblem) -> int:
        """The most that forward and backward hold beside q, k, v and d_out, in bytes.

        In the backward: out, lse, the gradients and its workspace. A P that was kept counts there;
        it needs no lse to be rebuilt from.
        """
        backward, memory = self.backward, self.memory(problem)
        assert backward is not None
        unused = problem.lse_bytes if "p" in backward.saved else 0
        gradients = problem.q_bytes + 2 * problem.kv_bytes
        held = memory.output_bytes + gradients + backward.workspace_bytes(problem) - unused
        return max(memory.extra_bytes, held)


def _scores(problem: AttentionProblem) -> int:
    """Bytes of S, which are those of P, dP and dS; of packed sequences each has the longest's."""
    return problem.heads * problem.seqlen_q * problem.seqlen_k * problem.itemsize


def _scores_and_probabilities(problem: AttentionProblem) -> int:
    return 2 * _scores(problem)


def _nothing(problem: AttentionProblem) -> int:
    return 0


def _partial_o_and_l(problem: AttentionProblem) -> int:
    # fp32 outputs hold the partial O themselves.
    o_bytes = 2 * problem.q_bytes if problem.itemsize == 2 else 0
    return o_bytes + problem.lse_bytes


def _l_alone(problem: AttentionProblem) -> int:
    return problem.lse_bytes


def _paper_standard(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    return model.paper_standard(problem)


def _paper_standard_backward(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    return backward.paper_standard_backward(problem)


def _scores_and_lse(problem: AttentionProblem) -> int:
    # P rebuilt, with its S, which then holds dP and dS, and its lse.
    return 2 * _scores(problem) + problem.lse_bytes


def _partial_dq(problem: AttentionProblem) -> int:
    # An fp32 dq holds its partial sums itself.
    dq_bytes = 2 * problem.q_bytes if problem.itemsize == 2 else 0
    return dq_bytes + _two_numbers_a_row(problem)


def _two_numbers_a_row(problem: AttentionProblem) -> int:
    # With a bias P is rebuilt from m and 1 / l where lse cannot hold them.
    return 2 * problem.lse_bytes if problem.bias_dtype is not None else 0


def _partial_dq_and_delta(problem: AttentionProblem) -> int:
    return _partial_dq(problem) + problem.lse_bytes


def _visits(problem: AttentionProblem, tiling: Tiling) -> int:
    return -(-problem.seqlen_k // tiling.block_n)


VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant(
            name="standard_naive",
            kernel="01_standard_naive",
            label="naive standard",
            summary="three launches, a thread per element, nothing shared on chip",
            source="FlashAttention, Algorithm 0",
            reference=standard_naive,
            run=runs.run_standard_naive,
            plan=plans.plan_standard_naive,
            paper=_paper_standard,
            launched=model.launched_standard_naive,
            workspace_bytes=_scores_and_probabilities,
            tiled=False,
        ),
        Variant(
            name="standard_tiled",
            kernel="02_standard_tiled",
            label="standard",
            summary="three tiled launches, S and P through HBM",
            source="FlashAttention, Algorithm 0",
            reference=standard_tiled,
            run=runs.run_standard_tiled,
            plan=plans.plan_standard_tiled,
            paper=_paper_standard,
            launched=model.launched_standard_tiled,
            workspace_bytes=_scores_and_probabilities,
            backward=Backward(
                kernel="02_standard_tiled_backward",
                summary="five tiled launches, P, dP and dS through HBM",
                source="FlashAttention, Algorithm 3",
                reference=backward_standard.standard_tiled_backward,
                run=run_backward.run_standard_tiled_backward,
                plan=plan_backward.plan_standard_tiled_backward,
                paper=_paper_standard_backward,
                launched=backward.launched_standard_tiled_backward,
                workspace_bytes=_scores_and_lse,
                saved=("p",),
            ),
        ),
        Variant(
            name="flash_kv_outer",
            kernel="03_flash_kv_outer",
            label="flash, K/V outer",
            summary="one launch, K/V tiles outside, O through HBM at every pass",
            source="FlashAttention, Algorithm 1",
            reference=flash.flash_kv_outer,
            run=runs.run_flash_kv_outer,
            plan=plans.plan_flash_kv_outer,
            paper=model.paper_flash_kv_outer,
            launched=model.launched_flash_kv_outer,
            workspace_bytes=_partial_o_and_l,
            block_sparse=True,
            traced=True,
            normalised=True,
            keeps_scores_on_chip=True,
            law="N² d² / M",
            backward=Backward(
                kernel="03_flash_kv_outer_backward",
                summary="S and P rebuilt, K/V tiles outside, dq through HBM at every pass",
                source="FlashAttention, Algorithm 4",
                reference=backward_flash.flash_kv_outer_backward,
                run=run_backward.run_flash_kv_outer_backward,
                plan=plan_backward.plan_flash_kv_outer_backward,
                paper=backward.paper_flash_kv_outer_backward,
                launched=backward.launched_flash_kv_outer_backward,
                workspace_bytes=_partial_dq,
                saved=("out", "lse"),
            ),
        ),
        Variant(
            name="flash_kv_outer_io",
            kernel="03_flash_kv_outer",
            label="flash, K/V outer, 16-bit O",
            summary="the same, with O rounded to 16 bits at every pass",
            source="FlashAttention, Algorithm 1",
            reference=flash.flash_kv_outer_io,
            run=runs.run_flash_kv_outer_io,
            plan=plans.plan_flash_kv_outer_io,
            paper=model.paper_flash_kv_outer,
            launched=model.launched_flash_kv_outer_io,
            workspace_bytes=_l_alone,
            dtypes=("float16", "bfloat16"),  # with fp32 it is flash_kv_outer itself
            control_for="flash_kv_outer",
            block_sparse=True,
            traced=True,
            normalised=True,
            keeps_scores_on_chip=True,
            law="N² d² / M",
            roundings=_visits,
        ),
        Variant(
            name="flash_q_outer_one_block",
            kernel="04_flash_q_outer",
            label="flash, one block per head",
            summary="Q tiles outside, all of a head's in one block, as K/V outer must",
            source="FlashAttention-2, Algorithm 1",
            reference=flash.flash_q_outer,
            run=runs.run_flash_q_outer_one_block,
            plan=plans.plan_flash_q_outer_one_block,
            paper=model.paper_flash_q_outer,
            launched=model.launched_flash_q_outer,
            workspace_bytes=_nothing,
            control_for="flash_q_outer",
            block_sparse=True,
            traced=True,
            keeps_scores_on_chip=True,
            law="N² d / B_r",
        ),
        Variant(
            name="flash_q_outer",
            kernel="04_flash_q_outer",
            label="flash",
            summary="one launch, S, P and O stay on chip, Q tiles outside",
            source="FlashAttention-2, Algorithm 1",
            reference=flash.flash_q_outer,
            run=runs.run_flash_q_outer,
            plan=plans.plan_flash_q_outer,
            paper=model.paper_flash_q_outer,
            launched=model.launched_flash_q_outer,
            workspace_bytes=_nothing,
            block_sparse=True,
            traced=True,
            keeps_scores_on_chip=True,
            law="N² d / B_r",
            backward=Backward(
                kernel="04_flash_q_outer_backward",
                summary="S and P rebuilt, a block per K/V tile, dq added up by all of them",
                source="FlashAttention-2, Algorithm 2",
                reference=backward_flash.flash_q_outer_backward,
                run=run_backward.run_flash_q_outer_backward,
                plan=plan_backward.plan_flash_q_outer_backward,
                paper=backward.paper_flash_q_outer_backward,
                launched=backward.launched_flash_q_outer_backward,
                workspace_bytes=_partial_dq_and_delta,
                saved=("out", "lse"),
            ),
        ),
    )
}
#: The algorithms that pages compare: without those that only isolate one difference.
ALGORITHMS: dict[str, Variant] = {
    name: variant for name, variant in VARIANTS.items() if variant.control_for is None
}


def find_variant(name: str) -> Variant:
    """The variant called `name`.

    Raises:
        ValueError: no such variant; the message lists those there are.
    """
    if not isinstance(name, str) or name not in VARIANTS:
        known = ", ".join(repr(known) for known in VARIANTS)
        # Figures show labels, and files are called after kernels: both are tried.
        meant = [v.name for v in ALGORITHMS.values() if name in (v.label, v.kernel)]
        hint = f" (did you mean {meant[0]!r}?)" if meant else ""
        raise ValueError(f"variant = {name!r} is not known{hint}: use 'auto' or one of {known}.")
    return VARIANTS[name]
