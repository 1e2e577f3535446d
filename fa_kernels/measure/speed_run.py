"""The fast kernels beside their peers, in one process: d, N, mask and dtype; steps; launch cost."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fa_kernels.attention import attention
from fa_kernels.cuda.compile import compile_report
from fa_kernels.cuda.launch import gpu_arch, load_in_parallel, smem_limit_bytes
from fa_kernels.measure import records, timing
from fa_kernels.measure.about import current_arch
from fa_kernels.measure.baselines import BASELINES, checked_peers, packages_of
from fa_kernels.measure.point import (
    Contender,
    measure_problem,
    our_contender,
    peer_contender,
    random_inputs,
    row_of,
)
from fa_kernels.measure.progress import measure_each
from fa_kernels.measure.special_run import kind_with, open_run
from fa_kernels.measure.speed_backward import FIG2_LEFT, backward_plans, backward_rows
from fa_kernels.measure.sweep import installed_peers
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.variants import VARIANTS, Variant, fast_variants, fastest

PEERS = ("torch_flash", "torch_cudnn")
SEQLENS = (512, 1024, 2048, 4096, 8192, 16384)
HEAD_DIMS = (64, 128, 256)
MASKS = (None, "bottom_right")
DTYPES = ("float16", "bfloat16")
#: Where every switch of a kernel is turned off once, to see what it is worth.
STEPS_AT = (4096, None, "float16")
#: Where other tiles than the default are measured, with and without a causal mask.
TILES_AT, BLOCKS_M, BLOCKS_N = (4096, "float16"), (64, 128), (32, 64, 96, 128)
#: Passes that are timed, unless one is asked for by name.
PASSES = ("fwd", "bwd")
#: What a call from Python costs is measured on a problem that a GPU is done with at once.
LAUNCH_PROBLEM = AttentionProblem(1, 16, 128, 128, 64, "float16")


@dataclass(frozen=True)
class SpeedGrid:
    """What a run covers; the defaults are the grid of the recorded runs.

    Raises:
        ValueError: an unknown peer, or a size that cannot be measured.
    """

    passes: tuple[str, ...] = PASSES
    seqlens: tuple[int, ...] = SEQLENS
    head_dims: tuple[int, ...] = HEAD_DIMS
    dtypes: tuple[str, ...] = DTYPES
    peers: tuple[str, ...] = PEERS

    def __post_init__(self) -> None:
        checked_peers(self.peers)
        self.problems()

    @property
    def kind(self) -> str:
        """Of `records.RUN_KINDS`: another grid or other peers make another kind of run."""
        return "speed" if replace(self, passes=PASSES) == SpeedGrid() else "peers"

    def problems(self) -> list[AttentionProblem]:
        """Smallest head_dim first; for backward passes also the first paper's figure 2."""
        return [FIG2_LEFT] * ("bwd" in self.passes) + [
            AttentionProblem.of_tokens(n, d, dtype, causal=causal)
            for d in self.head_dims
            for dtype in self.dtypes
            for causal in MASKS
            for n in self.seqlens
        ]


def problems(passes: Sequence[str] = PASSES) -> list[AttentionProblem]:
    """The grid of the recorded runs."""
    return SpeedGrid(tuple(passes)).problems()


def without(variant: Variant, switch: str) -> Variant:
    """`variant` with one of its switches turned off, under a name that says so."""
    options: dict[str, Any] = {"without": (switch,)}
    return replace(
        variant,
        name=f"{variant.name}_without_{switch.lower()}",
        run=partial(variant.run, **options),
        plan=partial(variant.plan, **options),
        prepare=None if variant.prepare is None else partial(variant.prepare, **options),
    )


def contenders(
    problem: AttentionProblem, peers: Sequence[str], default_alone: bool = False
) -> list[Contender]:
    """Our fast variants with their default tiles and, unless these are wanted alone, at some points
    others and without each switch; then the peers."""
    limit, ours = smem_limit_bytes(), []
    at = (problem.seqlen_q, problem.causal, problem.dtype)
    for name in fast_variants(gpu_arch()):
        variant = VARIANTS[name]
        tiling = variant.tiling_for(problem, limit)
        ours.append(our_contender(variant, tiling, problem))
        if default_alone:
            continue
        if (problem.seqlen_q, problem.dtype) == TILES_AT:
            others = itertools.starmap(Tiling, itertools.product(BLOCKS_M, BLOCKS_N))
            able = (t for t in others if t != tiling and _can_have(variant, problem, t))
            ours += [our_contender(variant, t, problem) for t in able]
        if at == STEPS_AT:
            macros = variant.plan(problem, tiling).macros
            on = (switch for switch in variant.switches if macros[switch])
            ours += [our_contender(without(variant, s), tiling, problem) for s in on]
    return [*ours, *(peer_contender(BASELINES[name], problem) for name in peers)]


def _can_have(variant: Variant, problem: AttentionProblem, tiling: Tiling) -> bool:
    try:
        variant.plan(problem, tiling)
    except ValueError:  # no whole slabs of a warpgroup, or too few registers
        return False
    return True


def _plans(work: Sequence[AttentionProblem], passes: Sequence[str]) -> Iterator[Any]:
    limit = smem_limit_bytes()
    for problem in work:
        for name in fast_variants(gpu_arch()):
            variant = VARIANTS[name]
            tiling = variant.tiling_for(problem, limit)
            for count in (False, True) if "fwd" in passes else (False,):
                yield variant.plan(problem, tiling, count_traffic=count)
        if "bwd" in passes:
            yield from backward_plans(problem, fast_variants(gpu_arch()))


