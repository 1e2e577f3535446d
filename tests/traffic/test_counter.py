"""Counted in the NumPy tiles = the model `launched`, to the byte, over awkward shapes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fa_kernels.block_mask import BlockMask
from fa_kernels.masks import attended_pairs
from fa_kernels.packed import Packed
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.counter import CountingHbm, count_traffic
from fa_kernels.traffic.model import Traffic
from fa_kernels.variants import VARIANTS, Variant
from tests.reference.calls import problems, tilings
from tests.reference.problems import HEAD_DIMS, LONG, MASKS, SHAPES, bounded, random_mask

variants = st.sampled_from(list(VARIANTS.values()))
SPARSE = {name: variant for name, variant in VARIANTS.items() if variant.block_sparse}
each_sparse = pytest.mark.parametrize("variant", SPARSE.values(), ids=SPARSE)
ODD = Tiling(17, 33)
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
        (63, "bfloat16", Tiling(33, 17)),
        (96, "float16", Tiling(16, 130)),
    ):
        if dtype not in variant.dtypes:
            continue
        problem = AttentionProblem(2, 3, *shape, head_dim, dtype, causal)
        assert_counted_is_modelled(variant, problem, tiling)


@each_variant
def test_the_model_is_the_counter_on_a_long_shape(variant: Variant) -> None:
    head_dim = 64 if variant.tiled else 2  # 01 has an array of a row's products for every row
    problem = AttentionProblem(1, 1, *LONG, head_dim, "float16", "bottom_right")
    assert_counted_is_modelled(variant, problem, Tiling(64, 64))


@given(
    variants, st.integers(1, 70), st.integers(1, 70), st.sampled_from(HEAD_DIMS),
    st.sampled_from(MASKS), st.sampled_from(("float16", "bfloat16", "float32")),
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


@pytest.mark.parametrize("lead", [(1, 1), (1, 3), (2, 1), (2, 3)])
@pytest.mark.parametrize("causal", MASKS)
@each_sparse
def test_the_model_is_the_counter_under_block_masks(
    variant: Variant, causal: str | None, lead: tuple[int, int]
) -> None:
    for (nq, nk), mask_block, tiling in (
        ((113, 203), (16, 16), Tiling(64, 32)),
        ((203, 113), (24, 40), Tiling(33, 17)),
        ((113, 203), (100, 7), Tiling(17, 33)),
        ((239, 1), (64, 64), Tiling(64, 64)),
    ):
        for dtype in variant.dtypes:
            mask = random_mask(nq, nk, *mask_block, lead)
            problem = AttentionProblem(2, 3, nq, nk, 20, dtype, causal, block_mask=mask)
            assert_counted_is_modelled(variant, problem, tiling)


@given(
    st.sampled_from(list(SPARSE.values())), st.integers(1, 70), st.integers(1, 70),
    st.sampled_from(MASKS), st.integers(1, 80), st.integers(1, 80), st.integers(1, 80),
    st.integers(1, 80), st.sampled_from(((1, 1), (1, 3), (2, 1), (2, 3))), st.floats(0.0, 1.0),
)  # fmt: skip
@bounded
def test_the_model_is_the_counter_under_any_block_mask(
    variant: Variant, nq: int, nk: int, causal: str | None, block_m: int, block_n: int,
    mask_m: int, mask_n: int, lead: tuple[int, int], density: float,
) -> None:  # fmt: skip
    mask = random_mask(nq, nk, mask_m, mask_n, lead, density=density, seed=nq)
    problem = AttentionProblem(2, 3, nq, nk, 7, "float16", causal, block_mask=mask)
    assert_counted_is_modelled(variant, problem, Tiling(block_m, block_n))


@each_sparse
def test_a_full_block_mask_adds_its_lists_alone(variant: Variant) -> None:
    """Two 8-byte bounds a list and 4 bytes an entry; whole tiles do not look at the mask."""
    mask = BlockMask.from_dense(np.ones((4, 6), bool), 32, 32)
    sizes = (2, 3, 128, 192, 20, "float16")
    dense = variant.launched(AttentionProblem(*sizes), Tiling(32, 32))
    masked = variant.launched(AttentionProblem(*sizes, block_mask=mask), Tiling(32, 32))
    lists = 7 if variant.kernel == "03_flash_kv_outer" else 4  # one for tiles that attend nothing
    assert masked.of("mask") == masked.read_bytes["mask"] == 6 * (16 * lists + 4 * 24)
    without = {t: n for t, n in masked.read_bytes.items() if t != "mask"}
    assert Traffic(without, masked.written_bytes).same_as(dense)


@each_variant
def test_a_mask_saves_what_it_removes(variant: Variant) -> None:
    sizes = (1, 1, 256, 256, 64, "float16")
    dense = variant.launched(AttentionProblem(*sizes), Tiling(1, 1))
    problem = AttentionProblem(*sizes, causal="bottom_right")
    causal = variant.launched(problem, Tiling(1, 1))
    share = attended_pairs(problem) / 256**2
    # K/V outside reads K and V once in any case, and Q once per visit.
    kv_outer = variant.kernel == "03_flash_kv_outer"
    for tensor in ("q", "s", "p") if kv_outer else ("k", "v", "s", "p"):
        assert causal.of(tensor) == pytest.approx(share * dense.of(tensor))
    assert kv_outer or causal.of("out") == dense.of("out")


# -- every option ---------------------------------------------------------------------------


@each_variant
def test_the_model_is_the_counter_under_any_options(variant: Variant) -> None:
    """Window, GQA, packed sequences, element mask, bias, dropout, and block mask where taken."""

    @given(problems(block_masks=variant.block_sparse, dtype=variant.dtypes[-1]), tilings)
    @bounded
    def over_problems(problem: AttentionProblem, tiling: Tiling) -> None:
        assert_counted_is_modelled(variant, problem, tiling)

    over_problems()


@each_variant
def test_values_are_read_once_for_every_attended_pair(variant: Variant) -> None:
    """1 byte of mask, 4 of an fp32 bias, 1 of an explicit dropout mask; drawn dropout none."""
    plain = AttentionProblem(2, 6, 50, 70, 8, "float16", "bottom_right", window=(30, 0))
    before, pairs = variant.launched(plain, ODD), attended_pairs(plain)
    for options, each in (
        ({"masked": True}, 1),
        ({"bias_dtype": "float32"}, 4),
        ({"bias_dtype": "float16"}, 2),
        ({"dropout_p": 0.5, "keep_given": True}, 1),
        ({"dropout_p": 0.5, "seed": 3}, 0),
        ({"masked": True, "bias_dtype": "float32", "dropout_p": 0.5, "keep_given": True}, 6),
    ):
        problem = replace(plain, **options)
        after = variant.launched(problem, ODD)
        assert after.same_as(before.plus(Traffic({"mask": each * pairs})))
        assert_counted_is_modelled(variant, problem, ODD)


@each_variant
def test_grouped_heads_load_k_and_v_each_for_itself(variant: Variant) -> None:
    sizes = (2, 6, 50, 70, 8)
    grouped = AttentionProblem(*sizes, nheads_kv=2)
    assert variant.launched(grouped, ODD).same_as(variant.launched(AttentionProblem(*sizes), ODD))
    assert_counted_is_modelled(variant, grouped, ODD)


@each_variant
def test_packed_sequences_move_what_they_move_alone(variant: Variant) -> None:
    """Bounds of sequences are like kernel parameters: uncounted. Padding does not exist."""
    packed = Packed((0, 40, 40, 47, 60, 73), (0, 50, 57, 57, 107, 157))  # the last two are alike
    problem = AttentionProblem(5, 2, 40, 50, 8, causal="bottom_right", masked=True, packed=packed)
    alone = Traffic()
    for _, _, one in problem.sequences():
        alone = alone.plus(variant.launched(one, ODD))
    assert variant.launched(problem, ODD).same_as(alone)
    assert_counted_is_modelled(variant, problem, ODD)
    paper = Traffic()
    for _, _, one in problem.sequences():
        paper = paper.plus(variant.paper(one, ODD))
    assert variant.paper(problem, ODD).same_as(paper)


def test_the_longest_packed_sequence_says_how_often_scores_are_read() -> None:
    """All sequences share one launch, and its shared memory holds rows of the longest."""
    packed = Packed((0, 1, 3), (0, 20000, 20005))
    problem = AttentionProblem(2, 1, 2, 20000, 1, packed=packed)
    variant = VARIANTS["standard_tiled"]
    traffic = variant.launched(problem, Tiling(2, 4096))
    assert traffic.read_bytes["s"] == 2 * traffic.written_bytes["s"] == 2 * 2 * (20000 + 10)
    assert_counted_is_modelled(variant, problem, Tiling(2, 4096))


@each_variant
def test_a_window_saves_what_it_removes(variant: Variant) -> None:
    sizes = (1, 1, 256, 256, 64, "float16")
    dense = variant.launched(AttentionProblem(*sizes), Tiling(1, 1))
    problem = AttentionProblem(*sizes, window=(15, 0))
    local = variant.launched(problem, Tiling(1, 1))
    share = attended_pairs(problem) / 256**2
    assert share < 0.07
    kv_outer = variant.kernel == "03_flash_kv_outer"
    for tensor in ("q", "s", "p") if kv_outer else ("k", "v", "s", "p"):
        assert local.of(tensor) == pytest.approx(share * dense.of(tensor))
    # The published algorithms skip nothing.
    assert variant.paper(problem, ODD).same_as(variant.paper(AttentionProblem(*sizes), ODD))


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
