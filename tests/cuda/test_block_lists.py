"""The lists that are made on the GPU: those of `tile_list.queues`, bit for bit."""

from __future__ import annotations

import pytest

from fa_kernels.cuda import block_lists
from fa_kernels.cuda.compile import compile_report
from fa_kernels.cuda.launch import available


def test_the_kernels_compile_without_spills() -> None:
    pytest.importorskip("cupy_backends")
    source = block_lists.SOURCE.read_text(encoding="utf-8")
    for arch in ("sm_80", "sm_90"):
        report = compile_report("block_lists", {}, arch, source)
        assert set(report.registers) == {"count_tiles", "fill_lists"}
        assert report.spill_bytes == 0


@pytest.mark.gpu
@pytest.mark.skipif(not available(), reason="needs CuPy and a GPU")
@pytest.mark.parametrize("lead", [(1, 1), (1, 3), (2, 3)])
@pytest.mark.parametrize("causal", [None, "bottom_right"])
@pytest.mark.parametrize("by_keys", [False, True])
def test_they_are_those_of_the_specification(
    lead: tuple[int, int], causal: str | None, by_keys: bool
) -> None:
    import cupy
    import numpy as np

    from fa_kernels.block_mask import BlockMask
    from fa_kernels.problem import AttentionProblem
    from fa_kernels.tile_list import LIST_RECORD, queues
    from fa_kernels.tiling import Tiling

    rng = np.random.default_rng(5)
    for blocks, sizes in (((9, 7), (24, 40)), ((70, 85), (3, 3))):
        mask = BlockMask(rng.random((*lead, *blocks)) < 0.3, *sizes)
        problem = AttentionProblem(2, 3, 208, 255, 16, causal=causal, block_mask=mask)
        for tiling in (Tiling(32, 16), Tiling(16, 64)):
            for longest_first in (False, True):
                how = {"by_keys": by_keys, "longest_first": longest_first}
                keep = cupy.asarray(mask.keep.view(np.uint8))
                records, entries = block_lists.build(keep, problem, tiling, **how)
                want = queues(problem, tiling, **how)
                found = records.get().view(LIST_RECORD)[..., 0]
                np.testing.assert_array_equal(found, want.records)
                np.testing.assert_array_equal(entries.get()[: len(want.entries)], want.entries)
