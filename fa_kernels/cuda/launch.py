"""The one checked way to launch a kernel: devices, strides, scalars, shared memory, stream."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from fa_kernels.cuda.compile import load_entry
from fa_kernels.cuda.plan import LaunchPlan, LaunchStep, plan_flash_q_outer, plan_standard_tiled
from fa_kernels.masks import causal_offset
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.standard import scale_in_log2
from fa_kernels.tiling import Tiling, refuse_smem
from fa_kernels.traffic.model import TENSORS, Traffic
from fa_kernels.units import capacity

_STRIDES = np.dtype([("batch", "<i8"), ("head", "<i8"), ("row", "<i8")])
#: Above this, CUDA wants the kernel's maximum raised before a launch.
DEFAULT_SMEM_BYTES = 48 * 1024


def available() -> bool:
    """True if CuPy is installed and sees a GPU."""
    try:
        import cupy

        return bool(cupy.cuda.is_available())
    except ImportError:
        return False


def smem_limit_bytes() -> int:
    """Shared memory one block may have on the current GPU (opt-in limit), in bytes."""
    import cupy

    return _smem_limit_bytes(cupy.cuda.Device().id)


@functools.cache
def _smem_limit_bytes(device_id: int) -> int:
    # CuPy asks the driver for every attribute there is: once per GPU, not several times per call.
    import cupy

    return int(cupy.cuda.Device(device_id).attributes["MaxSharedMemoryPerBlockOptin"])


def gpu_name() -> str:
    """The current GPU's name as CUDA reports it, e.g. "NVIDIA H200"."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    return properties["name"].decode()


def usable(name: str, array: Any) -> Any:
    """`array` itself if its last axis is contiguous, else one contiguous copy, with a warning."""
    import cupy

    whole = all(stride % array.itemsize == 0 for stride in array.strides)
    if whole and (array.shape[-1] == 1 or array.strides[-1] == array.itemsize):
        return array
    warnings.warn(
        f"{name} has strides {array.strides} bytes: its last axis is not contiguous (or a stride "
        "is no whole number of elements), so it was copied once. Pass a contiguous last axis.",
        stacklevel=4,
    )
    return cupy.ascontiguousarray(array)


def rows_aligned(*arrays: Any) -> bool:
    """True if every row of every array starts at a multiple of 16 bytes."""
    return all(
        a.data.ptr % 16 == 0
        and all(s % 16 == 0 for s, n in zip(a.strides[:3], a.shape[:3], strict=True) if n > 1)
        for a in arrays
    )


