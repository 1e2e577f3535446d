"""What a GPU does at most by its data sheet, and what a run of kind "ceilings" saw it reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fa_kernels.device import Device
from fa_kernels.figures.recorded import runs_on
from fa_kernels.measure.ceiling_records import CEILINGS, CeilingRow, load_ceilings
from fa_kernels.measure.records import RecordError

#: Exponentials that an SM finds a clock.
EXP_PER_CLOCK = 16
#: dtype -> the matrix product that is timed with it.
PRODUCTS = {"float16": "matmul_fp16", "bfloat16": "matmul_bf16"}
#: What wrote the kernels of other providers, as it is called.
_PROVIDERS = {"cublas": "cuBLAS"}
#: Registers that a multiply-add reads and writes, 4 bytes each, and the FLOP it does.
FMA_REGISTER_BYTES, FMA_FLOP = 4 * 4, 2
_GUIDE = "https://docs.nvidia.com/cuda/cuda-c-programming-guide/"
SMEM_SOURCE = (
    f"CUDA C++ Programming Guide, Shared Memory: 32 banks of 32 bits per clock and SM, {_GUIDE}"
)
EXP_SOURCE = (
    "CUDA C++ Programming Guide, table Throughput of Native Arithmetic Instructions: 16 results "
    f"per clock and SM for the base-2 exponential, {_GUIDE}"
)


@dataclass(frozen=True)
class SheetRate:
    """A rate in the unit of its ceiling, None where no source gives one; `derived`: computed."""

    value: float | None
    source: str = ""
    derived: bool = False


def sheet_rate(device: Device, ceiling: str) -> SheetRate:
    """What a data sheet says of a ceiling, or what follows from it and NVIDIA's documents.

    Raises:
        ValueError: no such ceiling.
    """
    if ceiling not in CEILINGS:
        known = ", ".join(CEILINGS)
        raise ValueError(f"{ceiling!r} is no ceiling: use one of {known}.")
    printed = {
        "hbm_copy": "hbm_bandwidth_gb_s", "hbm_read": "hbm_bandwidth_gb_s",
        "fp32_fma": "fp32_tflops", "matmul_fp16": "fp16_tensor_tflops",
        "matmul_bf16": "bf16_tensor_tflops", "matmul_fp16_sustained": "fp16_tensor_tflops",
        "matmul_bf16_sustained": "bf16_tensor_tflops",
    }  # fmt: skip
    if ceiling in printed:
        name = printed[ceiling]
        return SheetRate(getattr(device, name), device.with_source(name))
    clock = f"times SMs and boost clock, {device.with_source('boost_clock_mhz')}"
    if ceiling == "smem_read":
        return SheetRate(device.smem_bandwidth_gb_s, f"{SMEM_SOURCE}; {clock}", True)
    if ceiling == "exp2":
        giga_clocks = device.sm_count * device.boost_clock_mhz / 1e3
        return SheetRate(EXP_PER_CLOCK * giga_clocks, f"{EXP_SOURCE}; {clock}", True)
    return SheetRate(None)


def register_gb_s(fp32_tflops: float) -> float:
    """GB/s of registers that so many TFLOP/s of multiply-adds are worth, at four operands each.

    A bound on what registers must deliver, not a rate that was seen: operands that stay the same
    from one multiply-add to the next come from a cache in front of them.
    """
    return fp32_tflops * 1e3 / FMA_FLOP * FMA_REGISTER_BYTES


@dataclass(frozen=True)
class MeasuredCeilings:
    """The newest run of kind "ceilings" of a device; `run_id` is "" where there is none."""

    run_id: str = ""
    rows: Mapping[str, CeilingRow] = field(default_factory=dict)

    @classmethod
    def on(cls, device: Device, root: Path | None = None) -> MeasuredCeilings:
        """What was recorded on `device`; a run that cannot be read counts as none."""
        for run in runs_on(device, "ceilings", root):
            try:
                rows = {row.ceiling: row for row in load_ceilings(run.run_id, root)}
            except RecordError:
                continue
            if any(row.median for row in rows.values()):
                return cls(run.run_id, rows)
        return cls()

    def __bool__(self) -> bool:
        return bool(self.run_id)

    def rate(self, ceiling: str) -> float | None:
        """The median, in the unit of the ceiling; None: not measured."""
        row = self.rows.get(ceiling)
        return row.median if row else None

    @property
    def l2_gb_s(self) -> float | None:
        """What the L2 delivers where no answer serves two SMs; in older runs, where some may."""
        return self.rate("l2_read_apart") or self.rate("l2_read")

    def how(self, ceiling: str) -> str:
        """What was launched, with its provider unless that is this suite; "": not measured."""
        row = self.rows.get(ceiling)
        if row is None:
            return ""
        provider = _PROVIDERS.get(row.provider, "")
        return f"{provider}, {row.detail}" if provider else row.detail

    def product(self, ceiling: str) -> str:
        """The matrix product that stands for a ceiling: "cuBLAS (8192 × 8192 × 8192)"."""
        provider, *shape = self.how(ceiling).split(", ")
        return f"{provider} ({shape[0]})" if shape else provider
