"""How the CUDA sources are written: headers, names, barriers, comments (CONTRIBUTING.md)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fa_kernels import tile_list
from fa_kernels.cuda.compile import KERNEL_DIR
from fa_kernels.cuda.plan_backward import backward_smem
from fa_kernels.cuda.run import TRACE_HEADER
from fa_kernels.reference.recompute import LARGE_LSE
from fa_kernels.tiling import flash_smem
from fa_kernels.traffic.model import ALL_TENSORS

KERNELS = sorted(KERNEL_DIR.glob("*.cu"))
SOURCES = sorted([*KERNELS, *KERNEL_DIR.glob("*.cuh")])
#: Headers that lay out shared memory: the name of their struct.
LAYOUTS = {
    "flash_smem.cuh": "FlashSmem",
    "recompute.cuh": "BackwardSmem",
    "mma_flash.cuh": "MmaSmem",
    "mma_backward.cuh": "BackwardSmem",
    "wgmma_flash.cuh": "WgmmaSmem",
    "wgmma_backward.cuh": "BackwardSmem",
}
#: What a rung's header says, in this order, after its first sentence.
FIELDS = (
    "Source", "Tensors", "Launch", "SRAM", "HBM", "Numerics", "Architectures", "Changed from",
    "Limits and verdict",
)  # fmt: skip
FIELD = re.compile(rf"^// ({'|'.join(FIELDS)})\b[^:]*:", re.MULTILINE)

each_kernel = pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
each_source = pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def header_of(path: Path) -> str:
    """The comment block that opens a file."""
    lines = lines_of(path)
    end = next(i for i, line in enumerate(lines) if not line.startswith("//"))
    return "\n".join(lines[:end]) + "\n"


def code_of(path: Path) -> str:
    """The file without comments, so that prose cannot trip a rule."""
    text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"//.*", "", text)


def uses_tiles(path: Path) -> bool:
    """False for a kernel that keeps nothing in dynamic shared memory (01)."""
    return "extern __shared__" in code_of(path)


def with_layout(path: Path) -> str:
    """A kernel's code, and that of the header that lays out its shared memory, if it has one."""
    layouts = [KERNEL_DIR / name for name in LAYOUTS if f'"{name}"' in code_of(path)]
    return "".join(map(code_of, [path, *layouts]))


def test_there_are_kernels_to_check() -> None:
    rungs = {"01_standard_naive", "02_standard_tiled", "03_flash_kv_outer", "04_flash_q_outer"}
    assert rungs <= {path.stem for path in KERNELS}
    headers = {"io.cuh", "tile.cuh", "block_mask.cuh", "flash_smem.cuh", "trace.cuh"}
    assert headers <= {path.name for path in SOURCES}


@each_kernel
def test_files_are_numbered_rungs(path: Path) -> None:
    assert re.fullmatch(r"\d\d_[a-z0-9]+(_[a-z0-9]+)*", path.stem)


@each_kernel
def test_the_header_opens_with_one_sentence(path: Path) -> None:
    first = header_of(path).split("\n//\n")[0].replace("\n// ", " ")
    assert first.startswith("// ") and first.endswith(".")
    assert not re.search(r"[.!?] [A-Z]", first), f"more than one sentence: {first}"


@each_kernel
def test_the_header_has_every_field_in_order(path: Path) -> None:
    found = FIELD.findall(header_of(path))
    expected = [f for f in FIELDS if f != "Changed from" or not path.stem.startswith("01_")]
    assert [field for field in found if field in expected] == expected


@each_kernel
def test_no_field_of_the_header_is_empty(path: Path) -> None:
    header = header_of(path)
    starts = [match.end() for match in FIELD.finditer(header)]
    stops = [*[match.start() for match in FIELD.finditer(header)][1:], len(header)]
    for start, stop in zip(starts, stops, strict=True):
        text = header[start:stop].replace("//", " ")
        alone = re.fullmatch(r"sm_\d+a alone\.", text.strip())
        assert len(text.split()) >= 3 or text.strip() == "none." or alone, header[start:stop]


@each_kernel
def test_the_rung_before_is_named_by_its_number(path: Path) -> None:
    if path.stem.startswith("01_"):
        return
    before = re.search(r"^// Changed from (\d\d):", header_of(path), re.MULTILINE)
    assert before is not None and before[1] < path.stem[:2]


@each_source
def test_lines_have_at_most_100_columns(path: Path) -> None:
    wide = [n for n, line in enumerate(lines_of(path), start=1) if len(line) > 100]
    assert not wide, f"{path.name}: lines {wide}"
    untidy = [n for n, x in enumerate(lines_of(path), start=1) if "\t" in x or x != x.rstrip()]
    assert not untidy, f"{path.name}: tabs or trailing blanks in lines {untidy}"


