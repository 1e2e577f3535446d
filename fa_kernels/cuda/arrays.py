"""NumPy, CuPy and torch arrays in, the same kind out, without importing torch.

A torch tensor brings its own library: `sys.modules["torch"]` is loaded whenever one is passed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fa_kernels.cuda.launch import available, what_is_missing
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling


def _library(array: Any) -> str:
    return type(array).__module__.split(".")[0]


def kind(array: Any) -> str:
    """ "numpy", "cupy:0", "torch:cpu" or "torch:cuda:0"."""
    library = _library(array)
    if library == "torch":
        return f"torch:{array.device}"
    return f"cupy:{array.device.id}" if library == "cupy" else "numpy"


def on_gpu(array: Any) -> bool:
    """True for CuPy arrays and for torch tensors on a CUDA device."""
    return kind(array).startswith(("cupy", "torch:cuda"))


def refuse_unusable(name: str, array: Any) -> None:
    """Raise unless `array` is a 4-D NumPy, CuPy or torch array that needs no gradient."""
    library = _library(array)
    masked = type(array).__module__.startswith("numpy.ma")  # its mask would silently be ignored
    if library not in ("numpy", "cupy", "torch") or masked or not hasattr(array, "shape"):
        raise TypeError(
            f"{name} is a {type(array).__name__}: pass a NumPy, CuPy or torch array of shape "
            "(batch, nheads, seqlen, head_dim)."
        )
    if len(array.shape) != 4:
        raise ValueError(
            f"{name} has shape {tuple(array.shape)}: expected 4 axes, "
            "(batch, nheads, seqlen, head_dim). Add axes of length 1."
        )
    if library == "torch" and str(array.layout) != "torch.strided":
        raise ValueError(f"{name} is a {array.layout} tensor: pass {name}.to_dense().")
    if library == "torch" and array.is_neg():
        raise ValueError(f"{name} is a lazily negated view: pass {name}.resolve_neg().")
    if library == "torch" and array.requires_grad:
        raise NotImplementedError(
            f"{name} requires grad, and there is no backward pass yet: call it on "
            f"{name}.detach(), or inside torch.no_grad() on tensors that need no gradient."
        )
    if library == "torch" and array.device.type not in ("cpu", "cuda"):
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
    if _library(array) != "torch":
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
    if _library(template) != "torch":
        return result
    torch = sys.modules["torch"]
    if result.dtype.name == "bfloat16":
        return torch.from_numpy(result.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(result)


def empty_result(q: Any, problem: AttentionProblem) -> tuple[Any, Any]:
    """out 0 and lse -inf of q's kind: what attending no key at all gives."""
    if _library(q) == "torch":
        torch = sys.modules["torch"]
        lse = torch.full(q.shape[:3], -np.inf, dtype=torch.float32, device=q.device)
        return torch.zeros_like(q), lse
    if _library(q) == "cupy":
        import cupy

        return cupy.zeros_like(q), cupy.full(q.shape[:3], -np.inf, np.float32)
    return np.zeros(q.shape, q.dtype), np.full(q.shape[:3], -np.inf, np.float32)


@contextlib.contextmanager
def _callers_stream(array: Any) -> Iterator[None]:
    """CuPy's current stream, or torch's for a torch tensor, so that launches stay in order."""
    import cupy

    if _library(array) != "torch":
        yield
        return
    current = sys.modules["torch"].cuda.current_stream(array.device)
    if hasattr(current, "__cuda_stream__") and hasattr(cupy.cuda.Stream, "from_external"):
        stream = cupy.cuda.Stream.from_external(current)
    else:  # older torch or CuPy
        stream = cupy.cuda.ExternalStream(current.cuda_stream)
    with cupy.cuda.Device(array.device.index or 0), stream:
        yield


def run_on_gpu(
    run: Callable[..., tuple[Any, Any, Any]],
    q: Any,
    k: Any,
    v: Any,
    problem: AttentionProblem,
    tiling: Tiling,
) -> tuple[Any, Any]:
    """Run a variant's CUDA kernels on q, k, v and give out and lse back as q's kind.

    NumPy arrays and torch CPU tensors are copied to the GPU and the results back; CuPy arrays and
    torch CUDA tensors are used in place (DLPack).
    """
    import cupy

    if not on_gpu(q):
        host = [to_numpy(x) for x in (q, k, v)]
        native = host[0].dtype.newbyteorder("=")
        device = [cupy.asarray(x.astype(native, copy=False)) for x in host]
        out, lse, _ = run(*device, problem, tiling)
        return like(q, out.get()), like(q, lse.get())
    if _library(q) == "cupy":
        with q.device:
            out, lse, _ = run(q, k, v, problem, tiling)
        return out, lse
    torch = sys.modules["torch"]
    half = q.dtype == torch.bfloat16  # travels as its bits, which every DLPack knows
    with _callers_stream(q):
        inputs = [cupy.from_dlpack(x.view(torch.int16) if half else x) for x in (q, k, v)]
        inputs = [x.view(bfloat16()) for x in inputs] if half else inputs
        out, lse, _ = run(*inputs, problem, tiling)
    out = torch.from_dlpack(out.view(np.int16) if half else out)
    return out.view(torch.bfloat16) if half else out, torch.from_dlpack(lse)
