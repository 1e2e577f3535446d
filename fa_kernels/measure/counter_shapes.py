"""Which calls have their hardware counters read: a list of shapes, and who computes each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.measure.baselines import BASELINES
from fa_kernels.measure.counted_pass import TRAINED, backward_plans, training_contender
from fa_kernels.measure.counter_metrics import GROUPS, L2_WITH_ATOMICS, Group
from fa_kernels.measure.paper_calls import (
    IN_FIGURE,
    PEERS,
    RIGHT_DENSITIES,
    SPARSE_IN_FIGURE,
    figure_2_right,
    masked,
)
from fa_kernels.measure.point import UNTILED, Contender, our_contender, peer_contender, row_of
from fa_kernels.measure.records import OURS, ContenderKey, Row
from fa_kernels.measure.speed_backward import FIG2_LEFT
from fa_kernels.measure.sweep import installed_peers
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import HOPPER_SMEM_PER_BLOCK, Tiling
from fa_kernels.units import KIB
from fa_kernels.variants import VARIANTS, Variant


@dataclass(frozen=True)
class Shape:
    """A problem, and the tiles our variants take at it: those of budgets M, or named ones."""

    problem: AttentionProblem
    sram_kib: tuple[int, ...] = (16, 64, 192)
    tilings: tuple[Tiling, ...] = ()

    @property
    def all_tilings(self) -> tuple[Tiling, ...]:
        """Every tiling to run: the named ones, if there are any."""
        p = self.problem
        budgets = (Tiling.from_sram(kib * KIB, p.head_dim, p.dtype) for kib in self.sram_kib)
        return self.tilings or tuple(budgets)

    def of_budgets(self, sram_kib: Sequence[int]) -> Shape | None:
        """The shape with those of its tiles that one of these M gives; None without any."""
        p, known = self.problem, set(self.all_tilings)
        tilings = (Tiling.from_sram(kib * KIB, p.head_dim, p.dtype) for kib in sram_kib)
        kept = tuple(dict.fromkeys(tiling for tiling in tilings if tiling in known))
        return replace(self, tilings=kept) if kept else None


def _of_tokens(seqlen: int, head_dim: int, dtype: str = "float16") -> Shape:
    return Shape(AttentionProblem.of_tokens(seqlen, head_dim, dtype))


def _at_64_kib(seqlen: int, head_dim: int) -> Shape:
    return Shape(AttentionProblem.of_tokens(seqlen, head_dim), (64,))


#: 16384 tokens of width 2048 but for figure 2's. Curves over N run from short to long, so that a
#: call's estimate comes from the point before; their inner points have one M, to save GPU time.
SHAPES = (
    _at_64_kib(512, 64),
    # FlashAttention, figure 2: runtime and HBM accesses of the forward pass over the block size.
    Shape(
        AttentionProblem(64, 16, 1024, 1024, 64, "float16"),
        tilings=tuple(Tiling(64, block_n) for block_n in (64, 128, 256, 512)),
    ),
    _of_tokens(1024, 64),
    _at_64_kib(2048, 64),
    _of_tokens(4096, 64),
    _at_64_kib(8192, 64),
    _of_tokens(16384, 64),
    _at_64_kib(512, 128),
    _of_tokens(1024, 128),
    _of_tokens(4096, 128),
    _of_tokens(16384, 128),
    _of_tokens(4096, 64, "float32"),
    _of_tokens(4096, 64, "bfloat16"),
)


@dataclass(frozen=True)
class Call:
    """One call whose counters are read: a problem, who computes it, and which pass of it."""

    problem: AttentionProblem
    contender: Contender
    pass_: str = "fwd"

    @property
    def key(self) -> CallKey:
        """What tells its rows from others': with it a resumed run knows what is done."""
        return self.problem, self.contender.key, self.pass_

    def row(self, metric: str, **what: Any) -> Row:
        """A row about the call; `what` as `row_of` takes it."""
        return replace(row_of(self.problem, self.contender, metric, **what), pass_=self.pass_)


CallKey = tuple[AttentionProblem, ContenderKey, str]


def key_of(row: Row) -> CallKey:
    """`Call.key` of the call that a row is about."""
    return row.problem, row.contender, row.pass_


def shape_calls(shape: Shape) -> list[Call]:
    """Our variants with every distinct launch of the shape's tiles, then the installed peers."""
    problem = shape.problem
    found: dict[object, Contender] = {}
    for variant in VARIANTS.values():
        if not variant.takes(problem):
            continue
        for tiling in _tilings(variant, shape):
            contender = our_contender(variant, variant.nearest_tiling(problem, tiling), problem)
            plan = next(iter(plans_of(Call(problem, contender))), None)
            # A kernel without tiles would otherwise be profiled once per tiling.
            launch = (tuple(plan.macros.items()), plan.steps) if plan else contender.tiling
            found.setdefault((variant.name, launch), contender)
    peers = [peer_contender(BASELINES[name], problem) for name in installed_peers()]
    return [Call(problem, contender) for contender in (*found.values(), *peers)]


