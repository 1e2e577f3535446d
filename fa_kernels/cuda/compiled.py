"""What the compiler made of a kernel: registers, spills, shared memory, instructions.

Compiled on the spot by NVRTC, which needs no GPU, or read from data/compiled/<arch>.json.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fa_kernels.cuda import sass
from fa_kernels.cuda.compile import compile_report, kernel_hash
from fa_kernels.cuda.occupancy import Occupancy, occupancy
from fa_kernels.cuda.plan import LaunchPlan, LaunchStep
from fa_kernels.cuda.sass import InstructionMix

COMPILED_DIR = Path(__file__).parents[2] / "data" / "compiled"
REFRESH = "python -m fa_kernels compile-all --record"

_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_STATIC = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class CompiledLaunch:
    """One entry point as compiled and launched.

    `registers` are per thread, `spill_bytes` what did not fit into them (stores and loads),
    `static_smem_bytes` what the kernel declares for itself, `smem_bytes` what the launch asks for.
    """

    entry: str
    threads: int
    registers: int
    spill_bytes: int
    static_smem_bytes: int
    smem_bytes: int
    mix: InstructionMix | None = None

    @property
    def block_smem_bytes(self) -> int:
        """Shared memory of a block, without what CUDA reserves."""
        return self.static_smem_bytes + self.smem_bytes

    def occupancy(self, arch: int) -> Occupancy:
        """Resident blocks on an SM of this architecture, and what limits them."""
        return occupancy(self.threads, self.registers, self.block_smem_bytes, arch)


@dataclass(frozen=True)
class Build:
    """A variant's kernel compiled for one architecture, dtype, head dimension and tiling.

    `source` says where the numbers come from, "" while nobody has asked; `current` that they are
    those of today's kernel and launch.
    """

    variant: str
    arch: int
    dtype: str
    head_dim: int
    tiles: tuple[int, int]
    launches: tuple[CompiledLaunch, ...]
    source: str = ""
    current: bool = True

    @property
    def uses_tensor_cores(self) -> bool:
        """True if any of its instructions is one of the tensor cores'."""
        return any(launch.mix is not None and launch.mix.products for launch in self.launches)

    @property
    def spill_bytes(self) -> int:
        """Of all launches."""
        return sum(launch.spill_bytes for launch in self.launches)


def can_compile() -> bool:
    """True if NVRTC's binding is installed; it needs neither a GPU nor a driver."""
    return importlib.util.find_spec("cupy_backends") is not None


def compile_plan(plan: LaunchPlan, arch: int) -> tuple[CompiledLaunch, ...]:
    """Compile a plan and read what came of it; instructions only where nvdisasm is installed.

    Raises:
        ModuleNotFoundError: CuPy is not installed; RuntimeError: it does not compile.
    """
    return _compiled(plan.kernel, tuple(plan.macros.items()), plan.steps, arch)


@functools.lru_cache(maxsize=64)
def _compiled(
    kernel: str, macros: tuple[tuple[str, int], ...], steps: tuple[LaunchStep, ...], arch: int
) -> tuple[CompiledLaunch, ...]:
    report = compile_report(kernel, dict(macros), f"sm_{arch}")
    used = read_log(report.log)
    mixes = sass.disassemble(report.cubin) if sass.nvdisasm() else {}
    return tuple(
        CompiledLaunch(
            step.entry, step.threads, *used[step.entry], step.smem_bytes, mixes.get(step.entry)
        )
        for step in steps
    )


def read_log(log: str) -> dict[str, tuple[int, int, int]]:
    """Entry point -> (registers, bytes of spills, static shared memory) from ptxas' -v output."""
    found: dict[str, tuple[int, int, int]] = {}
    for part in _ENTRY.split(log)[1:]:
        if re.fullmatch(r"\w+", part):
            entry = part
            continue
        registers, static = _USED.search(part), _STATIC.search(part)
        spills = sum(int(a) + int(b) for a, b in _SPILLS.findall(part))
        if registers:
            found[entry] = (int(registers[1]), spills, int(static[1]) if static else 0)
    return found


