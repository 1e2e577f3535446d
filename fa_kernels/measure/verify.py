"""Show every kernel correct on the current GPU, over awkward shapes, and record it by hash."""

from __future__ import annotations

import datetime
import itertools
import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda.compile import kernel_hash
from fa_kernels.cuda.fingerprint import plan_fingerprint
from fa_kernels.cuda.launch import gpu_name, load_in_parallel, smem_limit_bytes
from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.cuda.verified import VERIFIED_DIR, read_verified
from fa_kernels.extras import Extras
from fa_kernels.measure import memory
from fa_kernels.measure.about import current_arch, describe_run
from fa_kernels.measure.cases import DTYPES, Case, cases, make_inputs, suits
from fa_kernels.measure.check import EPS, Check, Truth, sample_rows
from fa_kernels.measure.check_backward import GradientCheck
from fa_kernels.measure.option_cases import make_extras, option_cases
from fa_kernels.measure.verify_backward import (
    BackwardInputs,
    backward_cases,
    repeats_agree,
    takes_backward,
    tiling_of,
    verify_backward_case,
)
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.trace import trace_row
from fa_kernels.variants import VARIANTS, Variant


@dataclass
class Errors:
    """The largest errors of one variant over its cases, by tensor and dtype, and how much of its
    limit the worst of them used."""

    max_abs_err: dict[str, dict[str, float]] = field(default_factory=dict)
    worst_ratio: float = 0.0

    def note(self, tensor: str, dtype: str, error: float, limit: float) -> None:
        """Take in one tensor of a case that passed."""
        of_tensor = self.max_abs_err.setdefault(tensor, {})
        of_tensor[dtype] = max(of_tensor.get(dtype, 0.0), error)
        if limit:
            self.worst_ratio = max(self.worst_ratio, error / limit)


@dataclass
class Tally:
    """What verification found for one kernel, and for each variant that is launched from it."""

    cases: int = 0
    failures: int = 0
    skipped: int = 0
    variants: dict[str, Errors] = field(default_factory=dict)

    @property
    def worst_ratio(self) -> float:
        """The largest error of any variant, as a fraction of its limit."""
        return max((errors.worst_ratio for errors in self.variants.values()), default=0.0)

    def count(self, check: Callable[[], list[str]], what: str, say: Callable[[str], None]) -> None:
        """One more case: what `check` finds is said; an exception is a fault like any other."""
        self.cases += 1
        try:
            with np.errstate(invalid="ignore"):
                faults = check()
        except Exception as error:  # the other cases still run
            faults = [f"{type(error).__name__}: {error}"]
        if faults:
            self.failures += 1
            say(f"FAIL {what}: {'; '.join(faults)[:600]}")

    def note(self, variant: str, dtype: str, check: Check) -> None:
        """Take in the errors of a case that passed."""
        errors = self.variants.setdefault(variant, Errors())
        errors.note("out", dtype, check.out_err, check.out_limit)
        errors.note("lse", dtype, check.lse_err, check.lse_limit)

    def note_gradients(self, variant: str, dtype: str, check: GradientCheck) -> None:
        """Take in the errors of a case of a backward pass that passed."""
        errors = self.variants.setdefault(variant, Errors())
        for name, error in check.errors.items():
            errors.note(name, dtype, error, check.limits[name])


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

    case = _nan_case(dtype)
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


def _refused(variant: Variant, case: Case) -> bool:
    """True if this case cannot run on this GPU (shared memory), which is a refusal, not a fault."""
    plan = variant.plan(case.problem, case.tiling)
    return plan.smem_bytes > smem_limit_bytes()


def precompile(selected: Sequence[Variant], wanted: Sequence[Case]) -> int:
    """Compile in parallel what the cases need; how many kernels that was."""
    plans = list(_backward_plans(selected))
    for variant, case in itertools.product(selected, wanted):
        if not takes(variant, case):
            continue
        aligned = case.layout != "unaligned" and case.problem.head_dim % 8 == 0
        for count in (False, True):
            plan = variant.plan(case.problem, case.tiling, aligned=aligned, count_traffic=count)
            plans.append(plan)
    return load_in_parallel(plans)


def _backward_plans(selected: Sequence[Variant]) -> Iterator[LaunchPlan]:
    for variant, case in itertools.product(selected, backward_cases()):
        backward = variant.backward
        if backward is None or not takes_backward(variant, case):
            continue
        aligned = case.layout != "unaligned" and case.problem.head_dim % 8 == 0
        tiling = tiling_of(backward, case, smem_limit_bytes())
        yield variant.plan(case.problem, tiling, aligned=aligned)
        for count, deterministic in itertools.product((False, True), repeat=2):
            options = {"aligned": aligned, "count_traffic": count}
            yield backward.plan(case.problem, tiling, **options, deterministic=deterministic)


