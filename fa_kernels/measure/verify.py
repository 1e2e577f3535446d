"""Show every forward kernel correct on the current GPU, over awkward shapes and all options."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda.launch import load_in_parallel, smem_limit_bytes
from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.extras import Extras
from fa_kernels.measure import memory
from fa_kernels.measure.cases import DTYPES, Case, cases, is_aligned, make_inputs, suited, suits
from fa_kernels.measure.check import EPS, Truth, sample_rows
from fa_kernels.measure.option_cases import make_extras, option_cases
from fa_kernels.measure.tally import Share, Tally
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.trace import trace_row
from fa_kernels.variants import VARIANTS, Variant


def verify_case(
    variant: Variant,
    case: Case,
    inputs: list[Any],
    extras: Extras,
    truth: Truth,
    tally: Tally,
) -> list[str]:
    """Faults of one variant on one case, in words; empty if it passes.

    Checked: out and lse against float64, the same again bit for bit with the counters compiled in,
    and the counters against the model. Errors of a case that passes go into `tally`, while none
    has failed; not those of scaled inputs, whose errors grow with them.
    """
    p = case.problem
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none of these layouts may be copied
        _poison(p, variant)
        out, lse, _ = variant.run(*inputs, p, case.tiling, extras=extras)
        counting = {"extras": extras, "count_traffic": True}
        again, _, counted = variant.run(*inputs, p, case.tiling, **counting)
    check = truth.check(
        out, lse, variant.roundings(p, case.tiling), not variant.keeps_scores_on_chip
    )
    faults = []
    if not check.ok:
        faults.append(
            f"out error {check.out_err:.3g} (limit {check.out_limit:.3g}), "
            f"lse error {check.lse_err:.3g} (limit {check.lse_limit:.3g})"
        )
    if not bool((again == out).all()):
        faults.append("the output changes when the counters are compiled in")
    model = variant.launched(p, case.tiling)
    if counted is None or not model.same_as(counted):
        faults.append(f"counters {counted} differ from the model {model}")
    if not faults and not tally.failures and case.scale_inputs == 1.0:
        tally.note(variant.name, p.dtype, check)
    return faults


def _rows(problem: AttentionProblem) -> np.ndarray:
    """Every row, unless the scores in float64 would take more than about a gigabyte."""
    small = problem.nheads * problem.seqlen_q * problem.seqlen_k <= 2**26
    return np.arange(problem.q_shape[2]) if small else sample_rows(problem)


def _poison(problem: AttentionProblem, variant: Variant) -> None:
    """`memory.poison` for what a run allocates: out, lse, and S and P, or l and the fp32 O."""
    rest = variant.workspace_bytes(problem)
    if variant.kernel == "03_flash_kv_outer":
        split = (problem.lse_bytes, rest - problem.lse_bytes)
    else:
        split = (rest // 2, rest // 2)
    memory.poison(problem.q_bytes, problem.lse_bytes, *split)


def _nan_case(dtype: str) -> Case:
    return Case(AttentionProblem(1, 2, 150, 150, 64, dtype), Tiling(32, 32))


def nan_leaves_its_row(variant: Variant, dtype: str, value: float) -> list[str]:
    """Faults where `value` (NaN or inf) in one query row changes any other row of out or lse."""
    import cupy

    case = suited(variant, _nan_case(dtype))
    problem = case.problem
    q, k, v = make_inputs(case, 0, cupy)
    clean_out, clean_lse, _ = variant.run(q, k, v, problem, case.tiling)
    q[0, 1, 70, 3] = value
    out, lse, _ = variant.run(q, k, v, problem, case.tiling)
    others = np.delete(np.arange(problem.seqlen_q), 70)
    same = bool((out[0, 0] == clean_out[0, 0]).all() and (lse[0, 0] == clean_lse[0, 0]).all())
    same &= bool((out[0, 1, others] == clean_out[0, 1, others]).all())
    same &= bool((lse[0, 1, others] == clean_lse[0, 1, others]).all())
    faults = [] if same else [f"{value} in one query row reaches another row ({dtype})"]
    if not bool(cupy.isnan(out[0, 1, 70]).any()):
        faults.append(f"{value} in a query row does not show in its own row ({dtype})")
    return faults


def trace_agrees(variant: Variant, dtype: str, masked: bool) -> list[str]:
    """Faults of the row recorded by -DTRACE, held against the NumPy reference's."""
    import cupy

    mask = BlockMask.pattern("butterfly", 203, 203, 32, 24, 0.5) if masked else None
    problem = AttentionProblem(2, 3, 203, 203, 64, dtype, "bottom_right", block_mask=mask)
    inputs = make_inputs(Case(problem, Tiling(32, 32)), 5, np)
    out, _, _ = variant.run(*map(cupy.asarray, inputs), problem, Tiling(32, 32))
    traced = partial(
        trace_row,
        *inputs,
        row=150,
        batch=1,
        head=2,
        variant=variant.name,
        causal=True,
        block_mask=mask,
        tiling=Tiling(32, 32),
    )
    ours, wanted = traced(backend="cuda"), traced(backend="numpy")
    faults = []
    if ours.normalised != wanted.normalised or ours.key_stop.tolist() != wanted.key_stop.tolist():
        faults.append("the trace visits other keys, or is normalised otherwise")
        return faults
    # The same formula in another order of summation: fp32 rounding of a few hundred terms, and in
    # an O that is rounded to 16 bits a unit of its dtype per visit.
    rounded = variant.roundings(problem, Tiling(32, 32)) > 1
    for name in ("m", "l", "alpha", "acc"):
        limit = 8 * EPS[dtype] if rounded and name == "acc" else 1e-4
        mine, theirs = getattr(ours, name), getattr(wanted, name)
        error = float(np.abs(mine - theirs).max() / max(1.0, float(np.abs(theirs).max())))
        if not error <= limit:
            faults.append(f"trace of {name} differs by {error:.3g} (limit {limit:.3g}, {dtype})")
    last = ours.output[-1].astype(out.dtype)
    # The kernel multiplies by 1 / l where this divides: one unit of the io dtype at most.
    gap = float(np.abs(last.astype(np.float32) - out[1, 2, 150].get().astype(np.float32)).max())
    if not gap <= 2 * EPS[dtype] * max(1.0, float(np.abs(last.astype(np.float32)).max())):
        faults.append(f"the last accumulator is not the output: {gap:.3g} apart ({dtype})")
    return faults


