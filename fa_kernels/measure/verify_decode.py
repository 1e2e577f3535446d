"""Show 07_decode_split_kv correct on the current GPU: results, caches, counters, graphs."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fa_kernels.cuda.launch import load_in_parallel, smem_limit_bytes
from fa_kernels.cuda.run_decode import (
    DTYPES,
    block_rows,
    merges_on_chip,
    planned_here,
    run_decode,
)
from fa_kernels.measure import memory
from fa_kernels.measure.check import Check, Truth
from fa_kernels.measure.decode_cases import (
    DecodeCase,
    DecodeInputs,
    decode_cases,
    make_decode_inputs,
    problem_of,
    small_decode_cases,
)
from fa_kernels.measure.tally import Share, Tally
from fa_kernels.measure.verify import REPEATS, changed_names
from fa_kernels.traffic.decode_model import launched_decode

#: What the kernel is called in records and tables.
DECODE = "decode_split_kv"


def decode_case_faults(case: DecodeCase, inputs: DecodeInputs, tally: Tally) -> list[str]:
    """Faults of one case, in words; empty if it passes.

    Checked: out and lse against float64; the caches, which must hold the new tokens and nothing
    else new; the same again bit for bit with the counters compiled in, and these against the model.
    """
    p = case.problem
    want = [_appended(x, new, case, inputs) for x, new in _caches(inputs)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none of these layouts may be copied
        memory.poison(p.q_bytes, p.lse_bytes, p.partial_bytes(case.num_splits))
        out, lse, _ = _run(case, inputs)
        again, _, counted = _run(case, inputs, count_traffic=True)
    faults = []
    check = worst_check(case, inputs, out, lse)
    if not check.ok:
        faults.append(
            f"out error {check.out_err:.3g} (limit {check.out_limit:.3g}), "
            f"lse error {check.lse_err:.3g} (limit {check.lse_limit:.3g})"
        )
    for name, cache, bits in zip("kv", (inputs.k, inputs.v), want, strict=True):
        if not bool((cache.view(np.int16) == bits).all()):
            faults.append(f"the cache of {name} does not hold its old and its new tokens")
    if not bool((again == out).all()):
        faults.append("the output changes when the counters are compiled in")
    rows = block_rows(p, case.num_splits)
    on_chip = merges_on_chip(p, case.num_splits, **case.limits)
    model = launched_decode(p, case.totals, case.num_splits, rows, on_chip)
    if counted is None or not model.same_as(counted):
        faults.append(f"counters {counted} differ from the model {model}")
    if not faults and not tally.failures and case.scale_inputs == 1.0:
        tally.note(DECODE, p.dtype, check)
    return faults


def _run(case: DecodeCase, inputs: DecodeInputs, **options: Any) -> Any:
    q, k, v, lengths = inputs.q, inputs.k, inputs.v, inputs.cache_seqlens
    options |= inputs.options | {"limits": case.limits}
    return run_decode(q, k, v, lengths, case.problem, case.num_splits, **options)


def worst_check(case: DecodeCase, inputs: DecodeInputs, out: Any, lse: Any) -> Check:
    """out and lse of every sequence against float64; the one that uses most of its limit."""
    checks = []
    for b, total in enumerate(case.totals):
        k, v = (x[b : b + 1, :, :total] for x in (inputs.k_all, inputs.v_all))
        truth = Truth((inputs.q[b : b + 1], k, v), case.of_sequence(b))
        checks.append(truth.check(out[b : b + 1], lse[b : b + 1]))
    return max(checks, key=_strain)


def _strain(check: Check) -> float:
    """How much of its limits a check uses; infinite for one that fails."""
    if not check.ok:
        return float("inf")
    pairs = ((check.out_err, check.out_limit), (check.lse_err, check.lse_limit))
    return max(error / limit if limit else 0.0 for error, limit in pairs)


def _caches(inputs: DecodeInputs) -> Iterator[tuple[Any, Any]]:
    yield inputs.k, inputs.k_new
    yield inputs.v, inputs.v_new


def _appended(cache: Any, new: Any, case: DecodeCase, inputs: DecodeInputs) -> Any:
    """The bits of a cache as they must be after the call."""
    p, bits = case.problem, cache.view(np.int16).copy()
    table = None if inputs.block_table is None else inputs.block_table.get()
    for b, total in enumerate(case.totals):
        for i in range(p.seqlen_new):
            position = total - p.seqlen_new + i
            at: tuple[Any, ...] = (b, slice(None), position)
            if table is not None:
                page, slot = divmod(position, p.page_size or 1)
                at = (int(table[b, page]), slice(None), slot)
            bits[at] = new.view(np.int16)[b, :, i]
    return bits


# -- one small shape each -------------------------------------------------------------------


#: A cluster's, and more than a cluster has blocks.
_SPLITS = (3, 9)


def _small(dtype: str, paged: bool, num_splits: int = 3) -> DecodeCase:
    pages = {"page_size": 32} if paged else {}
    problem = problem_of(64, dtype, seqlen_q=2, seqlen_new=1, **pages)
    return DecodeCase(problem, (1, 2, 16, 17, 333, 1000, 1024), num_splits)


def decode_repeats_agree(dtype: str, paged: bool, num_splits: int) -> list[str]:
    """Faults where one of `REPEATS` equal calls gives other bits of out or lse."""
    case = _small(dtype, paged, num_splits)
    inputs = make_decode_inputs(case, 0)
    changed = changed_names(("out", "lse"), lambda: _run(case, inputs)[:2])
    return [f"{name} changes within {REPEATS} runs ({dtype})" for name in changed]


def nan_leaves_its_decode_row(dtype: str, value: float, num_splits: int) -> list[str]:
    """Faults where `value` (NaN or inf) in one query row changes any other row of out or lse."""
    case = _small(dtype, False, num_splits)
    inputs = make_decode_inputs(case, 0)
    clean_out, clean_lse, _ = _run(case, inputs)
    q = inputs.q.copy()
    q[4, 3, 1, 5] = value
    out, lse, _ = _run(case, replace(inputs, q=q))
    same_out, same_lse = (out == clean_out).all(axis=-1), lse == clean_lse
    same_out[4, 3, 1] = same_lse[4, 3, 1] = True
    faults = []
    if not bool(same_out.all()) or not bool(same_lse.all()):
        faults.append(f"{value} in one query row reaches another row ({dtype})")
    if not np.isnan(out[4, 3, 1].get().astype(np.float32)).any():
        faults.append(f"{value} in a query row does not show in its own row ({dtype})")
    return faults


def lengths_are_clamped(dtype: str, paged: bool) -> list[str]:
    """Faults where lengths on the GPU past the cache's end, or below 0, do more than stop there."""
    case = _small(dtype, paged)
    p = replace(case.problem, seqlen_new=0)
    case = replace(case, problem=p, totals=(p.capacity,) * p.batch)
    inputs = make_decode_inputs(case, 1)
    want = _run(case, inputs)[:2]
    past = replace(inputs, cache_seqlens=inputs.cache_seqlens + np.int32(9))
    pairs = zip(_run(case, past)[:2], want, strict=True)
    faults = [] if all(bool((a == b).all()) for a, b in pairs) else ["a length past the end counts"]
    new = make_decode_inputs(replace(case, problem=replace(p, seqlen_new=2)), 1)
    full = replace(new, k=inputs.k.copy(), v=inputs.v.copy(), cache_seqlens=past.cache_seqlens)
    _run(replace(case, problem=replace(p, seqlen_new=2)), full)
    for cache, before in ((full.k, inputs.k), (full.v, inputs.v)):
        if not bool((cache.view(np.int16) == before.view(np.int16)).all()):
            faults.append("tokens past the end are written")
    return faults


