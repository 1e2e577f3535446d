"""A stand-in for CuPy with one GPU: NumPy arrays, and kernels that note how they are launched."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np

from fa_kernels.measure.cases import Case, make_inputs
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling

PROBLEM = AttentionProblem(2, 3, 17, 23, 16, "float16", "bottom_right")
TILING = Tiling(16, 16)


class GpuArray(np.ndarray):
    """A NumPy array with what the launch code asks of a CuPy array."""

    device: Any = SimpleNamespace(id=0)

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self) -> np.ndarray:
        return self.view(np.ndarray)


def on_gpu(array: np.ndarray) -> Any:
    """`array` as a GPU array, in place."""
    return array.view(GpuArray)


class Kernel:
    """Notes its launches."""

    max_dynamic_shared_size_bytes = 48 * 1024

    def __init__(self, entry: str, calls: list[Any]) -> None:
        self.entry, self.calls = entry, calls

    def __call__(self, grid: Any, block: Any, args: Any, shared_mem: int) -> None:
        self.calls.append((self.entry, grid, block, args, shared_mem, self))


def fake_cupy() -> Any:
    """What `import cupy` gives; `copies` lists the host arrays that were copied to the GPU."""
    copies: list[np.ndarray] = []

    def asarray(array: np.ndarray) -> Any:
        copies.append(array)
        return on_gpu(array.copy())

    stream = SimpleNamespace(ptr=0, is_capturing=lambda: False, synchronize=lambda: None)
    runtime = SimpleNamespace(getDevice=lambda: 0, streamIsCapturing=lambda handle: False)
    return SimpleNamespace(
        ndarray=GpuArray,
        copies=copies,
        cuda=SimpleNamespace(
            Device=lambda *_: SimpleNamespace(id=0, synchronize=lambda: None),
            is_available=lambda: True,
            get_current_stream=lambda: stream,
            Stream=lambda non_blocking: nullcontext(stream),
            MemoryPool=lambda: SimpleNamespace(malloc=None),
            using_allocator=nullcontext,
            runtime=runtime,
        ),
        asarray=asarray,
        empty=lambda shape, dtype: on_gpu(np.empty(shape, dtype)),
        empty_like=lambda a: on_gpu(np.empty(a.shape, a.dtype)),
        zeros=lambda shape, dtype: on_gpu(np.zeros(shape, dtype)),
        ascontiguousarray=lambda a: on_gpu(np.array(a, order="C")),
    )


def inputs(layout: str = "bhsd", problem: AttentionProblem = PROBLEM) -> list[Any]:
    """q, k, v of `problem` on the GPU."""
    return [on_gpu(x) for x in make_inputs(Case(problem, TILING, layout), 0, np)]


class Gpu:
    """A stand-in that notes what was waited for and made, with a stream that may be captured."""

    def __init__(self) -> None:
        self.device, self.capturing = 0, False
        self.done: list[str] = []
        stream = SimpleNamespace(
            is_capturing=lambda: self.capturing, synchronize=lambda: self.done.append("waited")
        )
        cuda = SimpleNamespace(Device=self._device, get_current_stream=lambda: stream)
        self.cupy = SimpleNamespace(cuda=cuda, asarray=self._asarray)

    def _device(self, number: int | None = None) -> Any:
        number = self.device if number is None else number
        waits = lambda: self.done.append(f"waited for GPU {number}")  # noqa: E731
        return SimpleNamespace(id=number, synchronize=waits)

    def _asarray(self, array: np.ndarray) -> np.ndarray:
        self.done.append("uploaded")
        return array.copy()

    def build(self, keep: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lists of 16 KiB."""
        self.done.append("made")
        return np.zeros(8 * 1024, np.uint8), np.zeros(8 * 1024, np.uint8)