def plan_hash(plan: LaunchPlan) -> str:
    """First 16 hex digits over what a kernel is compiled and launched with."""
    steps = [(s.entry, s.threads, s.smem_bytes) for s in plan.steps]
    return hashlib.sha256(f"{sorted(plan.macros.items())} {steps}".encode()).hexdigest()[:16]


# -- the record ----------------------------------------------------------------------------------


def as_json(build: Build, plan: LaunchPlan) -> dict[str, Any]:
    """One build of the record."""
    launches = []
    for launch in build.launches:
        line: dict[str, Any] = {
            "entry": launch.entry, "threads": launch.threads, "registers": launch.registers,
            "spill_bytes": launch.spill_bytes, "static_smem_bytes": launch.static_smem_bytes,
            "smem_bytes": launch.smem_bytes,
        }  # fmt: skip
        if mix := launch.mix:
            line |= {name: getattr(mix, name) for name in _MIX}
        launches.append(line)
    return {
        "variant": build.variant, "dtype": build.dtype, "head_dim": build.head_dim,
        "tiles": list(build.tiles), "plan": plan_hash(plan), "launches": launches,
    }  # fmt: skip


def recorded_archs(root: Path | None = None) -> list[int]:
    """Architectures with a record, oldest first: [80, 90]."""
    names = (path.stem for path in (root or COMPILED_DIR).glob("sm_*.json"))
    return sorted(int(name[3:]) for name in names if name[3:].isdigit())


def read_record(arch: int, root: Path | None = None) -> Mapping[str, Any]:
    """data/compiled/sm_<arch>.json; a record of nothing if there is none.

    Raises:
        ValueError: the file is not what `compile-all --record` writes; file and remedy.
    """
    path = (root or COMPILED_DIR) / f"sm_{arch}.json"
    return _read(path, path.stat().st_mtime_ns) if path.exists() else {"kernels": {}}


@functools.lru_cache(maxsize=16)
def _read(path: Path, changed: int) -> Mapping[str, Any]:
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for entry in record["kernels"].values():
            assert isinstance(entry["hash"], str)
            for build in entry["builds"]:
                _launches_of(build)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        raise ValueError(
            f"{path.name} is not a record of compiled kernels ({type(error).__name__}: {error}): "
            f"restore it with `git checkout data/compiled` or run `{REFRESH}`."
        ) from error
    return record


def _launches_of(build: Mapping[str, Any]) -> tuple[CompiledLaunch, ...]:
    made = []
    for line in build["launches"]:
        numbers = {name: value for name, value in line.items() if name not in _MIX}
        mix = InstructionMix(*(line[name] for name in _MIX)) if "counts" in line else None
        made.append(CompiledLaunch(**numbers, mix=mix))
    return tuple(made)


_MIX = ("counts", "loops", "products", "loop_flops")


def recorded_build(
    variant: str, plan: LaunchPlan, arch: int, dtype: str, head_dim: int, root: Path | None = None
) -> Build | None:
    """What the record says of a variant, or None where it says nothing.

    The record's tiles are those that were shipped then: `current` says whether `plan` is that.
    """
    record = read_record(arch, root)
    entry = record["kernels"].get(plan.kernel, {"builds": ()})
    for build in entry["builds"]:
        if (build["variant"], build["dtype"], build["head_dim"]) == (variant, dtype, head_dim):
            same = (entry["hash"], build["plan"]) == (kernel_hash(plan.kernel), plan_hash(plan))
            source = f"recorded, NVRTC {record['nvrtc']}"
            tiles = (build["tiles"][0], build["tiles"][1])
            launches = _launches_of(build)
            return Build(variant, arch, dtype, head_dim, tiles, launches, source, same)
    return None
