"""06_flash_wgmma on CuPy arrays: what TMA reads, and a grid that fills the GPU once."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fa_kernels.cuda import arguments
from fa_kernels.cuda.launch import launch, sm_count
from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.cuda.plan_mma import heads_in_section
from fa_kernels.cuda.plan_wgmma import plan_flash_wgmma
from fa_kernels.cuda.recipe import Recipe, results_like
from fa_kernels.cuda.run import Call, CudaResult
from fa_kernels.cuda.tensor_map import Boxed, mappable
from fa_kernels.cuda.work_counters import work_counters
from fa_kernels.extras import NO_EXTRAS, Extras
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling


def run_flash_wgmma(
    q: Any,
    k: Any,
    v: Any,
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    extras: Extras = NO_EXTRAS,
    count_traffic: bool = False,
    without: tuple[str, ...] = (),
) -> CudaResult:
    """06_flash_wgmma on CuPy arrays; `without` turns off some of `plan_wgmma.SWITCHES`.

    Other arguments, results and errors as `run.run_flash_q_outer`. An array that TMA cannot read
    where it lies is copied once, with a warning.
    """
    q, k, v = (readable(name, x) for name, x in zip("qkv", (q, k, v), strict=True))
    options: dict[str, Any] = {"count_traffic": count_traffic, "without": without}
    call = Call(plan_flash_wgmma, (q, k, v), problem, tiling, extras, **options)
    plan = filling_the_gpu(call.plan)
    launch(plan, plan.steps[0], [*_arguments(call), *call.counters])
    return call.result()


def prepare_flash_wgmma(
    q: Any, k: Any, v: Any, problem: AttentionProblem, tiling: Tiling, **options: Any
) -> Recipe | None:
    """The launch of a repeated call without extras; None where q, k or v would be copied first."""
    if not all(map(mappable, (q, k, v))):
        return None
    inputs, results = (q, k, v), results_like(q)
    call = Call(plan_flash_wgmma, inputs, problem, tiling, NO_EXTRAS, results=results, **options)
    return WgmmaRecipe(filling_the_gpu(call.plan), _arguments(call), _boxed(call))


def readable(name: str, array: Any) -> Any:
    """`array` itself if TMA can read it where it lies, else one contiguous copy, with a warning."""
    import cupy

    if mappable(array):
        return array
    warnings.warn(
        f"{name} has strides {array.strides} bytes from address {array.data.ptr:#x} on: TMA reads "
        "rows that start at multiples of 16 bytes and are not broadcast, so it was copied once. "
        "Pass such an array, or use variant='flash_mma'.",
        stacklevel=4,
    )
    return cupy.ascontiguousarray(array)


def filling_the_gpu(plan: LaunchPlan) -> LaunchPlan:
    """A plan whose grid is its number of work items, with a block for each SM instead."""
    (step,) = plan.steps
    return replace(plan, steps=(replace(step, grid=min(step.grid, sm_count())),))


def _boxed(call: Call) -> list[Boxed]:
    tiling = call.tiling
    return [Boxed(call.q, tiling.block_m), *(Boxed(x, tiling.block_n) for x in (call.k, call.v))]


def _arguments(call: Call) -> list[Any]:
    problem, tiling = call.problem, call.tiling
    args: list[Any] = [boxed.map() for boxed in _boxed(call)]
    args += [*arguments.with_strides(call.out), call.lse, np.int64(work_counters())]
    args += [*call.sizes, call.band, arguments.score_scale(problem)]
    args += [np.int32(heads_in_section(problem)), np.int32(call.plan.steps[0].grid)]
    args += [*arguments.queued()(problem, tiling)]
    return [*args, *call.scores_of, *call.dropout]


#: What a recipe finds anew at every call: three maps, out with its strides, lse, counters.
_WRITTEN = 7


class WgmmaRecipe(Recipe):
    """A `Recipe` whose q, k and v are tensor maps, and which takes the counters of its stream."""

    def __init__(self, plan: LaunchPlan, args: Sequence[Any], boxed: Sequence[Boxed]) -> None:
        self._maps = [one.maps() for one in boxed]
        super().__init__(plan, args)

    def _lay_out(self, args: Sequence[Any]) -> list[int]:
        self._keep(args[_WRITTEN:])
        self._out_strides = np.ascontiguousarray(args[4])
        first = self._pointers_at()
        maps = [0, 0, 0]  # those of each call
        written = [first, self._out_strides.ctypes.data, first + 8, first + 16]
        return [*maps, *written, *(x.ctypes.data for x in self._values)]

    def _write(self, inputs: tuple[int, int, int], out: int, lse: int, stream: int) -> None:
        addresses, pointers = self._addresses, self._pointers
        for number in range(len(self._maps)):
            addresses[number] = self._maps[number].at(inputs[number])
        pointers[0], pointers[1], pointers[2] = out, lse, work_counters(stream)