def host_cost_us(call: Callable[[], Any]) -> timing.Latency:
    """Host time of a call, in microseconds, as `launch_rows` has it."""
    import cupy

    for _ in range(20):
        call()
    samples = []
    for _ in range(20):
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        for _ in range(200):
            call()
        samples.append((time.perf_counter() - start) / 200 * 1e6)
    return timing.summarise(samples)


def launch_rows(say: Callable[[str], None] = print) -> Iterator[records.Row]:
    """What a call costs the host, in microseconds, and the first compilation, in seconds.

    Host time of 200 calls that are queued one behind another, by their number: median of 20 such
    rounds, each begun with an idle GPU.
    """
    problem, fast = LAUNCH_PROBLEM, fastest(gpu_arch())
    q, k, v = random_inputs(problem)
    calls: dict[tuple[str, str, str], Callable[[], Any]] = {
        ("fa_kernels", fast, "CuPy arrays"): lambda: attention(q, k, v, variant=fast)
    }
    if installed_peers():
        import sys

        from fa_kernels.measure.baselines import tensors

        tq, tk, tv = tensors(q, k, v)
        sdpa = sys.modules["torch"].nn.functional.scaled_dot_product_attention
        calls["fa_kernels", f"{fast}_torch", "torch tensors"] = lambda: attention(
            tq, tk, tv, variant=fast
        )
        calls["torch_flash", "sdpa", "torch tensors, torch's own choice"] = lambda: sdpa(tq, tk, tv)
    for (provider, variant, arrays), call in calls.items():
        cost = host_cost_us(call)
        say(f"a call of {provider} {variant} with {arrays}: {cost.median:.1f} us")
        contender = replace(our_contender(VARIANTS[fast], _tiling(problem), problem),
                            provider=provider, variant=variant, tiling=None)  # fmt: skip
        row = row_of(problem, contender, "launch_us", value=cost.median, detail=arrays)
        yield replace(row, p20=cost.p20, p80=cost.p80, n=cost.n)
    for head_dim in HEAD_DIMS:
        yield _compiled(replace(problem, head_dim=head_dim, softmax_scale=None))


def _tiling(problem: AttentionProblem) -> Tiling:
    return VARIANTS[fastest(gpu_arch())].tiling_for(problem, smem_limit_bytes())


def _compiled(problem: AttentionProblem) -> records.Row:
    tiling, variant = _tiling(problem), VARIANTS[fastest(gpu_arch())]
    plan = variant.plan(problem, tiling)
    report = compile_report(plan.kernel, plan.macros, current_arch())
    contender = our_contender(variant, tiling, problem)
    detail = "NVRTC alone, as at the first call of a build; later ones come from CuPy's disk cache"
    return row_of(problem, contender, "compile_s", value=report.seconds, detail=detail)


def _left(problem: AttentionProblem, rows: Sequence[records.Row], passes: Sequence[str]) -> bool:
    done = {row.pass_ for row in rows if row.metric == "latency_ms" and row.problem == problem}
    return not done.issuperset(passes)


def record_speed(
    root: Path,
    label: str,
    command: str,
    resume: str | None = None,
    commit: str | None = None,
    seconds: float | None = None,
    say: Callable[[str], None] = print,
    grid: SpeedGrid | None = None,
    l2: str = "cold",
) -> tuple[Path, bool]:
    """Measure every problem into a run of the grid's kind; its folder, and whether it is whole.

    `grid`: default: that of the recorded runs. Peers that are not installed are left out. `l2`: a
    key of `timing.METHODS`. Other arguments and errors as `backward_run.record_backward`.
    """
    start, grid = time.monotonic(), grid or SpeedGrid()
    passes, whole = grid.passes, grid.kind == "speed"
    peers = [name for name in grid.peers if BASELINES[name].installed]
    about = _about(grid, tuple(peers), l2)
    kind = about.pop("kind")
    folder, rows = open_run(kind, label, command, root, resume, commit, **about)
    absent = [name for name in grid.peers if name not in peers]
    if absent:
        say(f"not installed: {', '.join(absent)}")
    if whole and "fwd" in passes and not any(row.metric == "launch_us" for row in rows):
        records.append_rows(folder, launch_rows(say))
    work = [problem for problem in grid.problems() if _left(problem, rows, passes)]
    say(f"{len(rows)} rows recorded, {len(work)} problems to do")
    compiled = load_in_parallel(_plans(work, passes))
    say(f"compiled {compiled} kernels in {time.monotonic() - start:.0f} s")
    flush = timing.WarmL2() if l2 == "warm" else timing.Flush()

    def measure(problem: AttentionProblem) -> list[records.Row]:
        found: list[records.Row] = []
        if "fwd" in passes:
            found += measure_problem(problem, contenders(problem, peers, not whole), flush)
        if "bwd" in passes:
            found += backward_rows(problem, fast_variants(gpu_arch()), peers, flush)
        return found

    return folder, measure_each(folder, work, measure, _summary, start, seconds, say)


def _about(grid: SpeedGrid, peers: tuple[str, ...], l2: str) -> dict[str, Any]:
    """What run.json says of such a run."""
    about: dict[str, Any] = {"kind": kind_with(grid.kind, l2), "method": timing.METHODS[l2]}
    packages = packages_of(peers)
    return about | ({"packages": packages} if packages else {})


def _summary(rows: Sequence[records.Row]) -> str:
    times: dict[str, float | None] = {}
    for row in rows:
        if row.metric == "latency_ms":
            times.setdefault(f"{row.series} {row.pass_}", row.median)
    text = ", ".join(f"{name} {ms:.3g}" for name, ms in times.items() if ms is not None)
    failed = "".join(f", {r.variant} {r.status}" for r in rows if r.status != "ok")
    return f"{text} ms{failed}"
