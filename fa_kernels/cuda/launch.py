"""The one checked way to launch a kernel: devices, strides, scalars, shared memory, stream."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from fa_kernels.cuda.compile import load_entry, own_arch
from fa_kernels.cuda.plan import LaunchPlan, LaunchStep
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling, refuse_smem
from fa_kernels.units import capacity

#: Above this, static shared memory included, CUDA wants the kernel's maximum raised first.
DEFAULT_SMEM_BYTES = 48 * 1024


def available() -> bool:
    """True if CuPy is installed and sees a GPU."""
    try:
        import cupy

        return bool(cupy.cuda.is_available())
    except ImportError:
        return False


def what_is_missing() -> str:
    """Why `available` is false: "CuPy is not installed" or "CuPy 14.2.0 sees no GPU"."""
    try:
        import cupy

        return f"CuPy {cupy.__version__} sees no GPU"
    except ImportError:
        return "CuPy is not installed"


def smem_limit_bytes() -> int:
    """Shared memory one block may have on the current GPU (opt-in limit), in bytes."""
    import cupy

    return _attribute(cupy.cuda.Device().id, "MaxSharedMemoryPerBlockOptin")


def smem_per_sm_bytes() -> int:
    """Shared memory of one SM of the current GPU, which the blocks on it share, in bytes."""
    import cupy

    return _attribute(cupy.cuda.Device().id, "MaxSharedMemoryPerMultiprocessor")


def gpu_arch() -> int:
    """Compute capability of the current GPU, 90 for sm_90."""
    import cupy

    return _arch(cupy.cuda.Device().id)


def sm_count() -> int:
    """Streaming multiprocessors of the current GPU."""
    import cupy

    return _attribute(cupy.cuda.Device().id, "MultiProcessorCount")


def has_clusters() -> bool:
    """Whether blocks of the current GPU may form clusters, to read each other's shared memory."""
    return gpu_arch() >= 90


@functools.cache
def _arch(device_id: int) -> int:
    import cupy

    return int(cupy.cuda.Device(device_id).compute_capability)


@functools.cache
def _attribute(device_id: int, name: str) -> int:
    # CuPy asks the driver for every attribute there is: once per GPU, not several times per call.
    import cupy

    return int(cupy.cuda.Device(device_id).attributes[name])


def gpu_name() -> str:
    """The current GPU's name as CUDA reports it, e.g. "NVIDIA H200"."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    return properties["name"].decode()


def load_in_parallel(plans: Iterable[LaunchPlan], threads: int = 32) -> int:
    """Compile what `plans` need, each distinct build once, in threads; how many there were.

    NVRTC releases the GIL while it compiles, so threads are enough. A kernel of another GPU's own
    instructions is left out: it is refused when its turn comes.
    """
    threads = min(threads, os.cpu_count() or 1)
    builds = {
        (plan.kernel, tuple(plan.macros.items())): plan
        for plan in plans
        if _for_this_gpu(plan.kernel)
    }
    with ThreadPoolExecutor(threads) as pool:
        jobs = [
            pool.submit(load_entry, p.kernel, p.macros, p.steps[0].entry) for p in builds.values()
        ]
        for job in jobs:
            job.result()
    return len(builds)


def _for_this_gpu(kernel: str) -> bool:
    """False for a kernel in the own instructions of another architecture."""
    import cupy

    own = own_arch(kernel)
    return own is None or own == f"sm_{_arch(cupy.cuda.Device().id)}a"


def loaded(plan: LaunchPlan, step: LaunchStep) -> Any:
    """The kernel of one step, compiled and allowed the shared memory that the step asks for."""
    kernel = load_entry(plan.kernel, plan.macros, step.entry)
    if step.smem_bytes + step.static_smem_bytes > DEFAULT_SMEM_BYTES:
        kernel.max_dynamic_shared_size_bytes = step.smem_bytes
    return kernel


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
    kernel = loaded(plan, step)
    kernel((step.grid,), (step.threads,), tuple(args), shared_mem=step.smem_bytes)


def refuse_on_this_gpu(
    plan: LaunchPlan, problem: AttentionProblem, tiling: Tiling, where: str = "this GPU"
) -> None:
    """Raise if a launch of `plan` needs more shared memory than the current GPU gives a block.

    Raises:
        ValueError: names the tiles or the row, what they need, the limit and a remedy.
    """
    limit = smem_limit_bytes()
    sizes = (problem.head_dim, problem.dtype, limit, where)
    refuse_smem(plan.layout, tiling, *sizes, plan.layout_of)
    need = max(step.smem_bytes + step.static_smem_bytes for step in plan.steps)
    if need > limit and "ROW_THREADS" not in plan.macros:  # no launch keeps whole rows of scores
        raise ValueError(
            f"B_c = {tiling.block_n}, B_r = {tiling.block_m} and the mask need {capacity(need)} "
            f"({need} bytes) of shared memory per block, {where} allows {limit} bytes: "
            "use smaller tiles."
        )
    if need > limit:
        raise ValueError(
            f"N_k = {problem.seqlen_k}: a row of scores on chip needs {capacity(plan.smem_bytes)} "
            f"of shared memory per block, {where} allows {capacity(limit)}: "
            "use variant='flash_q_outer', which keeps no whole row."
        )


def refuse_old_gpu(kernel: str, min_arch: int) -> None:
    """Raise if the current GPU is older than what `kernel` is written for, or another than that.

    Raises:
        NotImplementedError: names both compute capabilities and the remedy.
    """
    import cupy

    arch, own = int(cupy.cuda.Device().compute_capability), own_arch(kernel)
    if own is not None and f"sm_{arch}a" != own:
        raise NotImplementedError(
            f"{kernel} is written in instructions of {own} alone, this GPU is sm_{arch}: use "
            "variant='auto' or 'flash_mma'."
        )
    if arch < min_arch:
        raise NotImplementedError(
            f"{kernel} needs compute capability sm_{min_arch} or later, this GPU is sm_{arch}: "
            "use backend='numpy' on host arrays."
        )


def refuse_memory(what: str, need_bytes: int, pool_bytes: int | None = None) -> None:
    """Raise if `need_bytes` are more than the current GPU has free.

    `pool_bytes`: what the allocator of the call keeps for itself and has not given out; CuPy's
    unless it is given.

    Raises:
        ValueError: names what is needed, what is free and a remedy.
    """
    import cupy

    if pool_bytes is None:
        pool_bytes = cupy.get_default_memory_pool().free_bytes()
    free_bytes = int(cupy.cuda.runtime.memGetInfo()[0]) + int(pool_bytes)
    if need_bytes > free_bytes:
        raise ValueError(
            f"{what} needs {capacity(need_bytes)} of GPU memory, {capacity(free_bytes)} is free: "
            "use variant='flash_q_outer', a shorter sequence or a smaller batch."
        )
