"""One call of a published table, made by one of ours or a peer: forward, backward, or both."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fa_kernels.cuda.launch import (
    gpu_name,
    refuse_old_gpu,
    refuse_on_this_gpu,
    smem_limit_bytes,
)
from fa_kernels.cuda.run import run_standard_keeping_p
from fa_kernels.measure.baselines import BASELINES
from fa_kernels.measure.paper_calls import SEED, PaperCall
from fa_kernels.measure.point import Contender, our_contender, peer_contender
from fa_kernels.measure.records import OURS
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.model import Traffic
from fa_kernels.variants import VARIANTS, Variant


@dataclass(frozen=True)
class Entry:
    """One way, one pass and one dropout.

    `make()` gives the call, which gives out and lse ("fwd") or dq, dk, dv; it may refuse. `refuse`
    says before whether the GPU can have it. `need_bytes` is the most that it holds beside q, k, v
    and d_out. `count()` gives the bytes counted in our kernels, None where they are not.
    """

    contender: Contender
    pass_: str
    dropout_p: float
    make: Callable[[], Callable[[], Any]]
    refuse: Callable[[], None]
    need_bytes: int
    count: Callable[[], Traffic] | None = None

    @property
    def same_without_dropout(self) -> tuple[Any, ...]:
        """What this entry and the one without dropout have in common."""
        return self.contender.key, self.pass_


@dataclass(frozen=True)
class Inputs:
    """q, k, v and d_out of one problem."""

    qkv: tuple[Any, Any, Any]
    d_out: Any


def with_dropout(problem: AttentionProblem, dropout_p: float) -> AttentionProblem:
    """`problem` with this dropout, of our seed; unchanged for 0."""
    return replace(problem, dropout_p=dropout_p, seed=SEED) if dropout_p else problem


def entries(call: PaperCall, inputs: Inputs | None) -> list[Entry]:
    """Every way through a call, those without dropout first; `inputs` None: only to look at."""
    found: list[Entry] = []
    for dropout_p in call.dropouts:
        problem = with_dropout(call.problem, dropout_p)
        for name in call.variants:
            found += _of_variant(VARIANTS[name], problem, call, inputs)
        for name in call.peers:
            found += _of_peer(name, problem, inputs)
    return found


def plans(call: PaperCall) -> Iterator[Any]:
    """What the entries of ours launch, to compile it ahead, without what the GPU cannot have."""
    for dropout_p in call.dropouts:
        problem = with_dropout(call.problem, dropout_p)
        for name in call.variants:
            variant = VARIANTS[name]
            assert variant.backward is not None
            forwards, backward_tiling = _tilings(variant, problem, call)
            made = [partial(variant.plan, problem, tiling) for tiling in forwards]
            made.append(partial(variant.backward.plan, problem, backward_tiling))
            counts = (False, True) if call.counted and not dropout_p else (False,)
            for make, count in itertools.product(made, counts):
                # A plan that refuses is recorded as such when its turn comes.
                with contextlib.suppress(ValueError, NotImplementedError):
                    plan = make(count_traffic=count)
                    if plan.smem_bytes <= smem_limit_bytes():
                        yield plan


def _tilings(
    variant: Variant, problem: AttentionProblem, call: PaperCall
) -> tuple[list[Tiling], Tiling]:
    """Tiles of the forward, its default first, and of the backward."""
    limit, backward = smem_limit_bytes(), variant.backward
    assert backward is not None
    forwards = [variant.tiling_for(problem, limit)]
    if variant.name == "flash_kv_outer":
        forwards += [tiling for tiling in call.tilings if tiling not in forwards]
    return forwards, backward.tiling_for(problem, limit)


class _Ours:
    """Both passes of a variant at one problem, laid out when they are first asked for."""

    def __init__(
        self,
        variant: Variant,
        problem: AttentionProblem,
        tilings: tuple[Tiling, Tiling],
        at: Inputs,
    ) -> None:
        assert variant.backward is not None
        self.variant, self.backward, self.problem = variant, variant.backward, problem
        self.forward_tiling, self.tiling = tilings
        self.at, self.keeps_p = at, "p" in variant.backward.saved

    @functools.cached_property
    def _recipe(self) -> Any:
        if self.variant.prepare is None or self.problem.block_mask is not None:
            return None
        return self.variant.prepare(*self.at.qkv, self.problem, self.forward_tiling)

    def forward(self) -> tuple[Any, Any]:
        """out and lse, as a repeated call of the front door gives them."""
        if self._recipe is not None:
            out, lse = self._recipe(*self.at.qkv, seed=self.problem.seed)
            return out, lse
        out, lse, _ = self.variant.run(*self.at.qkv, self.problem, self.forward_tiling)
        return out, lse

    def _forward_for_training(self) -> tuple[Any, Any, Any]:
        if self.keeps_p:
            return run_standard_keeping_p(*self.at.qkv, self.problem, self.forward_tiling)
        return (*self.forward(), None)

    @functools.cached_property
    def _saved(self) -> tuple[Any, Any, Any]:
        return self._forward_for_training()

    def _gradients(self, saved: tuple[Any, Any, Any], **options: Any) -> Any:
        out, lse, p = saved
        tensors = (self.at.d_out, *self.at.qkv, out, lse)
        if not options and self.backward.prepare is not None and self.problem.block_mask is None:
            recipe = self._backward_recipe(tensors)
            if recipe is not None:
                return recipe(*tensors, seed=self.problem.seed)
        if p is not None:
            options["p"] = p
        return self.backward.run(*tensors, self.problem, self.tiling, **options)

    def _backward_recipe(self, tensors: tuple[Any, ...]) -> Any:
        if not hasattr(self, "_prepared"):
            assert self.backward.prepare is not None
            self._prepared = self.backward.prepare(*tensors, self.problem, self.tiling)
        return self._prepared

    def gradients(self) -> Any:
        """dq, dk, dv from what one forward saved."""
        return self._gradients(self._saved)[:3]

    def both(self) -> Any:
        """dq, dk, dv of a step: forward and backward."""
        return self._gradients(self._forward_for_training())[:3]

    def count_forward(self) -> Traffic:
        """Bytes counted in the forward's kernels."""
        run, tensors = self.variant.run, self.at.qkv
        counted = run(*tensors, self.problem, self.forward_tiling, count_traffic=True)[2]
        assert counted is not None
        return counted

    def count_backward(self) -> Traffic:
        """Bytes counted in the backward's kernels."""
        counted: Traffic = self._gradients(self._saved, count_traffic=True)[3]
        return counted


