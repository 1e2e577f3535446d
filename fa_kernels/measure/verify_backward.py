"""Show every backward kernel correct on the current GPU: gradients, repeats, counters."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda.launch import load_in_parallel, smem_limit_bytes
from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.extras import Extras
from fa_kernels.measure import memory
from fa_kernels.measure.cases import (
    DTYPES,
    LAYOUTS,
    MASKS,
    Case,
    is_aligned,
    make_inputs,
    suits,
    uncut_cases,
)
from fa_kernels.measure.check_backward import BackwardTruth
from fa_kernels.measure.option_cases import make_extras, option_cases
from fa_kernels.measure.tally import Share, Tally
from fa_kernels.measure.verify import REPEATS, changed_names, repeated_case
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import HOPPER_SMEM_PER_BLOCK, Tiling, round_up
from fa_kernels.variants import VARIANTS, Variant

#: A tiling of this size stands for the backward's own default.
DEFAULT = Tiling(1, 1)
SEQLENS = ((1, 1), (113, 203), (203, 113), (239, 1))


def backward_cases() -> Iterator[Case]:
    """Shapes, dtypes, masks, tilings, layouts and options that every backward must pass."""
    for (nq, nk), dtype, causal in itertools.product(SEQLENS, DTYPES, MASKS):
        yield Case(AttentionProblem(2, 3, nq, nk, 64, dtype, causal), DEFAULT)
    for d, dtype in itertools.product((1, 20, 63, 96, 128, 160, 256), DTYPES):
        yield Case(AttentionProblem(2, 3, 113, 203, d, dtype, "bottom_right"), DEFAULT)
    for d, dtype, layout in itertools.product((63, 64), DTYPES, LAYOUTS[1:]):
        yield Case(AttentionProblem(2, 3, 113, 203, d, dtype, "top_left"), DEFAULT, layout)
    odd = (Tiling(2, 3), Tiling(17, 33), Tiling(33, 17), Tiling(16, 64), Tiling(64, 20))
    for dtype, tiling in itertools.product(DTYPES, odd):
        yield Case(AttentionProblem(1, 2, 203, 331, 64, dtype, "bottom_right"), tiling)
    for case in option_cases():
        few = case.problem.dtype == "bfloat16" and case.problem.head_dim != 64
        if case.problem.seqlen_k >= 2**12 or few:
            continue
        small = Tiling(32, 32) if case.tiling.block_m == 64 else case.tiling
        yield replace(case, tiling=DEFAULT if case.own_tiles else small)
    for lead, blocks, dtype in itertools.product(((1, 1), (2, 3)), ((32, 32), (24, 40)), DTYPES):
        keep = np.random.default_rng(2).random((*lead, -(-203 // blocks[0]), -(-331 // blocks[1])))
        keep[..., 1, :] = keep[..., :, 2] = 1.0
        mask = BlockMask.from_dense(keep < 0.4, *blocks)
        problem = AttentionProblem(2, 3, 203, 331, 64, dtype, "bottom_right", block_mask=mask)
        for own_tiles in (False, True):
            yield Case(problem, DEFAULT if own_tiles else Tiling(32, 32), own_tiles=own_tiles)
    for d, keep_blocks in itertools.product((64, 128, 256), ((64, 128), (24, 40))):
        sizes = (1, 1, -(-203 // keep_blocks[0]), -(-331 // keep_blocks[1]))
        mask = BlockMask.from_dense(np.random.default_rng(3).random(sizes) < 0.5, *keep_blocks)
        problem = AttentionProblem(2, 4, 203, 331, d, "float16", nheads_kv=2, block_mask=mask)
        yield Case(problem, DEFAULT, own_tiles=True)
    # Every option where two or four warps share keys, and sequences shorter than a tile.
    for case in option_cases():
        p = case.problem
        if case.own_tiles and p.head_dim == 64 and p.dtype == "float16":
            for d in (96, 128, 192):
                other = replace(p, head_dim=d)
                yield replace(case, problem=other, tiling=DEFAULT)
    for nq, d in itertools.product((16, 32, 48), (64, 96, 128, 192, 256)):
        problem = AttentionProblem(2, 4, nq, 203, d, "float16", "bottom_right", nheads_kv=2)
        yield Case(problem, DEFAULT, own_tiles=True)
    # One stage, as GPUs of 99 KiB a block take it, and dropout where a warp has 8 of a tile's rows.
    drop: tuple[dict[str, Any], ...] = ({}, {"dropout_p": 0.25, "seed": 5})
    for d, fields in itertools.product((192, 256), drop):
        problem = AttentionProblem(2, 3, 113, 203, d, "float16", "bottom_right", **fields)
        yield Case(problem, Tiling(32, 32), own_tiles=True)
    # One k/v head for many of q, and a mask of many small blocks that cut every tile.
    mask = BlockMask.from_dense(np.random.default_rng(4).random((1, 1, 64, 64)) < 0.5, 2, 2)
    problem = AttentionProblem(1, 32, 128, 128, 64, "float16", nheads_kv=1, block_mask=mask)
    yield Case(problem, DEFAULT, own_tiles=True)
    yield from uncut_cases()
    # A row of dP too long for shared memory: the dS launch of 02 reads it again.
    yield Case(AttentionProblem(1, 1, 65, 20000, 64, "float16"), DEFAULT)
    # Rows of P and dP that with the reduction pass 48 KiB, from where CUDA wants to be asked.
    yield Case(AttentionProblem(1, 2, 17, 6144, 64, "float16"), DEFAULT)
    # 64-bit offsets: q has more than 2^31 elements.
    yield Case(AttentionProblem(1, 528, 65536, 64, 64, "float16"), DEFAULT)


def tiling_of(variant: Variant, case: Case, limit_bytes: int = HOPPER_SMEM_PER_BLOCK) -> Tiling:
    """The case's tiling in sizes that the backward of `variant` takes, or its own default; clipped
    to the sequence."""
    p, backward, step = case.problem, variant.backward, variant.tile_multiple
    assert backward is not None
    if case.tiling == DEFAULT or backward.own_tiles_alone:
        return backward.tiling_for(p, limit_bytes)
    tiling = Tiling(round_up(case.tiling.block_m, step), round_up(case.tiling.block_n, step))
    return variant.clipped(p, tiling)


def takes_backward(variant: Variant, case: Case) -> bool:
    """True if the backward of `variant` is written for this case."""
    if variant.backward is None or not suits(variant, case):
        return False
    tiling, aligned = tiling_of(variant, case), is_aligned(case)
    try:
        variant.backward.plan(case.problem, tiling, aligned=aligned)
    except NotImplementedError:  # an option or a head_dim that it leaves to another
        return False
    return True


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
    variant: Variant, case: Case, on: BackwardInputs, tally: Tally
) -> list[str]:
    """Faults of one backward on one case, in words; empty if it passes.

    Checked, with and without `deterministic` where that is another build: dq, dk, dv against
    float64; bit for bit what is promised, at a second run with the counters compiled in; the
    counters against the model. Errors of a case that passes go into `tally`.
    """
    backward = variant.backward
    assert backward is not None
    p, tiling = case.problem, tiling_of(variant, case, smem_limit_bytes())
    faults, check, loose = [], None, backward.has_loose_dq(p, tiling)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none of these layouts may be copied
        forward_tiling = variant.nearest_tiling(p, tiling)
        out, lse, _ = variant.run(*on.arrays, p, forward_tiling, extras=on.extras)
        args = (on.d_out, *on.arrays, out, lse, p, tiling)
        for deterministic in backward.dq_builds(p, tiling):
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
    if not faults and check is not None:
        tally.note_gradients(variant.name, p.dtype, check)
    return faults


def repeats_agree(variant: Variant, dtype: str) -> list[str]:
    """Faults where one of many equal calls gives other bits than promised.

    Promised: dk and dv; dq if it is deterministic.
    """
    import cupy

    backward, case = variant.backward, repeated_case(dtype)
    assert backward is not None
    p, inputs = case.problem, make_inputs(case, 0, cupy)
    d_out = make_inputs(case, 1, cupy)[0]
    tiling = tiling_of(variant, case)
    out, lse, _ = variant.run(*inputs, p, variant.nearest_tiling(p, tiling))
    args = (d_out, *inputs, out, lse, p, tiling)
    names = ("dq", "dk", "dv") * backward.fixes_dq + ("dk (atomic dq)", "dv (atomic dq)")

    def call() -> tuple[Any, ...]:
        fixed = backward.run(*args, deterministic=True)[:3] if backward.fixes_dq else ()
        return (*fixed, *backward.run(*args)[1:3])  # dk and dv also beside an atomic dq

    changed = changed_names(names, call)
    return [f"{name} changes within {REPEATS} runs ({dtype})" for name in changed]


def verify_backward(kernel: str, share: Share, tally: Tally, threads: int = 32) -> None:
    """Run a share of the cases on every variant whose backward is `kernel`, into `tally`.

    Raises:
        OutOfTime: the tally's deadline passed.
    """
    able = [
        (variant, variant.backward)
        for variant in VARIANTS.values()
        if variant.backward is not None and variant.backward.kernel == kernel
    ]
    limit, work = smem_limit_bytes(), []
    for seed, case in enumerate(backward_cases()):
        takers = []
        for variant, backward in able:
            if takes_backward(variant, case):
                tiling = tiling_of(variant, case, limit)
                plan = backward.plan(case.problem, tiling, aligned=is_aligned(case))
                if share.has(plan):
                    takers.append((variant, plan))
        if takers:
            work.append((seed, case, takers))
    tally.compiled += load_in_parallel(_builds(work, limit), threads)
    for seed, case, takers in work:
        try:
            on = BackwardInputs.of(case, seed)
        except MemoryError as error:
            tally.leave_out(str(case), error)
            continue
        for variant, plan in takers:
            if plan.smem_bytes > limit:
                tally.skipped += 1
                continue
            check = partial(verify_backward_case, variant, case, on, tally)
            tally.count(check, f"backward of {variant.name} {case}")
        memory.free_large_pools()
    repeated = itertools.product((variant for variant, _ in able), DTYPES)
    for variant, dtype in itertools.islice(repeated, share.index, None, share.of):
        if dtype in variant.dtypes:
            check = partial(repeats_agree, variant, dtype)
            tally.count(check, f"backward of {variant.name} repeated")


def _builds(
    work: list[tuple[int, Case, list[tuple[Variant, LaunchPlan]]]], limit: int
) -> Iterator[LaunchPlan]:
    for _, case, takers in work:
        for variant, _ in takers:
            backward, p = variant.backward, case.problem
            assert backward is not None
            tiling, aligned = tiling_of(variant, case, limit), is_aligned(case)
            yield variant.plan(p, variant.nearest_tiling(p, tiling), aligned=aligned)
            builds = backward.dq_builds(p, tiling)
            for count, deterministic in itertools.product((False, True), builds):
                options = {"aligned": aligned, "count_traffic": count}
                yield backward.plan(p, tiling, **options, deterministic=deterministic)
