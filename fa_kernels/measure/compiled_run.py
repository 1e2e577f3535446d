"""Compile what is shipped and record what came of it in data/compiled/<arch>.json."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fa_kernels.cuda import compiled, sass
from fa_kernels.cuda.compile import kernel_hash
from fa_kernels.cuda.compiled import Build, compile_plan, recorded_build
from fa_kernels.cuda.occupancy import SM_LIMITS
from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.measure.compile_all import architectures
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.variants import RUNGS, Variant

#: What the record holds: the GPUs of data centres, the oldest and the one that was measured on.
ARCHS, DTYPES, HEAD_DIMS = (80, 90), ("float16", "float32"), (64, 128)
#: Of what a call compiles: its forward pass, and its backward where it has one.
PASSES = ("fwd", "bwd")
#: The problem that launches are planned for; a plan may depend on the number of blocks.
SEQLEN = 4096


@dataclass(frozen=True)
class Shipped:
    """What a call of a variant compiles and launches where no tiling is asked for."""

    variant: Variant
    problem: AttentionProblem
    tiling: Tiling
    plan: LaunchPlan
    arch: int

    @classmethod
    def of(
        cls, variant: Variant, dtype: str, head_dim: int, arch: int, pass_: str = "fwd"
    ) -> Shipped | None:
        """None where the variant has no such pass, dtype, or kernel for the architecture."""
        runs = variant if pass_ == "fwd" else variant.backward
        if runs is None or dtype not in variant.dtypes or arch not in architectures(runs.kernel):
            return None
        problem = AttentionProblem.of_tokens(SEQLEN, head_dim, dtype)
        limit = SM_LIMITS[arch].smem_per_block_bytes
        tiling = runs.default_tiling(head_dim, problem.itemsize, limit)
        return cls(variant, problem, tiling, runs.plan(problem, tiling), arch)

    def build(self, root: Path | None = None) -> Build | None:
        """The record's, if it is of today's kernel; compiled here where it is not, if possible.

        A record that no longer holds is better than nothing: it says so (`Build.current`).
        """
        where = (self.variant.name, self.plan, self.arch, self.problem.dtype, self.problem.head_dim)
        found = recorded_build(*where, root)
        if (found and found.current) or not compiled.can_compile():
            return found
        if found and not sass.nvdisasm():  # what would be compiled here lacks the instructions
            return found
        try:
            return self.compiled()
        except (ImportError, OSError, RuntimeError):  # NVRTC cannot be loaded, or refuses
            return found

    def compiled(self) -> Build:
        """Compiled here, now.

        Raises:
            ModuleNotFoundError: CuPy is not installed; RuntimeError: it does not compile.
        """
        tiles = (self.tiling.block_m, self.tiling.block_n)
        return Build(
            self.variant.name, self.arch, self.problem.dtype, self.problem.head_dim, tiles,
            compile_plan(self.plan, self.arch), f"compiled here, NVRTC {nvrtc_version()}",
        )  # fmt: skip


def shipped(arch: int) -> Iterator[Shipped]:
    """Every build of the record of one architecture, in rung order."""
    every = itertools.product(PASSES, RUNGS.values(), DTYPES, HEAD_DIMS)
    for pass_, variant, dtype, head_dim in every:
        if found := Shipped.of(variant, dtype, head_dim, arch, pass_):
            yield found


def out_of_date(arch: int, root: Path | None = None) -> list[str]:
    """Builds whose record is missing, or not of today's kernel and launch, in words."""
    found = []
    for one in shipped(arch):
        dtype, head_dim = one.problem.dtype, one.problem.head_dim
        build = recorded_build(one.variant.name, one.plan, arch, dtype, head_dim, root)
        if build is None or not build.current:
            what = "is not recorded" if build is None else "has changed since it was recorded"
            found.append(f"{one.plan.kernel} ({dtype}, d = {head_dim}, sm_{arch}) {what}")
    return found


def record_compiled(command: str, root: Path | None = None) -> list[Path]:
    """Compile and disassemble everything that is shipped; one file per architecture.

    Raises:
        FileNotFoundError: nvdisasm is not here; ModuleNotFoundError: CuPy is not; both with remedy.
        RuntimeError: a kernel does not compile.
    """
    program = sass.nvdisasm()
    if program is None:
        sass.disassemble(b"")  # says what is missing, and how to get it
    about = {"nvrtc": nvrtc_version(), "nvdisasm": _version_of(str(program)), "command": command}
    folder = root or compiled.COMPILED_DIR
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for arch in ARCHS:
        kernels: dict[str, Any] = {}
        work = list(shipped(arch))
        with ThreadPoolExecutor() as pool:
            for one, build in zip(work, pool.map(Shipped.compiled, work), strict=True):
                entry = kernels.setdefault(
                    one.plan.kernel, {"hash": kernel_hash(one.plan.kernel), "builds": []}
                )
                entry["builds"].append(compiled.as_json(build, one.plan))
        path = folder / f"sm_{arch}.json"
        path.write_text(_text({"arch": f"sm_{arch}", **about, "kernels": kernels}), "utf-8")
        written.append(path)
    return written


def nvrtc_version() -> str:
    """Such as "13.0".

    Raises:
        ModuleNotFoundError: CuPy is not installed.
    """
    from cupy_backends.cuda.libs import nvrtc

    return ".".join(map(str, nvrtc.getVersion()))


def _version_of(program: str) -> str:
    said = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    match = re.search(r"V(\d+\.\d+\.\d+)", said)
    return match[1] if match else "unknown"


def _text(record: dict[str, Any]) -> str:
    """JSON with a launch in one line: small, and a change of one shows as one line."""
    text = json.dumps(record, indent=1)
    inner = re.compile(r"\{[^{}\[\]]*\}|\[[^{}\[\]]*\]")  # what holds nothing nested
    launch = re.compile(r"\{\s*\"entry\"[^\[\]]*?\}(?=,?\s*(?:\{\s*\"entry\"|\]))")
    for pattern in (inner, launch):
        text = pattern.sub(lambda found: re.sub(r"\s*\n\s*", " ", found[0]), text)
    return text + "\n"