def _of_variant(
    variant: Variant, problem: AttentionProblem, call: PaperCall, inputs: Inputs | None
) -> Iterator[Entry]:
    forwards, tiling = _tilings(variant, problem, call)
    backward, p = variant.backward, problem.dropout_p
    assert backward is not None
    at = inputs or Inputs((None, None, None), None)
    for number, forward_tiling in enumerate(forwards):
        way = _Ours(variant, problem, (forward_tiling, tiling), at)
        contender = our_contender(variant, forward_tiling, problem)

        def refuse(of: Tiling = forward_tiling) -> None:
            plan = variant.plan(problem, of)
            refuse_on_this_gpu(plan, problem, of, gpu_name())

        need = variant.memory(problem).extra_bytes
        count = way.count_forward if call.counted and not p else None
        yield Entry(contender, "fwd", p, lambda w=way: w.forward, refuse, need, count)  # type: ignore[misc]
        if number:
            continue  # other tiles of the forward alone
        contender = our_contender(variant, tiling, problem)

        def refuse_both(first: Callable[[], None] = refuse) -> None:
            first()
            refuse_old_gpu(backward.kernel, variant.min_arch)
            refuse_on_this_gpu(backward.plan(problem, tiling), problem, tiling, gpu_name())

        need = variant.step_bytes(problem) + backward.saved_bytes(problem)
        count = way.count_backward if call.counted and not p else None
        yield Entry(contender, "both", p, lambda w=way: w.both, refuse_both, need)  # type: ignore[misc]
        yield Entry(contender, "bwd", p, lambda w=way: w.gradients, refuse_both, need, count)  # type: ignore[misc]


def _of_peer(name: str, problem: AttentionProblem, inputs: Inputs | None) -> Iterator[Entry]:
    baseline, p = BASELINES[name], problem.dropout_p
    contender = peer_contender(baseline, problem)
    at = inputs or Inputs((None, None, None), None)
    prepare_training = baseline.prepare_training
    assert prepare_training is not None

    @functools.cache
    def training() -> tuple[Callable[[], Any], Callable[[], Any]]:
        return prepare_training(*at.qkv, at.d_out, problem)

    def refuse() -> None:
        contender.refuse(problem)

    tensors = 2 * problem.q_bytes + 2 * problem.kv_bytes
    need = problem.q_bytes + contender.workspace_bytes
    yield Entry(contender, "fwd", p, lambda: baseline.prepare(*at.qkv, problem), refuse, need)
    need = 2 * tensors + baseline.training_workspace_bytes(problem)
    yield Entry(contender, "both", p, lambda: training()[0], refuse, need)
    yield Entry(contender, "bwd", p, lambda: training()[1], refuse, need)


def is_ours(entry: Entry) -> bool:
    """True of a kernel of ours, whose dropout can be drawn again."""
    return entry.contender.provider == OURS
