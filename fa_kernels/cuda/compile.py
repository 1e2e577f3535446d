"""Kernel sources, their macros, and NVRTC: through CuPy on a GPU, to a report without one."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KERNEL_DIR = Path(__file__).parent / "kernels"
_INCLUDE = re.compile(r'^#include "([\w.]+)"$')
#: A comment, or a text, in which "//" begins none.
_COMMENT = re.compile(r'(?P<text>"(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
#: Kernels for one architecture's own instructions, which later ones do not have: "sm_90a".
_ALONE = re.compile(r"^// Architectures: (sm_\d+a) alone[.;]", re.MULTILINE)
#: As CuPy adds them to every RawModule, so that what CI compiles is what runs.
CUPY_OPTIONS = ("-ftz=true", "--std=c++17")


def kernel_names() -> list[str]:
    """Stems of the kernel files, in rung order."""
    return sorted(path.stem for path in KERNEL_DIR.glob("*.cu"))


@functools.cache
def kernel_source(name: str) -> str:
    """The source of one kernel with its own headers pasted in.

    CuPy's on-disk cache keys on this text and not on the content of included files, so headers are
    part of it; #line keeps the compiler's file names and line numbers those of the tree.
    """
    return "\n".join(_expanded(KERNEL_DIR / f"{name}.cu", set())) + "\n"


def _expanded(path: Path, seen: set[str]) -> list[str]:
    lines = [f'#line 1 "{path.name}"']
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match = _INCLUDE.match(line)
        if match is None:
            lines.append(line if line != "#pragma once" else "")
        elif match[1] not in seen:
            seen.add(match[1])
            lines += _expanded(KERNEL_DIR / match[1], seen)
            lines.append(f'#line {number + 1} "{path.name}"')
        else:
            lines.append("")  # pasted in already: the line stays, so that the numbers stay true
    return lines


def kernel_hash(name: str) -> str:
    """First 16 hex digits of the SHA-256 of the kernel's code with its headers.

    Without comments, blank lines and line numbers, which no compiled kernel depends on.
    """
    code = _COMMENT.sub(lambda match: match["text"] or " ", kernel_source(name))
    lines = (line.strip() for line in code.splitlines())
    kept = "\n".join(line for line in lines if line and not line.startswith("#line "))
    return hashlib.sha256(kept.encode()).hexdigest()[:16]


@functools.cache
def own_arch(name: str) -> str | None:
    """The one architecture a kernel's header names, "sm_90a"; None: it runs on later ones, too."""
    match = _ALONE.search(kernel_source(name))
    return match[1] if match else None


def macro_options(macros: Mapping[str, int]) -> tuple[str, ...]:
    """`{"BLOCK_M": 64}` as ("-DBLOCK_M=64",): options, not text, so line numbers stay true."""
    return tuple(f"-D{name}={value}" for name, value in macros.items())


#: Macros of every build of this process beside those of its plan.
_ALSO: dict[str, int] = {}


def build_with(**macros: int) -> None:
    """Compile what is loaded from now on with these macros, too: for a tool that watches."""
    _ALSO.update(macros)


@functools.lru_cache(maxsize=512)
def _module(name: str, options: tuple[str, ...], device_id: int) -> Any:
    import cupy

    if own_arch(name) is not None:
        # CuPy adds the GPU's own -arch=sm_90 behind: of one number NVRTC keeps the one with the a.
        options = (*options, f"-arch={own_arch(name)}")
    return cupy.RawModule(code=kernel_source(name), options=options, backend="nvrtc")


def load_entry(name: str, macros: Mapping[str, int], entry: str) -> Any:
    """The compiled `entry` of kernel `name` on the current GPU, cached in memory and on disk.

    Raises:
        RuntimeError: the kernel did not compile; the message holds NVRTC's log.
    """
    import cupy

    module = _module(name, macro_options({**macros, **_ALSO}), cupy.cuda.Device().id)
    try:
        return module.get_function(entry)
    except cupy.cuda.compiler.CompileException as error:
        raise RuntimeError(f"{name} did not compile with {dict(macros)}:\n{error}") from error


@dataclass(frozen=True)
class CompileReport:
    """What NVRTC says of one kernel file for one architecture."""

    kernel: str
    arch: str
    macros: Mapping[str, int]
    registers: Mapping[str, int]
    spill_bytes: int
    seconds: float
    log: str
    cubin: bytes = field(default=b"", repr=False)


_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


def compile_report(
    name: str, macros: Mapping[str, int], arch: str, source: str | None = None
) -> CompileReport:
    """Compile for `arch` ("sm_80") with NVRTC alone: works without a GPU or a driver.

    `source`: of a file that is no rung and stands elsewhere; default: the kernel called `name`.

    Raises:
        ModuleNotFoundError: CuPy (which carries the NVRTC binding) is not installed.
        RuntimeError: the kernel does not compile; the message holds the log.
    """
    import time

    from cupy_backends.cuda.libs import nvrtc

    start = time.perf_counter()
    arch = own_arch(name) or arch if source is None else arch
    options = (*CUPY_OPTIONS, f"-arch={arch}", "--ptxas-options=-v", *macro_options(macros))
    program = nvrtc.createProgram(
        kernel_source(name) if source is None else source, f"{name}.cu", (), ()
    )
    try:
        nvrtc.compileProgram(program, options)
        cubin = nvrtc.getCUBIN(program) + b"\0"  # CuPy takes it for a text and drops the last byte
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise RuntimeError(f"{name} does not compile for {arch}, {dict(macros)}:\n{log}") from error
    finally:
        log = nvrtc.getProgramLog(program)
        nvrtc.destroyProgram(program)
    registers = dict(zip(_ENTRY.findall(log), map(int, _REGISTERS.findall(log)), strict=False))
    spills = sum(int(a) + int(b) for a, b in _SPILLS.findall(log))
    seconds = time.perf_counter() - start
    return CompileReport(name, arch, dict(macros), registers, spills, seconds, log, cubin)
