"""Show every backward kernel correct on the current GPU; `verify` runs and records it."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda.launch import smem_limit_bytes
from fa_kernels.extras import Extras
from fa_kernels.measure import memory
from fa_kernels.measure.cases import DTYPES, LAYOUTS, MASKS, Case, make_inputs, suits
from fa_kernels.measure.check_backward import BackwardTruth, GradientCheck
from fa_kernels.measure.option_cases import make_extras, option_cases
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import HOPPER_SMEM_PER_BLOCK, Tiling
from fa_kernels.variants import Backward, Variant

#: A tiling of this size stands for the backward's own default.
DEFAULT = Tiling(1, 1)
SEQLENS = ((1, 1), (113, 203), (203, 113), (239, 1))


def backward_cases() -> Iterator[Case]:
    """Shapes, dtypes, masks, tilings, layouts and options that every backward must pass."""
    for (nq, nk), dtype, causal in itertools.product(SEQLENS, DTYPES, MASKS):
        yield Case(AttentionProblem(2, 3, nq, nk, 64, dtype, causal), DEFAULT)
    for d, dtype in itertools.product((1, 20, 63, 96, 128, 256), DTYPES):
        yield Case(AttentionProblem(2, 3, 113, 203, d, dtype, "bottom_right"), DEFAULT)
    for d, dtype, layout in itertools.product((63, 64), DTYPES, LAYOUTS[1:]):
        yield Case(AttentionProblem(2, 3, 113, 203, d, dtype, "top_left"), DEFAULT, layout)
    odd = (Tiling(2, 3), Tiling(17, 33), Tiling(33, 17), Tiling(16, 64), Tiling(64, 20))
    for dtype, tiling in itertools.product(DTYPES, odd):
        yield Case(AttentionProblem(1, 2, 203, 331, 64, dtype, "bottom_right"), tiling)
    for case in option_cases():
        few = case.problem.dtype == "bfloat16" and case.problem.head_dim != 64
        if case.problem.seqlen_k < 2**12 and not few:
            small = Tiling(32, 32) if case.tiling.block_m == 64 else case.tiling
            yield Case(case.problem, small, extras=case.extras, lowest=case.lowest)
    for lead, blocks, dtype in itertools.product(((1, 1), (2, 3)), ((32, 32), (24, 40)), DTYPES):
        keep = np.random.default_rng(2).random((*lead, -(-203 // blocks[0]), -(-331 // blocks[1])))
        keep[..., 1, :] = keep[..., :, 2] = 1.0
        mask = BlockMask.from_dense(keep < 0.4, *blocks)
        problem = AttentionProblem(2, 3, 203, 331, 64, dtype, "bottom_right", block_mask=mask)
        yield Case(problem, Tiling(32, 32))
    # A row of dP too long for shared memory: the dS launch of 02 reads it again.
    yield Case(AttentionProblem(1, 1, 65, 20000, 64, "float16"), DEFAULT)
    # Rows of P and dP that with the reduction pass 48 KiB, from where CUDA wants to be asked.
    yield Case(AttentionProblem(1, 2, 17, 6144, 64, "float16"), DEFAULT)
    # 64-bit offsets: q has more than 2^31 elements.
    yield Case(AttentionProblem(1, 528, 65536, 64, 64, "float16"), DEFAULT)


def tiling_of(backward: Backward, case: Case, limit_bytes: int = HOPPER_SMEM_PER_BLOCK) -> Tiling:
    """The case's tiling, or the backward's own, clipped to the sequence."""
    p = case.problem
    if case.tiling == DEFAULT:
        return backward.tiling_for(p, limit_bytes)
    return case.tiling.clipped(p.seqlen_q, p.seqlen_k)


def takes_backward(variant: Variant, case: Case) -> bool:
    """True if the backward of `variant` is written for this case."""
    return variant.backward is not None and suits(variant, case)


@dataclass(frozen=True)
class BackwardInputs:
    """What a case is run on, and the truth it is held to."""

    arrays: list[Any]
    extras: Extras
    d_out: Any
    truth: BackwardTruth

    @classmethod
    def of(cls, case: Case, seed: int) -> BackwardInputs:
        """Random arrays on the GPU; d_out lies in memory as q does."""
        import cupy

        inputs, extras = make_inputs(case, seed, cupy), make_extras(case, seed, cupy)
        d_out = make_inputs(case, seed + 1, cupy)[0]
        return cls(inputs, extras, d_out, BackwardTruth(inputs, d_out, case.problem, extras))


def verify_backward_case(
    variant: Variant, case: Case, on: BackwardInputs
) -> tuple[list[str], GradientCheck | None]:
    """Faults of one backward on one case, in words; the check of its gradients if it passes.

    Checked, with and without `deterministic` where that is another build: dq, dk, dv against
    float64; bit for bit what is promised, at a second run with the counters compiled in; the
    counters against the model.
    """
    backward = variant.backward
    assert backward is not None
    p, tiling = case.problem, tiling_of(backward, case, smem_limit_bytes())
    faults, check, loose = [], None, backward.has_loose_dq(p, tiling)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none of these layouts may be copied
        out, lse, _ = variant.run(*on.arrays, p, tiling, extras=on.extras)
        args = (on.d_out, *on.arrays, out, lse, p, tiling)
        for deterministic in (False, True) if loose else (False,):
            options = {"extras": on.extras, "deterministic": deterministic}
            row = p.lse_bytes
            memory.poison(p.q_bytes, p.kv_bytes, p.kv_bytes, 2 * p.q_bytes, row, row)
            dq, dk, dv, _ = backward.run(*args, **options)
            again = backward.run(*args, **options, count_traffic=True)
            check = on.truth.check(dq, dk, dv)
            if not check.ok:
                faults.append(f"errors {check.errors}, limits {check.limits}")
            pairs = {"dk": (dk, again[1]), "dv": (dv, again[2])}
            if deterministic or not loose:
                pairs["dq"] = (dq, again[0])
            faults += [
                f"{name} differs at a second run, deterministic = {deterministic}"
                for name, (first, second) in pairs.items()
                if not bool((first == second).all())
            ]
            model = backward.launched(p, tiling, deterministic=deterministic)
            # Rows of finfo.min biases make the statistics launch work; no model knows the values.
            if not case.lowest and (again[3] is None or not model.same_as(again[3])):
                faults.append(f"counters {again[3]} differ from the model {model}")
    return faults, None if faults else check


#: How often a call is repeated that promises the same bits.
REPEATS = 250


def repeats_agree(variant: Variant, dtype: str) -> list[str]:
    """Faults where one of `REPEATS` equal calls gives other bits than promised.

    Promised: out and lse; dk and dv; dq if it is deterministic. With dropout and grouped heads.
    """
    import cupy

    case = Case(
        AttentionProblem(2, 4, 203, 331, 64, dtype, "bottom_right", nheads_kv=2, dropout_p=0.1,
                         seed=1),
        Tiling(32, 32),
    )  # fmt: skip
    p, inputs = case.problem, make_inputs(case, 0, cupy)
    d_out, first, changed = make_inputs(case, 1, cupy)[0], None, set()
    names = ("out", "lse", "dq", "dk", "dv")
    for _ in range(REPEATS):
        results = list(variant.run(*inputs, p, case.tiling)[:2])
        if variant.backward is not None:
            args = (d_out, *inputs, *results, p, case.tiling)
            gradients = variant.backward.run(*args, deterministic=True)[:3]
            loose = variant.backward.run(*args)[1:3]  # dk, dv also beside an atomic dq
            results += [*gradients, *loose]
        first = first or results
        pairs = zip((*names, "dk", "dv"), first, results, strict=False)
        changed |= {name for name, a, b in pairs if not bool((a == b).all())}
    return [f"{name} changes within {REPEATS} runs ({dtype})" for name in sorted(changed)]
