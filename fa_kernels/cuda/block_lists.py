"""Lists of kept tiles made on the GPU, from a block mask that lies there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fa_kernels import masks
from fa_kernels.problem import AttentionProblem
from fa_kernels.tile_list import LIST_RECORD
from fa_kernels.tiling import Tiling

SOURCE = Path(__file__).with_name("block_lists.cu")
OPTIONS = ("--std=c++17",)
#: Threads of a block: a warp for every list.
_THREADS, _WARP = 256, 32
_SIZES = np.dtype(
    [("begin", "<i8"), ("end", "<i8")]
    + [
        (name, "<i4")
        for name in (
            "masks", "q_blocks", "k_blocks", "mask_m", "mask_n", "seqlen_q", "seqlen_k", "block_m",
            "block_n", "by_keys",
        )
    ]
)  # fmt: skip


def build(
    keep: Any,
    problem: AttentionProblem,
    tiling: Tiling,
    *,
    by_keys: bool = False,
    longest_first: bool = True,
) -> tuple[Any, Any]:
    """`tile_list.queues` on the current GPU and stream: three launches and one look at a sum.

    Args:
        keep: CuPy uint8 (batch or 1, nheads or 1, q_blocks, k_blocks), contiguous, 1 = attend:
            the `keep` of `problem.block_mask`, whose block sizes count.
        by_keys: lists of the Q tiles of every K/V tile instead.
        longest_first: sort the lists; without it list i is that of tile i.

    Returns:
        records, `LIST_RECORD` as int64 (masks, lists, 2), and entries, int32, at least one.
    """
    import cupy

    size = _sizes(problem, tiling, by_keys)
    count = -(-problem.seqlen_k // tiling.block_n) if by_keys else _q_tiles(problem, tiling)
    shape = (keep.shape[0] * keep.shape[1], count)
    lists = shape[0] * shape[1]
    records = cupy.empty((*shape, LIST_RECORD.itemsize // 8), np.int64)
    if lists == 0:
        return records, cupy.zeros(1, np.int32)
    counts = cupy.empty(shape, np.int32)
    grid = (-(-lists * _WARP // _THREADS),)
    module = _module()
    module.get_function("count_tiles")(grid, (_THREADS,), (keep, size, counts))
    ends = cupy.cumsum(counts, dtype=np.int64)
    entries = cupy.empty(max(1, int(ends[-1])), np.int32)
    args = (keep, size, counts, ends, np.int32(longest_first), records, entries)
    module.get_function("fill_lists")(grid, (_THREADS,), args)
    return records, entries


def _q_tiles(problem: AttentionProblem, tiling: Tiling) -> int:
    return -(-problem.seqlen_q // tiling.block_m)


def _sizes(problem: AttentionProblem, tiling: Tiling, by_keys: bool) -> np.ndarray:
    mask, band = problem.block_mask, masks.band(problem)
    assert mask is not None
    lengths = (problem.seqlen_q, problem.seqlen_k, tiling.block_m, tiling.block_n)
    blocks = (mask.lead[0] * mask.lead[1], *mask.blocks, mask.block_m, mask.block_n)
    return np.array([(band.begin, band.end, *blocks, *lengths, by_keys)], dtype=_SIZES)


_modules: dict[int, Any] = {}


def _module() -> Any:
    import cupy

    device = cupy.cuda.Device().id
    if device not in _modules:
        code = SOURCE.read_text(encoding="utf-8")
        _modules[device] = cupy.RawModule(code=code, options=OPTIONS, backend="nvrtc")
    return _modules[device]
