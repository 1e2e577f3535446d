"""Masks and lists on the GPU: made once, shared by streams, bounded, kept for graphs."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda.mask_arrays import LIMIT_BYTES, MaskArrays
from tests.cuda.fake_cupy import Gpu


def mask(number: int) -> BlockMask:
    """One of many different masks, 64 bytes on the GPU."""
    keep = np.zeros((8, 8), bool)
    keep.reshape(-1)[:8] = [number >> bit & 1 for bit in range(8)]
    return BlockMask.from_dense(keep, 16, 16)


#: Room for so many masks with one pair of lists each.
THREE = 3 * (16 * 1024 + 64)


def there(kept: MaskArrays, gpu: Gpu, number: int, how: Any = "rows") -> bool:
    """True if these lists are found; they are made if they are not."""
    gpu.done.clear()
    kept.lists(mask(number), how, gpu.build)
    return "made" not in gpu.done


def test_lists_are_made_once_and_waited_for_before_anybody_gets_them(gpu: Gpu) -> None:
    kept = MaskArrays()
    first = kept.lists(mask(5), "rows", gpu.build)
    assert gpu.done == ["uploaded", "made", "waited"]
    again = kept.lists(mask(5), "rows", gpu.build)
    assert all(a is b for a, b in zip(first, again, strict=True)) and len(gpu.done) == 3
    np.testing.assert_array_equal(first[2], mask(5).keep)


def test_both_orders_share_one_upload_of_the_mask(gpu: Gpu) -> None:
    kept = MaskArrays()
    by_rows = kept.lists(mask(5), "rows", gpu.build)
    by_keys = kept.lists(mask(5), "keys", gpu.build)
    assert gpu.done.count("uploaded") == 1 and by_rows[2] is by_keys[2]
    assert by_rows[0] is not by_keys[0]


def test_a_model_with_a_mask_for_each_layer_finds_all_of_them_again(gpu: Gpu) -> None:
    kept = MaskArrays()
    calls = [(layer, how) for layer in range(48) for how in ("rows", "keys")]
    assert not any(there(kept, gpu, *call) for call in calls)
    assert all(there(kept, gpu, *call) for call in calls)


def test_the_least_recently_used_mask_goes_first(gpu: Gpu) -> None:
    kept = MaskArrays(THREE)
    for number in (1, 2, 3):
        there(kept, gpu, number)
    assert there(kept, gpu, 1), "used again"
    assert not there(kept, gpu, 4)
    assert [there(kept, gpu, number) for number in (1, 3, 4)] == [True] * 3
    assert not there(kept, gpu, 2)


def test_others_are_waited_for_before_memory_goes_back(gpu: Gpu) -> None:
    """It goes to the pool of the stream that it was made on, which others do not wait for."""
    kept = MaskArrays(THREE)
    for number in (1, 2, 3):
        there(kept, gpu, number)
    lists = weakref.ref(kept.lists(mask(1), "rows", gpu.build)[0])
    there(kept, gpu, 2), there(kept, gpu, 3)
    alive: list[bool] = []

    def waits(number: int | None = None) -> Any:
        return SimpleNamespace(id=0, synchronize=lambda: alive.append(lists() is not None))

    gpu.cupy.cuda.Device = waits
    there(kept, gpu, 4)
    gc.collect()
    assert alive == [True] and lists() is None


def test_the_newest_stays_however_large_it_is(gpu: Gpu) -> None:
    kept = MaskArrays(limit_bytes=1)
    there(kept, gpu, 1), there(kept, gpu, 2)
    assert there(kept, gpu, 2)
    assert not there(kept, gpu, 1)
    assert not there(kept, gpu, 1, "keys") and there(kept, gpu, 1, "keys")
    assert not there(kept, gpu, 1, "rows"), "other lists of the same mask go, too"


def test_each_gpu_has_room_of_its_own(gpu: Gpu) -> None:
    kept = MaskArrays(THREE)
    for gpu.device in (0, 1):
        assert not any(there(kept, gpu, number) for number in (1, 2, 3))
    for gpu.device in (0, 1):
        assert all(there(kept, gpu, number) for number in (1, 2, 3))
    there(kept, gpu, 4)
    assert "waited for GPU 1" in gpu.done and "waited for GPU 0" not in gpu.done


def test_recipes_go_with_the_lists_that_they_hold(gpu: Gpu) -> None:
    kept = MaskArrays(THREE)
    for number in (1, 2, 3):
        kept.lists(mask(number), "rows", gpu.build)
        kept.remember(("key", number), mask(number), f"recipe {number}")
    assert kept.recipe(("key", 1)) == "recipe 1", "which is a use of mask 1"
    kept.lists(mask(4), "rows", gpu.build)
    assert [kept.recipe(("key", n)) for n in (1, 2, 3)] == ["recipe 1", None, "recipe 3"]
    kept.remember(("key", 2), mask(2), "of lists that are gone")
    assert kept.recipe(("key", 2)) is None


def test_the_number_of_recipes_is_bounded(gpu: Gpu) -> None:
    kept = MaskArrays(max_recipes=2)
    kept.lists(mask(1), "rows", gpu.build)
    for number in (1, 2):
        kept.remember(number, mask(1), f"recipe {number}")
    assert kept.recipe(1)
    kept.remember(3, mask(1), "recipe 3")
    assert [kept.recipe(n) for n in (1, 2, 3)] == ["recipe 1", None, "recipe 3"]


def test_new_lists_are_refused_in_a_captured_graph(gpu: Gpu) -> None:
    kept = MaskArrays()
    gpu.capturing = True
    with pytest.raises(ValueError, match="are not on the GPU yet.*make one such call .* before"):
        kept.lists(mask(1), "rows", gpu.build)
    assert not gpu.done
    gpu.capturing = False
    there(kept, gpu, 1)
    gpu.capturing = True
    assert there(kept, gpu, 1) and gpu.done == [], "nothing that a capture forbids"
    with pytest.raises(ValueError, match="block_mask"):
        kept.lists(mask(1), "keys", gpu.build)


def test_what_a_graph_reads_is_never_dropped(gpu: Gpu) -> None:
    kept = MaskArrays(THREE)
    there(kept, gpu, 1)
    gpu.capturing = True
    there(kept, gpu, 1)
    gpu.capturing = False
    for number in range(2, 9):
        assert not there(kept, gpu, number)
    assert all(there(kept, gpu, n) for n in (1, 6, 7, 8)), "and takes no room of the others"


def test_the_room_is_what_many_masks_need() -> None:
    """48 layers at 16384 tokens in blocks of 128, lists of rows and of keys, twice over."""
    blocks = 16384 // 128
    lists = 4 * blocks**2 + 16 * blocks
    assert 2 * 48 * (2 * lists + blocks**2) < LIMIT_BYTES
