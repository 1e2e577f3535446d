"""Which calls have their hardware counters read: a list of shapes, and who computes each."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.measure.baselines import BASELINES
from fa_kernels.measure.point import UNTILED, Contender, our_contender, peer_contender
from fa_kernels.measure.records import OURS
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
Call = tuple[AttentionProblem, Contender]


def shape_calls(shape: Shape) -> list[Call]:
    """Our variants with every distinct launch of the shape's tiles, then the installed peers."""
    problem = shape.problem
    found: dict[object, Contender] = {}
    for variant in VARIANTS.values():
        if problem.dtype not in variant.dtypes:
            continue
        for tiling in _tilings(variant, shape):
            contender = our_contender(variant, variant.nearest_tiling(problem, tiling), problem)
            plan = plan_of(problem, contender)
            # A kernel without tiles would otherwise be profiled once per tiling.
            launch = (tuple(plan.macros.items()), plan.steps) if plan else contender.tiling
            found.setdefault((variant.name, launch), contender)
    peers = [peer_contender(BASELINES[name], problem) for name in installed_peers()]
    return [(problem, contender) for contender in (*found.values(), *peers)]


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


def plan_of(problem: AttentionProblem, contender: Contender) -> LaunchPlan | None:
    """What a contender of ours launches; None for a peer, and for what its kernel refuses."""
    if contender.provider == OURS:
        with contextlib.suppress(ValueError, NotImplementedError):
            return VARIANTS[contender.variant].plan(problem, contender.tiling or UNTILED)
    return None
