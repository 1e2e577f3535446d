"""A GPU that is not there, for every test of launches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fa_kernels import tile_list
from fa_kernels.cuda import (
    block_lists,
    launch,
    mask_arrays,
    packed_arrays,
    run_wgmma,
    tensor_map,
    work_counters,
)
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from tests.cuda.fake_cupy import Gpu, Kernel, fake_cupy, on_gpu
from tests.cuda.fake_driver import Driver


def _built(keep: Any, problem: AttentionProblem, tiling: Tiling, **how: bool) -> tuple[Any, Any]:
    """What block_lists.build makes on a GPU, made here."""
    assert problem.block_mask is not None
    assert (keep.view(bool) == problem.block_mask.keep).all()
    lists = tile_list.queues(problem, tiling, **how)
    records = lists.records.view("<i8").reshape(*lists.records.shape, 2)
    entries = lists.entries if len(lists.entries) else np.zeros(1, np.int32)
    return on_gpu(records.copy()), on_gpu(entries)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """A driver that encodes tensor maps, and notes what of."""
    driver = Driver()
    monkeypatch.setattr(tensor_map, "driver", lambda: driver)
    tensor_map.tensor_map_at.cache_clear()
    yield driver
    tensor_map.tensor_map_at.cache_clear()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> Iterator[list[Any]]:
    """A stand-in for CuPy with one GPU, and the launches made on it."""
    made: list[Any] = []
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    monkeypatch.setattr(launch, "smem_limit_bytes", lambda: 227 * 1024)
    monkeypatch.setattr(launch, "load_entry", lambda name, macros, entry: Kernel(entry, made))
    monkeypatch.setattr(block_lists, "build", _built)
    monkeypatch.setattr(run_wgmma, "sm_count", lambda: 132)
    monkeypatch.setattr(work_counters, "_OF_DEVICE", {})
    mask_arrays.KEPT.clear()
    packed_arrays.KEPT.clear()
    yield made
    mask_arrays.KEPT.clear()
    packed_arrays.KEPT.clear()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """A GPU whose stream may be captured."""
    gpu = Gpu()
    monkeypatch.setitem(sys.modules, "cupy", gpu.cupy)
    return gpu
