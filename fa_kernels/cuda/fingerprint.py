"""What a kernel is launched with, as a hash: a change of threads or caches is another kernel."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda.plan import IO_BITS, PLANS, LaunchPlan
from fa_kernels.cuda.plan_backward import BACKWARD_PLANS
from fa_kernels.cuda.plan_decode import plan_decode
from fa_kernels.cuda.plan_mma import MMA_PLANS, default_mma_tiling, plan_flash_mma
from fa_kernels.cuda.plan_mma_backward import (
    MMA_BACKWARD_PLANS,
    default_mma_backward_tiling,
    plan_flash_mma_backward,
)
from fa_kernels.cuda.plan_wgmma import WGMMA_PLANS, default_wgmma_tiling, plan_flash_wgmma
from fa_kernels.cuda.plan_wgmma_backward import (
    WGMMA_BACKWARD_PLANS,
    default_wgmma_backward_tiling,
    plan_flash_wgmma_backward,
)
from fa_kernels.cuda.run_decode import DECODE_KERNEL, DTYPES
from fa_kernels.decode_problem import DecodeProblem
from fa_kernels.packed import Packed
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import HOPPER_SMEM_PER_BLOCK, MMA_HEAD_DIMS, Tiling
from fa_kernels.units import KIB

_SIZES = (4096, 4096)
_PLANS: dict[str, tuple[Callable[..., LaunchPlan], ...]] = {
    **(PLANS | MMA_PLANS | WGMMA_PLANS | BACKWARD_PLANS | MMA_BACKWARD_PLANS),
    **WGMMA_BACKWARD_PLANS,
    DECODE_KERNEL: (plan_decode,),
}
#: Default tiles by plan, where they are others than the CUDA-core rungs have.
_DEFAULTS: dict[Any, Callable[..., Tiling]] = {
    plan_flash_mma: default_mma_tiling,
    plan_flash_mma_backward: default_mma_backward_tiling,
    plan_flash_wgmma: default_wgmma_tiling,
    plan_flash_wgmma_backward: default_wgmma_backward_tiling,
}
#: At d = 64, of what takes no others.
_FIXED_TILES: dict[Any, Tiling] = {
    plan_flash_wgmma_backward: default_wgmma_backward_tiling(64, 2),
}
#: Shared memory of a block on the GPUs with tensor cores for 05: sm_86 and 89, sm_80, sm_90. An SM
#: has 1 KiB more.
_SMEM_PER_BLOCK = (99 * KIB, 163 * KIB, HOPPER_SMEM_PER_BLOCK)
#: Options as fields of a problem; each is a build of its own.
_OPTIONS: tuple[dict[str, Any], ...] = (
    {"window": (100, 0)},
    {"masked": True},
    {"bias_dtype": "float32"},
    {"bias_dtype": "float16"},
    {"dropout_p": 0.1, "seed": 0},
    {"dropout_p": 0.1, "keep_given": True},
    {"nheads_kv": 1},
    {"batch": 2, "packed": Packed((0, 4096, 5000), (0, 4096, 5000))},
    {"block_mask": BlockMask.pattern("local", *_SIZES, 128, 128, 0.25)},
    {"block_mask": BlockMask.pattern("local", *_SIZES, 24, 40, 0.25)},
)


#: Those of a decoding step.
_DECODE_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"max_seqlen": None, "page_size": 16, "max_pages": 512},
    {"window": (100, 0)},
    {"seqlen_new": 1},
    {"seqlen_q": 4},
    {"nheads_kv": 1},
)


@functools.cache
def plan_fingerprint(kernel: str) -> str:
    """First 16 hex digits of a hash over what `kernel` is compiled with at points of the grid.

    A kernel is verified as launched: another choice of threads or caches is another kernel.
    """
    text = []
    for plan in _PLANS[kernel]:
        launches = _decode_launches if kernel == DECODE_KERNEL else _launches
        for launched in launches(plan):
            steps = [(s.entry, s.threads, s.smem_bytes) for s in launched.steps]
            text.append(f"{sorted(launched.macros.items())} {steps}")
    return hashlib.sha256("\n".join(text).encode()).hexdigest()[:16]


def _decode_launches(plan: Callable[..., LaunchPlan]) -> Iterator[LaunchPlan]:
    """Decoding steps of one split and of several, with every option alone."""
    for dtype, head_dim in itertools.product(DTYPES, (20, 63, *MMA_HEAD_DIMS)):
        step = DecodeProblem(16, 32, 8, 1, 0, 8192, head_dim, dtype)
        for fields, num_splits in itertools.product(_DECODE_OPTIONS, (1, 2, 8)):
            yield plan(replace(step, **fields), num_splits)
        for option in ({"aligned": False}, {"whole_tiles": False}, {"count_traffic": True}):
            yield plan(step, 8, **option)
        for limit in _SMEM_PER_BLOCK:
            clusters = limit == HOPPER_SMEM_PER_BLOCK
            yield plan(replace(step, batch=1), 8, clusters=clusters)
            yield plan(step, 8, limit_bytes=limit, sm_bytes=limit + KIB, clusters=clusters)


def _launches(plan: Callable[..., LaunchPlan]) -> Iterator[LaunchPlan]:
    """Plans at points of the recorded grid, then one point with every option."""
    for dtype, head_dim, kib in itertools.product(IO_BITS, (20, 32, 64, 128), (16, 64, 192)):
        tiling = Tiling.from_sram(kib * KIB, head_dim, dtype)
        for nheads in (1, 512):
            # A backward pass refuses the largest of the forward's tiles, tensor cores refuse fp32.
            with contextlib.suppress(ValueError, NotImplementedError):
                yield plan(AttentionProblem(1, nheads, *_SIZES, head_dim, dtype), tiling)
    tiling = _FIXED_TILES.get(plan, Tiling(64, 64))
    base: dict[str, Any] = {"batch": 1, "nheads": 8, "head_dim": 64, "dtype": "float16"}
    base |= {"seqlen_q": _SIZES[0], "seqlen_k": _SIZES[1]}
    # 01 and 02 take no block mask, 06 neither packed sequences nor rows that are not aligned.
    not_taken = contextlib.suppress(NotImplementedError)
    for fields in _OPTIONS:
        with not_taken:
            yield plan(AttentionProblem(**base | fields), tiling)
    dense = AttentionProblem(**base)
    with not_taken:
        yield plan(dense, tiling, aligned=False)
    yield plan(dense, tiling, count_traffic=True)
    if plan in _DEFAULTS:  # of the default tiles the grid above holds none
        for head_dim in MMA_HEAD_DIMS:
            sizes = AttentionProblem(1, 8, *_SIZES, head_dim, "float16")
            for limit in _SMEM_PER_BLOCK:
                with not_taken:  # of 06's backward the largest head_dims
                    yield plan(sizes, _DEFAULTS[plan](head_dim, 2, limit))
            largest = _DEFAULTS[plan](head_dim, 2, HOPPER_SMEM_PER_BLOCK)
            for fields in _OPTIONS:
                with not_taken:
                    yield plan(replace(sizes, **fields), largest)
    for option in ("trace", "deterministic"):
        if option in inspect.signature(plan).parameters:
            with not_taken:
                yield plan(dense, tiling, **{option: True})
