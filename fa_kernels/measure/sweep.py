"""The grid of the recorded runs, one problem at a time, resumable after each."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda.launch import load_in_parallel
from fa_kernels.masks import matmul_flops
from fa_kernels.measure import records, seal
from fa_kernels.measure.about import describe_run
from fa_kernels.measure.baselines import BASELINES, GRID_PEERS, checked_peers
from fa_kernels.measure.point import (
    MAX_LATENCY_MS,
    UNTILED,
    Contender,
    measure_problem,
    our_contender,
    peer_contender,
)
from fa_kernels.measure.progress import measure_each
from fa_kernels.measure.timing import METHOD, Flush, WarmL2
from fa_kernels.problem import ITEMSIZE, AttentionProblem
from fa_kernels.tiling import HOPPER_SMEM_PER_BLOCK, Tiling
from fa_kernels.units import KIB
from fa_kernels.variants import ALGORITHMS, VARIANTS, Variant

#: Where block masks are measured: one dtype, one head dimension, sequences of several tiles.
MASK_DTYPE, MASK_HEAD_DIM, MASK_MIN_SEQLEN = "float16", 64, 1024


def installed_peers() -> tuple[str, ...]:
    """Names of the peers of the recorded grid, if their library is installed."""
    return tuple(name for name in GRID_PEERS if BASELINES[name].installed)


@dataclass(frozen=True)
class Grid:
    """What a sweep covers; the defaults are the grid the explorer shows.

    Raises:
        ValueError: a size, dtype, M or peer that cannot be measured, before a run is started.
    """

    seqlens: tuple[int, ...] = tuple(2**e for e in range(7, 17))
    head_dims: tuple[int, ...] = (32, 64, 128)
    dtypes: tuple[str, ...] = tuple(ITEMSIZE)
    sram_kib: tuple[int, ...] = (16, 32, 64, 128, 192)
    #: Budgets at which the variants that only isolate a difference are measured.
    control_sram_kib: tuple[int, ...] = (16, 64, 192)
    #: (pattern, density) of block masks, at `mask_sram_kib`, for one dtype and head dimension.
    masks: tuple[tuple[str, float], ...] = (
        ("local", 1 / 2),
        ("local", 1 / 4),
        ("local", 1 / 8),
        ("local", 1 / 16),
        ("butterfly", 1 / 4),
        ("butterfly", 1 / 8),
    )
    mask_sram_kib: int = 64
    peers: tuple[str, ...] = field(default_factory=installed_peers)
    #: A call estimated to take longer is recorded as skipped.
    max_latency_ms: float = MAX_LATENCY_MS

    def __post_init__(self) -> None:
        checked_peers(self.peers)
        for problem in self.problems():
            for kib in (*self.sram_kib, *self.control_sram_kib, self.mask_sram_kib):
                Tiling.from_sram(kib * KIB, problem.head_dim, problem.dtype)

    def problems(self) -> Iterator[AttentionProblem]:
        """In order of growing N, so that a latency estimate comes from the point before."""
        for dtype in self.dtypes:
            for head_dim in self.head_dims:
                for seqlen in self.seqlens:
                    yield AttentionProblem.of_tokens(seqlen, head_dim, dtype)
        if MASK_DTYPE in self.dtypes and MASK_HEAD_DIM in self.head_dims:
            for seqlen in (n for n in self.seqlens if n >= MASK_MIN_SEQLEN):
                dense = AttentionProblem.of_tokens(seqlen, MASK_HEAD_DIM, MASK_DTYPE)
                yield from self._masked(dense)

    def _masked(self, dense: AttentionProblem) -> Iterator[AttentionProblem]:
        """`dense` under every pattern of the grid; blocks are the tiles, as in the paper."""
        n = dense.seqlen_q
        tiling = Tiling.from_sram(self.mask_sram_kib * KIB, dense.head_dim, dense.dtype)
        tiling = tiling.clipped(n, n)
        seen = set()  # few blocks in a row round different densities to one
        for name, density in self.masks:
            mask = BlockMask.pattern(name, n, n, tiling.block_m, tiling.block_n, density)
            if mask.density < 1.0 and (name, mask.density) not in seen:
                seen.add((name, mask.density))
                yield replace(dense, block_mask=mask)


def contenders(problem: AttentionProblem, grid: Grid) -> list[Contender]:
    """Our variants with their tiles (equal ones once), then the peers.

    Under a block mask only the algorithms that take one, with its blocks as tiles.
    """
    mask = problem.block_mask
    if mask is not None:
        tiling = Tiling(mask.block_m, mask.block_n)
        able = [v for v in ALGORITHMS.values() if v.block_sparse]
        sparse = [b for b in map(BASELINES.__getitem__, grid.peers) if b.block_sparse]
        found = [our_contender(v, tiling, problem) for v in able]
        return _limited([*found, *(peer_contender(b, problem) for b in sparse)], grid)
    seen: dict[tuple[str, Tiling | None], Contender] = {}
    for variant in VARIANTS.values():
        if not variant.takes(problem):
            continue
        for tiling in _tilings(variant, problem, grid):
            contender = our_contender(variant, tiling, problem)
            seen.setdefault((variant.name, contender.tiling), contender)
    peers = [peer_contender(BASELINES[name], problem) for name in grid.peers]
    return _limited([*seen.values(), *peers], grid)


def _tilings(variant: Variant, problem: AttentionProblem, grid: Grid) -> Iterator[Tiling]:
    """The tiles of every M, or the own ones of a variant whose tiles M does not set."""
    if variant.same_algorithm is not None:
        sizes = (problem.head_dim, problem.itemsize, HOPPER_SMEM_PER_BLOCK)
        yield variant.default_tiling(*sizes)
        return
    control = variant.control_for is not None
    for kib in grid.control_sram_kib if control else grid.sram_kib:
        yield Tiling.from_sram(kib * KIB, problem.head_dim, problem.dtype)


def _limited(contending: list[Contender], grid: Grid) -> list[Contender]:
    for contender in contending:
        contender.limit_ms = grid.max_latency_ms
    return contending


class Estimates:
    """Latency of a point from the last measured one of the same contender, scaled by FLOPs."""

    def __init__(self, rows: Sequence[records.Row] = ()) -> None:
        self._known: dict[tuple[object, ...], tuple[float, int]] = {}
        for row in rows:
            self.learn(row)

    def learn(self, row: records.Row) -> None:
        """Take in a latency row; the newest of a contender counts."""
        if row.metric != "latency_ms" or row.median is None:
            return
        key = (row.dtype, row.head_dim, row.contender, row.block_mask, row.density < 1.0)
        self._known[key] = (row.median, matmul_flops(row.problem))

    def of(self, problem: AttentionProblem, contender: Contender) -> float | None:
        """Estimated milliseconds, or None if this contender was never measured."""
        masked = problem.block_mask is not None
        key = (problem.dtype, problem.head_dim, contender.key, records.mask_text(problem), masked)
        if key not in self._known:
            return None
        latency, flops = self._known[key]
        return latency * matmul_flops(problem) / flops


def precompile(work: Sequence[tuple[AttentionProblem, Sequence[Contender]]]) -> int:
    """Compile in parallel what is to be measured; how many kernels that was."""
    plans = []
    for problem, contending in work:
        for contender in contending:
            if contender.provider != records.OURS:
                continue
            variant = VARIANTS[contender.variant]
            tiling = contender.tiling or UNTILED
            for count in (False, True):
                # A plan that refuses is recorded as such by `measure_problem`.
                with contextlib.suppress(ValueError, NotImplementedError):
                    plans.append(variant.plan(problem, tiling, count_traffic=count))
    return load_in_parallel(plans)


#: As `about.describe_run`: command and method -> run.json.
Describe = Callable[[str, str], dict[str, Any]]


def start_run(
    label: str,
    command: str,
    root: Path,
    resume: str | None = None,
    commit: str | None = None,
    describe: Describe | None = None,
    **more: Any,
) -> Path:
    """The folder of a new run, or of the one to resume; run.json is written when it is created.

    `describe` gives the contents of run.json, by default those of a run on the current GPU; `more`
    is what run.json of a new run says besides, or otherwise, e.g. `kind`.

    Raises:
        RecordError: the run to resume is missing or not valid.
        FileExistsError: a new run would have the id of one that is there.
        ValueError: a label that makes no valid run id.
    """
    describe = describe or describe_run
    if resume is not None:
        folder = root / resume
        seal.mend(folder)  # a killed run may have begun to write rows
        records.load_run.cache_clear()
        about = dict(records.load_run(resume, root).about)  # refuses what is missing or not valid
        about["resumed"] = [*about.get("resumed", []), describe(command, METHOD)["started"]]
        write_about(folder, about)
        return folder
    about = describe(command, METHOD)
    about["run_id"] += label
    about["commit"] = commit or about["commit"]
    if not records.RUN_ID.fullmatch(about["run_id"]):
        raise ValueError(f"label = {label!r}: use lower-case letters, digits and single dashes.")
    folder = root / about["run_id"]
    header = ",".join(records.COLUMNS) + "\n"
    if folder.exists() and not _only_begun(folder, header):
        raise FileExistsError(
            f"run {about['run_id']} exists: runs are append-only. Continue it with "
            f"--resume {about['run_id']}, or choose another --label."
        )
    folder.mkdir(parents=True, exist_ok=True)
    seal.write_atomically(folder / "rows.csv", header)
    seal.begin(folder)
    # Last: from here on it is a run.
    write_about(folder, {**about, **more, "seal": seal.FILE})
    return folder


def _only_begun(folder: Path, header: str) -> bool:
    """True if `start_run` was killed in this folder before it was a run: nothing is lost in it."""
    names = {path.name for path in folder.iterdir()}
    known = {"rows.csv", seal.FILE} | {f"{n}.part" for n in ("rows.csv", seal.FILE, "run.json")}
    rows = folder / "rows.csv"
    return names <= known and (not rows.exists() or rows.read_bytes() == header.encode())


def write_about(folder: Path, about: Mapping[str, Any]) -> None:
    """Write run.json of a run."""
    seal.write_atomically(folder / "run.json", json.dumps(about, indent=2) + "\n")


def _todo(
    grid: Grid, rows: Sequence[records.Row]
) -> list[tuple[AttentionProblem, list[Contender]]]:
    """Problems with the contenders that have no latency row yet, measured or explained."""
    done = {
        (r.dtype, r.head_dim, r.seqlen_q, r.block_mask, round(r.density, 4), r.contender)
        for r in rows
        if r.metric == "latency_ms"
    }
    work = []
    for problem in grid.problems():
        mask = problem.block_mask
        density = 1.0 if mask is None else round(mask.density, 4)
        sizes = (problem.dtype, problem.head_dim, problem.seqlen_q)
        where = (*sizes, records.mask_text(problem), density)
        left = [c for c in contenders(problem, grid) if (*where, c.key) not in done]
        if left:
            work.append((problem, left))
    return work


def run_sweep(
    folder: Path,
    grid: Grid,
    deadline_s: float | None = None,
    say: Callable[[str], None] = print,
    l2: str = "cold",
) -> bool:
    """Measure what is missing from the run in `folder`; True if nothing is missing any more.

    A problem's rows are written together when it is finished, so a run that was stopped in the
    middle resumes with the problem it was at. `deadline_s` stops before that many seconds are over.
    `l2`: a key of `timing.METHODS`, how the L2 is when a timed call begins.
    """
    start = time.monotonic()
    records.load_run.cache_clear()
    rows = list(records.load_run(folder.name, folder.parent).rows)
    estimates, todo = Estimates(rows), _todo(grid, rows)
    say(f"{len(rows)} rows recorded, {len(todo)} problems to do or to finish")
    if not todo:
        return True
    say(f"compiled {precompile(todo)} kernels in {time.monotonic() - start:.0f} s")
    flush, left = WarmL2() if l2 == "warm" else Flush(), dict(todo)

    def measure(problem: AttentionProblem) -> list[records.Row]:
        found = []
        for contender in left[problem]:
            contender.estimate_ms = estimates.of(problem, contender)
        for row in measure_problem(problem, left[problem], flush):
            found.append(row)
            estimates.learn(row)
        return found

    return measure_each(folder, list(left), measure, _summary, start, deadline_s, say)


def _summary(rows: Sequence[records.Row]) -> str:
    best: dict[str, float] = {}
    for row in rows:
        if row.metric == "latency_ms" and row.median is not None:
            best[row.series] = min(best.get(row.series, row.median), row.median)
    failed = sum(row.status == "failed" for row in rows)
    text = ", ".join(f"{name} {ms:.3g} ms" for name, ms in best.items())
    return text + (f", {failed} FAILED" if failed else "")
