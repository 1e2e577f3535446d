"""06_flash_wgmma_backward on CuPy arrays: gradients whose tiles TMA fetches."""

from __future__ import annotations

from typing import Any

import numpy as np

from fa_kernels.cuda import arguments, plan_wgmma_backward
from fa_kernels.cuda.recipe_backward import BackwardRecipe, Record
from fa_kernels.cuda.run_backward import NAMES, QUEUED, CudaGradients, flash_call
from fa_kernels.cuda.run_wgmma import readable
from fa_kernels.cuda.tensor_map import Boxed, mappable
from fa_kernels.extras import NO_EXTRAS, Extras
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling


def run_flash_wgmma_backward(
    d_out: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    extras: Extras = NO_EXTRAS,
    deterministic: bool = False,
    count_traffic: bool = False,
    **choices: Any,
) -> CudaGradients:
    """06_flash_wgmma_backward on CuPy arrays; `choices` as its plan takes them.

    Other arguments, results and errors as `run_backward.run_flash_q_outer_backward`; an array that
    TMA cannot read where it lies is copied once, with a warning.
    """
    options = {"deterministic": deterministic, "count_traffic": count_traffic, **choices}
    named = zip(NAMES, (d_out, q, k, v), strict=False)
    tensors = (*(readable(name, x) for name, x in named), out, lse)
    return _on_warpgroups(tensors, problem, tiling, extras, options)


def _on_warpgroups(
    tensors: tuple[Any, ...],
    problem: AttentionProblem,
    tiling: Tiling,
    extras: Extras,
    options: dict[str, Any],
    record: Record | None = None,
) -> CudaGradients:
    """delta, then dk and dv by blocks that own a K/V tile, then dq."""
    make_plan = plan_wgmma_backward.plan_flash_wgmma_backward
    call = flash_call(make_plan, tensors, problem, tiling, extras, record, **options)
    delta, at = call.statistics(), call.at
    dq_sum = call.empty(plan_wgmma_backward.dq_sum_shape(problem, tiling), np.float32)
    call.clear(dq_sum)
    sizes = (call.sizes[0], *call.sizes[2:])
    call.launch("delta", [*call.with_strides("d_out", "out"), delta, *sizes])
    rows = {"q": tiling.block_m, "k": tiling.block_n, "v": tiling.block_n, "d_out": tiling.block_m}
    args = [*(Boxed(at[name], count) for name, count in rows.items()), at["lse"], delta, dq_sum]
    args += call.with_strides("dk", "dv")
    call.launch("keys", [*args, *call.tiles(QUEUED.by_keys, *QUEUED.section(problem))])
    scale = np.float32(problem.scale)
    call.launch("convert", [dq_sum, *call.with_strides("dq"), *sizes, scale])
    return call.result()


def prepare_flash_wgmma_backward(
    d_out: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    problem: AttentionProblem,
    tiling: Tiling,
    deterministic: bool = False,
) -> BackwardRecipe | None:
    """The launches of a repeated call without extras; None where an array would be copied first."""
    tensors = (d_out, q, k, v, out, lse)
    if not (all(map(mappable, tensors[:4])) and arguments.used_in_place(out)):
        return None
    if not lse.flags.c_contiguous:
        return None
    tensors = tuple(x.view() for x in tensors)  # an array that comes twice has two places
    record, options = Record(tensors), {"deterministic": deterministic}
    _on_warpgroups(tensors, problem, tiling, NO_EXTRAS, options, record)
    return BackwardRecipe(record)
