"""What a compiled kernel's instructions are for: SASS, read by nvdisasm and sorted into classes.

Counts are of instructions in the code, each once, however often it runs.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TENSOR, FP32, MUFU, CONVERT = "tensor", "fp32", "mufu", "convert"
SHARED, GLOBAL, LOCAL = "shared", "global", "local"
INTEGER, BARRIER, OTHER = "integer", "barrier", "other"
#: From what the algorithm is about to what it costs to get there; also the order in figures.
CLASSES = (
    TENSOR, FP32, MUFU, CONVERT, SHARED, GLOBAL, LOCAL, INTEGER, BARRIER, OTHER,
)  # fmt: skip
#: An opcode belongs to the first class of which one of these is the beginning; more letters first.
_BEGINNINGS: Mapping[str, tuple[str, ...]] = {
    TENSOR: ("HMMA", "HGMMA", "QGMMA", "IMMA", "IGMMA", "BMMA", "DMMA", "OMMA", "UTCHMMA"),
    MUFU: ("MUFU",),
    SHARED: ("LDSM", "LDS", "STSM", "STS", "ATOMS", "LDT", "STT"),
    # An asynchronous copy reads global memory, whatever it writes.
    GLOBAL: ("LDGSTS", "LDG", "STG", "LD", "ST", "ATOMG", "ATOM", "RED", "UTMA", "UBLK", "UBLKCP"),
    LOCAL: ("LDL", "STL"),
    BARRIER: (
        "BAR", "DEPBAR", "LDGDEPBAR", "SYNCS", "WARPSYNC", "MEMBAR", "ERRBAR", "WARPGROUP",
        "ARRIVES", "FENCE", "UTMACMDFLUSH", "ELECT", "CCTL",
    ),
    # Packed 16-bit arithmetic is how the compiler widens fp16 to fp32, too (HADD2.F32).
    CONVERT: ("HADD2", "HMUL2", "HFMA2", "HMNMX2", "HSET2", "F2", "I2", "FRND"),
    FP32: (
        "FFMA", "FMUL", "FADD", "FMNMX", "FSEL", "FSETP", "FSET", "FCHK", "FSWZADD",
        "DFMA", "DMUL", "DADD", "DSETP",
    ),
    INTEGER: (
        "IADD", "IMAD", "IABS", "IMNMX", "ISETP", "ISET", "ISCADD", "LEA", "LOP", "SHF", "SHL",
        "SHR", "SEL", "PRMT", "MOV", "SGXT", "POPC", "FLO", "BREV", "BMSK", "VABSDIFF", "VIADD",
        "VIMNMX", "VIADDMNMX", "CS2R", "S2R", "S2UR", "R2UR", "R2P", "P2R", "PLOP", "PSETP",
        "LDC", "ULDC", "U",
    ),
    # Threads that pass values to one another; it begins like a shift.
    OTHER: ("SHFL",),
}  # fmt: skip
_BY_LENGTH = sorted(
    ((start, name) for name, starts in _BEGINNINGS.items() for start in starts),
    key=lambda pair: -len(pair[0]),
)

_SECTION = re.compile(r"^\s*\.section\s+\.text\.(\w+),")
_LABEL = re.compile(r"^(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Z0-9_.x]*)(.*)$")
#: HMMA.16816: 16 rows, 8 columns, 16 deep.
_WARP_SHAPE = re.compile(r"\.168(\d+)")
_GROUP_SHAPE = re.compile(r"\.(\d+)x(\d+)x(\d+)")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")


#: A loop with less than this part of the largest loop's products is none that multiplies.
_FEW = 0.25


@dataclass(frozen=True)
class InstructionMix:
    """Instructions of one entry point by class; `products` names those of the tensor cores.

    `loops` are those inside the innermost loops that multiply (on the tensor cores, or else FFMA):
    the part that runs most often. Empty where the compiler left no such loop. `loop_flops` is what
    they multiply and add for one warp, each once.
    """

    counts: Mapping[str, int]
    loops: Mapping[str, int]
    products: Mapping[str, int] = field(default_factory=dict)
    loop_flops: int = 0

    @property
    def total(self) -> int:
        """All instructions, without the padding at the end."""
        return sum(self.counts.values())

    @property
    def flops_per_instruction(self) -> float | None:
        """FLOP of a warp for each of its instructions in the loops that multiply; None: no loop."""
        return self.loop_flops / sum(self.loops.values()) if self.loops else None


def class_of(opcode: str) -> str:
    """The class of "HMMA.16816.F32" or "LDS.128"; `OTHER` for branches, shuffles and the rest."""
    stem = opcode.split(".")[0]
    return next((name for start, name in _BY_LENGTH if stem.startswith(start)), OTHER)


def flops_of(opcode: str) -> int:
    """FLOP that one product instruction does for a warp: 64 of FFMA, 4096 of HMMA.16816.

    A warpgroup's instruction ("HGMMA.64x128x16") counts a quarter, since four warps issue it. 0 for
    everything else.
    """
    if opcode.startswith("FFMA"):
        return 2 * 32
    if class_of(opcode) != TENSOR:
        return 0
    if match := _GROUP_SHAPE.search(opcode):
        m, n, k = map(int, match.groups())
        return 2 * m * n * k // 4
    match = _WARP_SHAPE.search(opcode)
    return 2 * 16 * 8 * int(match[1]) if match else 0


def nvdisasm() -> str | None:
    """Path of NVIDIA's disassembler: on the PATH, or from the wheel nvidia-cuda-nvdisasm."""
    found = shutil.which("nvdisasm")
    if found:
        return found
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("**/bin/nvdisasm*")):
            return str(path)
    return None


