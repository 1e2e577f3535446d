"""What ceilings.cu computes, in NumPy and slowly: for the tests of what it must leave."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from fa_kernels.measure.ceiling_attempts import (
    EXP_CHAINS,
    FMA_CHAINS,
    IN_FLIGHT,
    VECTOR_BYTES,
    Gpu,
)

#: Two SMs, an L2 of 1 MiB: little to emulate.
GPU = Gpu(sm_count=2, l2_bytes=2**20, free_bytes=2**24)


def fake_cupy() -> Any:
    """What the launches ask of CuPy."""
    return SimpleNamespace(arange=np.arange, zeros=np.zeros, asarray=np.array, asnumpy=np.asarray)


def _chunks(array: np.ndarray, threads: int) -> np.ndarray:
    return array.reshape(-1, threads * IN_FLIGHT * VECTOR_BYTES // 4)


def copy_stream(blocks: int, threads: int, source: Any, target: Any, per_block: int) -> None:
    """Chunk after chunk, block b those that are b modulo the grid."""
    for block in range(blocks):
        for i in range(int(per_block)):
            chunk = block + i * blocks
            _chunks(target, threads)[chunk] = _chunks(source, threads)[chunk]


def read_stream(
    blocks: int, threads: int, source: Any, sums: Any, in_set: int, per_block: int
) -> None:
    """The same, round and round."""
    assert in_set & (in_set - 1) == 0, "the kernel goes round by an AND"
    of_chunk = _chunks(source, threads).sum(axis=1, dtype=np.uint64)
    for block in range(blocks):
        read = [(block + i * blocks) & (int(in_set) - 1) for i in range(int(per_block))]
        sums.reshape(blocks, -1)[block, 0] = int(of_chunk[read].sum()) % 2**32


def read_apart(blocks: int, threads: int, source: Any, sums: Any, own: int, per_block: int) -> None:
    """Block after block, each round and round in chunks of its own."""
    of_chunk = _chunks(source, threads).sum(axis=1, dtype=np.uint64)
    for block in range(blocks):
        read = [block * int(own) + i % int(own) for i in range(int(per_block))]
        sums.reshape(blocks, -1)[block, 0] = int(of_chunk[read].sum()) % 2**32


def read_shared(blocks: int, threads: int, sums: Any, passes: int) -> None:
    """Every pass reads every word of a block once."""
    words = np.arange(threads * IN_FLIGHT * VECTOR_BYTES // 4, dtype=np.uint64)
    sums.reshape(blocks, -1)[:, 0] = int(words.sum()) * int(passes) % 2**32


def add_in_l2(blocks: int, threads: int, target: Any, words: int, per_thread: int) -> None:
    """One addition after another."""
    for i in range(int(per_thread)):
        at = (np.arange(blocks * threads) + i * blocks * threads) & (int(words) - 1)
        np.add.at(target, at, np.float32(1))


def multiply_add(blocks: int, threads: int, out: Any, a: Any, b: Any, steps: int) -> None:
    """Rounded to fp32 after each step."""
    lane = np.arange(blocks * threads)[:, None] % 32
    x = (2.0 + np.arange(FMA_CHAINS) + lane).astype(np.float32)
    for _ in range(int(steps)):
        x = (np.float64(a) * x + np.float64(b)).astype(np.float32)
    out[:] = x.sum(axis=1, dtype=np.float32)


def exponentials(blocks: int, threads: int, out: Any, down: Any, steps: int) -> None:
    """Sums rounded to fp32 after each step."""
    lane = np.arange(blocks * threads)[:, None] % 32
    x = (-0.125 * np.arange(EXP_CHAINS) - 0.03125 * lane).astype(np.float32)
    total = np.zeros_like(x)
    for _ in range(int(steps)):
        total += np.exp2(x)
        x -= down
    out[:] = total.sum(axis=1, dtype=np.float32)


KERNELS: dict[str, Callable[..., None]] = {
    f.__name__: f
    for f in (
        copy_stream,
        read_stream,
        read_apart,
        read_shared,
        add_in_l2,
        multiply_add,
        exponentials,
    )
}


def kernel(entry: str, threads: int) -> Callable[..., None]:
    """In place of `ceiling_attempts.kernel`."""

    def launch(grid: tuple[int], block: tuple[int], args: tuple[Any, ...]) -> None:
        assert block == (threads,)
        KERNELS[entry](grid[0], threads, *args)

    return launch


def multiply(dtype: str, layout: str = "NN") -> Callable[[Any, Any, Any], None]:
    """In place of `gemm.multiply`: a product added up in fp32 and rounded to 16 bits."""
    from fa_kernels.cuda.arrays import io_dtype

    kind = io_dtype(dtype)

    def run(a: Any, b: Any, out: Any) -> None:
        b = b.view(kind).astype(np.float32)
        product = a.view(kind).astype(np.float32) @ (b.T if layout == "TN" else b)
        out[:] = product.astype(kind).view(np.uint16)

    return run
