"""Machine code by class, and the loops that multiply in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_kernels.cuda import sass
from fa_kernels.cuda.sass import CLASSES, class_of, disassemble, flops_of, read_loops, read_sass


@pytest.mark.parametrize(
    ("opcode", "name"),
    [
        ("HMMA.16816.F32", "tensor"), ("HGMMA.64x128x16.F32", "tensor"), ("FFMA.FTZ", "fp32"),
        ("FMNMX", "fp32"), ("FSETP.GT.FTZ.AND", "fp32"), ("MUFU.EX2", "mufu"),
        ("HADD2.F32", "convert"), ("F2FP.F16.F32.PACK_AB", "convert"), ("I2F.U32.RP", "convert"),
        ("LDS.128", "shared"), ("STS", "shared"), ("LDSM.16.MT88.4", "shared"),
        ("LDG.E.128.CONSTANT", "global"), ("LDGSTS.E.BYPASS.128", "global"), ("STG.E", "global"),
        ("UTMALDG.2D", "global"), ("RED.E.ADD.64", "global"), ("LDL.LU", "local"),
        ("STL", "local"), ("IMAD.WIDE", "integer"), ("IADD3", "integer"), ("SHF.R.U32", "integer"),
        ("UIADD3", "integer"), ("ULDC.64", "integer"), ("LDC", "integer"), ("MOV", "integer"),
        ("BAR.SYNC.DEFER_BLOCKING", "barrier"), ("LDGDEPBAR", "barrier"), ("DEPBAR", "barrier"),
        ("SYNCS.ARRIVE", "barrier"), ("WARPSYNC", "barrier"), ("SHFL.BFLY", "other"),
        ("BRA", "other"), ("EXIT", "other"), ("BSSY", "other"),
    ],
)  # fmt: skip
def test_classes(opcode: str, name: str) -> None:
    assert class_of(opcode) == name and name in CLASSES


def test_what_one_instruction_multiplies_for_a_warp() -> None:
    assert flops_of("FFMA.FTZ") == 64
    assert flops_of("HMMA.16816.F32.BF16") == 2 * 16 * 8 * 16
    assert flops_of("HMMA.1688.F32.TF32") == 2 * 16 * 8 * 8
    assert flops_of("HGMMA.64x128x16.F32") == 2 * 64 * 128 * 16 // 4  # four warps issue it
    assert flops_of("LDS.128") == 0


def listing(entry: str, *lines: str) -> str:
    """As nvdisasm writes it: a line that ends in ":" is a label, the others are instructions."""
    body = [line if line.endswith(":") else f"        /*0000*/   {line} ;" for line in lines]
    return "\n".join([f'\t.section\t.text.{entry},"ax",@progbits', f"{entry}:", *body])


SCALAR = listing(
    "scalar",
    "LDC R1, c[0x0][0x28]",
    ".L_x_0:",
    "LDG.E R2, desc[UR4][R2.64]",  # an outer loop
    ".L_x_1:",
    "LDS.128 R4, [R9]",
    "FFMA R8, R4, R5, R8",
    "FFMA R8, R6, R7, R8",
    "@!P0 BRA `(.L_x_1)",
    ".L_x_2:",
    "MUFU.EX2 R5, R5",  # FFMA for an exponential is none of a product
    "FFMA R8, R4, R5, R8",
    "@P1 BRA `(.L_x_2)",
    "@P2 BRA `(.L_x_0)",
    "BRA `(.L_x_9)",  # past the end: no loop
    ".L_x_9:",
    "EXIT",
    "NOP",
    "NOP",
)


def test_every_loop_has_its_opcodes() -> None:
    (loops,) = read_loops(SCALAR).values()
    exponential, product, outer = sorted(loops, key=len)
    assert exponential == ["MUFU.EX2", "FFMA", "BRA"]
    assert product == ["LDS.128", "FFMA", "FFMA", "BRA"]
    assert len(outer) == 9 and outer[0] == "LDG.E" and outer[-1] == "BRA"


WAITING = listing(
    "waiting",
    ".L_x_0:",
    "HGMMA.64x128x16.F32 R24, gdesc[UR4], RZ, !UPT",
    "HGMMA.64x64x16.F32 R24, R88, gdesc[UR8], R24",
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R3",
    "@!P0 BRA `(.L_x_2)",
    ".L_x_1:",
    "@P1 BRA `(.L_x_0)",
    "HGMMA.64x64x16.F32 R24, R88, gdesc[UR8], R24",
    "@P2 EXIT",
    "MOV R0, R1",
    "EXIT",
    ".L_x_2:",  # moved out of the way: it tries again, then goes back into the loop
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R3",
    "@!P0 BRA `(.L_x_2)",
    "BRA `(.L_x_1)",
)


def test_a_wait_that_is_moved_out_of_the_way_is_no_loop_of_products() -> None:
    """Its way back spans whatever lies between, here a product after the loop."""
    (mix,) = read_sass(WAITING).values()
    assert mix.loops == {"tensor": 2, "barrier": 1, "other": 2}
    assert mix.products == {"HGMMA.64x128x16.F32": 1, "HGMMA.64x64x16.F32": 2}
    assert mix.loop_flops == 2 * 64 * (128 + 64) * 16 // 4
    (loops,) = read_loops(WAITING).values()
    assert sorted(map(len, loops)) == [2, 5]


def test_loops_that_multiply_are_found() -> None:
    (mix,) = read_sass(SCALAR).values()
    assert mix.counts == {"fp32": 3, "mufu": 1, "shared": 1, "global": 1, "integer": 1, "other": 5}
    assert mix.total == 12  # the padding at the end is not counted
    assert mix.loops == {"fp32": 2, "shared": 1, "other": 1}
    assert mix.products == {} and mix.loop_flops == 128
    assert mix.flops_per_instruction == 32


def test_beside_tensor_cores_an_ffma_is_no_product() -> None:
    text = listing(
        "mma", ".L_x_0:", "LDSM.16.M88.4 R4, [R2]", "HMMA.16816.F32 R8, R4, R6, R8",
        "FFMA R9, R9, R9, R9", "MUFU.EX2 R9, R9", "@P0 BRA `(.L_x_0)", ".L_x_1:",
        "FFMA R9, R9, R9, R9", "@P0 BRA `(.L_x_1)", "EXIT",
    )  # fmt: skip
    (mix,) = read_sass(text).values()
    assert mix.products == {"HMMA.16816.F32": 1}
    assert mix.loops == {"tensor": 1, "fp32": 1, "mufu": 1, "shared": 1, "other": 1}
    assert mix.loop_flops == 4096


def test_entries_and_kernels_without_a_loop() -> None:
    mixes = read_sass(SCALAR + "\n" + listing("straight", "FFMA R1, R1, R1, R1", "EXIT"))
    assert list(mixes) == ["scalar", "straight"]
    straight = mixes["straight"]
    assert straight.loops == {} and straight.flops_per_instruction is None
    assert read_sass("") == {}


def test_without_nvdisasm_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "nvdisasm", lambda: None)
    with pytest.raises(FileNotFoundError, match="pip install nvidia-cuda-nvdisasm"):
        disassemble(b"")


def test_what_nvdisasm_refuses_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvdisasm"
    program.write_text("#!/bin/sh\necho no cubin >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sass, "nvdisasm", lambda: str(program))
    with pytest.raises(RuntimeError, match="nvdisasm failed: no cubin"):
        disassemble(b"not a cubin")
