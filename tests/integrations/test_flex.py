"""Masks to FlexAttention and back, on the CPU, and what both attend under them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fa_kernels.block_mask import BlockMask
from fa_kernels.patterns import PATTERNS

torch = pytest.importorskip("torch")

from torch.nn.attention.flex_attention import (  # noqa: E402
    BlockMask as FlexMask,
)
from torch.nn.attention.flex_attention import (  # noqa: E402
    create_block_mask,
    flex_attention,
)

from fa_kernels.integrations.flex import (  # noqa: E402
    blocks_from_flex,
    masks_from_flex,
    to_flex,
)
from fa_kernels.integrations.torch import attention  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
SIZES = [(64, 64), (50, 70), (70, 50)]


def mask_of(name: str, n: int, m: int, density: float = 0.4) -> BlockMask:
    asked = None if PATTERNS[name].fixed else density
    return BlockMask.pattern(name, n, m, 16, 8, asked)


def inputs(n: int, m: int) -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(n)
    return tuple(
        torch.randn(2, 2, rows, 4, dtype=torch.float64, generator=generator) for rows in (n, m, m)
    )


def listed(flex: FlexMask, full: bool) -> np.ndarray:
    """The blocks of one of its two lists, read as the kernels do."""
    counts = flex.full_kv_num_blocks if full else flex.kv_num_blocks
    indices = flex.full_kv_indices if full else flex.kv_indices
    assert counts is not None and indices is not None
    dense = np.zeros(indices.shape, bool)
    for at in np.ndindex(*counts.shape):
        dense[(*at, indices[at][: counts[at]].numpy())] = True
    return dense


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", PATTERNS)
def test_there_and_back_is_the_same_mask(name: str, sizes: tuple[int, int]) -> None:
    mask = mask_of(name, *sizes)
    flex = to_flex(mask, *sizes)
    assert blocks_from_flex(flex) == mask
    assert flex.seq_lengths == sizes and flex.BLOCK_SIZE == (16, 8)
    if sizes == (64, 64):
        assert not listed(flex, full=False).any(), "whole blocks are not looked into"


@pytest.mark.parametrize("causal", [False, "top_left", "bottom_right"])
@pytest.mark.parametrize("sizes", SIZES)
def test_its_lists_are_those_that_torch_makes_of_every_element(
    sizes: tuple[int, int], causal: bool | str
) -> None:
    mask = mask_of("random", *sizes)
    element = torch.rand(*sizes, generator=torch.Generator().manual_seed(3)) > 0.01
    for given in (None, element):
        ours = to_flex(mask, *sizes, causal=causal, mask=given)
        theirs = create_block_mask(
            ours.mask_mod, None, None, *sizes, device="cpu", BLOCK_SIZE=(16, 8)
        )
        for full in (False, True):
            # Lists of blocks of which nothing is kept, as torch makes none.
            np.testing.assert_array_equal(listed(ours, full), listed(theirs, full))


@pytest.mark.parametrize("causal", [False, "bottom_right"])
@pytest.mark.parametrize("lead", [(1, 1), (2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("sizes", SIZES)
def test_both_attend_the_same(
    sizes: tuple[int, int], lead: tuple[int, int], causal: bool | str
) -> None:
    n, m = sizes
    blocks = -(-n // 16), -(-m // 8)
    keep = np.random.default_rng(1).random((*lead, *blocks)) < 0.5
    keep[..., 0, :] = False  # a block row that attends nothing
    mask = BlockMask.from_dense(keep, 16, 8)
    q, k, v = inputs(n, m)
    ours = attention(q, k, v, block_mask=mask, causal=causal)
    theirs = flex_attention(q, k, v, block_mask=to_flex(mask, n, m, causal=causal))
    np.testing.assert_allclose(ours, torch.nan_to_num(theirs), atol=1e-12)
    assert not ours[..., :16, :].any()


def documents(b: Any, h: Any, row: Any, key: Any) -> Any:
    return (row // 20 == key // 20) & (key <= row)


def test_a_mask_of_elements_comes_with_its_blocks() -> None:
    flex = create_block_mask(documents, None, None, 64, 64, device="cpu", BLOCK_SIZE=(16, 8))
    blocks, mask = masks_from_flex(flex)
    assert mask is not None and blocks.density < 0.5
    q, k, v = inputs(64, 64)
    ours = attention(q, k, v, block_mask=blocks, mask=mask)
    np.testing.assert_allclose(ours, flex_attention(q, k, v, block_mask=flex), atol=1e-12)
    again = to_flex(blocks, 64, 64, mask=mask)
    for full in (False, True):
        np.testing.assert_array_equal(listed(again, full), listed(flex, full))
    with pytest.raises(ValueError, match=r"mask_mod drops elements .* masks_from_flex\(flex_mask"):
        blocks_from_flex(flex)


def test_full_blocks_are_not_asked_of_mask_mod() -> None:
    """As in FlexAttention's kernels: a block that is listed as full is kept whole."""
    count, indices = torch.tensor([[[1, 0]]]), torch.tensor([[[[0, 1], [0, 1]]]])
    none = torch.zeros_like(count)
    flex = FlexMask.from_kv_blocks(
        none, indices, count, indices, BLOCK_SIZE=(4, 4), mask_mod=documents
    )
    blocks, mask = masks_from_flex(flex)
    assert mask is None
    np.testing.assert_array_equal(blocks.keep[0, 0], [[True, False], [False, False]])


