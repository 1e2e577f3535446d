"""Bounds of packed sequences on the GPU: made once, shared by streams, bounded, kept for graphs."""

from __future__ import annotations

import pytest

from fa_kernels.cuda.packed_arrays import PackedArrays
from fa_kernels.packed import Packed
from tests.cuda.fake_cupy import Gpu


def packed(number: int) -> Packed:
    return Packed((0, number, 100), (0, 50, 100 + number))


def there(kept: PackedArrays, gpu: Gpu, number: int) -> bool:
    """Whether bounds were on the GPU already; what was done is forgotten."""
    gpu.done.clear()
    q, k = kept.bounds(packed(number))
    assert (q.tolist(), k.tolist()) == ([0, number, 100], [0, 50, 100 + number])
    assert q.dtype == k.dtype == "int32"
    found = "uploaded" not in gpu.done
    assert found or gpu.done.count("uploaded") == 2
    return found


def test_they_are_made_once_and_waited_for(gpu: Gpu) -> None:
    kept = PackedArrays()
    assert not there(kept, gpu, 1)
    assert gpu.done[-1] == "waited", "another stream may read them next"
    assert there(kept, gpu, 1) and gpu.done == []


def test_each_gpu_has_its_own(gpu: Gpu) -> None:
    kept = PackedArrays()
    there(kept, gpu, 1)
    gpu.device = 1
    assert not there(kept, gpu, 1)


def test_the_least_recently_used_goes_first_after_its_gpu_is_done(gpu: Gpu) -> None:
    kept = PackedArrays(most=2)
    there(kept, gpu, 1), there(kept, gpu, 2), there(kept, gpu, 1)
    assert not there(kept, gpu, 3)
    assert gpu.done[-1] == "waited for GPU 0"
    assert there(kept, gpu, 1) and there(kept, gpu, 3) and not there(kept, gpu, 2)


def test_new_ones_are_refused_in_a_captured_graph(gpu: Gpu) -> None:
    kept = PackedArrays()
    gpu.capturing = True
    with pytest.raises(ValueError, match="not on the GPU yet.*make one such call .* before"):
        kept.bounds(packed(1))
    assert gpu.done == []


def test_what_a_graph_reads_is_never_dropped(gpu: Gpu) -> None:
    kept = PackedArrays(most=2)
    there(kept, gpu, 1)
    gpu.capturing = True
    assert there(kept, gpu, 1)
    gpu.capturing = False
    for number in range(2, 9):
        assert not there(kept, gpu, number)
    assert there(kept, gpu, 1) and there(kept, gpu, 7) and there(kept, gpu, 8)
