"""The calls of the published tables and figures, measured on this GPU: a run of kind "paper"."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fa_kernels.cuda.launch import load_in_parallel
from fa_kernels.measure import memory, records, timing
from fa_kernels.measure.check import Truth
from fa_kernels.measure.check_backward import BackwardTruth
from fa_kernels.measure.paper_calls import PaperCall, paper_calls
from fa_kernels.measure.paper_entries import Entry, Inputs, entries, is_ours, plans, with_dropout
from fa_kernels.measure.point import APART, FILL, random_inputs, row_of, too_slow
from fa_kernels.measure.progress import measure_each
from fa_kernels.measure.special_run import open_run
from fa_kernels.measure.sweep import installed_peers
from fa_kernels.problem import AttentionProblem
from fa_kernels.units import GIB
from fa_kernels.variants import VARIANTS, Variant

#: A call estimated to take longer is recorded as skipped; on CUDA cores, of which none is the
#: point of the tables, sooner.
MAX_MS, MAX_CUDA_CORE_MS = 2000.0, 250.0
#: Up to here our dropout is drawn again, in NumPy, and the result with it held against float64.
MAX_DROPPED_SEQLEN = 2048
#: An entry that needs this much gets what the pools of both libraries could give back.
LARGE_BYTES = 32 * GIB
METHOD = (
    f"{timing.METHOD}; forward (fwd), backward of a saved forward (bwd), and forward and backward "
    "in one (both); dropout: the same call passed without dropout, and ours up to N = "
    f"{MAX_DROPPED_SEQLEN} with its own mask, too; gradients of the first and the last head"
)
#: (contender, pass, dropout) -> (milliseconds, N, kept fraction) of the last one that was timed.
Known = dict[tuple[Any, ...], tuple[float, int, float]]


@dataclass
class _Truths:
    """The float64 results of one problem, forward and backward, made when first asked for."""

    problem: AttentionProblem
    inputs: Inputs
    made: dict[tuple[bool, float], Any] = field(default_factory=dict)

    def check(self, result: Any, entry: Entry, dropout_p: float) -> tuple[bool, float, str]:
        """(right, largest error, how much was looked at) of an entry's result."""
        forward = entry.pass_ == "fwd"
        key = forward, dropout_p
        if key not in self.made:
            self.made[key] = self._make(forward, with_dropout(self.problem, dropout_p))
        if forward:
            out, lse = result if isinstance(result, tuple) else (result, None)
            found = self.made[key].check(out, lse, entry.contender.roundings)
            return found.ok, found.out_err, f"{found.rows} of {self.problem.seqlen_q} rows checked"
        found = self.made[key].check(*result)
        detail = f"dq, dk, dv of {found.heads} k/v heads checked"
        return found.ok, max(found.errors.values()), detail

    def _make(self, forward: bool, problem: AttentionProblem) -> Any:
        if forward:
            return Truth(self.inputs.qkv, problem)
        ends = {(0, 0), (problem.batch - 1, problem.nheads - 1)}
        return BackwardTruth(self.inputs.qkv, self.inputs.d_out, problem, kv_heads=sorted(ends))


@dataclass(frozen=True)
class _Ready:
    """An entry whose result was right: its call, one timing of it, its error and what was said."""

    entry: Entry
    call: Callable[[], Any]
    first_ms: float
    error: float
    detail: str


def measure_call(
    call: PaperCall, flush: timing.Flush, known: Known, peers: Sequence[str]
) -> Iterator[records.Row]:
    """Rows of every way through one call: refusals, memory and counted bytes, then latencies.

    "extra_mem_bytes" of "both" is what a step holds beside q, k, v and d_out, "peak_mem_bytes" with
    them. `known` holds what earlier calls took, and learns. A way is timed only if its result
    passed against float64; with dropout, the same way without passed, too.
    """
    gc.collect()  # what a graph of torch's holds
    memory.free_pools()
    problem = call.problem
    call = replace(call, peers=tuple(name for name in call.peers if name in peers))
    able: list[int] = []
    for number, entry in enumerate(entries(call, None)):
        verdict = _verdict(problem, entry, known)
        if verdict is None:
            able.append(number)
        else:
            yield _row(problem, entry, "latency_ms", status=verdict[0], detail=verdict[1])
    if not able:
        return
    q, k, v = random_inputs(problem)
    inputs = Inputs((q, k, v), random_inputs(problem, seed=1)[0])
    truths = _Truths(problem, inputs)
    groups = _groups(problem, entries(call, None), able)
    for group in groups:
        memory.free_pools()
        every = entries(call, inputs)
        apart = APART if len(groups) > 1 else ""
        yield from _measure_group(problem, [every[i] for i in group], truths, flush, known, apart)
        del every  # and with it what the entries saved


