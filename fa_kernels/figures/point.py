"""One setting of the knobs as a value: problem, tiles and device, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterable
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
#: The two variants that titles and sentences compare: the first, and the one that is drawn.
COMPARED = (next(iter(VARIANTS)), SHOWN)
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

    def compulsory_bytes(self, variant: Variant) -> int:
        """HBM bytes of `variant` that no cache can save, from a cold L2.

        q, k and v are read once, out and lse written once. Of S and P, what is larger than the L2
        cache has to leave it and to come back; a tensor that fits may never reach HBM at all.
        """
        problem, written = self.problem, self.traffic(variant).written_bytes
        ends = 2 * problem.q_bytes + 2 * problem.kv_bytes + problem.lse_bytes
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
            self.flops / (self.fp32_peak_tflops * 1e9),
            tuple(t for t, size in once.items() if moved.read_bytes[t] > size) or _INTERMEDIATES,
        )

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
    first, last = (VARIANTS[name] for name in COMPARED)
    moved = [point.traffic(variant).total_bytes for variant in (first, last)]
    ratio = ratio_text(moved[0] / moved[1])
    return f"At {sizes} {first.label} moves {ratio} the HBM bytes of {last.label}. {binding(point)}"


def device_words(device: Device) -> str:
    """A device's name in running text, without the vendor's."""
    return device.name.removeprefix("NVIDIA ")


def binding(point: Point) -> str:
    """Which limit of the device binds each variant, in one or two sentences."""
    name = device_words(point.device)
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
        words.append(f"On {name} {_limits(point, loose)}.")
    return " ".join(words)


def _limits(point: Point, variants: list[Variant]) -> str:
    """One clause per limit: the variants it binds, and the times that show it."""
    bounds = {variant.label: point.bound(variant) for variant in variants}

    def bound_by(limit: str) -> tuple[str, list[Bound]]:
        found = {label: bound for label, bound in bounds.items() if bound.limit == limit}
        return " and ".join(found), list(found.values())

    fp32 = units.duration(next(iter(bounds.values())).fp32_ms)
    clauses = []
    labels, some = bound_by(BANDWIDTH)
    if some:
        moving = _times(b.compulsory_ms for b in some)
        clauses.append(f"{BANDWIDTH} binds {labels} ({moving}, against {fp32} of {ARITHMETIC})")
    labels, some = bound_by(ARITHMETIC)
    if some:
        moving = _times(b.requested_ms for b in some)
        clauses.append(
            f"{ARITHMETIC} binds {labels} ({fp32}, against at most {moving} of HBM traffic)"
        )
    subject = "it" if some else f"{ARITHMETIC} ({fp32})"
    labels, some = bound_by(CACHED)
    if some:
        clauses.append(f"{subject} binds {labels} as long as {_cached_words(some)}")
    return "; ".join(clauses)


def _cached_words(bounds: list[Bound]) -> str:
    names = sorted(
        {tensor.upper() for bound in bounds for tensor in bound.reread}, key="QKVSP".index
    )
    tensors = " and ".join([", ".join(names[:-1]), names[-1]])
    asked = _times(b.requested_ms for b in bounds)
    least = _times(b.compulsory_ms for b in bounds)
    return (
        f"the L2 cache answers the re-reads of {tensors} "
        f"({asked} requested at the HBM rate, {least} of it compulsory)"
    )


def _times(milliseconds: Iterable[float]) -> str:
    return " and ".join(units.duration(ms) for ms in milliseconds)