def _strides_argument(array: Any) -> np.ndarray:
    elements = tuple(stride // array.itemsize for stride in array.strides[:3])
    # One structured element is passed by value, as the kernel's `Strides`.
    return np.array([elements], dtype=_STRIDES)


def load_in_parallel(plans: Iterable[LaunchPlan], threads: int = 16) -> int:
    """Compile what `plans` need, each distinct build once, in threads; how many there were.

    NVRTC releases the GIL while it compiles, so threads are enough.
    """
    builds = {(plan.kernel, tuple(plan.macros.items())): plan for plan in plans}
    with ThreadPoolExecutor(threads) as pool:
        jobs = [
            pool.submit(load_entry, p.kernel, p.macros, p.steps[0].entry) for p in builds.values()
        ]
        for job in jobs:
            job.result()
    return len(builds)


def launch(plan: LaunchPlan, step: LaunchStep, args: Sequence[Any]) -> None:
    """Launch one step on CuPy's current stream.

    Raises:
        TypeError: a Python scalar among `args`; a raw kernel would misread its width.
        ValueError: an array on another device than the current one.
    """
    import cupy

    device = cupy.cuda.Device().id
    for arg in args:
        if isinstance(arg, cupy.ndarray):
            if arg.device.id != device:
                raise ValueError(
                    f"an array lives on GPU {arg.device.id}, the current GPU is {device}: "
                    "move it, or wrap the call in `with cupy.cuda.Device(...)`."
                )
        elif not isinstance(arg, (np.generic, np.ndarray)):
            raise TypeError(f"kernel argument {arg!r} must be a NumPy scalar of the kernel's width")
    kernel = load_entry(plan.kernel, plan.macros, step.entry)
    if step.smem_bytes > DEFAULT_SMEM_BYTES:
        kernel.max_dynamic_shared_size_bytes = step.smem_bytes
    kernel((step.grid,), (step.threads,), tuple(args), shared_mem=step.smem_bytes)


def _refuse_mismatch(q: Any, k: Any, v: Any, problem: AttentionProblem) -> None:
    """Raise unless the arrays are what `problem` says; a kernel would read out of bounds."""
    rows = {"q": problem.seqlen_q, "k": problem.seqlen_k, "v": problem.seqlen_k}
    for (name, n), array in zip(rows.items(), (q, k, v), strict=True):
        shape = (problem.batch, problem.nheads, n, problem.head_dim)
        if tuple(array.shape) != shape or array.dtype != problem.dtype:
            raise ValueError(
                f"{name} is {array.dtype} of shape {tuple(array.shape)}, the problem says "
                f"{problem.dtype} {shape}: make the problem from the arrays (fa.attention does)."
            )


class _Call:
    """Arrays and arguments shared by both variants' launches."""

    def __init__(self, q: Any, k: Any, v: Any, problem: AttentionProblem, count: bool) -> None:
        import cupy

        _refuse_mismatch(q, k, v, problem)
        self.q, self.k, self.v = (usable(n, a) for n, a in (("q", q), ("k", k), ("v", v)))
        self.problem = problem
        self.out = cupy.empty(q.shape, q.dtype)
        self.lse = cupy.empty(q.shape[:3], np.float32)
        self.aligned = rows_aligned(self.q, self.k, self.v, self.out)
        self.totals = cupy.zeros((len(TENSORS), 2), np.uint64) if count else None

    @property
    def sizes(self) -> tuple[np.generic, ...]:
        p = self.problem
        return (np.int32(p.nheads), np.int32(p.seqlen_q), np.int32(p.seqlen_k))

    @property
    def offset(self) -> np.int64:
        return np.int64(causal_offset(self.problem))

    @property
    def counters(self) -> tuple[Any, ...]:
        return () if self.totals is None else (self.totals,)

    def traffic(self) -> Traffic | None:
        if self.totals is None:
            return None
        table = self.totals.get()
        columns = [dict(zip(TENSORS, map(int, table[:, i]), strict=True)) for i in (0, 1)]
        return Traffic(columns[0], columns[1])


CudaResult = tuple[Any, Any, Traffic | None]


def run_flash_q_outer(
    q: Any,
    k: Any,
    v: Any,
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    count_traffic: bool = False,
) -> CudaResult:
    """04_flash_q_outer on CuPy arrays (batch, nheads, seqlen, head_dim).

    Returns:
        out like q; lse (batch, nheads, seqlen_q) fp32; the in-kernel counters or None.

    Raises:
        ValueError, NotImplementedError: this GPU or kernel cannot run it; before any launch.
    """
    plan = plan_flash_q_outer(problem, tiling)
    refuse_on_this_gpu(plan, problem, tiling)
    call = _Call(q, k, v, problem, count_traffic)
    plan = plan_flash_q_outer(problem, tiling, aligned=call.aligned, count_traffic=count_traffic)
    args = []
    for array in (call.q, call.k, call.v, call.out):
        args += [array, _strides_argument(array)]
    scale = np.float32(scale_in_log2(problem))
    args += [call.lse, *call.sizes, call.offset, scale, *call.counters]
    launch(plan, plan.steps[0], args)
    return call.out, call.lse, call.traffic()


def run_standard_tiled(
    q: Any,
    k: Any,
    v: Any,
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    count_traffic: bool = False,
) -> CudaResult:
    """02_standard_tiled on CuPy arrays; arguments, results and errors as `run_flash_q_outer`."""
    import cupy

    plan = plan_standard_tiled(problem, tiling)
    refuse_on_this_gpu(plan, problem, tiling)
    call = _Call(q, k, v, problem, count_traffic)
    plan = plan_standard_tiled(problem, tiling, aligned=call.aligned, count_traffic=count_traffic)
    s = cupy.empty((*q.shape[:3], problem.seqlen_k), q.dtype)
    p = cupy.empty_like(s)
    strides = _strides_argument
    offset, counters = call.offset, call.counters
    scores, softmax, output = plan.steps
    scale = np.float32(problem.scale)
    operands = (call.q, strides(call.q), call.k, strides(call.k), s)
    launch(plan, scores, (*operands, *call.sizes, offset, scale, *counters))
    rows = np.int64(problem.heads * problem.seqlen_q)
    launch(plan, softmax, (s, p, call.lse, *call.sizes[1:], offset, rows, *counters))
    operands = (p, call.v, strides(call.v), call.out, strides(call.out))
    launch(plan, output, (*operands, *call.sizes, offset, *counters))
    return call.out, call.lse, call.traffic()


def refuse_on_this_gpu(
    plan: LaunchPlan, problem: AttentionProblem, tiling: Tiling, where: str = "this GPU"
) -> None:
    """Raise if a launch of `plan` needs more shared memory than the current GPU gives a block.

    Raises:
        ValueError: names the tiles or the row, what they need, the limit and a remedy.
    """
    limit = smem_limit_bytes()
    refuse_smem(plan.layout, tiling, problem.head_dim, problem.dtype, limit, where)
    if plan.smem_bytes > limit:
        raise ValueError(
            f"N_k = {problem.seqlen_k}: a row of scores on chip needs {capacity(plan.smem_bytes)} "
            f"of shared memory per block, {where} allows {capacity(limit)}: "
            "use variant='flash_q_outer', which keeps no whole row."
        )


def refuse_old_gpu(kernel: str, min_arch: int) -> None:
    """Raise if the current GPU is older than what `kernel` is written for.

    Raises:
        NotImplementedError: names both compute capabilities and the remedy.
    """
    import cupy

    arch = int(cupy.cuda.Device().compute_capability)
    if arch < min_arch:
        raise NotImplementedError(
            f"{kernel} needs compute capability sm_{min_arch} or later, this GPU is sm_{arch}: "
            "use backend='numpy' on host arrays."
        )


def refuse_memory(what: str, need_bytes: int) -> None:
    """Raise if `need_bytes` are more than the current GPU has free.

    Raises:
        ValueError: names what is needed, what is free and a remedy.
    """
    import cupy

    pool_bytes = cupy.get_default_memory_pool().free_bytes()
    free_bytes = int(cupy.cuda.runtime.memGetInfo()[0]) + int(pool_bytes)
    if need_bytes > free_bytes:
        raise ValueError(
            f"{what} needs {capacity(need_bytes)} of GPU memory, {capacity(free_bytes)} is free: "
            "use variant='flash_q_outer', a shorter sequence or a smaller batch."
        )