def test_lists_without_a_mask_mod_are_whole_blocks() -> None:
    count, indices = torch.tensor([[[1, 2]]]), torch.tensor([[[[1, 0], [0, 1]]]])
    flex = FlexMask.from_kv_blocks(count, indices, BLOCK_SIZE=(4, 4))
    np.testing.assert_array_equal(blocks_from_flex(flex).keep[0, 0], [[0, 1], [1, 1]])


def of_lists(count: list[int], indices: list[list[int]], keys: int) -> FlexMask:
    """A mask with one row of 4 queries for each list, blocks of 4 x 4."""
    lists = torch.tensor([[count]]), torch.tensor([[indices]])
    lengths = (4 * len(count), keys)
    return FlexMask.from_kv_blocks(
        *lists, BLOCK_SIZE=(4, 4), seq_lengths=lengths, compute_q_blocks=False
    )


@pytest.mark.parametrize(
    ("count", "indices"),
    [
        ([1, 2, 0], [[1, 1, 1], [2, 0, 0], [0, 0, 0]]),  # a kept block again behind the count
        ([1, 1, 3], [[0, 0, 0], [2, 2, 2], [2, 1, 0]]),
        ([0, 1, 2], [[7, 7, 7], [1, -1, 9], [0, 2, 99]]),  # what behind it is no block at all
    ],
)
def test_what_stands_behind_the_count_says_nothing(
    count: list[int], indices: list[list[int]]
) -> None:
    found = blocks_from_flex(of_lists(count, indices, 12)).keep
    np.testing.assert_array_equal(found, of_lists(count, indices, 12).to_dense().bool())


def test_lists_may_be_shorter_than_a_row() -> None:
    found = blocks_from_flex(of_lists([1, 2], [[3, 3], [4, 0]], 19)).keep
    padded = of_lists([1, 2], [[3, 0, 0, 0, 0], [4, 0, 0, 0, 0]], 19)
    np.testing.assert_array_equal(found, padded.to_dense().bool())
    np.testing.assert_array_equal(found[0, 0], [[0, 0, 0, 1, 0], [1, 0, 0, 0, 1]])


def test_a_block_that_is_not_there_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match=r"block 5 of keys is listed, a row has 3 .* seq_lengths"):
        blocks_from_flex(of_lists([1], [[5]], 12))


def test_other_lengths_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="needs 8 x 8. Build it for these lengths"):
        to_flex(mask_of("local", 64, 64), 128, 64)


def test_another_mask_of_one_shape_is_not_compiled_anew() -> None:
    """What makes a run over many densities short."""
    compiled: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    torch.compiler.reset()
    call = torch.compile(flex_attention, backend=backend, dynamic=False, fullgraph=True)
    q, k, v = inputs(64, 64)
    for density in (0.25, 0.5, 1.0):
        mask = mask_of("butterfly", 64, 64, density)
        out = call(q, k, v, block_mask=to_flex(mask, 64, 64))
        np.testing.assert_allclose(out, attention(q, k, v, block_mask=mask), atol=1e-12)
    assert len(compiled) == 1
    torch.compiler.reset()
