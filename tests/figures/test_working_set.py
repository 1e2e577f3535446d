"""What is read again, and how much of it is in use at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fa_kernels.device import Device
from fa_kernels.figures.point import Point
from fa_kernels.figures.working_set import working_set
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.units import KIB
from fa_kernels.variants import VARIANTS


def point_at(n: int, h200: Device, dtype: str = "float16") -> Point:
    problem = AttentionProblem.of_tokens(n, 64, dtype)
    return Point(problem, 64 * KIB, Tiling(64, 128).clipped(n, n), h200)


def test_what_is_read_again(h200: Device) -> None:
    point = point_at(4096, h200)
    tensors = {name: working_set(v, point).tensors for name, v in VARIANTS.items()}
    assert tensors["standard_tiled"] == tensors["standard_naive"] == ("s", "p")
    assert tensors["flash_kv_outer"] == ("q", "out", "lse")
    assert tensors["flash_q_outer"] == tensors["flash_q_outer_one_block"] == ("k", "v")


def test_bytes_of_k_and_v_of_the_heads_at_once(h200: Device) -> None:
    again = working_set(VARIANTS["flash_q_outer"], point_at(4096, h200))
    assert again.set_bytes == again.heads * 2 * 4096 * 64 * 2
    assert again.fits and not again.whole
    alone = working_set(VARIANTS["flash_q_outer_one_block"], point_at(4096, h200))
    assert alone.heads == 128 and not alone.fits  # 128 blocks, and 132 SMs to take them


def test_partial_o_counts_in_its_own_width(h200: Device) -> None:
    point = point_at(4096, h200)
    wide, narrow = (
        working_set(VARIANTS[name], point) for name in ("flash_kv_outer", "flash_kv_outer_io")
    )
    per_head = 4096 * 64
    assert wide.set_bytes - narrow.set_bytes == wide.heads * per_head * 2
    assert narrow.set_bytes == narrow.heads * (per_head * 4 + 8 * 4096)


def test_one_tile_reads_nothing_again(h200: Device) -> None:
    again = working_set(VARIANTS["flash_q_outer"], point_at(64, h200))
    assert again.tensors == () and again.set_bytes == 0 and again.fits


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("n", [1, 113, 1023, 16384])
def test_never_more_heads_than_there_are(name: str, n: int, h200: Device) -> None:
    point = point_at(n, h200)
    point = replace(point, tiling=VARIANTS[name].nearest_tiling(point.problem, point.tiling))
    assert 1 <= working_set(VARIANTS[name], point).heads <= point.problem.heads
