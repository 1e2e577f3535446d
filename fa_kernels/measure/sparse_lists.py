"""What it costs to turn a block mask into the lists that a kernel walks, on host and GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fa_kernels import masks, tile_list
from fa_kernels.cuda import block_lists, launch
from fa_kernels.measure import timing
from fa_kernels.measure.point import our_contender, row_of
from fa_kernels.measure.records import Row
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.variants import Variant

#: Pass -> the lists that its kernel walks, and whether they are those of the keys.
ORDERS: dict[str, tuple[Callable[[AttentionProblem, Tiling], tile_list.TileLists], bool]] = {
    "fwd": (tile_list.by_q, False),
    "bwd": (tile_list.by_kv, True),
}
#: Conversions that are timed; on the host they take milliseconds.
REPEATS = 5


def list_rows(
    problem: AttentionProblem, variant: Variant, tiling: Tiling, flush: timing.Flush
) -> Iterator[Row]:
    """Rows "host_lists_us" and "device_lists_us" of both passes; the price of a new mask.

    Host: NumPy, from the mask to both arrays, without the copy to the GPU. Device: from a mask that
    lies on the GPU, the wait for the length of the lists included.
    """
    for pass_, (order, by_keys) in ORDERS.items():
        assert variant.backward is not None
        tiles = tiling
        if pass_ == "bwd":
            tiles = variant.backward.tiling_for(problem, launch.smem_limit_bytes())
        tiles = tiles.clipped(problem.seqlen_q, problem.seqlen_k)
        contender = our_contender(variant, tiles, problem)
        costs = {"host_lists_us": [_host_us(problem, tiles, order) for _ in range(REPEATS)]}
        costs["device_lists_us"] = _device_us(problem, tiles, by_keys, flush)
        for metric, samples in costs.items():
            cost = timing.summarise(samples)
            row = row_of(problem, contender, metric, value=cost.median)
            yield replace(row, pass_=pass_, p20=cost.p20, p80=cost.p80, n=cost.n)


def _host_us(problem: AttentionProblem, tiling: Tiling, order: Any) -> float:
    masks._tile_map.cache_clear()  # as of a mask that is new
    start = time.perf_counter()
    order(problem, tiling)
    return (time.perf_counter() - start) * 1e6


def _device_us(
    problem: AttentionProblem, tiling: Tiling, by_keys: bool, flush: timing.Flush
) -> list[float]:
    import cupy

    assert problem.block_mask is not None
    keep = cupy.asarray(problem.block_mask.keep.astype(np.uint8))

    def call() -> Any:
        return block_lists.build(keep, problem, tiling, by_keys=by_keys)

    call()  # compiles
    return [timing.time_once(call, flush) * 1e3 for _ in range(REPEATS)]
