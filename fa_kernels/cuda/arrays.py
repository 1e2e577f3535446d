"""NumPy, CuPy and torch arrays in, the same kind out, without importing torch.

A torch tensor brings its own library: `sys.modules["torch"]` is loaded whenever one is passed.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fa_kernels.cuda.launch import available, what_is_missing
from fa_kernels.extras import NO_EXTRAS, Extras
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling

#: Runs an algorithm: takes arrays, problem, tiling and keywords, gives arrays back.
Run = Callable[..., tuple[Any, ...]]


def library_of(array: Any) -> str:
    """The top-level package that the array's type comes from: "numpy", "cupy", "torch" ..."""
    return type(array).__module__.split(".")[0]


def kind(array: Any) -> str:
    """ "numpy", "cupy:0", "torch:cpu" or "torch:cuda:0"."""
    library = library_of(array)
    if library == "torch":
        return f"torch:{array.device}"
    return f"cupy:{array.device.id}" if library == "cupy" else "numpy"


def on_gpu(array: Any) -> bool:
    """True for CuPy arrays and for torch tensors on a CUDA device."""
    return kind(array).startswith(("cupy", "torch:cuda"))


def place_of(array: Any) -> tuple[int, tuple[int, ...], int]:
    """Address, strides in bytes and size of an element of a CuPy array or torch tensor."""
    if library_of(array) == "torch":
        size = int(array.element_size())
        return int(array.data_ptr()), tuple(size * step for step in array.stride()), size
    return int(array.data.ptr), tuple(array.strides), int(array.itemsize)


def refuse_unusable(name: str, array: Any, shape: str, grad: str, axes: range) -> None:
    """Raise unless `array` is a NumPy, CuPy or torch array that can be read as it lies.

    Args:
        shape: what to pass, in words, e.g. "(batch, nheads, seqlen, head_dim)".
        grad: what to do about a torch tensor that requires grad, in words.
        axes: how many axes it may have.

    Raises:
        TypeError, ValueError, NotImplementedError: naming the array and the remedy.
    """
    library = library_of(array)
    masked = type(array).__module__.startswith("numpy.ma")  # its mask would silently be ignored
    if library not in ("numpy", "cupy", "torch") or masked or not hasattr(array, "shape"):
        raise TypeError(
            f"{name} is a {type(array).__name__}: pass a NumPy, CuPy or torch array of shape "
            f"{shape}."
        )
    if len(array.shape) not in axes:
        few = f"{axes.start} axes" if len(axes) == 1 else f"{axes.start} to {axes.stop - 1} axes"
        change = "Add" if len(array.shape) < axes.start else "Drop"
        raise ValueError(
            f"{name} has shape {tuple(array.shape)}: expected {few}, {shape}. "
            f"{change} axes of length 1."
        )
    if library != "torch":
        return
    if str(array.layout) != "torch.strided":
        raise ValueError(f"{name} is a {array.layout} tensor: pass {name}.to_dense().")
    if array.is_neg():
        raise ValueError(f"{name} is a lazily negated view: pass {name}.resolve_neg().")
    if array.requires_grad:
        raise NotImplementedError(f"{name} requires grad, {grad}")
    if array.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name} lives on {array.device}: move it to the CPU or a CUDA GPU.")


def refuse_without_gpu() -> None:
    """Raise if backend "cuda" was asked for and there is no CuPy or no GPU."""
    if not available():
        raise ValueError(
            f"backend = 'cuda' needs CuPy and a CUDA GPU, and {what_is_missing()}: use 'auto' or "
            "'numpy', or see `python -m fa_kernels doctor`."
        )


def to_numpy(array: Any) -> np.ndarray:
    """A host array or torch CPU tensor as a NumPy array, without a copy."""
    if library_of(array) != "torch":
        return array
    if str(array.dtype) == "torch.bfloat16":  # torch gives NumPy no bfloat16, but its bits
        return array.view(sys.modules["torch"].int16).numpy().view(bfloat16())
    return array.numpy()


def io_dtype(name: str) -> np.dtype:
    """The NumPy dtype called `name`, bfloat16 included."""
    return bfloat16() if name == "bfloat16" else np.dtype(name)


def bfloat16() -> np.dtype:
    """NumPy's bfloat16, which the package ml_dtypes brings.

    Raises:
        ModuleNotFoundError: it is not installed; the message holds the remedy.
    """
    try:
        import ml_dtypes
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "bfloat16 needs the package ml_dtypes, which gives NumPy and CuPy the type: "
            "run `pip install ml_dtypes`, or cast q, k and v to float16 or float32."
        ) from error
    return np.dtype(ml_dtypes.bfloat16)


