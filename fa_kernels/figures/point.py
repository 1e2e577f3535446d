"""One setting of the knobs as a value: problem, tiles and device, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from fa_kernels import units
from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.device import Device
from fa_kernels.masks import matmul_flops
from fa_kernels.problem import MAX_HEAD_DIM, MAX_SEQLEN, AttentionProblem, checked_int
from fa_kernels.tiling import MAX_SRAM_BYTES, Tiling, refuse_smem
from fa_kernels.traffic.model import Traffic
from fa_kernels.units import KIB
from fa_kernels.variants import VARIANTS, Variant

#: The variant whose tiles are drawn: the last one, which keeps most on chip.
SHOWN = list(VARIANTS)[-1]
BANDWIDTH, ARITHMETIC = "HBM bandwidth", "fp32 arithmetic"


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
    """The roofline of a variant: moving its modelled bytes, or doing its sums, in ms.

    The bytes are those the kernel asks for. Where the L2 cache answers some of them, HBM itself
    has less to do, so this is an estimate from the model and not a lower bound.
    """

    hbm_ms: float
    fp32_ms: float

    @property
    def ms(self) -> float:
        """The larger of the two: the roofline."""
        return max(self.hbm_ms, self.fp32_ms)

    @property
    def limit(self) -> str:
        """Which of the two it is, in words."""
        return BANDWIDTH if self.hbm_ms > self.fp32_ms else ARITHMETIC


@dataclass(frozen=True)
class Point:
    """N, d, M, dtype and device, checked; the tiles are the paper's for M, cut to the sequence."""

    problem: AttentionProblem
    sram_bytes: int
    tiling: Tiling
    device: Device

    @classmethod
    def of(
        cls, seqlen: object, head_dim: object, sram_kib: object, dtype: str, device: Device
    ) -> Point:
        """The point, or the sentence that says why there is none.

        Args:
            seqlen, head_dim: N and d; batch and heads follow (`AttentionProblem.of_tokens`).
            sram_kib: the SRAM budget M in KiB.
            dtype: "float16" or "float32".
            device: whose limits and ceilings hold.

        Raises:
            ValueError: a bad value, or a launch this device cannot make; value, limit, remedy.
        """
        n, d, kib = checked_seqlen(seqlen), checked_head_dim(head_dim), checked_sram_kib(sram_kib)
        problem = AttentionProblem.of_tokens(n, d, dtype)
        tiling = Tiling.from_sram(kib * KIB, d, problem.dtype).clipped(n, n)
        point = cls(problem, kib * KIB, tiling, device)
        for variant in VARIANTS.values():
            layout = variant.plan(problem, tiling).layout
            limit = device.smem_per_block_bytes
            refuse_smem(layout, tiling, d, problem.dtype, limit, device.name)
        return point

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

    def plan(self, variant: Variant) -> LaunchPlan:
        """What `variant` would launch here."""
        return variant.plan(self.problem, self.tiling)

    def at(self, seqlen: int) -> Point:
        """The same knobs at another N."""
        problem = AttentionProblem.of_tokens(seqlen, self.problem.head_dim, self.problem.dtype)
        tiling = Tiling.from_sram(self.sram_bytes, problem.head_dim, problem.dtype)
        return Point(problem, self.sram_bytes, tiling.clipped(seqlen, seqlen), self.device)

    def traffic(self, variant: Variant) -> Traffic:
        """HBM traffic of `variant` in the `launched` model."""
        return _traffic(variant.name, self.problem, self.tiling)

    @property
    def flops(self) -> int:
        """FLOPs of the two matmuls."""
        return matmul_flops(self.problem)

    def bound(self, variant: Variant) -> Bound:
        """The roofline of `variant` on this device (our kernels compute on fp32 CUDA cores)."""
        hbm_ms = self.traffic(variant).total_bytes / (self.device.hbm_bandwidth_gb_s * 1e6)
        peak = self.device.peak_tflops(self.problem.dtype, tensor_cores=False)
        return Bound(hbm_ms, self.flops / (peak * 1e9))

    def fits(self, variant: Variant) -> bool:
        """True if inputs, outputs and workspace fit the device's memory."""
        return variant.memory(self.problem).total_bytes <= self.device.hbm_capacity_bytes


@lru_cache(maxsize=4096)
def _traffic(name: str, problem: AttentionProblem, tiling: Tiling) -> Traffic:
    return VARIANTS[name].launched(problem, tiling)


def ratio_text(value: float) -> str:
    """A ratio for running text: "3.8×"."""
    digits = 2 if value < 0.95 else 1 if value < 99.5 else 0
    return f"{value:.{digits}f}×"


def sentence(point: Point) -> str:
    """What the figure says at this point, and which limit binds; also its alternative text."""
    tiles = f"B_r = {point.tiling.block_m}, B_c = {point.tiling.block_n}"
    sizes = f"N = {point.seqlen}, d = {point.problem.head_dim}, M = {point.sram_kib} KiB ({tiles})"
    first, last = VARIANTS[next(iter(VARIANTS))], VARIANTS[SHOWN]
    moved = [point.traffic(variant).total_bytes for variant in (first, last)]
    ratio = ratio_text(moved[0] / moved[1])
    return f"At {sizes} {first.label} moves {ratio} the HBM bytes of {last.label}. {binding(point)}"


def binding(point: Point) -> str:
    """Which limit of the device binds each variant, in one or two sentences."""
    name = point.device.name.removeprefix("NVIDIA ")
    tight = [variant for variant in VARIANTS.values() if not point.fits(variant)]
    loose = [variant for variant in VARIANTS.values() if point.fits(variant)]
    words = []
    if tight:
        needs = [units.capacity(v.memory(point.problem).total_bytes) for v in tight]
        wants = " and ".join(
            f"{v.label} needs {need}" for v, need in zip(tight, needs, strict=True)
        )
        have = units.capacity(point.device.hbm_capacity_bytes)
        words.append(f"Memory capacity binds: {wants}, {name} has {have}.")
    if loose:
        words.append(f"On {name} {_roofline(point, loose)}.")
    return " ".join(words)


def _roofline(point: Point, variants: list[Variant]) -> str:
    bounds = [point.bound(variant) for variant in variants]
    labels = [variant.label for variant in variants]
    hbm = [units.duration(bound.hbm_ms) for bound in bounds]
    fp32 = units.duration(bounds[0].fp32_ms)
    if {bound.limit for bound in bounds} == {ARITHMETIC}:
        moving = " and ".join(hbm)
        both = " and ".join(labels)
        return f"{ARITHMETIC} binds {both}: {fp32} of it against {moving} of modelled HBM traffic"
    parts = [
        f"{bound.limit} binds {label} ({moving} against {fp32} of {ARITHMETIC})"
        if bound.limit == BANDWIDTH
        else f"{bound.limit} binds {label} ({fp32} against {moving} of modelled HBM traffic)"
        for bound, label, moving in zip(bounds, labels, hbm, strict=True)
    ]
    return ", ".join(parts)
