"""A stand-in for the CUDA driver's library, which notes the tensor maps it is asked to encode."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Encoded:
    """What cuTensorMapEncodeTiled was told, in its own order: the last axis first."""

    dtype: int
    rank: int
    address: int
    lengths: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    interleave: int
    swizzle: int
    promotion: int
    fill: int


class Driver:
    """Writes into each map the number under which it noted it; `status` is what it returns."""

    def __init__(self, status: int = 0) -> None:
        self.status, self.encoded = status, list[Encoded]()

    def cuTensorMapEncodeTiled(
        self, room: Any, dtype: Any, rank: Any, address: Any, *arrays_and_modes: Any
    ) -> int:
        assert room.value % 64 == 0, "cuda.h: the map has to lie at a multiple of 64 bytes"
        arrays, modes = arrays_and_modes[:4], arrays_and_modes[4:]
        told = (dtype.value, rank.value, address.value, *map(tuple, arrays))
        self.encoded.append(Encoded(*told, *(mode.value for mode in modes)))
        ctypes.memmove(room.value, (ctypes.c_uint64 * 16)(len(self.encoded) - 1), 128)
        return self.status

    def of(self, tensor_map: np.ndarray) -> Encoded:
        """What a map was encoded from."""
        return self.encoded[int(tensor_map["words"].reshape(-1)[0])]
