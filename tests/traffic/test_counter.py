"""Counted in the NumPy tiles = the model `launched`, to the byte, over awkward shapes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fa_kernels.masks import kept_pairs
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.counter import CountingHbm, count_traffic
from fa_kernels.variants import VARIANTS, Variant
from tests.reference.problems import HEAD_DIMS, LONG, MASKS, SHAPES, bounded

variants = st.sampled_from(list(VARIANTS.values()))
each_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)


def assert_counted_is_modelled(variant: Variant, problem: AttentionProblem, tiling: Tiling) -> None:
    counted = count_traffic(variant.reference, problem, tiling)
    model = variant.launched(problem, tiling)
    assert counted.same_as(model), f"counted {counted}, modelled {model}"


@each_variant
@pytest.mark.parametrize("causal", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_model_is_the_counter_on_awkward_shapes(
    shape: tuple[int, int], causal: str | None, variant: Variant
) -> None:
    for head_dim, dtype, tiling in (
        (1, "float16", Tiling(64, 64)),
        (20, "float32", Tiling(17, 33)),
        (63, "float16", Tiling(33, 17)),
        (256, "float32", Tiling(16, 130)),
    ):
        problem = AttentionProblem(2, 3, *shape, head_dim, dtype, causal)
        assert_counted_is_modelled(variant, problem, tiling)


@each_variant
def test_the_model_is_the_counter_on_a_long_shape(variant: Variant) -> None:
    problem = AttentionProblem(1, 1, *LONG, 64, "float16", "bottom_right")
    assert_counted_is_modelled(variant, problem, Tiling(64, 64))


@given(
    variants, st.integers(1, 70), st.integers(1, 70), st.sampled_from(HEAD_DIMS),
    st.sampled_from(MASKS), st.sampled_from(("float16", "float32")),
    st.integers(1, 80), st.integers(1, 80), st.integers(1, 3), st.integers(1, 3),
)  # fmt: skip
@example(VARIANTS["standard_tiled"], 70, 3, 1, "bottom_right", "float16", 7, 2, 1, 1)
@bounded
def test_the_model_is_the_counter(
    variant: Variant, nq: int, nk: int, d: int, causal: str | None, dtype: str,
    block_m: int, block_n: int, batch: int, nheads: int,
) -> None:  # fmt: skip
    problem = AttentionProblem(batch, nheads, nq, nk, d, dtype, causal)
    assert_counted_is_modelled(variant, problem, Tiling(block_m, block_n))


@each_variant
def test_a_mask_saves_what_it_removes(variant: Variant) -> None:
    sizes = (1, 1, 256, 256, 64, "float16")
    dense = variant.launched(AttentionProblem(*sizes), Tiling(1, 1))
    problem = AttentionProblem(*sizes, causal="bottom_right")
    causal = variant.launched(problem, Tiling(1, 1))
    share = kept_pairs(problem) / 256**2
    for tensor in ("k", "v"):
        assert causal.of(tensor) == pytest.approx(share * dense.of(tensor))
    for tensor in ("s", "p"):
        assert causal.of(tensor) == pytest.approx(share * dense.of(tensor))
    assert causal.of("out") == dense.of("out")


def test_the_counter_counts_valid_elements_in_bytes() -> None:
    hbm = CountingHbm()
    tile = np.zeros((2, 3, 4), np.float16)
    hbm.load("q", tile)
    hbm.load("p", tile, valid=np.eye(3, 4, dtype=bool))  # broadcast over the first axis
    hbm.store("out", tile, 1.0)
    hbm.store("s", tile, np.ones((2, 3, 4), np.float32), valid=np.zeros((3, 4), bool))
    assert hbm.traffic().read_bytes == {"q": 48, "p": 2 * 3 * 2}
    assert hbm.traffic().written_bytes == {"out": 48, "s": 0}
    assert (tile == 1.0).all()


@pytest.mark.parametrize("reads", [1, 2])
def test_the_counter_adds_up(reads: int) -> None:
    hbm = CountingHbm()
    for _ in range(reads):
        hbm.load("k", np.zeros(5, np.float32))
    assert hbm.traffic().of("k") == 20 * reads
    snapshot = hbm.traffic()
    hbm.load("k", np.zeros(5, np.float32))
    assert snapshot.of("k") == 20 * reads  # what was counted so far stays as it was
