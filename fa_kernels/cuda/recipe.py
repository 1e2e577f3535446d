"""A call that was checked and planned before, ready to launch again: what repeated calls cost.

CuPy looks at every argument of every launch, which for sixteen arguments takes longer than a small
attention call on the GPU. A recipe lays them out once, as the driver wants them: a repeated call
writes five addresses and launches.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Hashable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda import mask_arrays
from fa_kernels.cuda.launch import loaded
from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.tiling import Tiling

#: Calls that are remembered; more different ones than this start again.
MAX_RECIPES = 256
#: Types of options that are what they look like: no arrays, which may change under the same name.
PLAIN = frozenset({type(None), bool, int, float, str, Tiling, BlockMask})
#: q, k, v, out, each before its strides, and lse.
_POINTERS = 5


class Unmade:
    """An array that a launch will be given, contiguous and aligned, before there is one.

    `by_rows`: (batch, nheads, seqlen, head_dim) as a view of contiguous (batch, seqlen, nheads,
    head_dim).
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any, by_rows: bool = False) -> None:
        self.shape, self.dtype, self.by_rows = shape, np.dtype(dtype), by_rows
        self.itemsize = self.dtype.itemsize
        held = by_rows_shape(shape) if by_rows else shape
        strides = [int(np.prod(held[i + 1 :])) * self.itemsize for i in range(len(held))]
        if by_rows:
            strides[1], strides[2] = strides[2], strides[1]
        self.strides = tuple(strides)
        self.data = SimpleNamespace(ptr=0)


def by_rows_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """(batch, seqlen, nheads, head_dim) of (batch, nheads, seqlen, head_dim)."""
    batch, nheads, seqlen, head_dim = shape
    return batch, seqlen, nheads, head_dim


