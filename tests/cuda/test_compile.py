"""Sources with true line numbers, hashes that notice headers, NVRTC without a GPU."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fa_kernels.cuda import compile as cuda_compile
from fa_kernels.cuda.compile import (
    KERNEL_DIR,
    compile_report,
    kernel_hash,
    kernel_names,
    kernel_source,
    load_entry,
    macro_options,
    own_arch,
)
from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.variants import VARIANTS, Variant

FLASH = "04_flash_q_outer"


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the kernel folder that a test may change; sources are cached, so forget them."""
    folder = tmp_path / "kernels"
    shutil.copytree(KERNEL_DIR, folder)
    monkeypatch.setattr(cuda_compile, "KERNEL_DIR", folder)
    kernel_source.cache_clear()
    yield folder
    kernel_source.cache_clear()


def change(path: Path, old: str, new: str) -> int:
    """Replace the first `old` in a file; the number of the line it was in."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    kernel_source.cache_clear()
    return text[: text.index(old)].count("\n") + 1


def small_plan(variant: Variant) -> LaunchPlan:
    problem = AttentionProblem(1, 1, 64, 64, 24 if variant.whole_rows else 20)
    return variant.plan(problem, variant.nearest_tiling(problem, Tiling(16, 16)))


def test_kernel_names_are_the_files_in_rung_order() -> None:
    assert kernel_names() == sorted(kernel_names())
    assert {f"{name}.cu" for name in kernel_names()} == {p.name for p in KERNEL_DIR.glob("*.cu")}


@pytest.mark.parametrize("name", kernel_names())
def test_line_directives_lead_back_to_the_files(name: str) -> None:
    """Every line of the pasted source is the line of the file that #line says it is."""
    files = {
        path.name: path.read_text(encoding="utf-8").split("\n") for path in KERNEL_DIR.iterdir()
    }
    seen: dict[str, set[int]] = {}
    number, file = 0, ""
    for line in kernel_source(name).splitlines():
        directive = re.fullmatch(r'#line (\d+) "([\w.]+)"', line)
        if directive:
            number, file = int(directive[1]), directive[2]
            continue
        original = files[file][number - 1]
        # A header that is there already leaves an empty line: the lines after it stay true.
        gone = original == "#pragma once" or original.startswith('#include "')
        assert line == ("" if gone else original), f"{file}:{number}"
        assert number not in seen.setdefault(file, set()), f"{file}:{number} is there twice"
        seen[file].add(number)
        number += 1
    include = re.compile(r'#include "')
    for file, lines in seen.items():  # and every line is there, but for the includes themselves
        missing = [text for n, text in enumerate(files[file], start=1) if n not in lines and text]
        assert all(include.match(text) for text in missing), missing


def test_a_header_is_pasted_once(kernels: Path) -> None:
    change(kernels / "tile.cuh", "#pragma once", '#pragma once\n#include "io.cuh"')
    assert kernel_source(FLASH).count("using i64 = long long;") == 1


@pytest.mark.parametrize("name", kernel_names())
def test_the_hash_notices_every_file_a_kernel_is_made_of(name: str, kernels: Path) -> None:
    before = kernel_hash(name)
    assert re.fullmatch(r"[0-9a-f]{16}", before)
    kernel_source.cache_clear()
    assert kernel_hash(name) == before
    included = re.findall(r'#include "(\S+)"', (kernels / f"{name}.cu").read_text("utf-8"))
    assert "io.cuh" in included
    for file in (f"{name}.cu", *included):
        change(kernels / file, "// ", "// Otherwise said:\n\n// ")
        assert kernel_hash(name) == before, "a comment is no code"
        with (kernels / file).open("a", encoding="utf-8") as code:
            code.write("constexpr int CHANGED = 1;\n")
        kernel_source.cache_clear()
        after = kernel_hash(name)
        assert after != before
        before = after


def test_the_hash_of_one_kernel_does_not_depend_on_another(kernels: Path) -> None:
    before = kernel_hash(FLASH)
    change(kernels / "02_standard_tiled.cu", " = ", "  = ")
    assert kernel_hash(FLASH) == before


def test_what_looks_like_a_comment_in_a_text_is_code(kernels: Path) -> None:
    """And a comment may stand anywhere, also between two words."""
    path = kernels / f"{FLASH}.cu"
    code = path.read_text("utf-8")
    hashes = []
    for line in ('asm("a // b");', 'asm("a // c");', 'asm("a // b" /* here */);  // there'):
        path.write_text(f"{code}\n{line}\n", encoding="utf-8")
        kernel_source.cache_clear()
        hashes.append(kernel_hash(FLASH))
    assert len(set(hashes)) == 3
    path.write_text(f'{code}\nasm("a // b"  );\n', encoding="utf-8")
    kernel_source.cache_clear()
    assert kernel_hash(FLASH) == hashes[2], "a space in its place"


