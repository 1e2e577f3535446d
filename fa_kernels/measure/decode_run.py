"""Decoding steps on record: contiguous and paged caches, splits, graphs, beside other people's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fa_kernels.cuda.launch import load_in_parallel, refuse_old_gpu
from fa_kernels.cuda.run_decode import (
    DECODE_KERNEL,
    MIN_ARCH,
    block_rows,
    merges_on_chip,
    planned_here,
    prepare_decode,
    run_decode,
)
from fa_kernels.decode_problem import DecodeProblem
from fa_kernels.decoding import decode
from fa_kernels.measure import records, timing
from fa_kernels.measure.baselines import BASELINES, Baseline, packages_of
from fa_kernels.measure.decode_points import PEERS, DecodePoint, Ours, points
from fa_kernels.measure.packaged import fa3_decode_forward
from fa_kernels.measure.point import (
    Contender,
    measure_problem,
    peer_contender,
    random_inputs,
    row_of,
)
from fa_kernels.measure.progress import measure_each
from fa_kernels.measure.special_run import open_run
from fa_kernels.measure.speed_run import host_cost_us
from fa_kernels.measure.torch_tensors import prepare_with, tensors
from fa_kernels.problem import AttentionProblem
from fa_kernels.traffic.decode_model import launched_decode
from fa_kernels.traffic.model import Traffic

METHOD = timing.METHOD + (
    ". A decoding step: seqlen_q new rows of each head over a cache that is full up to seqlen_k, "
    "nothing appended; q, caches, lengths and page tables lie on the GPU, and pages in random "
    "order, before timing. A variant with layers is one graph of so many steps on caches of their "
    "own, its time divided by their number. TB/s of K and V are their bytes, each once, by the time"
)


def contenders(point: DecodePoint, peers: Sequence[str]) -> list[Contender]:
    """Our ways, then those of `peers` that the point names; fa3 also by its function for caches."""
    found = [_our_contender(name, one, point) for name, one in point.names().items()]
    wanted = [BASELINES[name] for name in point.peers if name in peers]
    wanted += [_fa3_decode(b) for b in wanted if b.provider == "fa3"]
    return found + [peer_contender(b, point.attention) for b in wanted]


def _fa3_decode(baseline: Baseline) -> Baseline:
    prepare = prepare_with(fa3_decode_forward)
    return replace(baseline, prepare=prepare, variant="flash_attn_with_kvcache")


def _our_contender(name: str, ours: Ours, point: DecodePoint) -> Contender:
    def prepare(q: Any, k: Any, v: Any, p: AttentionProblem) -> Callable[[], Any]:
        call = _step(ours, q, k, v, p)
        if not ours.layers:
            return call
        more = [_step(ours, q, k.copy(), v.copy(), p) for _ in range(ours.layers - 1)]
        return _graph([call, *more])

    def count(q: Any, k: Any, v: Any, p: AttentionProblem) -> Traffic:
        return _counted(ours, q, k, v, p)

    def refuse(p: AttentionProblem) -> None:
        refuse_old_gpu(DECODE_KERNEL, MIN_ARCH)

    p = point.attention
    step, detail = ours.problem(p), ours.detail(p)
    copies = (max(1, ours.layers) if ours.page_size else max(0, ours.layers - 1)) * step.cache_bytes
    workspace = copies + step.partial_bytes(ours.splits(p))
    return Contender(
        records.OURS, name, None, workspace, prepare, refuse,
        None if ours.layers else count, name_kernels=lambda call: detail,
    )  # fmt: skip


def _arguments(ours: Ours, k: Any, v: Any, p: AttentionProblem) -> tuple[Any, ...]:
    """Caches, lengths and options of `run_decode`; pages in random order."""
    import cupy

    step = ours.problem(p)
    lengths = cupy.asarray(np.full(p.batch, p.seqlen_k, np.int32))
    if step.page_size is None:
        return k, v, lengths, {}
    order = np.random.default_rng(0).permutation(step.cache_shape[0])
    table = cupy.asarray(order.reshape(p.batch, -1).astype(np.int32))
    return in_pages(k, order, step), in_pages(v, order, step), lengths, {"block_table": table}


def in_pages(cache: Any, order: np.ndarray, step: DecodeProblem) -> Any:
    """(batch, nheads_kv, N, d) as pages (num_pages, nheads_kv, page_size, d), page i of all
    sequences in a row at `order[i]`; a last page that is not full ends in zeros."""
    import cupy

    batch, heads, seqlen, head_dim = cache.shape
    whole = cupy.zeros((batch, heads, step.capacity, head_dim), cache.dtype)
    whole[:, :, :seqlen] = cache
    cut = whole.reshape(batch, heads, -1, step.page_size, head_dim).transpose(0, 2, 1, 3, 4)
    pages = cut.reshape(step.cache_shape)
    return cupy.ascontiguousarray(pages[cupy.asarray(np.argsort(order))])


def _step(ours: Ours, q: Any, k: Any, v: Any, p: AttentionProblem) -> Callable[[], Any]:
    k, v, lengths, options = _arguments(ours, k, v, p)
    step, splits = ours.problem(p), ours.splits(p)
    table = options.get("block_table")
    if ours.layers:  # in a captured graph a call has a workspace of its own
        return lambda: run_decode(q, k, v, lengths, step, splits, **options)[:2]
    # As a repeated call of the front door: its launches are laid out once.
    again = prepare_decode(q, k, v, None, None, table, lengths, step, splits)
    assert again is not None
    return lambda: again(q, k, v, None, None, table, lengths)


def _graph(calls: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
    """All calls in one CUDA graph, launched on the current stream; gives what the last one does."""
    import cupy

    for call in calls[:1]:
        call()  # compiles
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        results = [call() for call in calls]
        graph = stream.end_capture()

    def launch(held: Sequence[Any] = calls) -> Any:  # with what the graph reads: it must stay
        graph.launch(cupy.cuda.get_current_stream())
        return results[-1]

    return launch


def _counted(ours: Ours, q: Any, k: Any, v: Any, p: AttentionProblem) -> Traffic:
    """Bytes counted in the kernel.

    Raises:
        RuntimeError: they are not the model's, so one of the two is wrong.
    """
    k, v, lengths, options = _arguments(ours, k, v, p)
    step, splits = ours.problem(p), ours.splits(p)
    counted = run_decode(q, k, v, lengths, step, splits, count_traffic=True, **options)[2]
    rows = block_rows(step, splits)
    on_chip = merges_on_chip(step, splits)
    model = launched_decode(step, [p.seqlen_k] * p.batch, splits, rows, on_chip)
    if counted is None or not model.same_as(counted):
        raise RuntimeError(f"{step.describe()}: counters {counted} differ from the model {model}")
    return counted


def _rows(point: DecodePoint, peers: Sequence[str], flush: timing.Flush) -> Iterator[records.Row]:
    """Rows of a point: pass "decode", and of a graph the time of one step."""
    names = point.names()
    for row in measure_problem(point.attention, contenders(point, peers), flush):
        ours = names.get(row.variant)
        steps = max(1, ours.layers) if ours is not None else 1
        if row.metric == "latency_ms" and row.median and row.p20 and row.p80:
            times = (row.p20 / steps, row.median / steps, row.p80 / steps)
            row = replace(row, p20=times[0], median=times[1], p80=times[2])
        yield replace(row, pass_="decode")


def host_rows(say: Callable[[str], None] = print) -> Iterator[records.Row]:
    """What a call of `fa.decode` costs the host, as `speed_run.launch_rows` has it: a token is
    appended to a cache that holds the shortest of the points, lengths on the GPU."""
    import cupy

    attention = min((p.attention for p in points()), key=lambda p: p.seqlen_k)
    point, step = DecodePoint(attention, (Ours(),), ()), Ours().problem(attention)
    q, k, v = random_inputs(attention)
    new = [x[:, :, :1].copy() for x in (k, v)]
    lengths = cupy.asarray(np.full(step.batch, step.capacity - 1, np.int32))
    arrays = {"CuPy arrays": (q, k, v, lengths, *new)}
    if BASELINES["torch_flash"].installed:
        arrays["torch tensors"] = tuple(tensors(q, k, v, lengths, *new))
    for kind, (*given, k_new, v_new) in arrays.items():
        options: dict[str, Any] = {"k_new": k_new, "v_new": v_new, "backend": "cuda"}
        cost = host_cost_us(partial(decode, *given, **options))
        say(f"a call of fa.decode with {kind}: {cost.median:.1f} us")
        (contender,) = contenders(point, ())
        row = row_of(attention, contender, "launch_us", value=cost.median, detail=kind)
        yield replace(row, pass_="decode", p20=cost.p20, p80=cost.p80, n=cost.n)


def _plans(work: Sequence[DecodePoint]) -> Iterator[Any]:
    for point in work:
        for ours in point.ours:
            step, splits = ours.problem(point.attention), ours.splits(point.attention)
            for count in (False, True):
                yield planned_here(step, splits, count_traffic=count)


def record_decode(
    root: Path,
    label: str,
    command: str,
    resume: str | None = None,
    commit: str | None = None,
    seconds: float | None = None,
    say: Callable[[str], None] = print,
) -> tuple[Path, bool]:
    """Measure every point into a run of kind "decode"; its folder, and whether it is whole.

    Peers that are not installed are left out. Arguments and errors as
    `backward_run.record_backward`.
    """
    start = time.monotonic()
    peers = [name for name in PEERS if BASELINES[name].installed]
    about: dict[str, Any] = {"method": METHOD}
    about |= {"packages": packages} if (packages := packages_of(tuple(peers))) else {}
    folder, rows = open_run("decode", label, command, root, resume, commit, **about)
    if absent := [name for name in PEERS if name not in peers]:
        say(f"not installed: {', '.join(absent)}")
    done = {(row.problem, row.variant) for row in rows if row.metric == "latency_ms"}
    if not any(row.metric == "launch_us" for row in rows):
        records.append_rows(folder, host_rows(say))
    work = [point for point in points() if (point.recorded, point.first) not in done]
    say(f"{len(rows)} rows recorded, {len(work)} points to do")
    compiled = load_in_parallel(_plans(work))
    say(f"compiled {compiled} kernels in {time.monotonic() - start:.0f} s")
    flush = timing.Flush()

    def measure(point: DecodePoint) -> list[records.Row]:
        return list(_rows(point, peers, flush))

    def summary(found: Sequence[records.Row]) -> str:
        return _summary(found, work)

    return folder, measure_each(folder, work, measure, summary, start, seconds, say)


def _summary(rows: Sequence[records.Row], work: Sequence[DecodePoint]) -> str:
    """Times in microseconds, and TB/s of K and V."""
    parts = []
    for row in rows:
        name = row.variant if row.provider == records.OURS else f"{row.provider} {row.variant}"
        if row.status != "ok":
            parts.append(f"{name} {row.status}: {row.detail}")
        elif row.metric == "latency_ms" and row.median:
            parts.append(f"{name} {1e3 * row.median:.1f} us ({_rate(row, work):.2f} TB/s)")
    return ", ".join(parts)


def _rate(row: records.Row, work: Sequence[DecodePoint]) -> float:
    of = next(p for p in work if p.recorded == row.problem and _belongs(row, p))
    assert row.median is not None
    return of.kv_bytes / row.median / 1e9


def _belongs(row: records.Row, point: DecodePoint) -> bool:
    return row.provider != records.OURS or row.variant in point.names()
