"""Launches that keep one unit of a GPU busy, each with what it does and what it must leave.

The kernels are in ceilings.cu, beside which the reasons for their shape stand.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fa_kernels.measure.gemm import LAYOUTS, Gemm
from fa_kernels.units import GIB, MIB, capacity

SOURCE = Path(__file__).with_name("ceilings.cu")
#: Of ceilings.cu.
IN_FLIGHT, VECTOR_BYTES, FMA_CHAINS, EXP_CHAINS = 4, 16, 16, 8
#: Sizes of blocks that are tried.
BLOCK_THREADS = (256, 512)
#: Most bytes of one array that stands for HBM: many times any L2.
STREAM_BYTES = 4 * GIB
#: What a launch works through in L2 and shared memory, per SM: a launch of a millisecond or more,
#: beside which its start and end do not count.
L2_BYTES_PER_SM, SMEM_BYTES_PER_SM = 64 * 10**6, 512 * 10**6
FMA_STEPS, EXP_STEPS, ADDS_PER_SM = 2**14, 2**12, 2**24
#: Sets of the L2 of which every byte is one block's, on GPUs where half of the L2 holds them.
APART_BYTES = (16 * MIB, 24 * MIB)
#: Sides of the matrices that are multiplied.
MATMUL = (4096, 8192, 12288)


@dataclass(frozen=True)
class Gpu:
    """What the sizes of the launches depend on."""

    sm_count: int
    l2_bytes: int
    free_bytes: int

    @classmethod
    def current(cls) -> Gpu:
        """The current one, as CUDA describes it."""
        import cupy

        found = cupy.cuda.Device().attributes
        free, _ = cupy.cuda.runtime.memGetInfo()
        return cls(int(found["MultiProcessorCount"]), int(found["L2CacheSize"]), int(free))


@dataclass(frozen=True)
class Attempt:
    """One way to reach a ceiling.

    `run` launches once. `error` compares what the last launch left with what it must be: (largest
    difference, the most that rounding explains). `amount` as in `CeilingRow`.
    """

    words: str
    amount: float
    set_bytes: int
    run: Callable[[], None]
    error: Callable[[], tuple[float, float]]


@functools.lru_cache(maxsize=32)
def kernel(entry: str, threads: int) -> Any:
    """An entry of ceilings.cu, compiled for blocks of `threads`; called as (grid, block, args)."""
    import cupy

    code, options = SOURCE.read_text(encoding="utf-8"), (f"-DTHREADS={threads}",)
    return cupy.RawModule(code=code, options=options, backend="nvrtc").get_function(entry)


def _launch(entry: str, threads: int, blocks: int, *args: Any) -> Callable[[], None]:
    def run() -> None:
        kernel(entry, threads)((blocks,), (threads,), args)

    return run


def _words(threads: int, blocks: int, set_bytes: int = 0) -> str:
    of = f", {capacity(set_bytes)}" if set_bytes else ""
    return f"{blocks} blocks of {threads} threads{of}"


# -- bytes -----------------------------------------------------------------------------------------

#: Words of the pattern: word i is i times this odd number, so that no two of them are alike.
_FACTOR = 2654435761


def pattern(words: int) -> Any:
    """`words` words of 32 bits on the GPU, all of them different."""
    import cupy

    return cupy.arange(words, dtype="uint32") * np.uint32(_FACTOR)


def pattern_sum(words: int) -> int:
    """Sum of the first `words` words of `pattern`, modulo 2^32."""
    return _FACTOR * (words * (words - 1) // 2) % 2**32


def read_sum(chunks_read: int, chunks_in_set: int, chunk_words: int) -> int:
    """What `read_stream` must add up, modulo 2^32: whole rounds of the set, and part of one."""
    rounds, rest = divmod(chunks_read, chunks_in_set)
    whole = rounds * pattern_sum(chunks_in_set * chunk_words)
    return (whole + pattern_sum(rest * chunk_words)) % 2**32


def shared_sum(threads: int, blocks: int, passes: int) -> int:
    """What `read_shared` must add up, modulo 2^32."""
    words = threads * IN_FLIGHT * (VECTOR_BYTES // 4)
    return passes * blocks * (words * (words - 1) // 2) % 2**32


def _power_of_two(most: int) -> int:
    return 1 << (most.bit_length() - 1)


def _differs(sums: Any, wanted: int) -> tuple[float, float]:
    return float(abs(int(sums.sum(dtype="uint64")) % 2**32 - wanted)), 0.0


def _stream_shapes(gpu: Gpu, chunks: int, threads: int) -> list[int]:
    """Numbers of blocks: as many as fit at once, some rounds of that, and a block for each chunk.

    Which is best depends on how evenly the memory serves the SMs: many short blocks even it out.
    """
    at_once = gpu.sm_count * (2048 // threads)
    return [blocks for blocks in (at_once, 8 * at_once, chunks) if blocks <= chunks]


def copies(gpu: Gpu) -> Iterator[Attempt]:
    """HBM to HBM; bytes read and bytes written both count."""
    import cupy

    nbytes = _power_of_two(min(STREAM_BYTES // 2, gpu.free_bytes // 8))
    source, target = pattern(nbytes // 4), cupy.zeros(nbytes // 4, dtype="uint32")
    for threads in BLOCK_THREADS:
        chunk_bytes = threads * IN_FLIGHT * VECTOR_BYTES
        for blocks in _stream_shapes(gpu, nbytes // chunk_bytes, threads):
            per_block = nbytes // chunk_bytes // blocks
            moved = blocks * per_block * chunk_bytes
            run = _launch("copy_stream", threads, blocks, source, target, np.uint32(per_block))

            def error(words: int = moved // 4) -> tuple[float, float]:
                same = bool((source[:words] == target[:words]).all())
                return float(not same), 0.0

            target.fill(0)  # what this shape leaves is its own
            yield Attempt(_words(threads, blocks, nbytes), 2.0 * moved, nbytes, run, error)


def _reads(
    gpu: Gpu, set_bytes: int, shapes: Sequence[tuple[int, int]], total_bytes: int
) -> Iterator[Attempt]:
    """`read_stream` over a set, in launches of (threads, blocks) that read about `total_bytes`."""
    import cupy

    source = pattern(set_bytes // 4)
    for threads, blocks in shapes:
        chunk_bytes = threads * IN_FLIGHT * VECTOR_BYTES
        chunks, per_block = set_bytes // chunk_bytes, max(1, total_bytes // chunk_bytes // blocks)
        sums = cupy.zeros(blocks * threads // 32, dtype="uint32")
        sizes = (np.uint32(chunks), np.uint32(per_block))
        run = _launch("read_stream", threads, blocks, source, sums, *sizes)
        wanted = read_sum(blocks * per_block, chunks, chunk_bytes // 4)
        error = functools.partial(_differs, sums, wanted)
        amount = float(blocks * per_block * chunk_bytes)
        yield Attempt(_words(threads, blocks, set_bytes), amount, set_bytes, run, error)


def hbm_reads(gpu: Gpu) -> Iterator[Attempt]:
    """A set that no L2 holds, each byte read once a launch."""
    nbytes = _power_of_two(min(STREAM_BYTES, gpu.free_bytes // 4))
    shapes = [
        (threads, blocks)
        for threads in BLOCK_THREADS
        for blocks in _stream_shapes(gpu, nbytes // (threads * IN_FLIGHT * VECTOR_BYTES), threads)
    ]
    return _reads(gpu, nbytes, shapes, nbytes)


def l2_reads(gpu: Gpu) -> Iterator[Attempt]:
    """A set of at most an eighth of the L2, read again and again past the L1.

    An eighth, because large L2s are two halves, each of which may keep a copy of what the SMs near
    it read. The first of the rounds comes from HBM, unless the launch before left it there.
    """
    shapes = [
        (threads, gpu.sm_count * n) for threads, n in ((256, 4), (256, 8), (512, 2), (512, 4))
    ]
    total = L2_BYTES_PER_SM * gpu.sm_count
    return _reads(gpu, _power_of_two(gpu.l2_bytes // 8), shapes, total)


def l2_reads_apart(gpu: Gpu) -> Iterator[Attempt]:
    """Sets of which every block reads a part of its own, so that no answer serves two SMs.

    At most half of the L2, as it may keep two copies; where that is little, other parts of it.
    """
    import cupy

    half, seen = gpu.l2_bytes // 2, set()
    for wanted in [size for size in APART_BYTES if size <= half] or [half // 2, 3 * half // 4]:
        for threads, per_sm in ((256, 4), (256, 8), (512, 2), (512, 4)):
            blocks, chunk_bytes = gpu.sm_count * per_sm, threads * IN_FLIGHT * VECTOR_BYTES
            own = max(1, round(wanted / (blocks * chunk_bytes)))
            set_bytes = blocks * own * chunk_bytes
            if set_bytes > gpu.l2_bytes or (threads, blocks, own) in seen:
                continue
            seen.add((threads, blocks, own))
            rounds = max(1, L2_BYTES_PER_SM * gpu.sm_count // set_bytes)
            source = pattern(set_bytes // 4)
            sums = cupy.zeros(blocks * threads // 32, dtype="uint32")
            sizes = (np.uint32(own), np.uint32(rounds * own))
            run = _launch("read_apart", threads, blocks, source, sums, *sizes)
            error = functools.partial(_differs, sums, rounds * pattern_sum(set_bytes // 4) % 2**32)
            words = (
                f"{_words(threads, blocks, set_bytes)}, each its own {own * chunk_bytes // 1024}"
            )
            amount = float(rounds * set_bytes)
            yield Attempt(f"{words} KiB", amount, set_bytes, run, error)


def smem_reads(gpu: Gpu) -> Iterator[Attempt]:
    """Shared memory of all SMs at once."""
    import cupy

    for threads, per_sm in ((256, 1), (256, 2), (256, 4), (512, 1), (512, 2)):
        blocks, block_bytes = gpu.sm_count * per_sm, threads * IN_FLIGHT * VECTOR_BYTES
        passes = max(1, SMEM_BYTES_PER_SM // per_sm // block_bytes)
        sums = cupy.zeros(blocks * threads // 32, dtype="uint32")
        run = _launch("read_shared", threads, blocks, sums, np.uint32(passes))
        error = functools.partial(_differs, sums, shared_sum(threads, blocks, passes))
        amount = float(blocks) * passes * block_bytes
        words = f"{_words(threads, blocks)}, {capacity(block_bytes)} each"
        yield Attempt(words, amount, blocks * block_bytes, run, error)


def l2_adds(gpu: Gpu) -> Iterator[Attempt]:
    """fp32 additions done in the L2, neighbouring lanes to neighbouring words."""
    import cupy

    words_in_set = _power_of_two(gpu.l2_bytes // 8) // 4
    target = cupy.zeros(words_in_set, dtype="float32")
    for threads, per_sm in ((256, 4), (512, 4)):
        blocks = gpu.sm_count * per_sm
        per_thread = max(1, ADDS_PER_SM // (threads * per_sm))
        adds = blocks * threads * per_thread
        sizes = (np.uint32(words_in_set), np.uint32(per_thread))
        run = _launch("add_in_l2", threads, blocks, target, *sizes)

        def error(adds: int = adds) -> tuple[float, float]:
            # Whole rounds, and one more for the words that the last one reached.
            rounds, rest = divmod(adds, words_in_set)
            wrong = max(
                float(abs(part - (rounds + more)).max()) if len(part) else 0.0
                for part, more in ((target[:rest], 1), (target[rest:], 0))
            )
            return wrong, 0.0

        target.fill(0.0)
        words = _words(threads, blocks, 4 * words_in_set)
        yield Attempt(words, float(adds), 4 * words_in_set, run, error)


# -- arithmetic ------------------------------------------------------------------------------------


def fma_result(steps: int) -> np.ndarray:
    """What `multiply_add` must leave for the lanes of a warp, in float64: (32,).

    x <- a x + b with a = 1 - 1/steps and b = 1/steps goes towards 1; after all steps 1/e of the
    way is left, after half of them would be 1/sqrt(e).
    """
    a = 1.0 - 1.0 / steps
    start = 2.0 + np.arange(FMA_CHAINS) + np.arange(32)[:, None]
    return np.asarray((1.0 + (start - 1.0) * a**steps).sum(axis=1))


def exp_result(steps: int) -> np.ndarray:
    """What `exponentials` must leave for the lanes of a warp, in float64: (32,).

    A chain that starts at x adds up 2^x, 2^(x - down), 2^(x - 2 down), ...: a geometric series.
    """
    down = 8.0 / steps
    start = -0.125 * np.arange(EXP_CHAINS) - 0.03125 * np.arange(32)[:, None]
    series = (1.0 - 2.0 ** (-down * steps)) / (1.0 - 2.0**-down)
    return np.asarray((2.0**start * series).sum(axis=1))


def _arithmetic(
    gpu: Gpu, entry: str, constants: Sequence[np.float32], steps: int, per_step: int,
    wanted: np.ndarray,
) -> Iterator[Attempt]:  # fmt: skip
    """A kernel of registers alone; `per_step` is what a thread does in a step."""
    import cupy

    for threads, per_sm in ((256, 1), (256, 2), (256, 4), (512, 1), (512, 2)):
        blocks = gpu.sm_count * per_sm
        out = cupy.zeros(blocks * threads, dtype="float32")
        run = _launch(entry, threads, blocks, out, *constants, np.uint32(steps))

        def error(out: Any = out) -> tuple[float, float]:
            # Of each sum: as many roundings as steps, half of a unit each and one way at worst.
            found = cupy.asnumpy(out).astype(np.float64)
            worst = float(np.abs(found.reshape(-1, 32) - wanted).max())
            return worst, float(np.abs(wanted).max()) * steps * 2.0**-24

        amount = float(blocks) * threads * steps * per_step
        yield Attempt(_words(threads, blocks), amount, 0, run, error)


def fmas(gpu: Gpu) -> Iterator[Attempt]:
    """fp32 multiply-adds, two FLOP each."""
    constants = (np.float32(1.0 - 1.0 / FMA_STEPS), np.float32(1.0 / FMA_STEPS))
    wanted = fma_result(FMA_STEPS)
    return _arithmetic(gpu, "multiply_add", constants, FMA_STEPS, 2 * FMA_CHAINS, wanted)


def exponentials(gpu: Gpu) -> Iterator[Attempt]:
    """ex2.approx, beside it the two additions that a softmax has."""
    constants, wanted = (np.float32(8.0 / EXP_STEPS),), exp_result(EXP_STEPS)
    return _arithmetic(gpu, "exponentials", constants, EXP_STEPS, EXP_CHAINS, wanted)


def product_sides(gpu: Gpu) -> list[int]:
    """Of `MATMUL`, those whose matrices leave room."""
    return [n for n in MATMUL if 4 * 2 * n * n <= gpu.free_bytes // 4]


def products(dtype: str, n: int) -> Iterator[Attempt]:
    """A product of two n x n matrices by cuBLAS, accumulated in fp32, in each of its layouts.

    Raises:
        ImportError: cuBLAS is not installed.
    """
    gemm = Gemm.of(dtype, n)
    for layout in LAYOUTS:
        run, error = gemm.on_gpu(layout)

        def wrong(error: Callable[[], float] = error) -> tuple[float, float]:
            return error(), gemm.allowed

        words = f"{n} × {n} × {n}, {layout}, fp32 accumulation, cublasGemmEx"
        yield Attempt(words, 2.0 * n**3, 3 * gemm.a.nbytes, run, wrong)