def _verdict(problem: AttentionProblem, entry: Entry, known: Known) -> tuple[str, str] | None:
    """(status, sentence) if an entry is not to be tried, else None."""
    try:
        entry.refuse()
    except (ValueError, NotImplementedError) as error:
        return "refused", str(error)
    need = _input_bytes(problem) + entry.need_bytes
    if need > FILL * memory.free_bytes():
        return "does not fit", f"does not fit (estimated {need / GIB:.3g} GiB)"
    estimate, limit = _estimate(problem, entry, known), _limit(entry)
    if estimate is not None and estimate > limit:
        return "skipped (estimated)", too_slow(estimate, limit)
    return None


def _input_bytes(problem: AttentionProblem) -> int:
    """Bytes of q, k, v and d_out."""
    return 2 * problem.q_bytes + 2 * problem.kv_bytes


def _limit(entry: Entry) -> float:
    variant: Variant | None = VARIANTS.get(entry.contender.variant)
    slow = is_ours(entry) and variant is not None and not variant.tensor_cores
    return MAX_CUDA_CORE_MS if slow else MAX_MS


def _kind(problem: AttentionProblem, entry: Entry) -> tuple[Any, ...]:
    # Short sequences have smaller tiles: an estimate does not ask which.
    who = (entry.contender.provider, entry.contender.variant, problem.block_mask is not None)
    return (*who, problem.heads, entry.pass_, entry.dropout_p)


def _kept(problem: AttentionProblem) -> float:
    return 1.0 if problem.block_mask is None else problem.block_mask.density


def _estimate(problem: AttentionProblem, entry: Entry, known: Known) -> float | None:
    """Milliseconds, from the scores that a shorter call computed; None if there was none."""
    found = known.get(_kind(problem, entry))
    if found is None:
        return None
    ms, seqlen, kept = found
    return ms * (problem.seqlen_q / seqlen) ** 2 * _kept(problem) / kept


def _groups(
    problem: AttentionProblem, every: Sequence[Entry], able: Sequence[int]
) -> list[list[int]]:
    """Entries that are timed in the same rounds: all, if what both libraries keep fits."""
    ours = [i for i in able if is_ours(every[i])]
    peers = [i for i in able if not is_ours(every[i])]
    kept = sum(max((every[i].need_bytes for i in some), default=0) for some in (ours, peers))
    if kept + _input_bytes(problem) <= FILL * memory.free_bytes():
        return [list(able)]
    return [group for group in (ours, peers) if group]


def _measure_group(
    problem: AttentionProblem,
    group: Sequence[Entry],
    truths: _Truths,
    flush: timing.Flush,
    known: Known,
    apart: str,
) -> Iterator[records.Row]:
    passed: dict[tuple[Any, ...], tuple[float, str]] = {}
    ready: list[_Ready] = []
    for entry in group:
        yield from _try(problem, entry, truths, flush, passed, ready)
    calls, first = [one.call for one in ready], [one.first_ms for one in ready]
    for one, latency in zip(ready, timing.time_interleaved(calls, flush, first), strict=True):
        assert latency is not None
        detail = "; ".join(text for text in (one.detail, apart) if text)
        row = _row(
            problem, one.entry, "latency_ms", value=latency.median, error=one.error, detail=detail
        )
        yield replace(row, p20=latency.p20, p80=latency.p80, n=latency.n)
        known[_kind(problem, one.entry)] = (latency.median, problem.seqlen_q, _kept(problem))