def graph_agrees(dtype: str, paged: bool, num_splits: int) -> list[str]:
    """Faults where a captured call, replayed with other values, is not the call itself."""
    import cupy

    case = _small(dtype, paged, num_splits)
    inputs = make_decode_inputs(case, 2)
    _run(case, inputs)  # compiles
    cupy.cuda.Device().synchronize()  # the other stream does not wait for this one
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        out, lse, _ = _run(case, inputs)
        graph = stream.end_capture()
        taken = [cupy.empty(1 << 20, np.uint8) for _ in range(8)]  # what others take meanwhile
        for block in taken:
            block.fill(0xFF)
        inputs.q[...] = inputs.q[::-1].copy()
        inputs.cache_seqlens[...] = inputs.cache_seqlens // 2
        graph.launch(stream)
    stream.synchronize()
    pairs = zip((out, lse), _run(case, inputs)[:2], ("out", "lse"), strict=True)
    return [
        f"{name} of a graph is another than that of a call ({dtype})"
        for a, b, name in pairs
        if not bool((a == b).all())
    ]


def verify_decode(kernel: str, share: Share, tally: Tally, threads: int = 32) -> None:
    """Run a share of the cases of 07_decode_split_kv, into `tally`; `kernel` is its name.

    Raises:
        OutOfTime: the tally's deadline passed.
    """
    work = []
    for seed, case in enumerate(decode_cases()):
        plan = planned_here(case.problem, case.num_splits, **case.builds)
        if not share.has(plan):
            continue
        if plan.smem_bytes > smem_limit_bytes():
            tally.skipped += 1
            continue
        work.append((seed, case))
    builds = (
        planned_here(case.problem, case.num_splits, count_traffic=count, **case.builds)
        for (_, case), count in itertools.product(work, (False, True))
    )
    tally.compiled += load_in_parallel(builds, threads)
    for seed, case in work:
        try:
            inputs = make_decode_inputs(case, seed)
        except MemoryError as error:
            tally.leave_out(str(case), error)
            continue
        tally.count(partial(decode_case_faults, case, inputs, tally), f"{DECODE} {case}")
        del inputs
        memory.free_large_pools()
    for check, what in itertools.islice(_more(), share.index, None, share.of):
        tally.count(check, what)


def _more() -> Iterator[tuple[Callable[[], list[str]], str]]:
    for dtype, paged in itertools.product(DTYPES, (False, True)):
        where = f"{dtype}, {'pages' if paged else 'contiguous'}"
        yield partial(lengths_are_clamped, dtype, paged), f"{DECODE} lengths, {where}"
        for splits in _SPLITS:
            what = f"{DECODE} in a graph, {where}, {splits} splits"
            yield partial(graph_agrees, dtype, paged, splits), what
            repeated = partial(decode_repeats_agree, dtype, paged, splits)
            yield repeated, f"{DECODE} repeated, {where}, {splits} splits"
    for dtype, value, splits in itertools.product(DTYPES, (np.nan, np.inf), _SPLITS):
        leaves = partial(nan_leaves_its_decode_row, dtype, value, splits)
        yield leaves, f"{DECODE} {value}, {splits} splits"


def launch_small_decode_cases() -> int:
    """Launch `small_decode_cases`, for a tool that watches this process; how many launches.

    Raises:
        AssertionError: a result that is not finite where it must be.
    """
    launches = 0
    for case in small_decode_cases():
        inputs = make_decode_inputs(case, 0)
        out, lse, _ = _run(case, inputs)
        assert np.isfinite(out.get().astype(np.float32)).all() and not np.isnan(lse.get()).any()
        launches += len(planned_here(case.problem, case.num_splits, **case.builds).steps)
    return launches