def like(template: Any, result: np.ndarray) -> Any:
    """A NumPy result as the template's kind."""
    if library_of(template) != "torch":
        return result
    torch = sys.modules["torch"]
    if result.dtype.name == "bfloat16":
        return torch.from_numpy(result.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(result)


def empty_result(q: Any) -> tuple[Any, Any]:
    """out 0 and lse -inf of q's kind: what attending no key at all gives."""
    lse = full(q, q.shape[:3], -np.inf, "float64" if "float64" in str(q.dtype) else "float32")
    return zeros_like(q), lse


def full(template: Any, shape: Sequence[int], value: float, dtype: str) -> Any:
    """An array of the template's kind and device, filled with `value`."""
    if library_of(template) == "torch":
        torch = sys.modules["torch"]
        return torch.full(tuple(shape), value, dtype=getattr(torch, dtype), device=template.device)
    if library_of(template) == "cupy":
        import cupy

        with template.device:
            return cupy.full(shape, value, dtype)
    return np.full(shape, value, dtype)


def zeros_like(array: Any) -> Any:
    """Zeros of the array's kind, device, shape and dtype, in memory of their own."""
    if library_of(array) == "torch":
        return array.new_zeros(array.shape)
    if library_of(array) == "cupy":
        import cupy

        with array.device:
            return cupy.zeros(array.shape, array.dtype)
    return np.zeros(array.shape, array.dtype)


def broadcast_to(array: Any, shape: tuple[int, ...]) -> Any:
    """A view of that shape, with stride 0 along what the array does not differ over."""
    if library_of(array) == "torch":
        return array.expand(shape)
    if library_of(array) == "cupy":
        import cupy

        return cupy.broadcast_to(array, shape)
    return np.broadcast_to(array, shape)


def compact(array: Any) -> Any:
    """What a broadcast view really holds: a view with one element along every axis of stride 0."""
    strides = array.stride() if library_of(array) == "torch" else array.strides
    return array[tuple(slice(0, 1) if step == 0 else slice(None) for step in strides)]


def compact_bytes(array: Any) -> int:
    """Bytes of an array without those that broadcasting only seems to add."""
    return int(np.prod(compact(array).shape, dtype=np.int64)) * int(array.dtype.itemsize)


def converted(extras: Extras, convert: Callable[[Any], Any]) -> Extras:
    """`extras` with every array that is there converted."""
    there = {name: getattr(extras, name) for name in ("mask", "bias", "dropout_keep")}
    return replace(extras, **{n: convert(a) for n, a in there.items() if a is not None})


def run_on_host(
    run: Run,
    inputs: Sequence[Any],
    problem: AttentionProblem,
    tiling: Tiling,
    extras: Extras = NO_EXTRAS,
    **options: Any,
) -> tuple[Any, ...]:
    """Run an algorithm in NumPy and give its results back as the kind of the first input."""
    arrays = [to_numpy(x) for x in inputs]
    # Overflow and NaN follow the inputs here as they do on the GPU: silently, row by row.
    with np.errstate(over="ignore", invalid="ignore"):
        extras = converted(extras, to_numpy)
        results = run(*arrays, problem, tiling, extras=extras, **options)
    return tuple(like(inputs[0], result) for result in results)


def run_on_gpu(
    run: Run,
    inputs: Sequence[Any],
    problem: AttentionProblem,
    tiling: Tiling,
    extras: Extras = NO_EXTRAS,
    **options: Any,
) -> tuple[Any, ...]:
    """Run CUDA kernels and give their results back as the kind of the first input.

    NumPy arrays and torch CPU tensors are copied to the GPU (of broadcast views only what they
    hold) and the results back; CuPy arrays and torch CUDA tensors are used in place (DLPack), on
    the stream of their library. Broadcast views have stride 0 on the GPU, too.

    Args:
        run: `run(*arrays, problem, tiling, extras=, **options)` over CuPy arrays, whose last
            result is the traffic, which is left out here.
        inputs: arrays of one kind: q, k, v, or what the backward pass takes.
    """
    with _device_and_stream(inputs[0]):
        arrays = [_to_cupy(x) for x in inputs]
        extras = converted(extras, _to_cupy)
        results = run(*arrays, problem, tiling, extras=extras, **options)[:-1]
    return tuple(_from_cupy(inputs[0], result) for result in results)


def call_on_gpu(
    run: Callable[..., tuple[Any, ...]], inputs: Sequence[Any], before: Callable[[], None]
) -> tuple[Any, ...]:
    """`run(*inputs)` over CuPy arrays, its results as the kind of the first input.

    Inputs as `run_on_gpu`, whatever is shared with one in place is written in place; None stays
    None. `before` is called first, on the device and the stream of the call.
    """
    with _device_and_stream(inputs[0]):
        before()
        results = run(*(None if x is None else _to_cupy(x) for x in inputs))
    return tuple(_from_cupy(inputs[0], result) for result in results)


def prepared(prepare: Callable[..., Any], inputs: Sequence[Any], *rest: Any) -> Any:
    """`prepare(*inputs, *rest)` over arrays that live on the GPU, seen as CuPy's; None stays so."""
    with _device_and_stream(inputs[0]):
        return prepare(*(None if x is None else _to_cupy(x) for x in inputs), *rest)


@contextlib.contextmanager
def _device_and_stream(array: Any) -> Iterator[None]:
    """The array's device; for a torch tensor also torch's stream, so that launches stay in order,
    and torch's allocator, so that memory which one library keeps is not lost to the other."""
    import cupy

    if library_of(array) == "cupy":
        with array.device:
            yield
        return
    if not on_gpu(array):
        yield
        return
    current = sys.modules["torch"].cuda.current_stream(array.device)
    if hasattr(current, "__cuda_stream__") and hasattr(cupy.cuda.Stream, "from_external"):
        stream = cupy.cuda.Stream.from_external(current)
    else:  # older torch or CuPy
        stream = cupy.cuda.ExternalStream(current.cuda_stream)
    allocator = cupy.cuda.using_allocator(_torch_allocator())
    with cupy.cuda.Device(array.device.index or 0), stream, allocator:
        yield


def pool_bytes(array: Any) -> int | None:
    """What torch's allocator keeps unused, if that is the one a call on `array` asks; else None."""
    if library_of(array) != "torch" or not on_gpu(array):
        return None
    cuda = sys.modules["torch"].cuda
    return int(cuda.memory_reserved(array.device) - cuda.memory_allocated(array.device))


@functools.cache
def _torch_allocator() -> Any:
    """CuPy's way to ask torch's caching allocator, for arrays that end with a torch call."""
    import cupy

    cuda, finalizing = sys.modules["torch"].cuda, sys.is_finalizing

    def allocate(nbytes: int, device: int) -> int:
        return int(cuda.caching_allocator_alloc(nbytes, device)) if nbytes else 0

    def free(address: int, device: int) -> None:
        # At the end of the process torch is gone before arrays that somebody still holds.
        if address and not finalizing():
            cuda.caching_allocator_delete(address)

    return cupy.cuda.PythonFunctionAllocator(allocate, free).malloc


def _to_cupy(array: Any) -> Any:
    """The array on the GPU: in place if it is there, else a copy of what it holds."""
    import cupy

    if library_of(array) == "cupy":
        return array
    shape, held = tuple(array.shape), compact(array)
    if on_gpu(array):
        held = _from_dlpack(held)
    else:
        held = to_numpy(held)
        held = cupy.asarray(held.astype(held.dtype.newbyteorder("="), copy=False))
    return held if held.shape == shape else cupy.broadcast_to(held, shape)


def _from_dlpack(tensor: Any) -> Any:
    """A torch CUDA tensor as a CuPy array over the same memory.

    bf16 and bool travel as bits, which every version of DLPack knows.
    """
    import cupy

    torch = sys.modules["torch"]
    if tensor.dtype == torch.bfloat16:
        return cupy.from_dlpack(tensor.view(torch.int16)).view(bfloat16())
    if tensor.dtype == torch.bool:
        return cupy.from_dlpack(tensor.view(torch.uint8)).view(np.bool_)
    return cupy.from_dlpack(tensor)


def _from_cupy(template: Any, result: Any) -> Any:
    """A CuPy result as the template's kind: in place on the GPU, else copied to the host."""
    if library_of(template) == "cupy":
        return result
    if not on_gpu(template):
        return like(template, result.get())
    torch = sys.modules["torch"]
    if result.dtype.name == "bfloat16":
        return torch.from_dlpack(result.view(np.int16)).view(torch.bfloat16)
    return torch.from_dlpack(result)
