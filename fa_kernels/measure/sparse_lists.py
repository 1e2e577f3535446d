"""What it costs to turn a block mask into the lists that a kernel walks, on host and GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from fa_kernels import masks, tile_list
from fa_kernels.measure import timing
from fa_kernels.measure.point import our_contender, row_of
from fa_kernels.measure.records import Row
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.variants import Variant

#: Pass -> the lists that its kernel walks.
ORDERS: dict[str, Callable[[AttentionProblem, Tiling], tile_list.TileLists]] = {
    "fwd": tile_list.by_q,
    "bwd": tile_list.by_kv,
}
#: Conversions that are timed; on the host they take milliseconds.
REPEATS = 5


def list_rows(
    problem: AttentionProblem, variant: Variant, tiling: Tiling, flush: timing.Flush
) -> Iterator[Row]:
    """Rows "host_lists_us" of both passes; once for a mask, whatever the number of calls.

    Host: NumPy, from the mask to both arrays, without the copy to the GPU.
    """
    for pass_, order in ORDERS.items():
        assert variant.backward is not None
        tiles = tiling if pass_ == "fwd" else variant.backward.tiling_for(problem, _limit())
        tiles = tiles.clipped(problem.seqlen_q, problem.seqlen_k)
        cost = timing.summarise([_host_us(problem, tiles, order) for _ in range(REPEATS)])
        contender = our_contender(variant, tiles, problem)
        row = row_of(problem, contender, "host_lists_us", value=cost.median, detail="NumPy")
        yield replace(row, pass_=pass_, p20=cost.p20, p80=cost.p80, n=cost.n)


def _limit() -> int:
    from fa_kernels.cuda.launch import smem_limit_bytes

    return smem_limit_bytes()


def _host_us(problem: AttentionProblem, tiling: Tiling, order: Any) -> float:
    masks._tile_map.cache_clear()  # as of a mask that is new
    start = time.perf_counter()
    order(problem, tiling)
    return (time.perf_counter() - start) * 1e6