@each_kernel
def test_entries_are_named_after_the_file(path: Path) -> None:
    stem = path.stem.split("_", 1)[1]
    # Bounds may be a macro, where an option changes them.
    bounds = r"(?:__launch_bounds__\([^)]*\)|LAUNCH_BOUNDS)"
    entries = re.findall(rf'extern "C" __global__ void {bounds}\s+(\w+)\(', code_of(path))
    macros = re.findall(r"#define LAUNCH_BOUNDS (.*)", code_of(path))
    assert all(macro.startswith("__launch_bounds__(THREADS") for macro in macros), macros
    assert entries
    assert len(entries) == code_of(path).count("__global__"), "an entry without extern C or bounds"
    assert entries == [stem] or all(entry.startswith(f"{stem}_") for entry in entries)


@each_source
def test_every_barrier_says_why(path: Path) -> None:
    lines = lines_of(path)
    for i, line in enumerate(lines):
        code, _, comment = line.partition("//")
        if "__syncthreads()" in code or "__syncwarp()" in code:
            reason = comment or lines[i - 1].strip().partition("//")[2]
            assert len(reason.split()) >= 3, f"{path.name}:{i + 1}: why is this barrier here?"


@each_source
def test_about_one_line_in_six_says_why(path: Path) -> None:
    """In a rung; a shared header says what it is for in the rungs that include it."""
    lines = [line for line in lines_of(path) if line.strip()]
    comments = sum("//" in line for line in lines)
    least = 1 / 6 if path in KERNELS else 1 / 9
    assert comments / len(lines) >= least, f"{path.name}: {comments} of {len(lines)} lines"


@each_kernel
def test_pointers_into_shared_memory_end_in_smem_and_show_their_tile(path: Path) -> None:
    """`float* s_smem = ...;  // [BLOCK_M, BLOCK_N]` for every part of the dynamic shared memory."""
    carve = re.compile(r"\s+\w+\* (\w+) = (?:reinterpret_cast<\w+\*>\(\w*smem\b|\w+_smem \+)")
    names = []
    for n, line in enumerate(lines_of(path), start=1):
        match = carve.match(line)
        if match is None:
            continue
        names.append(match[1])
        assert match[1].endswith("_smem"), f"{path.name}:{n}: {match[1]}"
        # One row of S has no fixed tile: its length is known only at launch.
        shown = re.search(r"// \[\w+(, \w+)*\]", line) or match[1] == "row_smem"
        assert shown, f"{path.name}:{n}: which tile?"
    laid_out = any(f"{struct} smem(" in code_of(path) for struct in LAYOUTS.values())
    assert len(names) >= 3 or not uses_tiles(path) or laid_out


def parts_of_layout(header: str) -> list[str]:
    """The pointers of a layout's struct, each with its tile beside it."""
    lines = lines_of(KERNEL_DIR / header)
    start = lines.index(f"struct {LAYOUTS[header]} {{")
    found = [
        re.match(r"    [\w ]+\* (\w+); +// (\[\w+(?:, \w+)?\])", line) for line in lines[start:]
    ]
    return [match[1] for match in found if match is not None]


def test_the_parts_of_the_flash_layout_show_their_tiles() -> None:
    """In the order of `tiling.flash_smem`, each with its tile beside it."""
    parts = parts_of_layout("flash_smem.cuh")
    assert parts == ["q", "k", "v", "s", "m", "l", "alpha", "cells"]
    stated = [name for name, _ in flash_smem(64, 64, 64, 2).parts]
    assert ", ".join(stated).lower().replace("α", "alpha") == ", ".join(parts[:-1])


def test_the_parts_of_the_backward_layout_show_their_tiles() -> None:
    """In the order of `plan_backward.backward_smem`, each with its tile beside it."""
    parts = parts_of_layout("recompute.cuh")
    assert parts == ["q", "d_out", "k", "v", "p", "ds", "m", "row_scale", "delta", "cells"]
    stated = ", ".join(name for name, _ in backward_smem(64, 64, 64, 2).parts).lower()
    for word, name in (("do", "d_out"), ("scale", "row_scale"), ("δ", "delta")):
        stated = stated.replace(word, name)
    assert stated == ", ".join(parts[:-1])


def test_python_and_cuda_look_at_the_same_rows_again() -> None:
    code = code_of(KERNEL_DIR / "backward.cuh")
    found = re.search(r"constexpr float LARGE_LSE = ([\d.]+)f;", code)
    assert found is not None and float(found[1]) == LARGE_LSE


