"""Peak memory of a call: its own live bytes at once, not what was there before."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from fa_kernels.measure import memory
from fa_kernels.measure.memory import device_bytes, free_bytes, peak_extra_bytes


class Allocator:
    """The part of CuPy that is watched: hooks are told of every block."""

    hooks: list[Any] = []  # noqa: RUF012
    next_id = 0

    def malloc(self, size: int) -> int:
        self.next_id += 1
        for hook in self.hooks:
            hook.malloc_postprocess(size=size, mem_size=size * 2, pmem_id=self.next_id)
        return self.next_id

    def free(self, block: int) -> None:
        for hook in self.hooks:
            hook.free_postprocess(mem_size=0, pmem_id=block)


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    pool = Allocator()

    class MemoryHook:
        def __enter__(self) -> Any:
            pool.hooks.append(self)
            return self

        def __exit__(self, *error: object) -> None:
            pool.hooks.remove(self)

    device = SimpleNamespace(synchronize=lambda: None)
    runtime = SimpleNamespace(memGetInfo=lambda: (123, 456))
    cuda = SimpleNamespace(MemoryHook=MemoryHook, Device=lambda: device, runtime=runtime)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return pool


def test_the_peak_is_the_most_that_lived_at_once(allocator: Allocator) -> None:
    def call() -> str:
        a = allocator.malloc(100)
        b = allocator.malloc(50)  # 150
        allocator.free(a)
        allocator.malloc(80)  # 130
        allocator.free(b)
        return "out"

    assert peak_extra_bytes(call) == ("out", 150)


def test_blocks_from_before_are_not_subtracted(allocator: Allocator) -> None:
    old = allocator.malloc(1000)

    def call() -> None:
        allocator.free(old)
        allocator.malloc(10)

    assert peak_extra_bytes(call) == (None, 10)


def test_one_call_does_not_count_into_the_next(allocator: Allocator) -> None:
    assert peak_extra_bytes(lambda: allocator.malloc(7))[1] == 7
    assert peak_extra_bytes(lambda: None)[1] == 0
    assert allocator.hooks == []


def test_the_hook_goes_even_if_the_call_fails(allocator: Allocator) -> None:
    with pytest.raises(ZeroDivisionError):
        peak_extra_bytes(lambda: 1 // 0)
    assert allocator.hooks == []


def test_torchs_own_allocations_are_added(
    allocator: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = {"requested_bytes.all.current": 40, "requested_bytes.all.peak": 40}

    def call() -> None:
        allocator.malloc(5)
        stats["requested_bytes.all.peak"] = 340

    torch_cuda = SimpleNamespace(
        is_initialized=lambda: True,
        synchronize=lambda: None,
        reset_peak_memory_stats=lambda: None,
        memory_stats=lambda: stats,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=torch_cuda))
    assert peak_extra_bytes(call) == (None, 305)


@pytest.mark.usefixtures("allocator")
def test_free_bytes_asks_the_driver() -> None:
    assert free_bytes() == 123


@pytest.mark.usefixtures("allocator")
def test_device_memory_is_what_the_driver_gave_beyond_empty_pools(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = {"free": 1000, "kept": 300}

    def free_pools() -> None:
        state["free"] += state.pop("kept", 0)

    monkeypatch.setattr(memory, "free_pools", free_pools)
    monkeypatch.setattr(memory, "free_bytes", lambda: state["free"])

    def call() -> None:
        assert state["free"] == 1300, "what pools kept from before must be asked for again"
        state["free"] -= 512

    assert device_bytes(call) == 512


@pytest.mark.usefixtures("allocator")
def test_memory_that_another_process_gave_back_is_not_negative(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = iter([100, 400])
    monkeypatch.setattr(memory, "free_pools", lambda: None)
    monkeypatch.setattr(memory, "free_bytes", lambda: next(free))
    assert device_bytes(lambda: None) == 0
