"""The program that runs under `ncu`: each call once, cold and checked, between marked launches.

`python -m fa_kernels.measure.profiled JOBS REPORT` is started by `measure/counters.py`. It profiles
`fa_calibrate` first, a read of a known number of bytes, then for each job `fa_before_<job>`, the
launches of one call, and `fa_after`. Names tell the launches apart, whatever a library launches
and however many: of a backward pass all that stand between two marks are one call's.
"""

from __future__ import annotations

import gc
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from fa_kernels.block_mask import BlockMask
from fa_kernels.measure import memory, point
from fa_kernels.measure.baselines import BASELINES
from fa_kernels.measure.counted_pass import TRAINED, Workbench, training_contender
from fa_kernels.measure.mask_column import mask_text, parse_mask
from fa_kernels.measure.point import UNTILED, Contender, our_contender, peer_contender
from fa_kernels.measure.records import OURS
from fa_kernels.measure.sweep import Estimates
from fa_kernels.measure.timing import FLUSH_BYTES, LONG_MS
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.variants import VARIANTS

#: `Outcome.number` of the last line of a report: without it, the program did not come to its end.
END = -1
CALIBRATE, BEFORE, AFTER = "fa_calibrate", "fa_before_", "fa_after"
#: Reads a buffer of zeros. The sum is never 1, so nothing is written, and no compiler knows that.
_SOURCE = """
__device__ __noinline__ void read_all(const uint4* data, long long count, unsigned* never) {
  unsigned sum = 0;
  for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += (long long)gridDim.x * blockDim.x) {
    uint4 four = data[i];
    sum += four.x + four.y + four.z + four.w;
  }
  if (sum == 1) *never = sum;
}
#define READER(name)                                                                           \\
  extern "C" __global__ void name(const uint4* data, long long count, unsigned* never) {       \\
    read_all(data, count, never);                                                              \\
  }
"""


@dataclass(frozen=True)
class Job:
    """One call to profile: a problem's sizes, and who computes which pass of it with which tiles.

    `block_mask` and `density` are as in a row, "" for no mask.
    """

    number: int
    provider: str
    variant: str
    batch: int
    nheads: int
    seqlen: int
    head_dim: int
    dtype: str
    block_m: int | None
    block_n: int | None
    pass_: str = "fwd"
    block_mask: str = ""
    density: float = 1.0

    @classmethod
    def of(
        cls, number: int, problem: AttentionProblem, contender: Contender, pass_: str = "fwd"
    ) -> Job:
        """The job that `problem` and `contender` make again in another process."""
        p = problem
        sizes = (p.batch, p.nheads, p.seqlen_q, p.head_dim, p.dtype)
        provider, variant, block_m, block_n = contender.key
        mask = (mask_text(p), 1.0 if p.block_mask is None else p.block_mask.density)
        return cls(number, provider, variant, *sizes, block_m, block_n, pass_, *mask)

    @property
    def problem(self) -> AttentionProblem:
        """The attention call to make: square, without a mask but for that of blocks."""
        sizes = (self.batch, self.nheads, self.seqlen, self.seqlen, self.head_dim)
        mask = None
        if self.block_mask:
            name, block_m, block_n = parse_mask(self.block_mask)
            blocks = (self.seqlen, self.seqlen, block_m, block_n)
            mask = BlockMask.pattern(name, *blocks, self.density)
        return AttentionProblem(*sizes, self.dtype, block_mask=mask)

    @property
    def contender(self) -> Contender:
        """Who makes it.

        Raises:
            ValueError: passes of training have their own tiles, and on this GPU not these.
        """
        if self.pass_ in TRAINED:
            made = training_contender(self.provider, self.variant, self.problem, self.pass_)
            if made.key[2:] != (self.block_m, self.block_n):
                asked = (self.block_m, self.block_n)
                raise ValueError(f"{self.variant} has tiles {made.key[2:]} here, not {asked}")
            return made
        if self.provider != OURS:
            return peer_contender(BASELINES[self.provider], self.problem)
        tiling = UNTILED
        if self.block_m is not None and self.block_n is not None:
            tiling = Tiling(self.block_m, self.block_n)
        return our_contender(VARIANTS[self.variant], tiling, self.problem)


@dataclass(frozen=True)
class Outcome:
    """How a job went: as `Row.status`, with the error of the very output that was profiled."""

    number: int
    status: str
    detail: str
    max_abs_err: float | None = None


def reader_source(names: Sequence[str]) -> str:
    """CUDA source of kernels called `names` that all do the same: read a buffer."""
    return _SOURCE + "".join(f"READER({name})\n" for name in names)


