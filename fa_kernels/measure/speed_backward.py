"""The fast backward passes beside their peers', problem by problem, in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fa_kernels.cuda.launch import smem_limit_bytes
from fa_kernels.measure import memory, records, timing
from fa_kernels.measure.baselines import BASELINES
from fa_kernels.measure.check_backward import BackwardTruth, GradientCheck
from fa_kernels.measure.point import (
    Contender,
    our_contender,
    peer_contender,
    random_inputs,
    row_of,
)
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.variants import VARIANTS, Variant

#: FlashAttention, figure 2 (left): forward and backward of GPT-2 medium's attention.
FIG2_LEFT = AttentionProblem(64, 16, 1024, 1024, 64, "float16")
#: Where the backward is timed with other tiles than its default, with and without a causal mask.
TILES_AT = (4096, "float16")
TILES = ((32, 64), (32, 128), (64, 64), (64, 128), (128, 64), (128, 128))
#: Rows up to which the gradients of four heads are checked.
MOST_OF_FOUR_HEADS = 16384


@dataclass(frozen=True)
class _Entry:
    """One way to the gradients: who, which pass and metric, and the call, which gives them."""

    contender: Contender
    pass_: str
    metric: str
    call: Callable[[], Sequence[Any]]


def backward_rows(
    problem: AttentionProblem,
    variants: Sequence[str],
    peers: Sequence[str],
    flush: timing.Flush,
) -> Iterator[records.Row]:
    """Rows of the backward of every named variant and peer at one problem, checked, then timed.

    Pass "bwd": latency, ours also with a deterministic dq and at some points with other tiles.
    Pass "both" (at `FIG2_LEFT` alone): forward and backward in one.
    """
    memory.free_pools()
    q, k, v = random_inputs(problem)
    d_out = random_inputs(problem, seed=1)[0]
    few = _few_heads(problem)  # in float64 a head takes as long as many calls
    truth = BackwardTruth([q, k, v], d_out, problem, kv_heads=few)
    entries = [
        entry
        for variant in _able(variants, problem)
        for entry in _of_variant(variant, problem, (q, k, v), d_out)
    ]
    entries += [entry for name in peers for entry in _of_peer(name, problem, (q, k, v), d_out)]
    timed: list[tuple[_Entry, float, float]] = []
    for entry in entries:
        try:
            check = truth.check(*entry.call())
        except Exception as refusal:  # a peer may refuse in many ways; the run must go on
            yield _failed(problem, entry, f"{type(refusal).__name__}: {refusal}")
            continue
        if not check.ok:
            yield _failed(problem, entry, f"wrong: {check.errors}, limits {check.limits}")
            continue
        if (entry.pass_, entry.metric) == ("bwd", "latency_ms"):
            _, peak = memory.peak_extra_bytes(entry.call)
            yield _row(problem, entry, check, "extra_mem_bytes", peak)
        timed.append((entry, timing.time_once(entry.call, flush), max(check.errors.values())))
    calls = [entry.call for entry, _, _ in timed]
    latencies = timing.time_interleaved(calls, flush, [first for _, first, _ in timed])
    for (entry, _, error), latency in zip(timed, latencies, strict=True):
        assert latency is not None
        detail = entry.contender.name_kernels(entry.call)
        row = row_of(
            problem, entry.contender, entry.metric, value=latency.median, error=error, detail=detail
        )
        yield replace(row, pass_=entry.pass_, p20=latency.p20, p80=latency.p80, n=latency.n)


def _few_heads(problem: AttentionProblem) -> list[tuple[int, int]]:
    """(batch, k/v head) pairs that are checked: the first, the last and two between.

    Of long sequences the two ends alone: seconds a head.
    """
    assert problem.nheads_kv is not None
    count = problem.batch * problem.nheads_kv
    between = {count // 3, 2 * count // 3} if problem.seqlen_q <= MOST_OF_FOUR_HEADS else set()
    chosen = sorted({0, count - 1} | between)
    return [divmod(number, problem.nheads_kv) for number in chosen]


def backward_plans(problem: AttentionProblem, variants: Sequence[str]) -> Iterator[Any]:
    """What `backward_rows` launches of ours, to compile it ahead."""
    for variant in _able(variants, problem):
        assert variant.backward is not None
        for tiling in _tilings(variant, problem):
            yield variant.backward.plan(problem, tiling)
        own = variant.backward.tiling_for(problem, smem_limit_bytes())
        for deterministic in variant.backward.dq_builds(problem, own):
            yield variant.backward.plan(problem, own, deterministic=deterministic)


def _able(variants: Sequence[str], problem: AttentionProblem) -> Iterator[Variant]:
    """Those with a backward that takes this problem: another kernel's may be left to it."""
    limit = smem_limit_bytes()
    for variant in map(VARIANTS.__getitem__, variants):
        if variant.backward is not None and variant.backward.takes(problem, limit):
            yield variant