def _tilings(variant: Variant, shape: Shape) -> tuple[Tiling, ...]:
    """The shape's tiles, or the own ones of a variant whose tiles M does not set."""
    if variant.same_algorithm is None:
        return shape.all_tilings
    sizes = (shape.problem.head_dim, shape.problem.itemsize, HOPPER_SMEM_PER_BLOCK)
    return (variant.default_tiling(*sizes),)


def choose_shapes(
    seqlens: Sequence[int] | None = None,
    head_dims: Sequence[int] | None = None,
    dtypes: Sequence[str] | None = None,
    sram_kib: Sequence[int] | None = None,
) -> tuple[Shape, ...]:
    """Those of `SHAPES` with one of these N, d and dtypes; of their tiles those of the M named.

    Raises:
        ValueError: no shape is left; says which there are.
    """
    found = []
    for shape in SHAPES:
        p = shape.problem
        chosen = ((seqlens, p.seqlen_q), (head_dims, p.head_dim), (dtypes, p.dtype))
        if any(values is not None and value not in values for values, value in chosen):
            continue
        if sram_kib is None:
            found.append(shape)
        elif some := shape.of_budgets(sram_kib):
            found.append(some)
    if not found:
        known = "; ".join(f"{s.problem.describe()}, M = {s.sram_kib} KiB" for s in SHAPES)
        raise ValueError(f"no shape has counters read at these sizes: choose of {known}.")
    return tuple(found)


def all_calls(shapes: Sequence[Shape] = SHAPES) -> list[Call]:
    """The calls of every shape, in the order of `shapes`."""
    return [call for shape in shapes for call in shape_calls(shape)]


def figure_2_calls() -> list[Call]:
    """FlashAttention's figure 2 beside the forwards of its left and middle, which `SHAPES` has.

    First what the figure is of, forward and backward in one: left, of everybody shown there, and
    right, dense and at each density; then the backward of the left alone. So a run that is stopped
    lacks what can best be done without.
    """
    peers = [name for name in installed_peers() if name in PEERS]
    left = [(OURS, name) for name in IN_FIGURE]
    left += [(name, BASELINES[name].variant) for name in peers]
    right, sparse = figure_2_right(), [(OURS, name) for name in SPARSE_IN_FIGURE]
    over_density = [right, *(masked(right, density) for density in RIGHT_DENSITIES)]
    wanted = [(FIG2_LEFT, "both", left), *((p, "both", sparse) for p in over_density)]
    wanted.append((FIG2_LEFT, "bwd", left))
    return [
        Call(problem, training_contender(*who, problem, pass_), pass_)
        for problem, pass_, series in wanted
        for who in series
    ]


def plans_of(call: Call) -> tuple[LaunchPlan, ...]:
    """What a call of ours launches; () for a peer, and for what a kernel refuses."""
    problem, contender = call.problem, call.contender
    if contender.provider == OURS:
        with contextlib.suppress(ValueError, NotImplementedError):
            if call.pass_ in TRAINED:
                return backward_plans(problem, contender.variant, call.pass_)
            return (VARIANTS[contender.variant].plan(problem, contender.tiling or UNTILED),)
    return ()


def plans_to_compile(call: Call) -> tuple[LaunchPlan, ...]:
    """`plans_of`; of a backward also the forward that it starts from."""
    return plans_of(replace(call, pass_="both") if call.pass_ == "bwd" else call)


@dataclass(frozen=True)
class Chosen:
    """What a run of counters reads: `calls()` on this GPU, of these groups; its usual label."""

    label: str
    calls: Callable[[], list[Call]]
    groups: tuple[Group, ...] = GROUPS


GRID = Chosen("counters", lambda: all_calls(SHAPES))
#: DRAM and L2, which the pages about the figure show.
FIGURE_2 = Chosen("counters-figure2", figure_2_calls, (GROUPS[0], L2_WITH_ATOMICS))


def chosen(name: str | None, *sizes: Sequence[Any] | None) -> Chosen:
    """The choice of that name; of the grid's shapes those with these `sizes` (`choose_shapes`).

    Raises:
        ValueError: no shape is left, or sizes of a figure, which has its own.
    """
    if name != "figure2":
        shapes = choose_shapes(*sizes)
        return replace(GRID, calls=lambda: all_calls(shapes))
    if any(size is not None for size in sizes):
        raise ValueError(
            "--shapes figure2 is of that figure's sizes: leave out --seqlens, --head-dims, "
            "--dtypes and --sram-kib, or --shapes."
        )
    return FIGURE_2