class Region:
    """What ncu profiles: a cold and clean L2, then one call."""

    def __init__(self, numbers: Sequence[int]) -> None:
        import cupy

        names = [CALIBRATE, AFTER, *(f"{BEFORE}{number}" for number in numbers)]
        options = ("--std=c++17",)
        self._module = cupy.RawModule(code=reader_source(names), options=options, backend="nvrtc")
        self._buffer = cupy.zeros(FLUSH_BYTES, dtype="uint8")
        self._never = cupy.zeros(1, dtype="uint32")
        self._blocks = 8 * cupy.cuda.Device().attributes["MultiProcessorCount"]
        self._synchronize = cupy.cuda.Device().synchronize
        self._module.get_function(CALIBRATE)  # compiles

    def read(self, name: str) -> None:
        """Read `FLUSH_BYTES` in a kernel called `name`.

        A read and not a write: it leaves the L2 full of lines that need no writing back, which
        would be counted with the next launch's own writes.
        """
        kernel = self._module.get_function(name)
        args = (self._buffer, self._count, self._never)
        kernel((self._blocks,), (256,), args)

    @property
    def _count(self) -> Any:
        import numpy as np

        return np.int64(self._buffer.nbytes // 16)

    @contextmanager
    def profiling(self) -> Iterator[None]:
        """Launches in here are profiled."""
        import cupy

        self._synchronize()
        cupy.cuda.runtime.profilerStart()
        try:
            yield
            self._synchronize()
        finally:
            cupy.cuda.runtime.profilerStop()

    def call(self, number: int, call: Callable[[], Any], with_after: bool) -> Any:
        """Profile one call between its marks, and return its result."""
        with self.profiling():
            self.read(f"{BEFORE}{number}")
            result = call()
            if with_after:
                self.read(AFTER)
        return result


def profile_jobs(
    jobs: Sequence[Job], region: Region, with_after: bool, deadline_s: float = math.inf
) -> Iterator[Outcome]:
    """Make every call once to warm up, once profiled, and check the second one's output.

    Jobs of one problem stand together, short problems first: a call's estimate comes from the one
    before. Ends before the first job after `deadline_s` seconds; the last outcome says so.
    """
    start = time.monotonic()
    estimates: dict[str, Estimates] = defaultdict(Estimates)  # by pass
    for problem, group in groupby(jobs, key=lambda job: job.problem):
        at = None
        for job in group:
            if time.monotonic() - start > deadline_s:
                yield Outcome(END, "end", "deadline")
                return
            try:
                gc.collect()  # what a graph of torch's holds
                memory.free_pools()
                at = at or Workbench(problem)
                yield _profile_one(job, region, with_after, at, estimates)
            except Exception as error:  # a peer may refuse in many ways; the run must go on
                yield Outcome(job.number, "failed", _in_one_line(error))
    yield Outcome(END, "end", "")


def _in_one_line(error: Exception) -> str:
    """One line of at most 300 characters, as in the rows of a sweep."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _profile_one(
    job: Job, region: Region, with_after: bool, at: Workbench, known: Mapping[str, Estimates]
) -> Outcome:
    problem, contender, estimates = at.problem, job.contender, known[job.pass_]
    estimate = estimates.of(problem, contender)
    if estimate is not None and estimate > point.MAX_LATENCY_MS:
        detail = point.too_slow(estimate, point.MAX_LATENCY_MS)
        return Outcome(job.number, "skipped (estimated)", detail)
    call = at.prepare(contender, job.pass_)
    # A backward alone makes the forward that it starts from here, before it is profiled.
    ms = _warm_up(call, estimate)
    estimates.learn(point.row_of(problem, contender, "latency_ms", value=ms))
    result = region.call(job.number, call, with_after)
    checked = at.check(result, contender, job.pass_)
    if checked.fault:
        return Outcome(job.number, "failed", checked.fault)
    return Outcome(job.number, "ok", checked.detail, checked.error)


def _warm_up(call: Callable[[], Any], estimate: float | None) -> float:
    """Milliseconds of the call, made until modules are loaded, pools full and libraries decided."""
    first = _milliseconds(call)
    if first <= LONG_MS or (estimate is not None and first < 3 * estimate):
        return first
    return _milliseconds(call)  # a library that sets itself up looks like a slow call


def _milliseconds(call: Callable[[], Any]) -> float:
    import cupy

    start = time.perf_counter()
    call()
    cupy.cuda.Device().synchronize()
    return 1e3 * (time.perf_counter() - start)


def main(jobs_path: str, report_path: str) -> int:
    """Profile the jobs of a JSON file; one JSON line per outcome goes into the report."""
    asked = json.loads(Path(jobs_path).read_text(encoding="utf-8"))
    jobs = [Job(**job) for job in asked["jobs"]]
    region = Region([job.number for job in jobs])
    with region.profiling():
        region.read(CALIBRATE)
    with Path(report_path).open("a", encoding="utf-8") as report:
        deadline_s = asked["deadline_s"] or math.inf
        for outcome in profile_jobs(jobs, region, asked["with_after"], deadline_s):
            report.write(json.dumps(asdict(outcome)) + "\n")
            report.flush()  # what is known survives a crash of the next job
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
