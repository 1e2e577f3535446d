"""A backward pass that was checked and planned before, ready to launch again.

As recipe.py for the forward pass: several launches, one layout of their arguments.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda.launch import loaded
from fa_kernels.cuda.plan import LaunchPlan, LaunchStep
from fa_kernels.cuda.recipe import PLAIN, Unmade, by_rows_shape, by_value, seeds_among
from fa_kernels.cuda.tensor_map import Boxed, MapsByAddress


class Record:
    """What a call would make and launch, noted instead of done."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        """`inputs`: the arrays that each call brings, in its order."""
        self.inputs = list(inputs)
        self.made: list[Unmade] = []
        self.steps: list[tuple[LaunchPlan, LaunchStep, Sequence[Any]] | Unmade] = []

    def empty(self, shape: tuple[int, ...], dtype: Any, by_rows: bool = False) -> Unmade:
        """The stand-in of a new array, `by_rows` as Unmade has it."""
        self.made.append(Unmade(shape, dtype, by_rows))
        return self.made[-1]

    def clear(self, array: Unmade) -> None:
        """Zeros, when the time comes."""
        self.steps.append(array)

    def launch(self, plan: LaunchPlan, step: LaunchStep, args: Sequence[Any]) -> None:
        """A launch, when the time comes."""
        self.steps.append((plan, step, args))

    def slot(self, array: Any) -> int | None:
        """The number of an array among those that a call brings and makes; None: a value."""
        known = [*self.inputs, *self.made]
        return next((i for i, other in enumerate(known) if other is array), None)


class BackwardRecipe:
    """The launches of one backward pass with everything but its arrays.

    Called with d_out, q, k, v, out, lse, CuPy arrays or torch tensors, it gives dq, dk, dv of their
    kind, on the current stream of their library. Right for arrays of the same `key` alone. `seed`
    is that of a call with dropout.
    """

    def __init__(self, record: Record) -> None:
        import cupy
        from cupy_backends.cuda.api import driver, runtime

        self._launch, self._context, self._cupy = driver.launchKernel, driver.ctxGetCurrent, cupy
        self._clear = runtime.memsetAsync
        self._made = [
            (by_rows_shape(array.shape) if array.by_rows else array.shape, array.dtype)
            for array in record.made
        ]
        self._by_rows = [array.by_rows for array in record.made[:3]]
        self._pointers = (ctypes.c_uint64 * (len(record.inputs) + len(record.made)))()
        first = ctypes.addressof(self._pointers)
        self._alive: list[Any] = []  # what the driver is given addresses of
        self._steps: list[tuple[Any, ...]] = []
        self._seeds: list[np.ndarray] = []
        # Tensor maps: where their addresses stand, the array they are of, and how they are made.
        self._mapped: list[tuple[Any, int, int, MapsByAddress]] = []
        for recorded in record.steps:
            if isinstance(recorded, Unmade):
                nbytes = int(np.prod(recorded.shape)) * recorded.itemsize
                self._steps.append((record.slot(recorded), nbytes))
                continue
            plan, step, args = recorded
            function = loaded(plan, step).kernel
            addresses: list[int] = []
            values: list[np.ndarray] = []
            boxed: dict[int, tuple[int, MapsByAddress]] = {}
            for arg in args:
                slot = record.slot(arg.array if isinstance(arg, Boxed) else arg)
                if slot is not None and isinstance(arg, Boxed):
                    boxed[len(addresses)] = (slot, arg.maps())
                    addresses.append(0)
                elif slot is None:
                    # Lists of a block mask stay on the GPU; the arrays of this call must not.
                    self._alive.append(arg)
                    values.append(by_value(arg))
                    addresses.append(values[-1].ctypes.data)
                else:
                    addresses.append(first + 8 * slot)
            params = (ctypes.c_uint64 * len(addresses))(*addresses)
            self._mapped += [(params, place, *of) for place, of in boxed.items()]
            self._alive += [*values, params, function]  # the last keeps its module loaded
            self._seeds += seeds_among(values)
            shape = (function.ptr, step.grid, 1, 1, step.threads, 1, 1, step.smem_bytes)
            self._steps.append((shape, ctypes.addressof(params)))
        # The driver copies the values while it launches, without the interpreter's lock.
        self._lock = threading.Lock()

    def __call__(self, *inputs: Any, seed: int | None = None) -> tuple[Any, Any, Any]:
        """dq, dk, dv, each contiguous, or by rows if its input lies so.

        Raises:
            MemoryError: neither library's pool has room for them and the workspace.
        """
        made = self.launched(inputs, inputs[1], seed)
        # swapaxes is torch's and CuPy's word for it.
        dq, dk, dv = (
            x.swapaxes(1, 2) if by_rows else x
            for x, by_rows in zip(made, self._by_rows, strict=False)
        )
        return dq, dk, dv

    def launched(self, inputs: Sequence[Any], q: Any, seed: int | None = None) -> list[Any]:
        """What was made, after all launches: arrays of the library and the dtype of q, or fp32.

        Raises:
            MemoryError: neither library's pool has room for them.
        """
        cupy = self._cupy
        if type(q) is cupy.ndarray:
            made = [cupy.ndarray(shape, dtype) for shape, dtype in self._made]
            stream = cupy.cuda.get_current_stream().ptr
            at = [x.data.ptr for x in (*inputs, *made)]
        else:
            torch = sys.modules["torch"]
            try:
                made = [
                    torch.empty(
                        shape, dtype=torch.float32 if dtype.itemsize == 4 else q.dtype,
                        device=q.device,
                    )
                    for shape, dtype in self._made
                ]  # fmt: skip
            except torch.OutOfMemoryError as error:
                raise MemoryError(str(error)) from error
            stream = torch.cuda.current_stream(q.device).cuda_stream
            at = [x.data_ptr() for x in (*inputs, *made)]
        if not self._context():  # the first CUDA call of a thread; the driver makes no context
            cupy.cuda.runtime.free(0)
        with self._lock:
            self._pointers[:] = at
            for params, number, slot, maps in self._mapped:
                params[number] = maps.at(at[slot])
            for place in self._seeds:
                place[0] = seed
            for what, then in self._steps:
                if type(what) is int:
                    self._clear(at[what], 0, then, stream)
                else:
                    self._launch(*what, stream, then, 0)
        return made


def key(tensors: Sequence[Any], *options: Any) -> Hashable | None:
    """What decides how a backward pass is launched, as `recipe.key`, of d_out, q, k, v, out, lse.

    Tensors of one library that all lie on the current GPU.
    """
    if any(type(option) not in PLAIN for option in options):
        return None
    masked = any(type(option) is BlockMask for option in options)
    cupy, torch, kind = sys.modules.get("cupy"), sys.modules.get("torch"), type(tensors[0])
    if cupy is None or any(type(x) is not kind for x in tensors):
        return None
    if kind is cupy.ndarray:
        device = cupy.cuda.runtime.getDevice()
        if any(x.data.device_id != device for x in tensors):
            return None
        at = [x.data.ptr for x in tensors]
        strides = [x.strides for x in tensors]
        in_graph = masked and cupy.cuda.get_current_stream().is_capturing()
    elif torch is not None and kind is torch.Tensor:
        plain = all(
            x.is_cuda and not x.requires_grad and not x.is_neg() and x.layout is torch.strided
            for x in tensors
        )
        device = torch.cuda.current_device() if plain else None
        if not plain or any(x.device.index != device for x in tensors):
            return None
        at = [x.data_ptr() for x in tensors]
        strides = [x.stride() for x in tensors]
        in_graph = masked and torch.cuda.is_current_stream_capturing()
    else:
        return None
    aligned = [address % 16 == 0 for address in at]
    sizes = [x.shape for x in tensors]
    return (
        "backward", *sizes, *strides, *(x.dtype for x in tensors), *aligned, device, bool(in_graph),
        *options, *map(type, options),
    )  # fmt: skip
