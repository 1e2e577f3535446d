"""Kernel files as readers see them: the header by subject, and anchors in lines."""

from __future__ import annotations

import pytest

from fa_kernels.cuda.compile import kernel_names
from fa_kernels.cuda.kernel_file import files_of, read_kernel

#: Subjects that CONTRIBUTING asks of every header, beside the change and the verdict.
SUBJECTS = ["", "Source", "Tensors", "Launch", "SRAM", "HBM", "Numerics", "Architectures"]


@pytest.mark.parametrize("name", kernel_names())
def test_every_header_has_its_subjects_in_order(name: str) -> None:
    subjects = [subject for subject, _ in read_kernel(f"{name}.cu").header]
    assert subjects[:8] == SUBJECTS
    assert subjects[8].startswith("Changed from ") and subjects[9] == "Limits and verdict"


def test_paragraphs_are_joined() -> None:
    kernel = read_kernel("04_flash_q_outer.cu")
    before, change = kernel.changed_from
    assert before == "03" and change.startswith("the loops are swapped. O, m and l stay on chip")
    assert "\n" not in change and "  " not in change
    assert kernel.said("") == (
        "FlashAttention forward on CUDA cores, Q blocks in the outer loop: S and P never leave the "
        "chip."
    )
    assert kernel.said("nothing of the kind") == ""


def test_a_kernel_and_the_headers_it_is_built_from() -> None:
    files = [file.name for file in files_of("04_flash_q_outer")]
    assert files[0] == "04_flash_q_outer.cu" and len(files) == len(set(files))
    assert {"io.cuh", "score.cuh", "tile.cuh", "philox.cuh"} <= set(files)  # one includes another


def test_finding_lines() -> None:
    file = read_kernel("04_flash_q_outer.cu")
    lines = file.find("while (walk.more()) {", "const int k0 =")
    assert lines is not None and len(lines) == 2
    assert "while (walk.more()) {" in file.lines[lines.start]
    one = file.find("o.clear();", "o.clear();")
    assert one is not None and len(one) == 1
    assert file.find("no such line", "") is None
    assert file.find("o.clear();", "no such line") is None


def test_another_file_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no kernel file '../io.cuh': use one of 01_standard"):
        read_kernel("../io.cuh")
