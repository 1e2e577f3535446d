"""A matrix product of the size that fills a GPU, by cuBLAS: the ceiling of its tensor cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fa_kernels.cuda.arrays import io_dtype

#: cudaDataType_t, cublasComputeType_t and cublasGemmAlgo_t of library_types.h and cublas_api.h.
_TYPES, _COMPUTE_32F, _DEFAULT = {"float16": 2, "bfloat16": 14}, 68, -1
_NO_TRANSPOSE = _POINTER_MODE_HOST = 0
_TRANSPOSE = 1
#: How cuBLAS finds its two operands, columns next to each other (N) or rows (T).
LAYOUTS = ("NN", "TN")
#: Half of the distance of 1 from the next larger number.
_ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
#: Rows and columns of the product that are compared with float64.
_CHECKED = 16


def multiply(dtype: str, layout: str = "NN") -> Callable[[Any, Any, Any], None]:
    """A function (a, b, out) of square matrices of 16 bits that sets out = a b, fp32 inside.

    With the layout "TN" it takes b transposed, which is cuBLAS's first operand, see below.
    bfloat16 has no type of its own in CuPy: its arrays are the bits, uint16.

    Raises:
        ImportError: cuBLAS is not installed.
    """
    import cupy
    from cupy_backends.cuda.libs import cublas

    handle = cupy.cuda.device.get_cublas_handle()
    one, zero, kind = np.ones(1, np.float32), np.zeros(1, np.float32), _TYPES[dtype]
    first = _TRANSPOSE if layout == "TN" else _NO_TRANSPOSE

    def run(a: Any, b: Any, out: Any) -> None:
        n = len(a)
        cublas.setPointerMode(handle, _POINTER_MODE_HOST)
        # cuBLAS counts down columns: what it takes for transposed is what lies here row by row, and
        # the transposed product of a and b is that of b and a.
        cublas.gemmEx(
            handle, first, _NO_TRANSPOSE, n, n, n, one.ctypes.data,
            b.data.ptr, kind, n, a.data.ptr, kind, n, zero.ctypes.data,
            out.data.ptr, kind, n, _COMPUTE_32F, _DEFAULT,
        )  # fmt: skip

    return run


@dataclass(frozen=True)
class Gemm:
    """Two random matrices of `dtype`, on the host, and a few rows and columns of their product.

    `truth` is ((places, (places, n) in float64) by rows, the same by columns).
    """

    dtype: str
    a: np.ndarray
    b: np.ndarray
    truth: tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]

    @classmethod
    def of(cls, dtype: str, n: int) -> Gemm:
        """Random normal numbers, as attention is measured with."""
        rng = np.random.default_rng(0)
        a, b = (rng.standard_normal((n, n), np.float32).astype(io_dtype(dtype)) for _ in range(2))
        rows, columns = (np.sort(rng.choice(n, min(n, _CHECKED), replace=False)) for _ in range(2))
        by_row = a[rows].astype(np.float64) @ b.astype(np.float64)
        by_column = b[:, columns].astype(np.float64).T @ a.astype(np.float64).T
        return cls(dtype, a, b, ((rows, by_row), (columns, by_column)))

    @property
    def allowed(self) -> float:
        """Two roundings of the largest element: one to 16 bits, and room for those in fp32.

        Products that were added up in 16 bits would be wrong by more.
        """
        return 2 * _ROUNDING[self.dtype] * max(float(np.abs(t).max()) for _, t in self.truth)

    def error(self, out: np.ndarray) -> float:
        """Largest difference of the product `out` from `truth`."""
        (rows, by_row), (columns, by_column) = self.truth
        ours = (out[rows].astype(np.float64), out[:, columns].astype(np.float64).T)
        return max(
            float(np.abs(x - y).max()) for x, y in zip(ours, (by_row, by_column), strict=True)
        )

    def on_gpu(self, layout: str = "NN") -> tuple[Callable[[], None], Callable[[], float]]:
        """(multiply once, the error of what was multiplied last).

        Raises:
            ImportError: cuBLAS is not installed.
        """
        import cupy

        product, n, kind = multiply(self.dtype, layout), len(self.a), io_dtype(self.dtype)
        second = np.ascontiguousarray(self.b.T) if layout == "TN" else self.b
        a, b = (cupy.asarray(x.view(np.uint16)) for x in (self.a, second))
        out = cupy.zeros((n, n), dtype="uint16")

        def run() -> None:
            product(a, b, out)

        def error() -> float:
            return self.error(cupy.asnumpy(out).view(kind))

        return run, error