@each_source
def test_shared_and_register_tiles_carry_their_suffix(path: Path) -> None:
    code = code_of(path)
    shared = re.findall(r"__shared__[^;]*?\b(\w+)\[[^;]*;", code)
    whole = ("smem", "smem_bytes")
    assert all(name in whole or name.endswith("_smem") for name in shared), shared
    # Two-dimensional tiles and arrays of vectors held by one thread; `acc` is the paper's own word.
    registers = re.findall(r"^\s+float (\w+)\[\w+\]\[\w+\]", code, re.MULTILINE)
    registers += re.findall(r"^\s+(?:float4|Chunk) (\w+)\[\w+\]", code, re.MULTILINE)
    assert all(name == "acc" or name.endswith("_rmem") for name in registers), registers


@each_kernel
def test_shared_memory_is_asserted_against_the_layout(path: Path) -> None:
    """SMEM_BYTES comes from Python; only a static_assert shows that both mean the same layout."""
    used = set(re.findall(r"\b\w*SMEM_BYTES\b", header_of(path)))
    asserted = set(re.findall(r"static_assert\((\w*SMEM_BYTES) ==", with_layout(path)))
    assert bool(asserted) == uses_tiles(path) and asserted == used


@each_source
def test_tile_sizes_come_from_outside(path: Path) -> None:
    defined = re.findall(r"^\s*#\s*define\s+(\w+)", code_of(path), re.MULTILINE)
    sizes = re.compile(
        r"BLOCK_[MN]\b|ONE_BLOCK|SPARSE|TRACE$|IO_DTYPE|IO_BF16|HEAD_DIM|THREADS|SMEM|ALIGNED|IO_BITS|COUNT_TRAFFIC$|WARPS|STAGES"
    )
    assert not [name for name in defined if sizes.search(name)], "use -D, so that lines stay true"
    fixed = re.findall(r"constexpr int (BLOCK_M|BLOCK_N|HEAD_DIM|THREADS) =", code_of(path))
    assert not fixed


@each_source
def test_nothing_is_included_that_nvrtc_lacks(path: Path) -> None:
    """<mma.h> does not compile under NVRTC with the pip wheels: inline PTX instead."""
    included = re.findall(r"^\s*#\s*include\s+(\S+)", code_of(path), re.MULTILINE)
    assert "<mma.h>" not in included
    own = [name for name in included if name.startswith('"')]
    assert all((KERNEL_DIR / name.strip('"')).exists() for name in own)


@each_source
def test_offsets_into_global_memory_are_64_bit(path: Path) -> None:
    """N = 65536 with many heads passes 2^31: strides and row offsets are i64."""
    parameters = re.findall(r"\bint (\w*stride\w*)\b", code_of(path))
    assert not parameters, f"32-bit strides: {parameters}"


@each_source
def test_every_header_opens_by_saying_what_it_is(path: Path) -> None:
    first = header_of(path).split("\n//\n")[0].replace("\n// ", " ")
    assert first.startswith("// ") and first.endswith(".") and len(first.split()) >= 6


def test_the_lists_of_python_and_cuda_have_the_same_flags() -> None:
    """An entry is index << FLAG_BITS | flags on both sides."""
    code = code_of(KERNEL_DIR / "block_mask.cuh")
    flags = dict(re.findall(r"constexpr int (FLAG_\w+) = (\d+);", code))
    assert {name: int(value) for name, value in flags.items()} == {
        name: getattr(tile_list, name)
        for name in ("FLAG_BITS", "FLAG_MIXED", "FLAG_FIRST", "FLAG_LAST")
    }


def test_the_trace_of_python_and_cuda_has_the_same_header() -> None:
    found = re.search(r"constexpr int TRACE_HEADER = (\d+);", code_of(KERNEL_DIR / "trace.cuh"))
    assert found is not None and int(found[1]) == TRACE_HEADER


def test_the_counters_of_python_and_cuda_have_the_same_order() -> None:
    found = re.search(r"enum Tensor \{(.*?)\}", code_of(KERNEL_DIR / "io.cuh"), re.DOTALL)
    assert found is not None
    names = re.findall(r"TENSOR_(\w+)", found[1])
    assert tuple(name.lower() for name in names) == ALL_TENSORS


def test_options_that_are_off_leave_no_trace_in_the_kernel() -> None:
    """-DTRACE and -DBLOCK_SPARSE cost nothing when off: every mention is behind a macro.

    FLAG_BITS says how an entry of a list is written, which 06 writes without a list, too.
    """
    off = re.compile(r"#if (?:BLOCK_SPARSE|CUTS_TILES)\n.*?#(?:else|endif)", re.DOTALL)
    for path in KERNELS:
        code = off.sub("", code_of(path))
        mentions = r"\bcells_smem\b|\bblock_mask\b(?!\.cuh)|FLAG_(?!BITS)"
        assert not re.search(mentions, code), path.name
        assert not re.search(r"\bTracer\b|\btracer\b", code), path.name
