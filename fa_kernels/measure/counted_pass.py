"""One pass of one of ours or of a peer, to be profiled by itself: forward, backward, or both."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fa_kernels.cuda.launch import smem_limit_bytes
from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.measure import memory
from fa_kernels.measure.baselines import BASELINES
from fa_kernels.measure.check import Truth
from fa_kernels.measure.check_backward import BackwardTruth
from fa_kernels.measure.paper_calls import PaperCall
from fa_kernels.measure.paper_entries import Entry, Inputs, entries
from fa_kernels.measure.point import Contender, random_inputs
from fa_kernels.measure.records import OURS
from fa_kernels.problem import AttentionProblem
from fa_kernels.variants import VARIANTS

#: Passes that give gradients, and take tiles of the backward.
TRAINED = ("bwd", "both")


def entry_of(
    provider: str,
    variant: str,
    problem: AttentionProblem,
    pass_: str,
    inputs: Inputs | None = None,
) -> Entry:
    """The way of a paper run through a pass, with default tiles; `inputs` None: only to look at.

    Raises:
        ValueError: no such pass, or nobody who makes it.
    """
    ours = provider == OURS
    able = VARIANTS[variant].backward if ours else BASELINES[provider].prepare_training
    if able is None or pass_ not in TRAINED:
        who = variant if ours else provider
        raise ValueError(
            f"{who} has no pass {pass_!r}: name one with a backward, and of {TRAINED}."
        )
    call = PaperCall(problem, (variant,) if ours else (), () if ours else (provider,))
    return next(entry for entry in entries(call, inputs) if entry.pass_ == pass_)


def training_contender(
    provider: str, variant: str, problem: AttentionProblem, pass_: str
) -> Contender:
    """Who makes a pass that gives gradients: the backward's tiles, and what both passes need."""
    entry = entry_of(provider, variant, problem, pass_)
    need = entry.need_bytes
    return replace(entry.contender, refuse=lambda p: entry.refuse(), workspace_bytes=need)


def backward_plans(problem: AttentionProblem, variant: str, pass_: str) -> tuple[LaunchPlan, ...]:
    """What a pass of one of ours launches that gives gradients.

    Raises:
        ValueError, NotImplementedError: a kernel cannot have it.
    """
    ours, limit = VARIANTS[variant], smem_limit_bytes()
    assert ours.backward is not None
    backward = ours.backward.plan(problem, ours.backward.tiling_for(problem, limit))
    if pass_ == "bwd":
        return (backward,)
    own = ours.default_tiling(problem.head_dim, problem.itemsize, limit)
    return (ours.plan(problem, own.clipped(problem.seqlen_q, problem.seqlen_k)), backward)


@dataclass(frozen=True)
class Checked:
    """How a result compares with float64: `fault` in words or "", else what was looked at."""

    fault: str
    detail: str
    error: float


class Workbench:
    """Inputs of one problem, and the float64 results of its passes, each made when asked for."""

    def __init__(self, problem: AttentionProblem) -> None:
        self.problem = problem
        self.qkv: Sequence[Any] = random_inputs(problem)

    @functools.cached_property
    def d_out(self) -> Any:
        """The gradient of out."""
        return random_inputs(self.problem, seed=1)[0]

    @functools.cached_property
    def _truth(self) -> Truth:
        made = Truth(self.qkv, self.problem)
        memory.free_pools()
        return made

    @functools.cached_property
    def _gradients(self) -> BackwardTruth:
        p = self.problem
        assert p.nheads_kv is not None
        ends = sorted({(0, 0), (p.batch - 1, p.nheads_kv - 1)})
        made = BackwardTruth(self.qkv, self.d_out, p, kv_heads=ends)
        memory.free_pools()
        return made

    def prepare(self, contender: Contender, pass_: str) -> Callable[[], Any]:
        """The call of a contender's pass. It gives out and lse, or dq, dk, dv."""
        # Before the call exists: the float64 sums must not find its workspace in their way.
        _ = self._truth if pass_ == "fwd" else self._gradients
        if pass_ == "fwd":
            return contender.prepare(*self.qkv, self.problem)
        q, k, v = self.qkv
        at = Inputs((q, k, v), self.d_out)
        entry = entry_of(contender.provider, contender.variant, self.problem, pass_, at)
        return entry.make()

    def check(self, result: Any, contender: Contender, pass_: str) -> Checked:
        """A pass's result against float64."""
        if pass_ == "fwd":
            out, lse = result if isinstance(result, tuple) else (result, None)
            found = self._truth.check(out, lse, contender.roundings)
            fault = f"wrong: error {found.out_err:.3g} (limit {found.out_limit:.3g})"
            detail = f"{found.rows} of {self.problem.seqlen_q} rows checked"
            return Checked("" if found.ok else fault, detail, found.out_err)
        gradients = self._gradients.check(*result)
        parts = [
            f"{name} {error:.3g} (limit {gradients.limits[name]:.3g})"
            for name, error in gradients.errors.items()
        ]
        fault = f"wrong: errors of {', '.join(parts)}"
        detail = f"dq, dk, dv of {gradients.heads} k/v heads checked"
        return Checked("" if gradients.ok else fault, detail, max(gradients.errors.values()))
