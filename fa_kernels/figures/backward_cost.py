"""What the backward passes cost: products of matrices, bytes by tensor, recorded times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from fa_kernels.device import Device
from fa_kernels.figures.recorded_backward import KEEPS_P, REBUILDS_P, BackwardAt, RecordedBackward
from fa_kernels.figures.recorded_speed import RecordedSpeed
from fa_kernels.masks import matmul_flops
from fa_kernels.measure.records import Run
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.model import Traffic
from fa_kernels.variants import VARIANTS, Variant


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
    def algorithm(self) -> Variant:
        """The variant whose backward it is."""
        return VARIANTS[self.variant]

    @property
    def on_tensor_cores(self) -> bool:
        """True if tensor cores multiply: it has runs and tiles of its own."""
        return self.algorithm.tensor_cores

    def runs_on(self, problem: AttentionProblem, device: Device) -> bool:
        """False where its kernel takes no such dtype, head_dim or GPU."""
        backward = self.algorithm.backward
        if problem.dtype not in self.algorithm.dtypes or not self.algorithm.runs_on(device.sm):
            return False
        assert backward is not None
        return not self.on_tensor_cores or backward.takes(problem, device.smem_per_block_bytes)

    @property
    def metric(self) -> str:
        """Which recorded metric holds its time."""
        return "deterministic_latency_ms" if self.deterministic else "latency_ms"


READS_P = Way("reads_p", KEEPS_P, 4)
REBUILDS = Way("rebuilds", REBUILDS_P, 5)
DETERMINISTIC = Way("deterministic", REBUILDS_P, 7, deterministic=True)
#: In rung order.
ON_TENSOR_CORES = (Way("tensor_cores", "flash_mma", 5), Way("warpgroups", "flash_wgmma", 5))
WAYS = (READS_P, Way("kv_outer", "flash_kv_outer", 5), REBUILDS, DETERMINISTIC, *ON_TENSOR_CORES)
#: Products of a forward pass: S = Q Kᵀ and O = P V.
FORWARD_PRODUCTS = 2
#: The N × N matrices, none of which leaves the chip where P is rebuilt.
SCORES = ("s", "p", "dp", "ds")


@dataclass(frozen=True)
class FastTimes:
    """Recorded times of the ways on tensor cores: a run of kind "speed" for each pass."""

    forward: RecordedSpeed
    backward: RecordedSpeed

    @classmethod
    def on(cls, device: Device, first: Run | None = None, root: Path | None = None) -> FastTimes:
        """Those of a device; arguments as `RecordedSpeed.on`."""
        return cls(*(RecordedSpeed.on(device, first, root, pass_) for pass_ in ("fwd", "bwd")))

    @property
    def run_ids(self) -> list[str]:
        """The runs of the backward and of the forward, each once."""
        return list(dict.fromkeys(r.run_id for r in (self.backward, self.forward) if r.run))

    def forward_ms(self, at: BackwardAt) -> float | None:
        """Of a forward with the tiles that it takes by itself."""
        row = self.forward.row(at.variant.name, at.problem)
        return row.median if row else None

    def backward_ms(self, at: BackwardAt) -> float | None:
        """Of a backward, only where it was recorded with these tiles."""
        row = self.backward.row(at.variant.name, at.problem)
        tiles = (at.tiling.block_m, at.tiling.block_n)
        return row.median if row and (row.block_m, row.block_n) == tiles else None


#: Where nothing was recorded.
NO_TIMES = FastTimes(RecordedSpeed(), RecordedSpeed(None, "bwd"))


@dataclass(frozen=True)
class Cost:
    """One way at one problem. Times in ms, None where not recorded; bounds of the backward.

    `bytes_ms`: all bytes it asks for, at the rate of HBM; caches may answer some.
    `arithmetic_ms`: its products at the peak of the units it multiplies on, the fp32 units or the
    tensor cores.
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
        cls,
        way: Way,
        problem: AttentionProblem,
        device: Device,
        runs: RecordedBackward,
        fast: FastTimes = NO_TIMES,
    ) -> Cost:
        """What the models say and what was recorded, with the tiles of a backward pass.

        `fast` has the times of the ways on tensor cores, `runs` those of all others.
        """
        at = BackwardAt.of(way.variant, problem, device)
        moved, forward_tiling = backward_traffic(way, at), at.tiling
        if way.on_tensor_cores:
            times = fast.forward_ms(at), fast.backward_ms(at)
            forward_tiling = way.algorithm.tiling_for(problem, device.smem_per_block_bytes)
        else:
            times = runs.value_at(at, "fwd", "latency_ms"), runs.value_at(at, "bwd", way.metric)
        peak = device.peak_tflops(problem.dtype, way.algorithm.tensor_cores)
        return cls(
            way, at, moved, _forward_traffic(way.algorithm, problem, forward_tiling), *times,
            None if way.deterministic else runs.value_at(at, "bwd", "hbm_bytes"),
            moved.total_bytes / (device.hbm_bandwidth_gb_s * 1e6),
            flops_of(way.products, problem) / (peak * 1e9),
        )  # fmt: skip

    @property
    def flops(self) -> int:
        """FLOPs of the backward's products, exact over the attended pairs."""
        return flops_of(self.way.products, self.at.problem)

    @property
    def scores_bytes(self) -> int:
        """Those of its bytes that are of N × N matrices."""
        return sum(self.traffic.of(tensor) for tensor in SCORES)

    @property
    def step_ms(self) -> float | None:
        """Forward and backward together."""
        if self.forward_ms is None or self.backward_ms is None:
            return None
        return self.forward_ms + self.backward_ms


def costs(
    problem: AttentionProblem,
    device: Device,
    runs: RecordedBackward,
    fast: FastTimes = NO_TIMES,
) -> list[Cost]:
    """Every way at one problem that its kernel takes on this device."""
    ways = (way for way in WAYS if way.runs_on(problem, device))
    return [Cost.of(way, problem, device, runs, fast) for way in ways]


def recorded_in(
    found: Sequence[Cost], runs: RecordedBackward, fast: FastTimes = NO_TIMES
) -> list[str]:
    """The runs that the times come from, each once."""
    timed = {cost.way.on_tensor_cores for cost in found if cost.backward_ms or cost.forward_ms}
    names = [runs.run_id or ""] if False in timed else []
    return names + (fast.run_ids if True in timed else [])


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
def _forward_traffic(variant: Variant, problem: AttentionProblem, tiling: Tiling) -> Traffic:
    return variant.launched(problem, tiling)


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
