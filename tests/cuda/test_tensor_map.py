"""What TMA can read in place, what the driver is told of it, and who keeps the maps."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fa_kernels.cuda import tensor_map as subject
from fa_kernels.cuda.tensor_map import (
    MAP_DTYPE,
    Boxed,
    MapsByAddress,
    mappable,
    tensor_map,
    tensor_map_at,
)
from tests.cuda.fake_cupy import on_gpu
from tests.cuda.fake_driver import Driver, Encoded

SHAPE = (2, 3, 5, 64)


def make(shape: tuple[int, ...] = SHAPE, dtype: Any = np.float16, offset: int = 0) -> Any:
    """Zeros that begin `offset` bytes after a multiple of 16."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    held = np.zeros(nbytes + 32, np.uint8)
    start = -held.ctypes.data % 16 + offset
    return on_gpu(held[start : start + nbytes].view(dtype).reshape(shape))


def with_strides(strides: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    return np.lib.stride_tricks.as_strided(make((1, 1, 1, 64)), shape, strides, subok=True)


MAPPED: dict[str, Any] = {
    "contiguous": make(),
    "by rows": make((2, 5, 3, 64)).transpose(0, 2, 1, 3),
    "every other row": make((2, 3, 10, 64))[:, :, ::2],
    "every other head": make((2, 6, 5, 64))[:, ::2],
    "8 columns": make((2, 3, 5, 8)),
    "8 columns of 64": make()[..., 8:16],
    "one row of 63": make((1, 1, 1, 63)),
    "one column of one row": make((1, 1, 1, 64))[..., ::64],
    "an axis of one element at any stride": with_strides((6, 2, 128, 2), (1, 1, 1, 64)),
    "and backwards": with_strides((-6, 0, -128, 2), (1, 1, 1, 64)),
}
NOT_MAPPED: dict[str, Any] = {
    "63 columns": make((2, 3, 5, 63)),
    "20 columns": make((2, 3, 5, 20)),
    "a start between": make(offset=2),
    "a start at 8 bytes": make(offset=8),
    "rows from last to first": make()[:, :, ::-1],
    "heads from last to first": make()[:, ::-1],
    "columns from last to first": make()[..., ::-1],
    "every other column": make((2, 3, 5, 128))[..., ::2],
    "one head as three": np.broadcast_to(make((2, 1, 5, 64)), SHAPE, subok=True),
    "one row as five": np.broadcast_to(make((2, 3, 1, 64)), SHAPE, subok=True),
    "heads between": with_strides((960, 130, 128, 2), (1, 3, 1, 64)),
}


@pytest.mark.parametrize("what", MAPPED)
def test_rows_at_multiples_of_16_bytes_are_read_in_place(what: str) -> None:
    assert mappable(MAPPED[what])


@pytest.mark.parametrize("what", NOT_MAPPED)
def test_others_are_not(what: str) -> None:
    assert not mappable(NOT_MAPPED[what])


def test_the_driver_is_told_the_last_axis_first(driver: Driver) -> None:
    array = make((2, 5, 3, 64)).transpose(0, 2, 1, 3)
    (told,) = (driver.of(tensor_map(array, 128)),)
    assert told == Encoded(
        dtype=6, rank=4, address=array.data.ptr, lengths=(64, 5, 3, 2), strides=(384, 128, 1920),
        box=(64, 128, 1, 1), steps=(1, 1, 1, 1), interleave=0, swizzle=3, promotion=3, fill=0,
    )  # fmt: skip
    assert array.strides == (1920, 128, 384, 2)


def test_bf16_has_a_type_of_its_own(driver: Driver) -> None:
    told = driver.of(tensor_map(make(dtype=ml_dtypes.bfloat16), 64))
    assert told.dtype == 9 and told.box == (64, 64, 1, 1)


def test_an_axis_of_one_element_has_a_stride_that_the_driver_takes(driver: Driver) -> None:
    """It refuses 0 and what is no multiple of 16, also where nothing is read by it."""
    for strides in ((6, 2, 128, 2), (-6, 0, -128, 2)):
        told = driver.of(tensor_map(with_strides(strides, (1, 1, 1, 64)), 64))
        assert told.strides == (16, 16, 16) and told.lengths == (64, 1, 1, 1)


def test_a_map_goes_by_value_and_is_made_once(driver: Driver) -> None:
    array = make()
    first = tensor_map(array, 64)
    assert first.shape == (1,) and first.dtype == MAP_DTYPE and first.nbytes == 128
    assert not first.flags.writeable, "it is shared"
    assert tensor_map(array, 64) is first and len(driver.encoded) == 1
    assert tensor_map(array, 128) is not first and tensor_map(array[:1], 64) is not first
    assert len(driver.encoded) == 3


def test_what_the_driver_refuses_is_said_with_what_it_was_told(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "driver", lambda: Driver(status=1))
    said = (
        r"refused a tensor map \(CUDA error 1\) of float16 \(2, 3, 5, 64\) at 0x1230, strides "
        r"\(1920, 640, 128\) bytes, boxes of 300 rows: pass contiguous arrays, or use variant='fla"
    )
    for _ in range(2):  # nothing of it is remembered
        with pytest.raises(RuntimeError, match=said):
            tensor_map_at(0x1230, SHAPE, (1920, 640, 128, 2), "float16", 300)


def test_without_a_driver_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    subject.driver.cache_clear()
    with pytest.raises(RuntimeError, match=r"driver's library could not be loaded .libcuda\.so\.1"):
        subject.driver()


def test_repeated_calls_find_the_map_of_an_address(driver: Driver) -> None:
    """What a launch is given lives as long as the maps do, though the cache forgets it."""
    array = make()
    maps = Boxed(array, 64).maps()
    assert isinstance(maps, MapsByAddress)
    at = maps.at(array.data.ptr)
    tensor_map_at.cache_clear()
    assert maps.at(array.data.ptr) == at and len(driver.encoded) == 1
    held = (ctypes.c_char * 128).from_address(at)
    assert driver.of(np.frombuffer(bytes(held), MAP_DTYPE)).address == array.data.ptr
    other = make()
    assert maps.at(other.data.ptr) != at
    assert driver.encoded[-1] == driver.of(tensor_map(other, 64))


def test_maps_of_many_addresses_are_not_kept_for_good(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is asked for again and again is made once."""
    monkeypatch.setattr(subject, "MAPS_KEPT", 4)
    array = make()
    maps, often = Boxed(array, 64).maps(), array.data.ptr
    at = maps.at(often)
    for step in range(1, 40):
        maps.at(often + 4096 * step)
        assert maps.at(often) == at, "the driver may be reading it"
    tensor_map_at.cache_clear()
    assert len(driver.encoded) == 40
    maps.at(often + 4096)
    assert len(driver.encoded) == 41, "forgotten long ago"