def verify(
    names: Sequence[str] | None = None, say: Callable[[str], None] = print
) -> dict[str, Tally]:
    """Run every case on every variant, or on all variants of the named ones' kernels.

    Returns tallies by kernel: a kernel is verified with all its options or not at all.

    Raises:
        ValueError: a name that is no variant's; the message lists those there are.
    """
    unknown = [name for name in names or () if name not in VARIANTS]
    if unknown:
        raise ValueError(f"variants {unknown} are not known: name any of {', '.join(VARIANTS)}.")
    import cupy

    kernels = {VARIANTS[name].kernel for name in names or VARIANTS}
    selected = [variant for variant in VARIANTS.values() if variant.kernel in kernels]
    wanted = [*cases(), *option_cases()]
    start = time.monotonic()
    say(f"compiled {precompile(selected, wanted)} kernels in {time.monotonic() - start:.0f} s")
    tallies = {variant.kernel: Tally() for variant in selected}
    for seed, case in enumerate(wanted):
        if not any(takes(variant, case) for variant in selected):
            continue
        inputs, extras = make_inputs(case, seed, cupy), make_extras(case, seed, cupy)
        truth = Truth(inputs, case.problem, extras=extras, rows=_rows(case.problem))
        for variant in selected:
            if not takes(variant, case):
                continue
            tally = tallies[variant.kernel]
            if _refused(variant, case):
                tally.skipped += 1
                continue
            check = partial(verify_case, variant, case, inputs, extras, truth, tally)
            tally.count(check, f"{variant.name} {case}", say)
    _verify_backward(selected, tallies, say)
    for variant, dtype, value in itertools.product(selected, DTYPES, (np.nan, np.inf)):
        if dtype not in variant.dtypes:
            continue
        tally = tallies[variant.kernel]
        if _refused(variant, _nan_case(dtype)):
            tally.skipped += 1
            continue
        tally.count(partial(nan_leaves_its_row, variant, dtype, value), variant.name, say)
    for variant, dtype in itertools.product(selected, DTYPES):
        if dtype in variant.dtypes:
            check = partial(repeats_agree, variant, dtype)
            tallies[variant.kernel].count(check, f"{variant.name} repeated", say)
    for variant, dtype, masked in itertools.product(selected, DTYPES, (False, True)):
        if variant.traced and dtype in variant.dtypes:
            check = partial(trace_agrees, variant, dtype, masked)
            tallies[variant.kernel].count(check, f"{variant.name} trace", say)
    return tallies


def _verify_backward(
    selected: Sequence[Variant], tallies: dict[str, Tally], say: Callable[[str], None]
) -> None:
    """The backward passes of `selected`, into tallies of their own kernels."""
    able = [(variant, variant.backward) for variant in selected if variant.backward is not None]
    tallies |= {backward.kernel: Tally() for _, backward in able}
    for seed, case in enumerate(backward_cases()):
        takers = [(v, backward) for v, backward in able if takes_backward(v, case)]
        on = BackwardInputs.of(case, seed) if takers else None
        for variant, backward in takers:
            tally = tallies[backward.kernel]
            plan = backward.plan(case.problem, tiling_of(backward, case, smem_limit_bytes()))
            if plan.smem_bytes > smem_limit_bytes():
                tally.skipped += 1
                continue

            def check(variant: Variant = variant, case: Case = case, on: Any = on) -> list[str]:
                faults, passed = verify_backward_case(variant, case, on)
                if passed is not None:
                    tallies[variant.backward.kernel].note_gradients(  # type: ignore[union-attr]
                        variant.name, case.problem.dtype, passed
                    )
                return faults

            tally.count(check, f"backward of {variant.name} {case}", say)


def write_verified(tallies: dict[str, Tally], command: str, root: Path = VERIFIED_DIR) -> Path:
    """Record tallies in <root>/<arch>.json; entries of other kernels stay as they are."""
    arch = current_arch()
    record = read_verified(arch, root)  # other kernels keep the entries of that folder
    about = describe_run(command, "")
    kernels = dict(record["kernels"])
    for kernel, tally in tallies.items():
        kernels[kernel] = {
            "hash": kernel_hash(kernel),
            "plans": plan_fingerprint(kernel),
            "cases": tally.cases,
            "failures": tally.failures,
            "refused_on_this_gpu": tally.skipped,
            "variants": {
                name: {
                    "max_abs_err": errors.max_abs_err,
                    "worst_share_of_limit": round(errors.worst_ratio, 4),
                }
                for name, errors in tally.variants.items()
            },
            "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "device": gpu_name(),
            "driver": about["driver"],
            "nvrtc": about["nvrtc"],
            "cupy": about["cupy"],
            "command": command,
        }
    pending = {k: v for k, v in record.get("pending", {}).items() if k not in tallies}
    text = json.dumps({"arch": arch, "kernels": kernels, "pending": pending}, indent=2)
    root.mkdir(parents=True, exist_ok=True)
    path = root / f"{arch}.json"
    path.write_text(text + "\n", encoding="utf-8")
    return path
