"""Repeated calls: the launch of the first one, for the arrays it is right for and no others."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fa_kernels.cuda import launch, mask_arrays, recipe, run
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from tests.cuda.fake_cupy import PROBLEM, GpuArray, Kernel, fake_cupy, inputs
from tests.reference.problems import random_mask

TILING = Tiling(16, 16)
_STRIDES = np.dtype([("batch", "<i8"), ("head", "<i8"), ("row", "<i8")])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The launches that are made: through CuPy (entry, grid, block, arguments, shared memory,
    kernel), from recipes what the driver's launchKernel is given."""
    made: list[Any] = []
    cupy = fake_cupy()
    cupy.cuda.runtime = SimpleNamespace(getDevice=lambda: 0)
    monkeypatch.setattr(cupy, "ndarray", Array)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    driver = SimpleNamespace(launchKernel=lambda *args: made.append(args), ctxGetCurrent=lambda: 1)
    for name in ("cupy_backends", "cupy_backends.cuda", "cupy_backends.cuda.api"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(driver=driver))
    compiled = lambda name, macros, entry: Compiled(entry, made)  # noqa: E731
    monkeypatch.setattr(launch, "load_entry", compiled)
    monkeypatch.setattr(launch, "smem_limit_bytes", lambda: 227 * 1024)
    monkeypatch.setattr(recipe, "_recipes", {})
    return made


class Array(GpuArray):
    """Made as CuPy makes its arrays, and with their pointer."""

    def __new__(cls, shape: Any, dtype: Any) -> Any:
        return np.empty(shape, dtype).view(cls)

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data, device_id=0)


class Compiled(Kernel):
    """A kernel with a handle."""

    kernel = SimpleNamespace(ptr=4711)


def arrays(layout: str = "bhsd", problem: AttentionProblem = PROBLEM) -> list[Any]:
    return [x.view(Array) for x in inputs(layout, problem)]


def value_at(address: int, like: Any) -> np.ndarray:
    """What lies at an address in this process, read as an argument of that kind."""
    like = np.asarray(like)
    raw = (ctypes.c_char * like.dtype.itemsize).from_address(address)
    return np.frombuffer(bytes(raw), like.dtype)


@pytest.mark.parametrize("causal", [None, "bottom_right"])
@pytest.mark.parametrize("name", ["flash_mma", "flash_q_outer"])
def test_a_recipe_launches_what_the_call_launches(
    name: str, causal: str | None, calls: list[Any]
) -> None:
    problem = AttentionProblem(2, 3, 17, 23, 16, "float16", causal)
    q, k, v = arrays("bhsd", problem)
    getattr(run, f"run_{name}")(q, k, v, problem, TILING)
    made = getattr(run, f"prepare_{name}")(q, k, v, problem, TILING)
    other = [x.copy().view(Array) for x in (q, k, v)]
    out, lse = made(*other)
    first, again = calls
    (grid,), (threads,), smem = first[1], first[2], first[4]
    assert again[:8] == (4711, grid, 1, 1, threads, 1, 1, smem)
    addresses = np.frombuffer(
        bytes((ctypes.c_char * (8 * len(first[3]))).from_address(again[9])), np.uint64
    )
    assert again[10] == 0
    pointers = {0: other[0], 2: other[1], 4: other[2], 6: out, 8: lse}
    for at, (address, argument) in enumerate(zip(addresses, first[3], strict=True)):
        if at in pointers:
            assert value_at(int(address), np.uint64(0))[0] == pointers[at].ctypes.data
        else:
            assert (value_at(int(address), argument) == np.asarray(argument)).all(), at
    assert (out.shape, out.dtype, lse.shape, lse.dtype) == (q.shape, q.dtype, q.shape[:3], "f4")


def test_out_lies_as_q_does(calls: list[Any]) -> None:
    problem = AttentionProblem(2, 3, 17, 23, 16, "float16")
    for layout in ("bhsd", "bshd"):
        q, k, v = arrays(layout, problem)
        made = run.prepare_flash_mma(q, k, v, problem, TILING)
        assert made is not None
        out, _ = made(q, k, v)
        assert (out.shape, out.strides) == (q.shape, q.strides)
        strides = value_at(int(addresses_of(calls[-1], 9)[7]), np.zeros(1, _STRIDES))[0]
        assert [2 * step for step in strides] == list(q.strides[:3])


def test_each_call_with_dropout_has_its_own_seed(calls: list[Any]) -> None:
    problem = AttentionProblem(2, 3, 17, 23, 16, "float16", dropout_p=0.5, seed=3)
    q, k, v = arrays("bhsd", problem)
    made = run.prepare_flash_mma(q, k, v, problem, TILING)
    assert made is not None
    for seed in (5, 2**64 - 1):
        made(q, k, v, seed)
        addresses = addresses_of(calls[-1], 18)
        found = [value_at(int(at), np.uint64(0))[0] for at in addresses[15:]]
        assert seed in found


