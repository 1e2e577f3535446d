"""Decoding steps on record: contiguous and paged caches, splits, graphs, beside other people's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fa_kernels.cuda.launch import load_in_parallel, refuse_old_gpu
from fa_kernels.cuda.run_decode import (
    DECODE_KERNEL,
    MIN_ARCH,
    block_rows,
    chosen_splits,
    planned,
    run_decode,
)
from fa_kernels.decode_problem import DecodeProblem
from fa_kernels.measure import records, timing
from fa_kernels.measure.baselines import BASELINES, Baseline, packages_of
from fa_kernels.measure.packaged import fa3_decode_forward
from fa_kernels.measure.point import Contender, measure_problem, peer_contender
from fa_kernels.measure.progress import measure_each
from fa_kernels.measure.special_run import open_run
from fa_kernels.measure.torch_tensors import prepare_with
from fa_kernels.measure.verify_decode import DECODE
from fa_kernels.problem import AttentionProblem
from fa_kernels.traffic.decode_model import launched_decode
from fa_kernels.traffic.model import Traffic

DTYPE = "bfloat16"
PAGES = (16, 64, 256)
SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
#: Calls of one graph that stands for the layers of a model, each on a cache of its own.
LAYERS = 32
PEERS = ("torch_flash", "torch_cudnn", "fa3")
METHOD = timing.METHOD + (
    ". A decoding step: seqlen_q new rows of each head over a cache that is full up to seqlen_k, "
    "nothing appended; q, caches, lengths and page tables lie on the GPU, and pages in random "
    "order, before timing. A variant with layers is one graph of so many steps on caches of their "
    "own, its time divided by their number. TB/s of K and V are their bytes, each once, by the time"
)


@dataclass(frozen=True)
class Ours:
    """One way to launch our kernel; `layers` > 0: captured in a graph, so many steps long."""

    page_size: int | None = None
    num_splits: int | None = None
    layers: int = 0

    def name(self, left: int | None) -> str:
        """As a variant's: "decode_split_kv_page64_graph"."""
        parts = [DECODE]
        parts += [] if left is None else [f"window{left}"]
        parts += [] if self.page_size is None else [f"page{self.page_size}"]
        parts += [] if self.num_splits is None else [f"splits{self.num_splits}"]
        if self.layers:
            parts.append("graph" if self.layers == 1 else f"graph{self.layers}")
        return "_".join(parts)

    def problem(self, of: AttentionProblem) -> DecodeProblem:
        """The decoding step that gives what `of` does."""
        assert of.nheads_kv is not None
        pages: dict[str, Any] = {"max_seqlen": of.seqlen_k}
        if self.page_size is not None:
            number = -(-of.seqlen_k // self.page_size)
            pages = {"max_seqlen": None, "page_size": self.page_size, "max_pages": number}
        return DecodeProblem(
            batch=of.batch, nheads=of.nheads, nheads_kv=of.nheads_kv, seqlen_q=of.seqlen_q,
            seqlen_new=0, head_dim=of.head_dim, dtype=of.dtype, window=of.window,
            softmax_scale=of.scale, **pages,
        )  # fmt: skip

    def splits(self, of: AttentionProblem) -> int:
        """Those asked for, or the default on this GPU."""
        return self.num_splits or chosen_splits(self.problem(of))

    def detail(self, of: AttentionProblem) -> str:
        """What the row says of it."""
        cache = "contiguous" if self.page_size is None else f"pages of {self.page_size}"
        text = f"{cache}, num_splits {self.splits(of)}"
        if self.layers == 1:
            return f"{text}, one step in a CUDA graph"
        if self.layers:
            return f"{text}, one of {self.layers} steps in a CUDA graph, each on its own cache"
        return text


@dataclass(frozen=True)
class DecodePoint:
    """One shape as the attention call that it ends, with what is measured there."""

    attention: AttentionProblem
    ours: tuple[Ours, ...]
    peers: tuple[str, ...]

    @property
    def seqlen_q(self) -> int:
        """By which the time left is estimated: here the keys."""
        return self.attention.seqlen_k

    @property
    def recorded(self) -> AttentionProblem:
        """As `Row.problem` has it: a window stands in the variant's name alone."""
        return replace(self.attention, window=None)

    @property
    def kv_bytes(self) -> int:
        """K and V that a step has to read, each key once."""
        step = Ours().problem(self.attention)
        return step.read_bytes([self.attention.seqlen_k] * step.batch)

    @property
    def first(self) -> str:
        """The variant by which a point that was measured is known."""
        return self.ours[0].name(self._left)

    @property
    def _left(self) -> int | None:
        return None if self.attention.window is None else self.attention.window[0]

    def names(self) -> dict[str, Ours]:
        """Our ways by their names."""
        return {one.name(self._left): one for one in self.ours}

    def describe(self) -> str:
        """In words."""
        return self.attention.describe()


def points() -> list[DecodePoint]:
    """The five shapes of grouped and ungrouped heads, short and long; a short one in graphs; every
    number of splits; several query rows; a window."""
    both, paged = (Ours(), Ours(64)), (Ours(), *map(Ours, PAGES))
    sizes = (
        (1, 65536, 32, 8, 128), (16, 8192, 32, 8, 128), (64, 4096, 32, 8, 128),
        (16, 8192, 32, 32, 128), (128, 2048, 16, 16, 64),
    )  # fmt: skip
    found = [DecodePoint(_call(*size), paged, PEERS) for size in sizes]
    sweep = tuple(Ours(num_splits=n) for n in SPLITS)
    found[0] = replace(found[0], ours=(*paged, *sweep))
    graphs = (Ours(layers=1), Ours(layers=LAYERS), Ours(64, layers=1))
    found.append(DecodePoint(_call(1, 1024, 32, 8, 128), (*both, *graphs), PEERS))
    rows = _call(16, 8192, 32, 8, 128, seqlen_q=4, causal="bottom_right")
    # torch's causal mask is aligned otherwise.
    found.append(DecodePoint(rows, both, ("fa3",)))
    window = _call(16, 8192, 32, 8, 128, causal="bottom_right", window=(4096, 0))
    found.append(DecodePoint(window, both, ()))
    return found


def _call(
    batch: int, seqlen_k: int, nheads: int, nheads_kv: int, head_dim: int, seqlen_q: int = 1,
    causal: str | None = None, window: tuple[int, int] | None = None,
) -> AttentionProblem:  # fmt: skip
    return AttentionProblem(
        batch, nheads, seqlen_q, seqlen_k, head_dim, DTYPE, causal, nheads_kv=nheads_kv,
        window=window,
    )  # fmt: skip


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
    return lambda: run_decode(q, k, v, lengths, step, splits, **options)[:2]


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

    def launch() -> Any:
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
    model = launched_decode(step, [p.seqlen_k] * p.batch, splits, rows)
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


def _plans(work: Sequence[DecodePoint]) -> Iterator[Any]:
    for point in work:
        for ours in point.ours:
            step, splits = ours.problem(point.attention), ours.splits(point.attention)
            for count in (False, True):
                yield planned(step, splits, count_traffic=count)


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
