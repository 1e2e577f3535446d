"""One setting of the knobs as a value: problem, tiles and device, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.device import Device
from fa_kernels.figures import sparse
from fa_kernels.figures.sparse import DENSE, checked_density, checked_pattern
from fa_kernels.masks import matmul_flops
from fa_kernels.problem import MAX_HEAD_DIM, MAX_SEQLEN, AttentionProblem, checked_int
from fa_kernels.tiling import MAX_SRAM_BYTES, Tiling, refuse_smem
from fa_kernels.traffic.model import Traffic
from fa_kernels.traffic.patterns import Blocks
from fa_kernels.units import KIB
from fa_kernels.variants import ALGORITHMS, VARIANTS, Variant

#: The variant whose tiles are drawn: the one that keeps most on chip.
SHOWN = "flash_q_outer"
#: The two variants that titles and sentences compare: equal tiles, S and P in HBM or not.
COMPARED = ("standard_tiled", SHOWN)
BANDWIDTH, ARITHMETIC = "HBM bandwidth", "fp32 arithmetic"
CACHED = f"{ARITHMETIC}, as long as the L2 cache answers re-reads"
#: Tensors that one part of an algorithm writes and another reads; inputs and outputs are not here.
_INTERMEDIATES = ("s", "p")


def checked_seqlen(value: object) -> int:
    """N as an int, or a ValueError that says what it must be."""
    return checked_int("N", value, 1, MAX_SEQLEN, "Choose a sequence length in that range.")


def checked_head_dim(value: object) -> int:
    """d as an int, or a ValueError that says what it must be."""
    return checked_int("d", value, 1, MAX_HEAD_DIM, "Choose a head dimension in that range.")


def checked_sram_kib(value: object) -> int:
    """M in KiB as an int, or a ValueError that says what it must be."""
    remedy = "M is the SRAM of one SM in KiB, for example 192."
    return checked_int("M", value, 1, MAX_SRAM_BYTES // KIB, remedy)


@dataclass(frozen=True)
class Bound:
    """What a variant takes at least on a device, in ms: to move its bytes, to do its sums.

    `compulsory_ms` moves the bytes that no cache can save (`Point.compulsory_bytes`) at the rate of
    HBM, `requested_ms` all bytes the kernel asks for. Between them lies what the L2 cache answers:
    mostly the re-reads of K and V.
    """

    compulsory_ms: float
    requested_ms: float
    fp32_ms: float
    #: Whose re-reads a cache can answer: inputs read more than once, or else S and P.
    reread: tuple[str, ...] = ("k", "v")

    @property
    def ms(self) -> float:
        """No launch of this variant is faster: the larger of compulsory bytes and arithmetic."""
        return max(self.compulsory_ms, self.fp32_ms)

    @property
    def limit(self) -> str:
        """`BANDWIDTH` or `ARITHMETIC` where that is certain, else `CACHED`: the cache decides."""
        if self.compulsory_ms > self.fp32_ms:
            return BANDWIDTH
        return ARITHMETIC if self.requested_ms <= self.fp32_ms else CACHED


@dataclass(frozen=True)
class Point:
    """N, d, M, dtype, device and pattern, checked; the tiles are the paper's for M, cut to N.

    `problem` is dense. `pattern` and `density` (as asked for) say which blocks, each a tile, the
    variants with `block_sparse` keep; the others stay dense. A dense point has density 1.
    """

    problem: AttentionProblem
    sram_bytes: int
    tiling: Tiling
    device: Device
    pattern: str = DENSE
    density: float = 1.0

    @classmethod
    def of(
        cls,
        seqlen: object,
        head_dim: object,
        sram_kib: object,
        dtype: str,
        device: Device,
        pattern: str = DENSE,
        density: float = 1.0,
    ) -> Point:
        """The point, or the sentence that says why there is none.

        Args:
            seqlen, head_dim: N and d; batch and heads follow (`AttentionProblem.of_tokens`).
            sram_kib: the SRAM budget M in KiB.
            dtype: "float16", "bfloat16" or "float32".
            device: whose limits and ceilings hold.
            pattern, density: "dense", or a pattern of `BlockMask.pattern` and the fraction to keep.

        Raises:
            ValueError: a bad value, a mask of too many blocks, or this device cannot launch the
                variant that is drawn; value, limit, remedy.
        """
        n, d, kib = checked_seqlen(seqlen), checked_head_dim(head_dim), checked_sram_kib(sram_kib)
        name, asked = checked_pattern(pattern), checked_density(density)
        problem = AttentionProblem.of_tokens(n, d, dtype)
        tiling = Tiling.from_sram(kib * KIB, d, problem.dtype).clipped(n, n)
        asked = 1.0 if name == DENSE else asked
        point = cls(problem, kib * KIB, tiling, device, name, asked)
        if point.blocks and (refusal := point.blocks.refusal):
            raise ValueError(refusal)
        point._check_launch(VARIANTS[SHOWN])
        return point

    def _check_launch(self, variant: Variant) -> None:
        problem, limit = self.problem, self.device.smem_per_block_bytes
        layout = self.plan(variant).layout
        refuse_smem(layout, self.tiling, problem.head_dim, problem.dtype, limit, self.device.name)

    def refusal(self, variant: Variant) -> str | None:
        """Why this device cannot launch `variant` here, in words, or None."""
        try:
            self._check_launch(variant)
        except (ValueError, NotImplementedError) as refusal:
            return str(refusal)
        return None

    @property
    def refusals(self) -> dict[str, str]:
        """Name of an algorithm that fits the memory but cannot be launched -> why, in words."""
        found = {
            n: self.refusal(variant) for n, variant in ALGORITHMS.items() if self.fits(variant)
        }
        return {name: why for name, why in found.items() if why}

    @property
    def seqlen(self) -> int:
        """N."""
        return self.problem.seqlen_q

    @property
    def sram_kib(self) -> int:
        """M in KiB."""
        return self.sram_bytes // KIB

    @property
    def passes(self) -> tuple[int, int]:
        """How many tiles cover the queries, and how many the keys."""
        m, n = self.tiling.block_m, self.tiling.block_n
        return -(-self.seqlen // m), -(-self.seqlen // n)

    @property
    def blocks(self) -> Blocks | None:
        """Which tiles the block-sparse variants keep; None where all are dense."""
        if self.pattern == DENSE:
            return None
        return Blocks.of(self.pattern, self.density, self.seqlen, self.tiling)

    def blocks_of(self, variant: Variant) -> Blocks | None:
        """`blocks`, where `variant` takes a mask."""
        return self.blocks if variant.block_sparse else None

    def problem_of(self, variant: Variant) -> AttentionProblem:
        """What a call of `variant` computes here; builds the block mask."""
        blocks = self.blocks_of(variant)
        return replace(self.problem, block_mask=blocks.mask()) if blocks else self.problem

    def plan(self, variant: Variant) -> LaunchPlan:
        """What `variant` would launch here."""
        blocks, problem = self.blocks_of(variant), self.problem
        if blocks:
            problem = replace(problem, block_mask=blocks.outline())
        return variant.plan(problem, self.tiling)

    def at(self, seqlen: int) -> Point:
        """The same knobs at another N."""
        return self.with_sizes(seqlen, self.problem.head_dim, self.sram_bytes)

    def with_sizes(self, seqlen: int, head_dim: int, sram_bytes: int) -> Point:
        """The same dtype, device and pattern at another N, d and M."""
        problem = AttentionProblem.of_tokens(seqlen, head_dim, self.problem.dtype)
        tiling = Tiling.from_sram(sram_bytes, head_dim, problem.dtype).clipped(seqlen, seqlen)
        return replace(self, problem=problem, sram_bytes=sram_bytes, tiling=tiling)

    def traffic(self, variant: Variant) -> Traffic:
        """HBM traffic of `variant` in the `launched` model."""
        return _traffic(variant.name, self.problem, self.tiling, self.blocks_of(variant))

    def paper_traffic(self, variant: Variant) -> Traffic:
        """HBM traffic of `variant` in the `paper` model."""
        if blocks := self.blocks_of(variant):
            return sparse.paper(variant, self.problem, blocks)
        return variant.paper(self.problem, self.tiling)

    def flops(self, variant: Variant) -> int:
        """FLOPs of the two matmuls, over the pairs that `variant` attends."""
        if blocks := self.blocks_of(variant):
            return 4 * self.problem.head_dim * blocks.pairs * self.problem.heads
        return _dense_flops(self.problem)

    def compulsory_bytes(self, variant: Variant) -> int:
        """HBM bytes of `variant` that no cache can save, from a cold L2.

        q, k and v are read once, out and lse written once. Of S and P, what is larger than the L2
        cache has to leave it and to come back; a tensor that fits may never reach HBM at all.
        """
        problem = self.problem
        ends = 2 * problem.q_bytes + 2 * problem.kv_bytes + problem.lse_bytes
        if variant.keeps_scores_on_chip:
            return ends
        written = self.traffic(variant).written_bytes
        sizes = (written.get(tensor, 0) for tensor in _INTERMEDIATES)
        return ends + 2 * sum(max(0, size - self.device.l2_bytes) for size in sizes)

    @property
    def fp32_peak_tflops(self) -> float:
        """The arithmetic ceiling of our kernels: they convert to fp32 and use CUDA cores."""
        return self.device.peak_tflops(self.problem.dtype, tensor_cores=False)

    def bound(self, variant: Variant) -> Bound:
        """What `variant` takes at least on this device, and which limit that is."""
        moved, bytes_per_ms = self.traffic(variant), self.device.hbm_bandwidth_gb_s * 1e6
        once = {"q": self.problem.q_bytes, "k": self.problem.kv_bytes, "v": self.problem.kv_bytes}
        return Bound(
            self.compulsory_bytes(variant) / bytes_per_ms,
            moved.total_bytes / bytes_per_ms,
            self.flops(variant) / (self.fp32_peak_tflops * 1e9),
            tuple(t for t, size in once.items() if moved.read_bytes[t] > size) or _INTERMEDIATES,
        )

    def bound_ms(self, variant: Variant) -> float:
        """`bound(variant).ms` for curves: where a mask is too slow to build, a tile less."""
        moving = self.compulsory_bytes(variant) / (self.device.hbm_bandwidth_gb_s * 1e6)
        blocks, problem = self.blocks_of(variant), self.problem
        flops = _dense_flops(problem)
        if blocks:
            flops = 4 * problem.head_dim * blocks.least_pairs * problem.heads
        return max(moving, flops / (self.fp32_peak_tflops * 1e9))

    def fits(self, variant: Variant) -> bool:
        """True if inputs, outputs and workspace fit the device's memory."""
        return variant.memory(self.problem).total_bytes <= self.device.hbm_capacity_bytes

    def describe(self) -> str:
        """For captions: the problem in one line, and the block pattern if there is one."""
        said = self.problem.describe()
        return f"{said}; {self.sparse_words()}" if self.blocks else said

    def sparse_words(self) -> str:
        """What the pattern is and what it keeps, as fraction of the blocks; "" where dense."""
        blocks = self.blocks
        if blocks is None:
            return ""
        kept = f"s = {blocks.count}/{blocks.k_blocks} = {blocks.density:.3g}"
        asked = "" if abs(blocks.density - self.density) < 5e-4 else f", asked {self.density:.3g}"
        return f"{self.pattern} blocks {self.tiling.block_m} × {self.tiling.block_n}, {kept}{asked}"

    def label(self, variant: Variant) -> str:
        """What running text calls `variant` here."""
        if not self.blocks:
            return variant.label
        return f"block-sparse {variant.label}" if variant.block_sparse else f"dense {variant.label}"


@lru_cache(maxsize=4096)
def _traffic(
    name: str, problem: AttentionProblem, tiling: Tiling, blocks: Blocks | None
) -> Traffic:
    variant = VARIANTS[name]
    if blocks is None:
        return variant.launched(problem, tiling)
    return sparse.launched(variant, problem, blocks)


@lru_cache(maxsize=4096)
def _dense_flops(problem: AttentionProblem) -> int:
    return matmul_flops(problem)


def ratio_text(value: float) -> str:
    """A ratio for running text: "3.8×"."""
    digits = 2 if value < 0.95 else 1 if value < 99.5 else 0
    return f"{value:.{digits}f}×"


def device_words(device: Device) -> str:
    """A device's name in running text, without the vendor's."""
    return device.name.removeprefix("NVIDIA ")
