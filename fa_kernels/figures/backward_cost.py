"""What the backward passes cost: products of matrices, bytes by tensor, recorded times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from fa_kernels.device import Device
from fa_kernels.figures.recorded_backward import KEEPS_P, REBUILDS_P, BackwardAt, RecordedBackward
from fa_kernels.masks import matmul_flops
from fa_kernels.problem import AttentionProblem
from fa_kernels.traffic.model import Traffic


@dataclass(frozen=True)
class Way:
    """One way to compute dq, dk, dv: an algorithm, and whether dq is deterministic.

    `products` counts matrix products over all attended pairs, 2 d FLOP each: dV = Pᵀ dO,
    dP = dO Vᵀ, dQ = dS K, dK = dSᵀ Q are four; S = Q Kᵀ is the fifth where P is rebuilt; a dq of
    its own launch needs S and dP once more.
    """

    key: str
    variant: str
    products: int
    deterministic: bool = False

    @property
    def metric(self) -> str:
        """Which recorded metric holds its time."""
        return "deterministic_latency_ms" if self.deterministic else "latency_ms"


READS_P = Way("reads_p", KEEPS_P, 4)
REBUILDS = Way("rebuilds", REBUILDS_P, 5)
DETERMINISTIC = Way("deterministic", REBUILDS_P, 7, deterministic=True)
WAYS = (READS_P, Way("kv_outer", "flash_kv_outer", 5), REBUILDS, DETERMINISTIC)
#: Products of a forward pass: S = Q Kᵀ and O = P V.
FORWARD_PRODUCTS = 2


@dataclass(frozen=True)
class Cost:
    """One way at one problem. Times in ms, None where not recorded; bounds of the backward.

    `bytes_ms`: all bytes it asks for, at the rate of HBM; caches may answer some.
    `arithmetic_ms`: its products at the fp32 peak, the ceiling of our kernels.
    """

    way: Way
    at: BackwardAt
    traffic: Traffic
    forward_traffic: Traffic
    forward_ms: float | None
    backward_ms: float | None
    counted_bytes: float | None
    bytes_ms: float
    arithmetic_ms: float

    @classmethod
    def of(
        cls, way: Way, problem: AttentionProblem, device: Device, runs: RecordedBackward
    ) -> Cost:
        """What the models say and what was recorded, with the tiles of a backward pass."""
        at = BackwardAt.of(way.variant, problem, device)
        moved = backward_traffic(way, at)
        peak = device.peak_tflops(problem.dtype, tensor_cores=False)
        return cls(
            way, at, moved, _forward_traffic(at),
            runs.value_at(at, "fwd", "latency_ms"), runs.value_at(at, "bwd", way.metric),
            None if way.deterministic else runs.value_at(at, "bwd", "hbm_bytes"),
            moved.total_bytes / (device.hbm_bandwidth_gb_s * 1e6),
            flops_of(way.products, problem) / (peak * 1e9),
        )  # fmt: skip

    @property
    def flops(self) -> int:
        """FLOPs of the backward's products, exact over the attended pairs."""
        return flops_of(self.way.products, self.at.problem)

    @property
    def step_ms(self) -> float | None:
        """Forward and backward together."""
        if self.forward_ms is None or self.backward_ms is None:
            return None
        return self.forward_ms + self.backward_ms


def costs(problem: AttentionProblem, device: Device, runs: RecordedBackward) -> list[Cost]:
    """Every way at one problem."""
    return [Cost.of(way, problem, device, runs) for way in WAYS]


def cost_of(way: Way, found: Sequence[Cost]) -> Cost:
    """The cost of one way."""
    return next(cost for cost in found if cost.way == way)


def flops_of(products: int, problem: AttentionProblem) -> int:
    """FLOPs of that many products over the attended pairs: 2 d each pair."""
    return products * matmul_flops(problem) // FORWARD_PRODUCTS


def given(way: Way) -> dict[str, bool]:
    """Options of the launched model: the algorithm that keeps P gets it from the forward."""
    return {"p_given": True} if way == READS_P else {"deterministic": way.deterministic}


@lru_cache(maxsize=256)
def backward_traffic(way: Way, at: BackwardAt) -> Traffic:
    """HBM traffic of a backward in the `launched` model."""
    backward = at.variant.backward
    assert backward is not None
    moved: Traffic = backward.launched(at.problem, at.tiling, **given(way))
    return moved


@lru_cache(maxsize=256)
def _forward_traffic(at: BackwardAt) -> Traffic:
    return at.variant.launched(at.problem, at.tiling)


def faster_at(
    problem: AttentionProblem, device: Device, runs: RecordedBackward
) -> list[tuple[int, float]]:
    """(N, time of rebuilding P over time of reading it) wherever both were recorded, by N.

    At the batch and heads of the grid, with the d and dtype of `problem`.
    """
    found = []
    sizes = {p.seqlen_q for p in runs.problems(KEEPS_P, "latency_ms")}
    for n in sorted(sizes):
        there = replace(
            AttentionProblem.of_tokens(n, problem.head_dim, problem.dtype), causal=problem.causal
        )
        pair = [Cost.of(way, there, device, runs).backward_ms for way in (REBUILDS, READS_P)]
        if pair[0] and pair[1]:
            found.append((n, pair[0] / pair[1]))
    return found