def lies_by_rows(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """True of (batch, nheads, seqlen, head_dim) whose heads lie within a row, as models have it:
    an out that lies so, too, needs no copy to become (batch, seqlen, nheads * head_dim)."""
    return shape[1] > 1 and shape[2] > 1 and 0 < strides[1] < strides[2]


def results_like(q: Any) -> Callable[[tuple[int, ...], Any], Unmade]:
    """Stand-ins of out, which lies by rows where `q` does, and of lse, by shape and dtype."""
    by_rows = lies_by_rows(q.shape, q.strides)
    return lambda shape, dtype: Unmade(shape, dtype, by_rows and len(shape) == 4)


class Recipe:
    """One launch with everything but its arrays: a kernel, its grid, and its other arguments.

    Called with q, k, v, CuPy arrays or torch tensors, it gives out and lse of their kind, on the
    current stream of their library. Right for arrays of the same `key` alone. `seed` is that of a
    call with dropout, whose first seed does not matter.
    """

    def __init__(self, plan: LaunchPlan, args: Sequence[Any]) -> None:
        """`args`: those of a launch, beginning with q, k, v, out, each with its strides, and lse.

        Arrays of one element go by value, as in any launch (cuda/arguments.py).
        """
        import cupy
        from cupy_backends.cuda.api import driver

        (step,) = plan.steps
        self._function = loaded(plan, step).kernel  # keeps its module loaded
        self._launch, self._context, self._cupy = driver.launchKernel, driver.ctxGetCurrent, cupy
        self._shape = (self._function.ptr, step.grid, 1, 1, step.threads, 1, 1, step.smem_bytes)
        # Items of a ctypes array are set several times faster than those of a NumPy array.
        self._pointers = (ctypes.c_uint64 * _POINTERS)()
        out, lse = (arg for arg in args if isinstance(arg, Unmade))
        self._by_rows = out.by_rows
        shape = by_rows_shape(out.shape) if out.by_rows else out.shape
        self._out, self._lse = (shape, out.dtype), (lse.shape, np.dtype(np.float32))
        # cuLaunchKernel takes an array of addresses of the arguments' values, which must live.
        addresses = self._lay_out(args)
        self._addresses = (ctypes.c_uint64 * len(addresses))(*addresses)
        self._params = ctypes.addressof(self._addresses)
        # The driver copies the values while it launches, without the interpreter's lock.
        self._lock = threading.Lock()

    def _lay_out(self, args: Sequence[Any]) -> list[int]:
        """Where the value of each argument lies; those of arrays are written at every call."""
        self._keep(args[9:])
        self._strides = [np.ascontiguousarray(value) for value in args[1:8:2]]
        first = self._pointers_at()
        addresses: list[int] = []
        for number, strides in enumerate(self._strides):
            addresses += [first + 8 * number, strides.ctypes.data]
        return [*addresses, first + 8 * len(self._strides), *(x.ctypes.data for x in self._values)]

    def _pointers_at(self) -> int:
        """Where the addresses of arrays lie that are written at every call."""
        return ctypes.addressof(self._pointers)

    def _keep(self, args: Sequence[Any]) -> None:
        """Arguments that stay the same, but for the seed among them."""
        self._values = [by_value(value) for value in args]
        self._lists = args  # those of a block mask, which live on the GPU
        self._seeds = seeds_among(self._values)

    def _write(self, inputs: tuple[int, int, int], out: int, lse: int, stream: int) -> None:
        """The addresses of one call's arrays, and the stream it is launched on."""
        pointers = self._pointers
        pointers[0], pointers[1], pointers[2] = inputs
        pointers[3], pointers[4] = out, lse

    def __call__(self, q: Any, k: Any, v: Any, seed: int | None = None) -> tuple[Any, Any]:
        """out like q, contiguous or `by_rows` as q, and lse (batch, nheads, seqlen_q) fp32.

        Raises:
            MemoryError: neither library's pool has room for them.
        """
        cupy = self._cupy
        if type(q) is cupy.ndarray:
            out, lse = cupy.ndarray(*self._out), cupy.ndarray(*self._lse)
            out = out.transpose(0, 2, 1, 3) if self._by_rows else out
            stream = cupy.cuda.get_current_stream().ptr
            at_q, at_k, at_v = q.data.ptr, k.data.ptr, v.data.ptr
            at_out, at_lse = out.data.ptr, lse.data.ptr
        else:
            torch = sys.modules["torch"]
            try:
                out = torch.empty(self._out[0], dtype=q.dtype, device=q.device)
                lse = torch.empty(self._lse[0], dtype=torch.float32, device=q.device)
            except torch.OutOfMemoryError as error:
                raise MemoryError(str(error)) from error
            out = out.transpose(1, 2) if self._by_rows else out
            stream = torch.cuda.current_stream(q.device).cuda_stream
            at_q, at_k, at_v = q.data_ptr(), k.data_ptr(), v.data_ptr()
            at_out, at_lse = out.data_ptr(), lse.data_ptr()
        if not self._context():  # the first CUDA call of a thread; the driver makes no context
            cupy.cuda.runtime.free(0)
        with self._lock:
            self._write((at_q, at_k, at_v), at_out, at_lse, stream)
            for place in self._seeds:
                place[0] = seed
            self._launch(*self._shape, stream, self._params, 0)
        return out, lse


def by_value(arg: Any) -> np.ndarray:
    """What a launch is given for an argument that stays: the value, or where an array lies."""
    import cupy

    if isinstance(arg, cupy.ndarray):
        return np.array([arg.data.ptr], np.int64)
    return np.ascontiguousarray(arg)


def seeds_among(values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Those arguments of a launch that are a seed: nothing else that goes by value is unsigned and
    64 bits wide. As flat views, to be written."""
    found = [value.reshape(-1) for value in values if value.dtype == np.uint64]
    assert len(found) <= 1, "another 64-bit unsigned argument: tell the seed from it"
    return found


def takes(dropout_p: Any, seed: Any, *unusual: Any) -> bool:
    """True of a call without `unusual` options, all None, whose dropout is off or drawn from a
    seed: that is what a recipe can be told at each call."""
    for option in unusual:  # a loop: at every call, and a generator takes longer
        if option is not None:
            return False
    if type(dropout_p) not in (int, float):
        return False
    if dropout_p == 0.0:
        return seed is None
    return 0.0 < dropout_p < 1.0 and type(seed) is int and 0 <= seed < 2**64


_recipes: dict[Hashable, Any] = {}


def key(q: Any, k: Any, v: Any, *options: Any) -> Hashable | None:
    """What decides how a call is launched; None unless q, k, v lie on the current GPU.

    Sizes, strides, dtypes, whether rows start at multiples of 16 bytes, and `options` with their
    types: 1 is not True. CuPy arrays, or torch tensors that need no gradient; plain options. With a
    block mask also whether a CUDA graph is captured: its lists must then be kept for good.
    """
    masked = False
    for option in options:
        if type(option) not in PLAIN:
            return None
        masked |= type(option) is BlockMask
    cupy, torch = sys.modules.get("cupy"), sys.modules.get("torch")
    if cupy is not None and type(q) is type(k) is type(v) is cupy.ndarray:
        device = cupy.cuda.runtime.getDevice()
        at_q, at_k, at_v = q.data, k.data, v.data
        if not at_q.device_id == at_k.device_id == at_v.device_id == device:
            return None
        aligned = (at_q.ptr | at_k.ptr | at_v.ptr) % 16 == 0
        in_graph = masked and cupy.cuda.get_current_stream().is_capturing()
        sizes = (q.shape, k.shape, v.shape, q.strides, k.strides, v.strides)
    elif cupy is not None and torch is not None and type(q) is type(k) is type(v) is torch.Tensor:
        if not all(x.is_cuda and not x.requires_grad and not x.is_neg() for x in (q, k, v)):
            return None
        if not all(x.layout is torch.strided for x in (q, k, v)):
            return None
        device = torch.cuda.current_device()
        if not q.device.index == k.device.index == v.device.index == device:
            return None
        aligned = (q.data_ptr() | k.data_ptr() | v.data_ptr()) % 16 == 0
        in_graph = masked and torch.cuda.is_current_stream_capturing()
        sizes = (q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride())
    else:
        return None
    where = (aligned, device, bool(in_graph))
    return (*sizes, q.dtype, k.dtype, v.dtype, *where, *options, *map(type, options))


def find(of: Hashable | None) -> Any:
    """The recipe for a key, or None: a `Recipe`, or that of a backward pass."""
    if of is None:
        return None
    return _recipes.get(of) or mask_arrays.KEPT.recipe(of)


def remember(of: Hashable, recipe: Any) -> None:
    """Keep a recipe for a key; that of a call with a block mask as long as the mask's lists."""
    parts = of if isinstance(of, tuple) else ()
    mask = next((part for part in parts if type(part) is BlockMask), None)
    if mask is not None:
        mask_arrays.KEPT.remember(of, mask, recipe)
        return
    if len(_recipes) >= MAX_RECIPES:
        _recipes.clear()
    _recipes[of] = recipe