def _tilings(variant: Variant, problem: AttentionProblem) -> list[Tiling]:
    """The default tiles; at some points others that the backward takes, too."""
    backward, limit = variant.backward, smem_limit_bytes()
    assert backward is not None
    found = [backward.tiling_for(problem, limit)]
    if (problem.seqlen_q, problem.dtype) != TILES_AT:
        return found
    for tiling in (Tiling(*sizes) for sizes in TILES):
        try:
            fits = backward.plan(problem, tiling).smem_bytes <= limit
        except ValueError:  # no registers for its gradients
            continue
        if fits and tiling not in found:
            found.append(tiling)
    return found


def _of_variant(
    variant: Variant, problem: AttentionProblem, inputs: tuple[Any, ...], d_out: Any
) -> Iterator[_Entry]:
    backward = variant.backward
    assert backward is not None
    forward_tiling = variant.tiling_for(problem, smem_limit_bytes())
    forward = our_contender(variant, forward_tiling, problem).prepare(*inputs, problem)
    out, lse = forward()
    saved, own = (d_out, *inputs, out, lse), None
    for tiling in _tilings(variant, problem):
        contender = our_contender(variant, tiling, problem)
        call = _backward_call(variant, saved, problem, tiling, False)
        own = own or (contender, tiling, call)
        yield _Entry(contender, "bwd", "latency_ms", call)
    assert own is not None
    contender, tiling, call = own
    if True in backward.dq_builds(problem, tiling):
        fixed = _backward_call(variant, saved, problem, tiling, True)
        yield _Entry(contender, "bwd", "deterministic_latency_ms", fixed)
    if problem == FIG2_LEFT:
        again = _prepared(variant, saved, problem, tiling, False)

        def both() -> Sequence[Any]:
            return again(d_out, *inputs, *forward())

        yield _Entry(contender, "both", "latency_ms", both)


def _prepared(
    variant: Variant,
    saved: tuple[Any, ...],
    problem: AttentionProblem,
    tiling: Tiling,
    deterministic: bool,
) -> Callable[..., Sequence[Any]]:
    """As a repeated call of the front door: its launches are laid out once."""
    backward = variant.backward
    assert backward is not None
    if backward.prepare is not None:
        recipe = backward.prepare(*saved, problem, tiling, deterministic)
        if recipe is not None:
            return recipe
    run = backward.run
    return lambda *tensors: run(*tensors, problem, tiling, deterministic=deterministic)[:3]


def _backward_call(
    variant: Variant, saved: tuple[Any, ...], *how: Any
) -> Callable[[], Sequence[Any]]:
    return partial(_prepared(variant, saved, *how), *saved)


def _of_peer(
    name: str, problem: AttentionProblem, inputs: tuple[Any, ...], d_out: Any
) -> Iterator[_Entry]:
    baseline = BASELINES[name]
    contender = peer_contender(baseline, problem)
    if baseline.prepare_training is None:
        return
    try:
        contender.refuse(problem)
        both, backward = baseline.prepare_training(*inputs, d_out, problem)
    except NotImplementedError:
        return
    except Exception as error:  # a package may refuse in many ways; the run must go on
        yield _Entry(contender, "bwd", "latency_ms", partial(_raise, error))
        return
    yield _Entry(contender, "bwd", "latency_ms", backward)
    if problem == FIG2_LEFT:
        yield _Entry(contender, "both", "latency_ms", both)


def _raise(error: Exception) -> Sequence[Any]:
    raise error


def _row(
    problem: AttentionProblem, entry: _Entry, check: GradientCheck, metric: str, value: float
) -> records.Row:
    error = max(check.errors.values())
    detail = f"dq, dk, dv of {check.heads} k/v heads checked"
    row = row_of(problem, entry.contender, metric, value=value, error=error, detail=detail)
    return replace(row, pass_=entry.pass_)


def _failed(problem: AttentionProblem, entry: _Entry, why: str) -> records.Row:
    detail = " ".join(why.split())
    row = row_of(problem, entry.contender, entry.metric, status="failed", detail=detail)
    return replace(row, pass_=entry.pass_)