def disassemble(cubin: bytes) -> dict[str, InstructionMix]:
    """Entry point -> its instructions.

    Raises: as `listing`.
    """
    return read_sass(listing(cubin))


def listing(cubin: bytes) -> str:
    """What nvdisasm prints of compiled code.

    Raises:
        FileNotFoundError: nvdisasm is not here; the message holds the remedy.
        RuntimeError: it refused the code, in its own words.
    """
    program = nvdisasm()
    if program is None:
        raise FileNotFoundError(
            "nvdisasm was not found: `pip install nvidia-cuda-nvdisasm`, or put the CUDA "
            "toolkit's bin folder on the PATH."
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([program, "-c", str(path)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"nvdisasm failed: {done.stderr.strip()}")
    return done.stdout


def read_sass(text: str) -> dict[str, InstructionMix]:
    """nvdisasm's listing as one mix per entry point."""
    return {entry: _mix(body) for entry, body in _entries(text).items()}


def read_loops(text: str) -> dict[str, list[list[str]]]:
    """Entry point of a listing -> the opcodes of every loop, a loop being what a jump spans."""
    found = {}
    for entry, body in _entries(text).items():
        opcodes, jumps = _opcodes(body)
        found[entry] = [opcodes[to : at + 1] for to, at in jumps if to < at]
    return found


def _entries(text: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if match := _SECTION.match(line):
            lines = sections.setdefault(match[1], [])
        lines.append(line)
    return sections


def _opcodes(lines: Sequence[str]) -> tuple[list[str], list[tuple[int, int]]]:
    """An entry point's opcodes without padding, and its jumps as places among them: (to, from).

    Without those back across the end of the program: behind it stands what the compiler moved out
    of the way, such as the second try of a wait, which goes back to where it came from.
    """
    opcodes: list[str] = []
    ends: list[int] = []
    labels: dict[str, int] = {}
    jumps: list[tuple[int, str]] = []
    for line in lines:
        if match := _LABEL.match(line):
            labels[match[1]] = len(opcodes)
        elif (match := _INSTRUCTION.match(line)) and match[2] != "NOP":
            if match[2].startswith("BRA") and (target := _TARGET.search(match[3])):
                jumps.append((len(opcodes), target[1]))
            if match[2] == "EXIT" and not match[1]:
                ends.append(len(opcodes))
            opcodes.append(match[2])
    known = [(labels[target], at) for at, target in jumps if target in labels]
    return opcodes, [(to, at) for to, at in known if not any(to < end < at for end in ends)]


def _mix(lines: Sequence[str]) -> InstructionMix:
    opcodes, jumps = _opcodes(lines)
    places = _multiplying(opcodes, jumps)
    inside = [opcodes[i] for i in places]
    products = Counter(code for code in opcodes if class_of(code) == TENSOR)
    return InstructionMix(
        _sorted(opcodes),
        _sorted(inside),
        dict(sorted(products.items())),
        # Beside a tensor core's products an FFMA scales, or is part of an exponential.
        sum(flops_of(code) for code in inside if not products or class_of(code) == TENSOR),
    )


def _multiplying(opcodes: Sequence[str], jumps: Sequence[tuple[int, int]]) -> set[int]:
    """Places inside the innermost loops that multiply; a loop is what a jump back spans.

    Products are the tensor cores' where there are any. FFMA elsewhere may be there for something
    else: a scale (few of them beside the other loops), or an exponential (a MUFU is with them).
    """
    tensor = any(class_of(code) == TENSOR for code in opcodes)
    products = [class_of(c) == TENSOR if tensor else c.startswith("FFMA") for c in opcodes]
    mufu = [class_of(code) == MUFU and not tensor for code in opcodes]
    found = {
        range(start, end + 1): count
        for start, end in jumps
        if start <= end
        and not any(mufu[start : end + 1])
        and (count := sum(products[start : end + 1]))
    }
    innermost = [
        loop for loop in found
        if not any(other != loop and other.start >= loop.start and other.stop <= loop.stop
                   for other in found)
    ]  # fmt: skip
    most = max((found[loop] for loop in innermost), default=0)
    return {i for loop in innermost if found[loop] >= _FEW * most for i in loop}


def _sorted(opcodes: Sequence[str]) -> dict[str, int]:
    found = Counter(map(class_of, opcodes))
    return {name: found[name] for name in CLASSES if found[name]}