def takes(variant: Variant, case: Case) -> bool:
    """True if `variant` is written for this case: its dtype, its block mask, its range of scores.

    Variants that only isolate a difference share their kernel with another one: for them a part
    of the cases is enough.
    """
    return suits(variant, case) and (variant.control_for is None or case.problem.head_dim == 64)


#: How often a call is repeated that promises the same bits.
REPEATS = 250


def repeated_case(dtype: str) -> Case:
    """What is repeated: ragged, with dropout and grouped heads."""
    fields: dict[str, Any] = {"nheads_kv": 2, "dropout_p": 0.1, "seed": 1}
    problem = AttentionProblem(2, 4, 203, 331, 64, dtype, "bottom_right", **fields)
    return Case(problem, Tiling(32, 32))


def changed_names(names: tuple[str, ...], call: Callable[[], tuple[Any, ...]]) -> list[str]:
    """Which of the arrays that `call` returns, called `names`, change within `REPEATS` calls."""
    first = call()
    changed: set[str] = set()
    for _ in range(REPEATS - 1):
        pairs = zip(names, first, call(), strict=True)
        changed |= {name for name, a, b in pairs if not bool((a == b).all())}
    return sorted(changed)


def repeats_agree(variant: Variant, dtype: str) -> list[str]:
    """Faults where one of `REPEATS` equal calls gives other bits of out or lse."""
    import cupy

    case = suited(variant, repeated_case(dtype))
    inputs = make_inputs(case, 0, cupy)

    def call() -> tuple[Any, ...]:
        return variant.run(*inputs, case.problem, case.tiling)[:2]

    changed = changed_names(("out", "lse"), call)
    return [f"{name} changes within {REPEATS} runs ({dtype})" for name in changed]


def verify_forward(kernel: str, share: Share, tally: Tally, threads: int = 32) -> None:
    """Run a share of the cases on every variant launched from `kernel`, into `tally`.

    Raises:
        OutOfTime: the tally's deadline passed.
    """
    import cupy

    variants = [variant for variant in VARIANTS.values() if variant.kernel == kernel]
    work: list[Work] = []
    for seed, case in enumerate([*cases(), *option_cases()]):
        takers = []
        for variant in (variant for variant in variants if takes(variant, case)):
            own = suited(variant, case)
            plan = variant.plan(case.problem, own.tiling, aligned=is_aligned(case))
            if share.has(plan):
                takers.append((variant, own, plan))
        if takers:
            work.append((seed, case, takers))
    tally.compiled += load_in_parallel(_builds(work), threads)
    for seed, case, takers in work:
        try:
            inputs, extras = make_inputs(case, seed, cupy), make_extras(case, seed, cupy)
            truth = Truth(inputs, case.problem, extras=extras, rows=_rows(case.problem))
        except MemoryError as error:
            tally.leave_out(str(case), error)
            continue
        for variant, own, plan in takers:
            if plan.smem_bytes > smem_limit_bytes():
                tally.skipped += 1
                continue
            tally.count(
                partial(verify_case, variant, own, inputs, extras, truth, tally),
                f"{variant.name} {own}",
            )
        memory.free_large_pools()
    for check, what in itertools.islice(_more(variants, tally), share.index, None, share.of):
        tally.count(check, what)


#: A seed, its case, and who takes it: the variant, the case with its tiles, and the build.
Work = tuple[int, Case, list[tuple[Variant, Case, LaunchPlan]]]


def _builds(work: list[Work]) -> Iterator[LaunchPlan]:
    for _, _, takers in work:
        for variant, own, plan in takers:
            yield plan
            options = {"aligned": is_aligned(own), "count_traffic": True}
            yield variant.plan(own.problem, own.tiling, **options)


def _more(variants: list[Variant], tally: Tally) -> Iterator[tuple[Callable[[], list[str]], str]]:
    """Checks on one small shape each: NaN and inf, repeats, traces."""
    for variant, dtype in itertools.product(variants, DTYPES):
        if dtype not in variant.dtypes:
            continue
        for value in (np.nan, np.inf):
            case = suited(variant, _nan_case(dtype))
            if variant.plan(case.problem, case.tiling).smem_bytes > smem_limit_bytes():
                tally.skipped += 1
                continue
            yield partial(nan_leaves_its_row, variant, dtype, value), variant.name
        yield partial(repeats_agree, variant, dtype), f"{variant.name} repeated"
        for masked in (False, True) if variant.traced else ():
            yield partial(trace_agrees, variant, dtype, masked), f"{variant.name} trace"
