"""Tensor maps: how the tensor memory accelerator (TMA, sm_90 and later) is told of an array.

A map says where an array lies, its shape and strides, and which box of it one copy moves. The
driver encodes it on the host; a kernel takes it by value (`TensorMap` of kernels/hopper.cuh).
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from fa_kernels.cuda.arrays import place_of

#: A map as a kernel argument: one element of 128 bytes, which CuPy passes by value.
MAP_DTYPE = np.dtype([("words", "<u8", 16)])
#: Columns of a box: 128 bytes of 16-bit elements, which is how far the swizzle permutes.
BOX_COLS = 64
#: Rows that a box may have.
MAX_BOX_ROWS = 256
#: Alignment that TMA wants of addresses and strides, in bytes.
ALIGNMENT = 16
#: Maps that a call keeps for its arrays at other addresses; as many again that it had before.
MAPS_KEPT = 1024

# cuda.h: CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion; what else is 0 there.
_DATA_TYPES = {"float16": 6, "bfloat16": 9}
_SWIZZLE_128B, _PROMOTION_256B, _NONE = 3, 3, 0
#: What the driver wants of the address of a map while it encodes, in bytes.
_MAP_ALIGNMENT = 128


def mappable(array: Any) -> bool:
    """True if TMA can read `array` (batch, nheads, seqlen, head_dim) where it lies.

    Its last axis is contiguous; it, and every other axis that has more than one element, starts at
    multiples of 16 bytes, going up: no axis is reversed or broadcast. A CuPy array or torch tensor.
    """
    address, strides, itemsize = place_of(array)
    if array.shape[-1] > 1 and strides[-1] != itemsize:
        return False
    steps = zip(strides[:3], array.shape[:3], strict=True)
    steps_fit = all(n == 1 or (s > 0 and s % ALIGNMENT == 0) for s, n in steps)
    return steps_fit and address % ALIGNMENT == 0


@dataclass(frozen=True)
class Boxed:
    """An array that a kernel takes as a tensor map, and the rows of the box that one copy moves."""

    array: Any
    rows: int

    def map(self) -> np.ndarray:
        """The array's map."""
        return tensor_map(self.array, self.rows)

    def maps(self) -> MapsByAddress:
        """The maps of arrays like this one."""
        x = self.array
        return MapsByAddress(x.shape, x.strides, x.dtype.name, self.rows)


class MapsByAddress:
    """Where in host memory the map of an array lies, by the array's address: for repeated calls."""

    def __init__(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, rows: int
    ) -> None:
        self._of = (shape, strides, dtype, rows)
        # Made once each, and kept: the driver reads them while it launches. Of more addresses than
        # an allocator usually gives, those not asked for recently go when a thousand others came.
        self._known: dict[int, tuple[int, np.ndarray]] = {}
        self._before: dict[int, tuple[int, np.ndarray]] = {}

    def at(self, address: int) -> int:
        """Address of the map of the array that lies at `address`.

        Raises:
            RuntimeError: the driver refused.
        """
        known = self._known.get(address)
        if known is None:
            known = self._before.get(address)
            if known is None:
                encoded = tensor_map_at(address, *self._of)
                known = (encoded.ctypes.data, encoded)
            if len(self._known) >= MAPS_KEPT:
                self._before, self._known = self._known, {}
            self._known[address] = known
        return known[0]


def tensor_map(array: Any, rows: int) -> np.ndarray:
    """The map of an array for boxes of `rows` rows and 64 columns, swizzled by 128 bytes.

    Args:
        array: (batch, nheads, seqlen, head_dim), fp16 or bf16, on the GPU; `mappable`.
        rows: 1 to 256.

    Returns:
        (1,) of `MAP_DTYPE`. Coordinates are (column, row, head, batch); what lies outside of the
        array arrives as zeros.

    Raises:
        RuntimeError: there is no driver, or it refused; with what it was told.
    """
    return tensor_map_at(array.data.ptr, array.shape, array.strides, array.dtype.name, rows)


@functools.lru_cache(maxsize=512)
def tensor_map_at(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, rows: int
) -> np.ndarray:
    """The same of an array by its address and strides in bytes.

    Encoding takes microseconds, and allocators give the same addresses again and again.
    """
    rank = len(shape)
    # An axis of one element may have any stride, also one that the driver would refuse.
    strides = tuple(ALIGNMENT if n == 1 else s for s, n in zip(strides[:3], shape[:3], strict=True))
    held = np.zeros(MAP_DTYPE.itemsize + _MAP_ALIGNMENT, np.uint8)
    start = -held.ctypes.data % _MAP_ALIGNMENT
    room = held[start : start + MAP_DTYPE.itemsize]
    lengths = (ctypes.c_uint64 * rank)(*reversed(shape))
    steps = (ctypes.c_uint64 * (rank - 1))(*reversed(strides))
    box = (ctypes.c_uint32 * rank)(BOX_COLS, rows, 1, 1)
    every = (ctypes.c_uint32 * rank)(*[1] * rank)
    encode = getattr(driver(), "cuTensorMapEncodeTiled", None)
    if encode is None:
        raise RuntimeError(
            "this CUDA driver knows no tensor maps (cuTensorMapEncodeTiled): update it to one of "
            "CUDA 12 or later, or use variant='flash_mma'."
        )
    status = encode(
        ctypes.c_void_p(room.ctypes.data),
        ctypes.c_int(_DATA_TYPES[dtype]),
        ctypes.c_uint32(rank),
        ctypes.c_void_p(address),
        lengths,
        steps,
        box,
        every,
        ctypes.c_int(_NONE),
        ctypes.c_int(_SWIZZLE_128B),
        ctypes.c_int(_PROMOTION_256B),
        ctypes.c_int(_NONE),
    )
    if status != 0:
        raise RuntimeError(
            f"the driver refused a tensor map (CUDA error {status}) of {dtype} {shape} at "
            f"{address:#x}, strides {strides} bytes, boxes of {rows} rows: pass contiguous arrays, "
            "or use variant='flash_mma'."
        )
    return np.frombuffer(room.tobytes(), MAP_DTYPE)


@functools.cache
def driver() -> Any:
    """The CUDA driver's library, for what CuPy has no function for.

    Raises:
        RuntimeError: it could not be loaded.
    """
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise RuntimeError(
            f"the CUDA driver's library could not be loaded ({error}): use variant='flash_mma'."
        ) from error