def _try(
    problem: AttentionProblem,
    entry: Entry,
    truths: _Truths,
    flush: timing.Flush,
    passed: dict[tuple[Any, ...], tuple[float, str]],
    ready: list[_Ready],
) -> Iterator[records.Row]:
    """Make and check one entry; rows of its memory and bytes, and what is to be timed."""
    try:
        if entry.need_bytes > LARGE_BYTES:
            memory.free_pools()  # blocks of the other library would be in its way
        call = entry.make()
        result, peak = memory.peak_extra_bytes(call)  # also compiles and fills the pools
        right, error, detail = _judge(problem, entry, result, truths, passed)
        del result
    except Exception as refusal:  # a peer may refuse in many ways; the run must go on
        why = " ".join(f"{type(refusal).__name__}: {refusal}".split())
        yield _row(problem, entry, "latency_ms", status="failed", detail=why)
        return
    if not right:
        yield _row(problem, entry, "latency_ms", status="failed", detail=detail)
        return
    if not entry.dropout_p:
        passed[entry.same_without_dropout] = error, detail
    if entry.pass_ != "bwd":  # its call also made a forward, which it keeps
        values = {"extra_mem_bytes": peak, "peak_mem_bytes": peak + _input_bytes(problem)}
        for metric, value in values.items():
            yield _row(problem, entry, metric, value=value, error=error, detail=detail)
    if entry.count is not None:
        value = entry.count().total_bytes
        about = "counted in the kernel"
        yield _row(problem, entry, "hbm_bytes", value=value, error=error, detail=about)
    ready.append(_Ready(entry, call, timing.time_once(call, flush), error, detail))


def _judge(
    problem: AttentionProblem,
    entry: Entry,
    result: Any,
    truths: _Truths,
    passed: dict[tuple[Any, ...], tuple[float, str]],
) -> tuple[bool, float, str]:
    """(right, error, what was looked at, or what is wrong) of a result."""
    if entry.dropout_p and (not is_ours(entry) or problem.seqlen_q > MAX_DROPPED_SEQLEN):
        if entry.same_without_dropout not in passed:
            return False, 0.0, "the same call without dropout was not right, or not made"
        error, detail = passed[entry.same_without_dropout]
        return True, error, f"without dropout: {detail}"
    right, error, detail = truths.check(result, entry, entry.dropout_p)
    return right, error, detail if right else f"wrong: error {error:.3g}, beyond its limit"


def _row(problem: AttentionProblem, entry: Entry, metric: str, **what: Any) -> records.Row:
    row = row_of(problem, entry.contender, metric, **what)
    return replace(row, pass_=entry.pass_, dropout_p=entry.dropout_p)


def _learn(rows: Sequence[records.Row]) -> Known:
    """What a run that is resumed knows of how long calls take."""
    known: Known = {}
    for row in rows:
        if row.metric == "latency_ms" and row.median is not None:
            who = (row.provider, row.variant, bool(row.block_mask), row.batch * row.nheads)
            known[(*who, row.pass_, row.dropout_p)] = (row.median, row.seqlen_q, row.density)
    return known


def record_paper(
    root: Path,
    label: str,
    command: str,
    resume: str | None = None,
    commit: str | None = None,
    seconds: float | None = None,
    say: Callable[[str], None] = print,
) -> tuple[Path, bool]:
    """Measure every call into a run of kind "paper"; its folder, and whether it is whole.

    Arguments and errors as `backward_run.record_backward`.
    """
    start = time.monotonic()
    folder, rows = open_run("paper", label, command, root, resume, commit, method=METHOD)
    done = {row.problem for row in rows}
    calls = {call.problem: call for call in paper_calls() if call.problem not in done}
    say(f"{len(rows)} rows recorded, {len(calls)} calls to do")
    compiled = load_in_parallel(itertools.chain.from_iterable(map(plans, calls.values())))
    say(f"compiled {compiled} kernels in {time.monotonic() - start:.0f} s")
    flush, known, peers = timing.Flush(), _learn(rows), installed_peers()

    def measure(problem: AttentionProblem) -> list[records.Row]:
        return list(measure_call(calls[problem], flush, known, peers))

    return folder, measure_each(folder, list(calls), measure, _summary, start, seconds, say)


def _summary(rows: Sequence[records.Row]) -> str:
    parts = []
    for row in rows:
        of = f"{row.series} {row.pass_}" + (f" p = {row.dropout_p:g}" if row.dropout_p else "")
        if row.status != "ok":
            parts.append(f"{of} {row.status}: {row.detail}")
        elif row.metric == "latency_ms" and row.median is not None:
            parts.append(f"{of} {row.median:.3g} ms")
    return ", ".join(parts)