def addresses_of(launch_args: tuple[Any, ...], count: int) -> np.ndarray:
    """Where the driver finds the first arguments of a launch."""
    raw = (ctypes.c_char * (8 * count)).from_address(launch_args[9])
    return np.frombuffer(bytes(raw), np.uint64)


def test_what_would_be_copied_has_no_recipe(calls: list[Any]) -> None:
    q, _, v = arrays()
    wide = np.zeros((2, 3, 23, 32), np.float16).view(Array)[..., ::2]
    problem = AttentionProblem(2, 3, 17, 23, 16, "float16", "bottom_right")
    assert run.prepare_flash_mma(q, wide, v, problem, TILING) is None


def test_keys_differ_where_launches_do(calls: list[Any]) -> None:
    q, k, v = arrays()
    base = recipe.key(q, k, v, "auto", True)
    assert base is not None and base == recipe.key(q, k, v, "auto", True)
    different = [
        recipe.key(q, k, v, "auto", 1),  # equal to True, but not the same option
        recipe.key(q, k, v, "auto", False),
        recipe.key(q, k, v, "flash_mma", True),
        recipe.key(q[:, :, ::2], k, v, "auto", True),
        recipe.key(q, *arrays("bshd")[1:], "auto", True),
        recipe.key(q.astype(np.float32).view(Array), k, v, "auto", True),
        recipe.key(q[..., 1:], k[..., 1:], v[..., 1:], "auto", True),
    ]
    assert base not in different and len(set(different)) == len(different)


@pytest.mark.parametrize(
    "option",
    [np.float64(0.5), np.array(0.5), [16, 16], {"a": 1}],
    ids=["scalar", "0-d", "list", "dict"],
)
def test_options_that_are_not_plain_have_no_key(option: Any, calls: list[Any]) -> None:
    """An array may change under the same name; what cannot be hashed must reach the checks."""
    q, k, v = arrays()
    assert recipe.key(q, k, v, "auto", True, 0.5, None, TILING) is not None
    assert recipe.key(q, k, v, option) is None


def test_a_thread_without_a_context_gets_one(calls: list[Any]) -> None:
    """The driver's launch makes none, and an allocation from a warm pool needs none."""
    problem = AttentionProblem(2, 3, 17, 23, 16, "float16")
    q, k, v = arrays(problem=problem)
    made = run.prepare_flash_mma(q, k, v, problem, TILING)
    assert made is not None
    freed: list[int] = []
    sys.modules["cupy"].cuda.runtime.free = freed.append
    made(q, k, v)
    assert freed == []
    made._context = lambda: 0
    made(q, k, v)
    assert freed == [0]


def test_only_arrays_on_the_current_gpu_have_a_key(calls: list[Any]) -> None:
    q, k, v = arrays()
    assert recipe.key(q.get(), k, v) is None
    sys.modules["cupy"].cuda.runtime.getDevice = lambda: 1
    assert recipe.key(q, k, v) is None


def kept_alive(given: list[Any]) -> list[int]:
    """Empties `given`; which of its arrays something else still holds, by their place."""
    watched = [None if x is None else weakref.ref(x) for x in given]
    given.clear()
    gc.collect()
    return [i for i, at in enumerate(watched) if at is not None and at() is not None]


def test_a_recipe_keeps_no_array_of_its_first_call(calls: list[Any]) -> None:
    problem = AttentionProblem(2, 3, 17, 23, 16, "float16")
    given = arrays(problem=problem)
    made = run.prepare_flash_mma(*given, problem, TILING)
    assert made is not None and kept_alive(given) == []


def test_the_number_of_recipes_is_bounded(calls: list[Any]) -> None:
    problem = AttentionProblem(2, 3, 17, 23, 16, "float16")
    q, k, v = arrays(problem=problem)
    made = run.prepare_flash_mma(q, k, v, problem, TILING)
    assert made is not None
    for number in range(recipe.MAX_RECIPES + 1):
        recipe.remember(number, made)
    assert recipe.find(0) is None and recipe.find(recipe.MAX_RECIPES) is made


def test_a_key_with_a_mask_tells_a_captured_call_from_others(calls: list[Any]) -> None:
    """Not the stream: lists may be read on any."""
    q, k, v = arrays()
    mask, stream = random_mask(17, 23, 8, 8), sys.modules["cupy"].cuda.get_current_stream()
    plain = recipe.key(q, k, v, mask)
    stream.ptr = 5
    assert recipe.key(q, k, v, mask) == plain
    stream.is_capturing = lambda: True
    assert recipe.key(q, k, v, mask) not in (None, plain)


def test_a_call_with_a_mask_is_remembered_with_its_lists(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = mask_arrays.MaskArrays()
    monkeypatch.setattr(mask_arrays, "KEPT", kept)
    problem = replace(PROBLEM, block_mask=random_mask(17, 23, 8, 8))
    given = arrays(problem=problem)
    of = recipe.key(*given, problem.block_mask)
    made = run.prepare_flash_q_outer(*given, problem, TILING)
    recipe.remember(of, made)
    assert of is not None and recipe.find(of) is made and kept.recipe(of) is made
    kept.clear()
    assert recipe.find(of) is None
