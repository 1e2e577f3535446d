"""From M to tiles to shared memory: hand-computed values, and remedies that work when followed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_kernels.cuda.compile import KERNEL_DIR
from fa_kernels.problem import ITEMSIZE
from fa_kernels.tiling import (
    HOPPER_SMEM_PER_BLOCK,
    MAX_BLOCK,
    SmemLayout,
    Tiling,
    default_tiling,
    flash_smem,
    largest_paper_sram,
    paper_smem_bytes,
    refuse_smem,
    round_up,
    standard_output_smem,
    standard_scores_smem,
    with_block_mask,
)
from fa_kernels.units import KIB
from tests.reference.problems import HEAD_DIMS, bounded

dtypes = st.sampled_from(("float16", "float32"))
head_dims = st.integers(1, 256)
blocks = st.integers(1, 300)


@pytest.mark.parametrize(
    ("kib", "head_dim", "dtype", "block_m", "block_n"),
    [
        # M elements = bytes / itemsize; B_c = ceil(M / 4d); B_r = min(B_c, d).
        (192, 64, "float16", 64, 384),  # 98304 / 256
        (128, 128, "float16", 128, 128),  # 65536 / 512
        (160, 128, "fp16", 128, 160),  # 81920 / 512
        (192, 64, "float32", 64, 192),  # 49152 / 256
        (16, 128, "float32", 8, 8),  # 4096 / 512
        (1, 256, "float32", 1, 1),  # 256 / 1024, rounded up
        (64, 20, "float16", 20, 410),  # 32768 / 80 = 409.6
        (16, 32, np.float16, 32, 64),  # 8192 / 128
        (192, 1, "float16", 1, 4096),  # 24576, clipped to the longest tile
    ],
)
def test_the_papers_rule(
    kib: int, head_dim: int, dtype: object, block_m: int, block_n: int
) -> None:
    assert Tiling.from_sram(kib * KIB, head_dim, dtype) == Tiling(block_m, block_n)


def test_m_counts_elements_not_bytes() -> None:
    assert Tiling.from_sram(96 * KIB, 64, "fp16") == Tiling.from_sram(192 * KIB, 64, "fp32")


@given(st.integers(1, 256 * KIB), head_dims, dtypes)
@bounded
def test_the_papers_rule_is_algorithm_1_line_1(nbytes: int, d: int, dtype: str) -> None:
    elements = nbytes // ITEMSIZE[dtype]
    tiling = Tiling.from_sram(nbytes, d, dtype)
    block_n = min(MAX_BLOCK, max(1, math.ceil(elements / (4 * d))))
    assert (tiling.block_m, tiling.block_n) == (min(block_n, d), block_n)


def test_the_paper_leaves_s_out_of_its_budget() -> None:
    """DESIGN: what a launch asks for can exceed M, and both are shown."""
    tiling = Tiling.from_sram(128 * KIB, 128, "fp16")
    need = flash_smem(tiling.block_m, tiling.block_n, 128, 2).smem_bytes
    assert need == 2 * 3 * 128 * 128 + 4 * 128 * 128 + 12 * 128 > 128 * KIB


@given(st.integers(64, 256 * KIB), head_dims, dtypes)
@bounded
def test_fits_is_within_the_budget_and_cannot_be_larger(nbytes: int, d: int, dtype: str) -> None:
    itemsize = ITEMSIZE[dtype]

    def need(n: int) -> int:
        return flash_smem(min(n, d), n, d, itemsize).smem_bytes

    try:
        tiling = Tiling.from_sram(nbytes, d, dtype, rule="fits")
    except ValueError:
        assert need(1) > nbytes
        return
    n = tiling.block_n
    assert tiling.block_m == min(n, d)
    assert need(n) <= nbytes
    paper = Tiling.from_sram(nbytes, d, dtype)
    assert n <= paper.block_n
    assert n == paper.block_n or need(n + 1) > nbytes


@pytest.mark.parametrize("layout", [standard_scores_smem, standard_output_smem])
def test_fits_asks_the_layout_it_is_given(layout: Callable[..., SmemLayout]) -> None:
    tiling = Tiling.from_sram(32 * KIB, 64, "fp16", "fits", layout)
    assert layout(tiling.block_m, tiling.block_n, 64, 2).smem_bytes <= 32 * KIB
    assert tiling.block_n > Tiling.from_sram(32 * KIB, 64, "fp16", "fits").block_n


@given(head_dims, dtypes)
@bounded
def test_following_the_remedy_of_fits_works(d: int, dtype: str) -> None:
    with pytest.raises(ValueError, match=r"M = .* not even one row .* at d = ") as refusal:
        Tiling.from_sram(16, d, dtype, rule="fits")
    need = re.search(r"Raise M to (\d+) bytes", str(refusal.value))
    assert need is not None
    assert Tiling.from_sram(int(need[1]), d, dtype, rule="fits") == Tiling(1, 1)
    with pytest.raises(ValueError, match="not even one row"):
        Tiling.from_sram(int(need[1]) - 1, d, dtype, rule="fits")


@pytest.mark.parametrize("budget", [0, -1, 2 * 1024**3, math.nan, math.inf, "192 KiB", None, True])
def test_a_bad_budget_is_refused_in_words(budget: object) -> None:
    with pytest.raises(ValueError, match=r"^sram_bytes = .*between 1 and 1073741824.*192 KiB"):
        Tiling.from_sram(budget, 64, "fp16")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"head_dim": 0}, r"head_dim = 0 is out of range: .*between 1 and 256\. Choose d"),
        ({"head_dim": 257}, r"head_dim = 257 is out of range"),
        ({"dtype": "float64"}, r"dtype = float64 is not supported: use one of"),
        ({"rule": "largest"}, r"rule = 'largest' is not known: use 'paper' or 'fits'"),
    ],
)
def test_other_bad_arguments_are_refused_in_words(arguments: dict[str, Any], sentence: str) -> None:
    good: dict[str, Any] = {"sram_bytes": 64 * KIB, "head_dim": 64, "dtype": "fp16"}
    with pytest.raises(ValueError, match=sentence):
        Tiling.from_sram(**(good | arguments))


@pytest.mark.parametrize("block", [0, -1, MAX_BLOCK + 1, 0.5, "64", None])
def test_a_bad_tile_is_refused_in_words(block: Any) -> None:
    for name, sizes in (("block_m", (block, 64)), ("block_n", (64, block))):
        with pytest.raises(ValueError, match=rf"^{name} = .*between 1 and 4096\. 64 is a good"):
            Tiling(*sizes)


def test_a_tiling_is_a_value_of_ints() -> None:
    tiling = Tiling(np.int64(64), 32.0)  # type: ignore[arg-type]
    assert tiling == Tiling(64, 32) and hash(tiling) == hash(Tiling(64, 32))
    assert type(tiling.block_m) is type(tiling.block_n) is int


@given(blocks, blocks, st.integers(0, 400), st.integers(0, 400))
@bounded
def test_clipped_tiles_are_no_longer_than_the_padded_sequence(
    block_m: int, block_n: int, nq: int, nk: int
) -> None:
    clipped = Tiling(block_m, block_n).clipped(nq, nk)
    for got, asked, length in ((clipped.block_m, block_m, nq), (clipped.block_n, block_n, nk)):
        assert got <= asked
        assert got == asked or length <= got < max(1, length) + 16
    assert clipped.clipped(nq, nk) == clipped


# -- bytes ----------------------------------------------------------------------------------


def bytes_of(layout: SmemLayout) -> dict[str, int]:
    return dict(layout.parts)


def test_layouts_by_hand() -> None:
    """d = 64, fp16, B_r = 64, B_c = 32: nothing needs padding."""
    flash = flash_smem(64, 32, 64, 2)
    assert bytes_of(flash) == {"Q": 8192, "K": 4096, "V": 4096, "S": 8192, "m, l, α": 768}
    assert (flash.smem_bytes, flash.accumulator_bytes) == (25344, 4 * 64 * 64)
    assert bytes_of(standard_scores_smem(64, 32, 64, 2)) == {"Q": 8192, "K": 4096, "S": 8192}
    assert bytes_of(standard_output_smem(64, 32, 64, 2)) == {"V": 4096, "P": 8192}


def test_odd_sizes_are_padded_to_16_bytes() -> None:
    """d = 63 fp16 is stored as 64, B_c = 33 as 36 floats; m, l, alpha as multiples of 4."""
    flash = bytes_of(flash_smem(17, 33, 63, 2))
    assert flash == {
        "Q": 17 * 128, "K": 33 * 128, "V": 33 * 128, "S": 17 * 36 * 4, "m, l, α": 3 * 20 * 4,
    }  # fmt: skip


def test_the_papers_own_need_has_s_and_o_in_fp32() -> None:
    assert paper_smem_bytes(64, 384, 64, 2) == 2 * (2 * 384 * 64 + 64 * 64) + 4 * 64 * (384 + 64)
    # The sentence of the design: d = 128, fp16, M = 160 KiB needs more than an H100's block has.
    tiling = Tiling.from_sram(160 * KIB, 128, "fp16")
    need = paper_smem_bytes(tiling.block_m, tiling.block_n, 128, 2)
    assert need == 256 * KIB > HOPPER_SMEM_PER_BLOCK


def asserted_formula(kernel: str, macro: str) -> str:
    """The right-hand side of static_assert(MACRO == ..., "...") in a kernel, as Python."""
    source = (KERNEL_DIR / kernel).read_text(encoding="utf-8")
    found = re.search(rf'static_assert\({macro} ==\s*(.*?),\s*"', source, re.DOTALL)
    assert found is not None, f"{kernel} asserts nothing about {macro}"
    return " ".join(found[1].split())


def header_formula(name: str) -> str:
    """What `constexpr int NAME` of block_mask.cuh is where the mask cuts tiles, as Python."""
    source = (KERNEL_DIR / "block_mask.cuh").read_text(encoding="utf-8")
    found = re.search(rf"constexpr int {name} = (.*?);", source)
    assert found is not None
    return found[1]


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


mask_blocks = st.integers(1, 300)


@given(blocks, blocks, mask_blocks, mask_blocks)
@bounded
def test_the_block_mask_takes_the_bytes_of_the_kernel(
    block_m: int, block_n: int, mask_m: int, mask_n: int
) -> None:
    names: dict[str, Any] = {
        "BLOCK_M": block_m, "BLOCK_N": block_n, "MASK_BLOCK_M": mask_m, "MASK_BLOCK_N": mask_n,
        "ceil_div": ceil_div, "round_up": round_up,
    }  # fmt: skip
    for name in ("CELL_ROWS", "CELL_COLS", "MASK_SMEM_BYTES"):
        names[name] = eval(header_formula(name), names)
    dense = flash_smem(block_m, block_n, 64, 2)
    masked = with_block_mask(dense, Tiling(block_m, block_n), mask_m, mask_n)
    if mask_m % block_m == mask_n % block_n == 0:
        assert masked == dense, "a tile lies within one block: CUTS_TILES is 0"
        return
    assert masked.smem_bytes - dense.smem_bytes == names["MASK_SMEM_BYTES"]
    assert masked.parts[:-1] == dense.parts and masked.parts[-1][0] == "block mask"
    assert masked.accumulator_bytes == dense.accumulator_bytes


@given(st.integers(1, 70), st.integers(1, 40), st.integers(0, 12))
@bounded
def test_a_tile_touches_no_more_mask_blocks_than_it_has_room_for(
    tile: int, block: int, index: int
) -> None:
    """Wherever it starts: the cells of one axis are read straight off their indices."""
    one = with_block_mask(SmemLayout((), 0), Tiling(tile, 1), block, 1).smem_bytes
    touched = {row // block for row in range(index * tile, (index + 1) * tile)}
    if block % tile == 0:
        assert len(touched) == 1 and one == 0, "it is kept whole or not at all"
    else:
        assert len(touched) <= one < len(touched) + 2 + 16  # 16: rounding up


def test_the_block_mask_by_hand() -> None:
    """Tiles of 64 touch at most 4 blocks of 24 and 3 of 40: 12 bytes, in a row of 16."""
    layout = with_block_mask(flash_smem(64, 64, 64, 2), Tiling(64, 64), 24, 40)
    assert bytes_of(layout)["block mask"] == 16
    aligned = with_block_mask(flash_smem(64, 64, 64, 2), Tiling(64, 64), 1, 1)
    assert bytes_of(aligned)["block mask"] == 64 * 64


@pytest.mark.parametrize(
    ("kernel", "macro", "layout"),
    [
        ("flash_smem.cuh", "SMEM_BYTES", flash_smem),
        ("02_standard_tiled.cu", "SCORES_SMEM_BYTES", standard_scores_smem),
        ("02_standard_tiled.cu", "OUTPUT_SMEM_BYTES", standard_output_smem),
    ],
)
def test_layouts_are_the_kernels_static_asserts(
    kernel: str, macro: str, layout: Callable[[int, int, int, int], SmemLayout]
) -> None:
    formula = compile(asserted_formula(kernel, macro), kernel, "eval")

    @given(blocks, blocks, head_dims, st.sampled_from((2, 4)))
    @bounded
    def same(block_m: int, block_n: int, d: int, itemsize: int) -> None:
        chunks = -(-d * itemsize // 16)  # 16-byte chunks of one row, as HEAD_CHUNKS in tile.cuh
        names = {
            "Q_CHUNKS": block_m * chunks,
            "KV_CHUNKS": block_n * chunks,
            "BLOCK_M": block_m,
            "BLOCK_N_PAD": -(-block_n // 4) * 4,
            "round_up": round_up,
            "ROWS_PAD": round_up(block_m, 4),
            "MASK_SMEM_BYTES": 0,  # without -DBLOCK_SPARSE
        }
        assert layout(block_m, block_n, d, itemsize).smem_bytes == eval(formula, names)

    same()


# -- limits ---------------------------------------------------------------------------------


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("limit_kib", [64, 99, 163, 227])
def test_two_blocks_of_the_default_tiling_share_an_sm(
    limit_kib: int, head_dim: int, itemsize: int
) -> None:
    tiling = default_tiling(head_dim, itemsize, limit_kib * KIB)
    need = flash_smem(tiling.block_m, tiling.block_n, head_dim, itemsize).smem_bytes
    assert 2 * need <= limit_kib * KIB


def test_the_default_tiling_on_hopper() -> None:
    assert default_tiling(64, 2) == default_tiling(128, 2) == Tiling(64, 64)
    assert default_tiling(256, 4) != Tiling(64, 64)


def test_a_launch_within_the_limit_is_not_refused() -> None:
    layout = flash_smem(64, 64, 64, 2)
    refuse_smem(layout, Tiling(64, 64), 64, "float16", layout.smem_bytes, "this GPU")


def test_the_refusal_names_tiles_need_limit_and_remedy() -> None:
    tiling = Tiling.from_sram(192 * KIB, 64, "fp16")
    layout = flash_smem(tiling.block_m, tiling.block_n, 64, 2)
    with pytest.raises(ValueError, match="shared memory") as refusal:
        refuse_smem(layout, tiling, 64, "float16", 163 * KIB, "this GPU")
    assert re.fullmatch(
        r"d = 64, fp16: B_c = 384, B_r = 64 needs 201 KiB of shared memory per block, "
        r"this GPU allows 163 KiB: lower M to \d+ KiB or use smaller tiles\.",
        str(refusal.value),
    )


@given(st.sampled_from(HEAD_DIMS), dtypes, st.sampled_from((64, 99, 163, 227)))
@settings(bounded, max_examples=15)
def test_following_the_refusals_remedy_works_and_is_not_timid(
    d: int, dtype: str, limit_kib: int
) -> None:
    itemsize, limit = ITEMSIZE[dtype], limit_kib * KIB

    def need(sram_bytes: int) -> int:
        tiling = Tiling.from_sram(sram_bytes, d, dtype)
        return flash_smem(tiling.block_m, tiling.block_n, d, itemsize).smem_bytes

    too_large = Tiling(512, 512)
    layout = flash_smem(512, 512, d, itemsize)
    with pytest.raises(ValueError, match="lower M to") as refusal:
        refuse_smem(layout, too_large, d, dtype, limit, "it")
    advised = re.search(r"lower M to (\d+) KiB", str(refusal.value))
    assert advised is not None
    assert need(int(advised[1]) * KIB) <= limit
    grows = need((int(advised[1]) + 1) * KIB) > limit
    assert grows or int(advised[1]) == MAX_BLOCK
    assert largest_paper_sram(d, dtype, limit) == int(advised[1]) * KIB
