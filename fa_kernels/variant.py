"""What is known of one algorithm: its kernel, its specification in NumPy, its models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.cuda.plan_backward import default_backward_tiling
from fa_kernels.cuda.recipe import Recipe
from fa_kernels.cuda.recipe_backward import BackwardRecipe
from fa_kernels.problem import ITEMSIZE, AttentionProblem
from fa_kernels.tiling import Tiling, default_tiling, round_up
from fa_kernels.traffic.model import Traffic


def scores_bytes(problem: AttentionProblem) -> int:
    """Bytes of S, which are those of P, dP and dS; of packed sequences each has the longest's."""
    return problem.heads * problem.seqlen_q * problem.seqlen_k * problem.itemsize


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
    `prepare(d_out, q, k, v, out, lse, problem, tiling, deterministic)` gives the launches of a
    repeated call. `fixes_dq`: it has a build that gives dq the same bits at every run.
    `own_tiles_alone`: it takes its default tiles and no others, however short the sequences are.
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
    default_tiling: Callable[[int, int, int], Tiling] = default_backward_tiling
    prepare: Callable[..., BackwardRecipe | None] | None = None
    fixes_dq: bool = True
    own_tiles_alone: bool = False

    def __repr__(self) -> str:
        return f"<backward: {self.summary} ({self.source}; kernel {self.kernel})>"

    def tiling_for(self, problem: AttentionProblem, limit_bytes: int) -> Tiling:
        """The default tiling for a GPU that gives a block `limit_bytes`, clipped to the lengths
        (unless it takes no other)."""
        tiling = self.default_tiling(problem.head_dim, problem.itemsize, limit_bytes)
        return (
            tiling if self.own_tiles_alone else tiling.clipped(problem.seqlen_q, problem.seqlen_k)
        )

    def has_loose_dq(self, problem: AttentionProblem, tiling: Tiling) -> bool:
        """True if dq is repeatable only where `deterministic` asks for another build, or never."""
        if not self.fixes_dq:
            return True
        off, on = (self.plan(problem, tiling, deterministic=d) for d in (False, True))
        return off.macros != on.macros

    def takes(self, problem: AttentionProblem, limit_bytes: int) -> bool:
        """True if its kernel is written for this dtype, head_dim and these options."""
        try:
            self.plan(problem, self.tiling_for(problem, limit_bytes))
        except NotImplementedError:
            return False
        return True

    def dq_builds(self, problem: AttentionProblem, tiling: Tiling) -> tuple[bool, ...]:
        """Values of `deterministic` that give a build of their own."""
        both = self.fixes_dq and self.has_loose_dq(problem, tiling)
        return (False, True) if both else (False,)

    def saved_bytes(self, problem: AttentionProblem) -> int:
        """Bytes that live from the forward to the backward pass, beside q, k and v."""
        sizes = {
            "p": scores_bytes(problem),
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
    `prepare(q, k, v, problem, tiling)` gives the launch of a repeated call, where it is one.
    `same_algorithm` names the variant whose algorithm this one runs on other units of the GPU: the
    kernel ladder shows it, pages that compare algorithms leave it out, "auto" takes it.
    `tile_multiple` divides its tile sizes; `default_tiling(head_dim, itemsize, limit_bytes)` is
    what a tiling of None stands for, `suited_tiling(problem, tiling)` what becomes of it under a
    problem's options. `tensor_cores`: they multiply, and their peak is the ceiling. `min_arch`,
    `max_arch`: the GPUs it is written for. `whole_rows`: it takes rows that start at multiples of
    16 bytes alone; `packs`: it takes packed sequences.
    `switches` names the steps that its plan can be asked to do without.
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
    max_arch: int | None = None
    whole_rows: bool = False
    packs: bool = True
    control_for: str | None = None
    tiled: bool = True
    block_sparse: bool = False
    traced: bool = False
    normalised: bool = False
    keeps_scores_on_chip: bool = False
    law: str = "N d + N²"
    roundings: Callable[[AttentionProblem, Tiling], int] = lambda problem, tiling: 1
    same_algorithm: str | None = None
    prepare: Callable[..., Recipe | None] | None = None
    tile_multiple: int = 1
    tensor_cores: bool = False
    switches: tuple[str, ...] = ()
    default_tiling: Callable[[int, int, int], Tiling] = default_tiling
    suited_tiling: Callable[[AttentionProblem, Tiling], Tiling] = lambda problem, tiling: tiling
    backward: Backward | None = None

    def __repr__(self) -> str:
        return f"<{self.name}: {self.summary} ({self.source}; kernel {self.kernel})>"

    def runs_on(self, arch: int) -> bool:
        """True if its kernel is written for GPUs of this compute capability, 90 for sm_90."""
        return self.min_arch <= arch <= (arch if self.max_arch is None else self.max_arch)

    def takes(self, problem: AttentionProblem) -> bool:
        """True if its kernel is written for the dtype, head_dim and kinds of mask and sequences."""
        rows_fit = problem.head_dim * problem.itemsize % 16 == 0 or not self.whole_rows
        packs = problem.packed is None or self.packs
        skips = problem.block_mask is None or self.block_sparse
        return problem.dtype in self.dtypes and rows_fit and packs and skips

    def tiling_for(self, problem: AttentionProblem, limit_bytes: int) -> Tiling:
        """The default tiling for a GPU that gives a block `limit_bytes`, clipped to the lengths."""
        tiling = self.default_tiling(problem.head_dim, problem.itemsize, limit_bytes)
        return self.clipped(problem, self.suited_tiling(problem, tiling))

    def clipped(self, problem: AttentionProblem, tiling: Tiling) -> Tiling:
        """Tiles no longer than the sequences, in sizes that the kernel takes."""
        return tiling.clipped(problem.seqlen_q, problem.seqlen_k, max(16, self.tile_multiple))

    def nearest_tiling(self, problem: AttentionProblem, tiling: Tiling) -> Tiling:
        """`tiling` itself where the kernel can have it, else the nearest that it can.

        Sizes are rounded up to `tile_multiple`, then halved while they need too many registers.
        """
        step = self.tile_multiple
        m, n = round_up(tiling.block_m, step), round_up(tiling.block_n, step)
        while step > 1:
            try:
                self.plan(problem, Tiling(m, n))
                break
            except ValueError:
                if m == n == step:
                    raise
                m, n = (m, round_up(n // 2, step)) if n > step else (round_up(m // 2, step), n)
        return Tiling(m, n)

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
