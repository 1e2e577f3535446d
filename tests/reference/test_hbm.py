"""Main memory as the algorithms see it: rounding on store, fp32 on load, parts of a tile."""

from __future__ import annotations

import numpy as np
import pytest

from fa_kernels.reference.hbm import Hbm, compute_dtype


@pytest.mark.parametrize(
    ("io_dtype", "compute"),
    [("float16", "float32"), ("float32", "float32"), ("float64", "float64")],
)
def test_tiles_are_computed_with_in_fp32(io_dtype: str, compute: str) -> None:
    assert compute_dtype(np.dtype(io_dtype)) == compute
    loaded = Hbm().load("q", np.ones((2, 2), io_dtype))
    assert loaded.dtype == compute


def test_a_loaded_tile_is_a_copy_in_sram() -> None:
    memory = np.ones((2, 2), np.float32)
    Hbm().load("q", memory)[...] = 7.0
    assert (memory == 1.0).all()


def test_storing_rounds_to_the_tensors_dtype() -> None:
    memory = np.zeros(2, np.float16)
    Hbm().store("out", memory, np.array([1.0 + 2.0**-12, 1.0 + 2.0**-10], np.float32))
    assert memory.tolist() == [1.0, 1.0 + 2.0**-10]


def test_only_valid_elements_are_written() -> None:
    memory = np.full((2, 2), 9.0, np.float16)
    keep = np.array([[True, False], [True, True]])
    Hbm().store("s", memory, np.ones((2, 2), np.float32), valid=keep)
    assert memory.tolist() == [[1.0, 9.0], [1.0, 1.0]]