def test_macros_are_options() -> None:
    assert macro_options({"BLOCK_M": 64, "ALIGNED": 0}) == ("-DBLOCK_M=64", "-DALIGNED=0")
    assert macro_options({}) == ()


# -- one architecture's own instructions ------------------------------------------------------


@pytest.mark.parametrize("name", kernel_names())
def test_06_alone_is_for_one_architecture(name: str) -> None:
    assert own_arch(name) == ("sm_90a" if name.startswith("06_") else None)


def test_a_module_is_compiled_for_its_own_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy adds -arch=sm_90, which lacks wgmma; other kernels are left to CuPy."""
    made: dict[str, tuple[str, ...]] = {}

    def raw_module(code: str, options: tuple[str, ...], backend: str) -> Any:
        assert backend == "nvrtc"
        name = next(name for name in kernel_names() if kernel_source(name) == code)
        made[name] = options
        return SimpleNamespace(get_function=lambda entry: entry)

    gpu = SimpleNamespace(Device=lambda: SimpleNamespace(id=0))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=gpu, RawModule=raw_module))
    cuda_compile._module.cache_clear()
    for name in kernel_names():
        assert load_entry(name, {"HEAD_DIM": 64}, "entry") == "entry"
    cuda_compile._module.cache_clear()
    for name, options in made.items():
        own = ("-arch=sm_90a",) if name.startswith("06_") else ()
        assert options == ("-DHEAD_DIM=64", *own), name
    assert set(made) == set(kernel_names())


# -- NVRTC ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nvrtc() -> None:
    pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="NVRTC comes with CuPy")


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_kernels_compile_without_a_gpu(variant: Variant) -> None:
    plan = small_plan(variant)
    report = compile_report(variant.kernel, plan.macros, "sm_90")
    assert set(report.registers) == {step.entry for step in plan.steps}
    assert all(16 <= count <= 255 for count in report.registers.values())
    assert report.spill_bytes == 0 and report.seconds > 0
    arch = "sm_90a" if variant.max_arch == 90 else "sm_90"
    assert (report.kernel, report.arch, report.macros) == (variant.kernel, arch, plan.macros)


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_06_is_compiled_for_sm_90a_whatever_is_asked_for(
    arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For anything else the source itself says why it cannot be."""
    plan = small_plan(VARIANTS["flash_wgmma"])
    assert compile_report(plan.kernel, plan.macros, arch).arch == "sm_90a"
    monkeypatch.setattr(cuda_compile, "own_arch", lambda name: None)
    with pytest.raises(RuntimeError, match=r"#error directive: \"wgmma needs -arch=sm_90a: "):
        compile_report(plan.kernel, plan.macros, arch)


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_odd_tiles_pass_the_kernels_own_asserts(variant: Variant) -> None:
    """Padded rows, fp32, counters on: the static_assert compares Python's bytes with C++'s."""
    dtype = "float16" if variant.tensor_cores else "float32"
    problem = AttentionProblem(1, 1, 203, 331, 56 if variant.whole_rows else 63, dtype)
    tiling = variant.nearest_tiling(problem, Tiling(17, 33))
    plan = variant.plan(problem, tiling, aligned=variant.whole_rows, count_traffic=True)
    assert compile_report(plan.kernel, plan.macros, "sm_90").registers


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("file", ["04_flash_q_outer.cu", "io.cuh", "tile.cuh"])
def test_an_error_is_reported_at_its_own_file_and_line(file: str, kernels: Path) -> None:
    path = kernels / file
    lines = path.read_text(encoding="utf-8").split("\n")
    number = next(n for n in range(len(lines) - 1, 0, -1) if lines[n] == "}" or lines[n] == "};")
    lines.insert(number + 1, "int wrong = not_declared_anywhere;")
    path.write_text("\n".join(lines), encoding="utf-8")
    kernel_source.cache_clear()
    macros = small_plan(VARIANTS["flash_q_outer"]).macros
    with pytest.raises(RuntimeError, match=f"^{FLASH} does not compile for sm_90") as failure:
        compile_report(FLASH, macros, "sm_90")
    assert f"{file}({number + 2}): error: " in str(failure.value)
    assert "not_declared_anywhere" in str(failure.value)


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize(
    ("macro", "value", "sentence"),
    [
        ("SMEM_BYTES", 1, "SMEM_BYTES does not match the layout below: fix tiling.flash_smem"),
        ("HEAD_DIM", 257, "head_dim must be in 1..256"),
        ("IO_BITS", 8, "IO_BITS must be 16 (fp16, bf16) or 32 (fp32)"),
        ("BLOCK_M", 4096, "the tile does not fit in registers"),
        ("THREADS", 48, "whole warps"),
    ],
)
def test_a_wrong_macro_is_refused_by_the_kernel(macro: str, value: int, sentence: str) -> None:
    macros = {**small_plan(VARIANTS["flash_q_outer"]).macros, macro: value}
    with pytest.raises(RuntimeError, match=re.escape(sentence)):
        compile_report(FLASH, macros, "sm_90")
