"""Repeated backward passes: the launches of the first one, for other arrays and seeds."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fa_kernels.cuda import launch, recipe_backward, run_backward
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from tests.cuda.fake_cupy import fake_cupy
from tests.cuda.test_recipe import Array, Compiled, addresses_of, kept_alive, value_at
from tests.cuda.test_run_backward import arrays

PROBLEM = AttentionProblem(2, 3, 17, 23, 16, "float16", "bottom_right")
TILING = Tiling(16, 16)
RUN: Any = run_backward.run_flash_mma_backward
PREPARE: Any = run_backward.prepare_flash_mma_backward


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is launched through CuPy, by the driver, and cleared, in order."""
    made: list[Any] = []
    cupy = fake_cupy()
    cupy.cuda.runtime = SimpleNamespace(getDevice=lambda: 0)
    monkeypatch.setattr(cupy, "ndarray", Array)
    monkeypatch.setattr(cupy, "empty", lambda shape, dtype: np.empty(shape, dtype).view(Array))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    driver = SimpleNamespace(launchKernel=lambda *args: made.append(args), ctxGetCurrent=lambda: 1)
    runtime = SimpleNamespace(memsetAsync=lambda *args: made.append(("clear", *args)))
    api = SimpleNamespace(driver=driver, runtime=runtime)
    for name in ("cupy_backends", "cupy_backends.cuda", "cupy_backends.cuda.api"):
        monkeypatch.setitem(sys.modules, name, api)
    compiled = lambda name, macros, entry: Compiled(entry, made)  # noqa: E731
    monkeypatch.setattr(launch, "load_entry", compiled)
    monkeypatch.setattr(launch, "smem_limit_bytes", lambda: 227 * 1024)
    return made


def tensors(problem: AttentionProblem = PROBLEM) -> list[Any]:
    """d_out, q, k, v, out, lse."""
    return [x.view(Array) for x in arrays(problem).values()]


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_recipe_launches_what_the_call_launches(deterministic: bool, calls: list[Any]) -> None:
    first = tensors()
    RUN(*first, PROBLEM, TILING, deterministic=deterministic)
    through_cupy, calls[:] = list(calls), []
    made = PREPARE(*first, PROBLEM, TILING, deterministic)
    assert made is not None and not calls
    other = [x.copy().view(Array) for x in first]
    dq, dk, dv = made(*other)
    launched = [call for call in calls if call[0] != "clear"]
    cleared = [call for call in calls if call[0] == "clear"]
    assert len(launched) == len(through_cupy) == (3 - (deterministic is None))
    assert len(cleared) == (0 if deterministic else 1)
    of_first = {x.ctypes.data: new.ctypes.data for x, new in zip(first, other, strict=True)}
    results = {array.ctypes.data for array in (dq, dk, dv)}
    seen = set()
    for (_, grid, block, args, smem, _), again in zip(through_cupy, launched, strict=True):
        assert again[1:8] == (*grid, 1, 1, *block, 1, 1, smem)
        for address, argument in zip(addresses_of(again, len(args)), args, strict=True):
            if not isinstance(argument, Array):
                assert (value_at(int(address), argument) == np.asarray(argument)).all()
                continue
            pointer = int(value_at(int(address), np.uint64(0))[0])
            if argument.ctypes.data in of_first:
                assert pointer == of_first[argument.ctypes.data]
            seen.add(pointer)
    assert results <= seen
    assert [x.shape for x in (dq, dk, dv)] == [first[1].shape, first[2].shape, first[3].shape]


def test_the_sum_of_dq_is_cleared_before_the_keys_add_to_it(calls: list[Any]) -> None:
    made = PREPARE(*tensors(), PROBLEM, TILING)
    assert made is not None
    made(*tensors())
    kinds = ["clear" if call[0] == "clear" else "launch" for call in calls]
    assert kinds == ["launch", "clear", "launch", "launch"]
    _, pointer, value, nbytes, _ = calls[1]
    assert (value, nbytes) == (0, 4 * PROBLEM.q_rows * PROBLEM.head_dim) and pointer


def test_k_and_v_may_be_one_array_at_first_and_two_later(calls: list[Any]) -> None:
    d_out, q, k, _, out, lse = tensors()
    made = PREPARE(d_out, q, k, k, out, lse, PROBLEM, TILING)
    assert made is not None
    other = tensors()
    made(*other)
    keys = [call for call in calls if call[0] != "clear"][1]
    pointers = [int(value_at(int(at), np.uint64(0))[0]) for at in addresses_of(keys, 7)[::2]]
    assert pointers == [other[i].ctypes.data for i in (1, 2, 3, 0)]


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_recipe_keeps_no_array_of_its_first_call(deterministic: bool, calls: list[Any]) -> None:
    """A training loop's tensors would stay on the GPU, those of every length."""
    given = tensors()
    made = PREPARE(*given, PROBLEM, TILING, deterministic)
    assert made is not None and kept_alive(given) == []


def test_each_call_with_dropout_has_its_own_seed(calls: list[Any]) -> None:
    problem = AttentionProblem(2, 3, 17, 23, 16, "float16", dropout_p=0.5, seed=3)
    RUN(*tensors(problem), problem, TILING, deterministic=True)
    counts = [len(args) for _, _, _, args, _, _ in calls]
    made = PREPARE(*tensors(problem), problem, TILING, True)
    assert made is not None
    for seed in (5, 2**64 - 1):
        calls.clear()
        made(*tensors(problem), seed=seed)
        for call, count in zip(calls[1:], counts[1:], strict=True):  # keys and rows
            seed_at = int(addresses_of(call, count)[-3])  # before threshold and scale
            assert value_at(seed_at, np.uint64(0))[0] == seed


def test_what_would_be_copied_has_no_recipe(calls: list[Any]) -> None:
    d_out, q, k, v, out, lse = tensors()
    wide = np.zeros((*k.shape[:3], 32), np.float16).view(Array)[..., ::2]
    strided = np.zeros((*lse.shape[:2], 34), np.float32).view(Array)[..., ::2]
    for changed in ((d_out, q, wide, v, out, lse), (d_out, q, k, v, out, strided)):
        assert PREPARE(*changed, PROBLEM, TILING) is None


def test_keys_differ_where_launches_do(calls: list[Any]) -> None:
    base = tensors()
    key = recipe_backward.key(base, "auto", 0.0, False)
    assert key is not None and key == recipe_backward.key(tensors(), "auto", 0.0, False)
    shifted = [*base[:5], np.zeros(base[5].size + 1, np.float32)[1:].view(Array)]
    shifted[5] = shifted[5].reshape(base[5].shape)
    different = [
        recipe_backward.key(base, "auto", 0.0, True),
        recipe_backward.key(base, "auto", 0, False),  # equal, but not the same option
        recipe_backward.key(base, "auto", 0.5, False),
        recipe_backward.key([*base[:4], base[4][:, :, ::-1], base[5]], "auto", 0.0, False),
        recipe_backward.key([x.astype(np.float32).view(Array) for x in base], "auto", 0.0, False),
        recipe_backward.key(shifted, "auto", 0.0, False),
    ]
    assert key not in different and len(set(different)) == len(different)
    assert recipe_backward.key(base, [1]) is None
    assert recipe_backward.key([*base[:5], np.asarray(base[5])], "auto") is None
