"""Repeated steps: the launches of the first one, for the next token's arrays and lengths."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fa_kernels.cuda import launch, recipe, recipe_decode, run_decode
from fa_kernels.decode_problem import DecodeProblem
from tests.cuda.fake_cupy import fake_cupy
from tests.cuda.fake_decode import CupyArray, Device
from tests.cuda.test_recipe import Array, Compiled, addresses_of, kept_alive, value_at
from tests.decode_steps import make

PLAIN = DecodeProblem(2, 4, 2, 3, 2, 48, 16, "float16")
PAGED = replace(PLAIN, max_seqlen=None, page_size=16, max_pages=3, num_pages=7)
PROBLEMS = {
    "plain": PLAIN,
    "nothing new": replace(PLAIN, seqlen_new=0),
    "window": replace(PLAIN, window=(9, 2)),
    "paged": PAGED,
}
NAMES = ("q", "k", "v", "k_new", "v_new", "block_table", "cache_seqlens")
PREPARE: Any = run_decode.prepare_decode
door: Any = importlib.import_module("fa_kernels.decoding")


class Here(Array):
    """What CuPy makes, and the front door knows as CuPy's."""

    device: Any = Device()


Here.__module__ = "cupy"
assert CupyArray.__module__ == Here.__module__


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is launched: through CuPy, or by the driver."""
    made: list[Any] = []
    cupy = fake_cupy()
    stream = SimpleNamespace(ptr=77, capturing=False)
    stream.is_capturing = lambda: stream.capturing
    cupy.cuda.runtime = SimpleNamespace(getDevice=lambda: 0)
    cupy.cuda.get_current_stream = lambda: stream
    cupy.cuda.Device = lambda *_: Device()
    cupy.ndarray, cupy.stream = Here, stream
    cupy.empty = lambda shape, dtype: np.empty(shape, dtype).view(Here)
    cupy.full = lambda shape, value, dtype: np.full(shape, value, dtype).view(Here)
    cupy.ascontiguousarray = lambda a: np.ascontiguousarray(a).view(Here)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    driver = SimpleNamespace(launchKernel=lambda *args: made.append(args), ctxGetCurrent=lambda: 1)
    api = SimpleNamespace(driver=driver, runtime=SimpleNamespace(memsetAsync=None))
    for name in ("cupy_backends", "cupy_backends.cuda", "cupy_backends.cuda.api"):
        monkeypatch.setitem(sys.modules, name, api)
    compiled = lambda name, macros, entry: Compiled(entry, made)  # noqa: E731
    monkeypatch.setattr(launch, "load_entry", compiled)
    for module in ("decode_call", "run_decode"):
        limit = f"fa_kernels.cuda.{module}.smem_limit_bytes"
        monkeypatch.setattr(limit, lambda: 227 * 1024)
    monkeypatch.setattr("fa_kernels.cuda.arrays.available", lambda: True)
    monkeypatch.setattr(recipe, "_recipes", {})
    return made


def arrays(problem: DecodeProblem, seed: int = 0) -> list[Any]:
    """q, the caches, k_new, v_new, block_table and lengths; None where there is nothing."""
    step = make(problem, (48, 17), seed)
    found = [getattr(step, name) for name in NAMES]
    return [None if x is None else x.copy().view(Here) for x in found]


def run(given: list[Any], problem: DecodeProblem, num_splits: int) -> Any:
    q, k, v, k_new, v_new, table, lengths = given
    rest = {"k_new": k_new, "v_new": v_new, "block_table": table}
    return run_decode.run_decode(q, k, v, lengths, problem, num_splits, **rest)


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_recipe_launches_what_the_call_launches(
    name: str, num_splits: int, calls: list[Any]
) -> None:
    problem = PROBLEMS[name]
    first, other = arrays(problem), arrays(problem, seed=1)
    run(first, problem, num_splits)
    through_cupy, calls[:] = list(calls), []
    made = PREPARE(*first, problem, num_splits)
    assert made is not None and not calls
    out, lse = made(*other)
    assert len(calls) == len(through_cupy)
    of_first = {x.ctypes.data: y.ctypes.data for x, y in zip(first, other, strict=True)
                if x is not None}  # fmt: skip
    seen = set()
    for (_, grid, block, args, smem, _), again in zip(through_cupy, calls, strict=True):
        assert again[1:8] == (*grid, 1, 1, *block, 1, 1, smem) and again[8] == 77
        for address, argument in zip(addresses_of(again, len(args)), args, strict=True):
            if not isinstance(argument, Array):
                assert (value_at(int(address), argument) == np.asarray(argument)).all()
                continue
            pointer = int(value_at(int(address), np.uint64(0))[0])
            if argument.ctypes.data in of_first:
                assert pointer == of_first[argument.ctypes.data]
            seen.add(pointer)
    assert {out.ctypes.data, lse.ctypes.data} <= seen
    assert (out.shape, lse.shape) == (problem.q_shape, problem.q_shape[:3])
    assert (out.dtype, lse.dtype) == (np.float16, np.float32)


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_recipe_keeps_no_array_of_its_first_call(
    name: str, num_splits: int, calls: list[Any]
) -> None:
    """Caches are what fills a GPU: those of another model must be free to go."""
    given = arrays(PROBLEMS[name])
    made = PREPARE(*given, PROBLEMS[name], num_splits)
    assert made is not None and kept_alive(given) == []


def test_one_number_is_filled_in_and_checked(calls: list[Any]) -> None:
    given = arrays(PLAIN)
    made = PREPARE(*given, PLAIN, 1)
    assert made is not None
    assert made(*given[:-1], 46) is not None and len(calls) == 2
    assert made(*given[:-1], 47) is None and made(*given[:-1], -1) is None and len(calls) == 2


def test_one_cache_may_serve_as_both_at_first(calls: list[Any]) -> None:
    q, k, _, k_new, v_new, table, lengths = arrays(PLAIN)
    made = PREPARE(q, k, k, k_new, v_new, table, lengths, PLAIN, 1)
    assert made is not None
    other = arrays(PLAIN, seed=1)
    made(*other)
    pointers = [int(value_at(int(at), np.uint64(0))[0]) for at in addresses_of(calls[1], 6)[::2]]
    assert pointers == [other[i].ctypes.data for i in (0, 1, 2)]


def test_what_would_be_copied_has_no_recipe(calls: list[Any]) -> None:
    q, k, v, k_new, v_new, table, lengths = arrays(PAGED)
    wide = np.zeros((*q.shape[:3], 32), np.float16).view(Here)[..., ::2]
    sparse = np.zeros(4, np.int32).view(Here)[::2]
    for changed in ((wide, k, v, k_new, v_new, table, lengths),
                    (q, k, v, k_new, v_new, table, sparse)):  # fmt: skip
        assert PREPARE(*changed, PAGED, 2) is None
    assert not calls


def test_keys_differ_where_launches_do(calls: list[Any]) -> None:
    *tensors, lengths = arrays(PAGED)
    options = (None, None, None, "auto")
    key = recipe_decode.key(tuple(tensors), lengths, *options)
    assert key is not None
    assert key == recipe_decode.key(tuple(arrays(PAGED, 1)[:-1]), arrays(PAGED, 1)[-1], *options)
    without = [*tensors[:3], None, None, tensors[5]]
    different = [
        recipe_decode.key(tuple(tensors), 9, *options),
        recipe_decode.key(tuple(without), lengths, *options),
        recipe_decode.key(tuple(tensors), lengths, (5, None), None, None, "auto"),
        recipe_decode.key(tuple(tensors), lengths, (None, 5), None, None, "auto"),
        recipe_decode.key(tuple(tensors), lengths, None, 0.5, None, "auto"),
        recipe_decode.key(tuple(tensors), lengths, None, None, 2, "auto"),
        recipe_decode.key(tuple(tensors), lengths, None, None, None, "cuda"),
    ]
    assert None not in different and len({key, *different}) == 8
    assert recipe_decode.key(tuple(tensors), 10, *options) == different[0], "any number"
    assert recipe_decode.key(tuple(tensors), [9, 9], *options) is None
    assert recipe_decode.key(tuple(tensors), True, *options) is None
    assert recipe_decode.key(tuple(tensors), lengths, "ab", None, None, "auto") is None
    sys.modules["cupy"].stream.capturing = True
    assert recipe_decode.key(tuple(tensors), lengths, *options) is None


def test_the_front_door_remembers(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []
    checks = door.problem_and_arrays

    def looking(*given: Any) -> Any:
        looked.append(given)
        return checks(*given)

    monkeypatch.setattr(door, "problem_and_arrays", looking)
    monkeypatch.setattr(door, "kernel_names", lambda: [door.DECODE_KERNEL])
    monkeypatch.setattr(door, "unverified", dict)
    q, k, v, k_new, v_new, table, lengths = arrays(PAGED)
    options = {"k_new": k_new, "v_new": v_new, "block_table": table, "return_lse": True}
    for _ in range(3):
        out, lse = door.decode(q, k, v, lengths, **options)
        assert type(out) is Here and lse.shape == (2, 4, 3)
    assert len(looked) == 1
    for length in (5, 6, 7):
        door.decode(q, k, v, length, **options)
    assert len(looked) == 2
    with pytest.raises(ValueError, match="cache_seqlens = 47 is out of range"):
        door.decode(q, k, v, 47, **options)
    assert {type(call[0]) for call in calls} == {str, int}, "CuPy's and the driver's"
