"""Repeated calls of 06: new tensor maps and counters, everything else as the first call laid it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fa_kernels.cuda import launch, mask_arrays, run_wgmma, run_wgmma_backward, work_counters
from fa_kernels.cuda.plan_wgmma import plan_flash_wgmma
from fa_kernels.cuda.run_wgmma import filling_the_gpu
from fa_kernels.cuda.tensor_map import MAP_DTYPE
from fa_kernels.cuda.work_counters import work_counters as pair_of
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from tests.cuda.fake_cupy import fake_cupy, on_gpu
from tests.cuda.fake_driver import Driver
from tests.cuda.signatures import parameters
from tests.cuda.test_recipe import Array, Compiled, addresses_of, arrays, kept_alive, value_at
from tests.cuda.test_run_backward import arrays as backward_arrays
from tests.reference.problems import random_mask

TILING = Tiling(128, 64)
RUN: Any = run_wgmma.run_flash_wgmma
PREPARE: Any = run_wgmma.prepare_flash_wgmma
PREPARE_BACKWARD: Any = run_wgmma_backward.prepare_flash_wgmma_backward
PROBLEMS = {
    "plain": AttentionProblem(2, 3, 17, 23, 16, "float16"),
    "causal, grouped heads": AttentionProblem(
        2, 4, 17, 23, 24, "bfloat16", "bottom_right", nheads_kv=2
    ),
    "dropout": AttentionProblem(2, 3, 17, 23, 64, "float16", dropout_p=0.5, seed=3),
    "block mask": AttentionProblem(
        2, 3, 17, 23, 128, "float16", block_mask=random_mask(17, 23, 8, 8)
    ),
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> list[Any]:
    """What is launched through CuPy (entry, grid, block, arguments, ...), and by the driver."""
    made: list[Any] = []
    cupy = fake_cupy()
    monkeypatch.setattr(cupy, "ndarray", Array)
    monkeypatch.setattr(cupy, "empty", lambda shape, dtype: np.empty(shape, dtype).view(Array))
    monkeypatch.setattr(cupy, "asarray", lambda array: array.copy().view(Array))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    launched = SimpleNamespace(
        launchKernel=lambda *args: made.append(args), ctxGetCurrent=lambda: 1
    )
    runtime = SimpleNamespace(memsetAsync=lambda *args: None)
    api = SimpleNamespace(driver=launched, runtime=runtime)
    for name in ("cupy_backends", "cupy_backends.cuda", "cupy_backends.cuda.api"):
        monkeypatch.setitem(sys.modules, name, api)
    compiled = lambda name, macros, entry: Compiled(entry, made)  # noqa: E731
    monkeypatch.setattr(launch, "load_entry", compiled)
    monkeypatch.setattr(launch, "smem_limit_bytes", lambda: 227 * 1024)
    monkeypatch.setattr(run_wgmma, "sm_count", lambda: 132)
    monkeypatch.setattr(work_counters, "_OF_DEVICE", {})
    mask_arrays.KEPT.clear()
    return made


def copies(given: list[Any]) -> list[Any]:
    return [x.copy(order="K").view(Array) for x in given]


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_recipe_launches_what_the_call_launches(
    name: str, calls: list[Any], driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = PROBLEMS[name]
    monkeypatch.setattr("fa_kernels.cuda.block_lists.build", lists_of)
    given = arrays("bhsd", problem)
    RUN(*given, problem, TILING)
    made = PREPARE(*given, problem, TILING)
    assert made is not None
    other = copies(given)
    out, lse = made(*other, 11) if problem.seed is not None else made(*other)
    first, again = calls
    (grid,), (threads,), args, smem = first[1:5]
    assert again[:8] == (4711, grid, 1, 1, threads, 1, 1, smem)
    plan = plan_flash_wgmma(problem, TILING)
    declared = parameters(plan.kernel, "flash_wgmma", plan.macros)
    assert len(declared) == len(args), "as many as the kernel has"
    addresses = addresses_of(again, len(args))
    inputs = dict(zip(("q_map", "k_map", "v_map"), other, strict=True))
    pointers = {"out": out.ctypes.data, "lse": lse.ctypes.data, "counters": pair_of(0)}
    for at, (address, argument, (_, parameter)) in enumerate(
        zip(addresses, args, declared, strict=True)
    ):
        if parameter in inputs:
            told = driver.of(value_at(int(address), np.zeros(1, MAP_DTYPE)))
            rows = TILING.block_m if parameter == "q_map" else TILING.block_n
            assert told.address == inputs[parameter].ctypes.data and told.box[1] == rows
        elif parameter in pointers:
            assert value_at(int(address), np.uint64(0))[0] == pointers[parameter], parameter
        elif parameter == "seed":
            assert value_at(int(address), np.uint64(0))[0] == 11
        elif isinstance(argument, Array):  # lists of a mask, which stay
            assert value_at(int(address), np.uint64(0))[0] == argument.ctypes.data
        else:
            assert (value_at(int(address), argument) == np.asarray(argument)).all(), at
    assert (out.shape, out.dtype) == (given[0].shape, given[0].dtype)
    assert (lse.shape, lse.dtype) == (given[0].shape[:3], np.float32)


def lists_of(keep: Any, problem: AttentionProblem, tiling: Tiling, **how: bool) -> tuple[Any, Any]:
    """What block_lists.build makes on a GPU, as arrays that a launch may be given."""
    from tests.cuda.conftest import _built

    records, entries = _built(keep, problem, tiling, **how)
    return records.view(Array), entries.view(Array)


def test_each_stream_hands_out_its_work_by_its_own_counters(calls: list[Any]) -> None:
    problem = PROBLEMS["plain"]
    given = arrays("bhsd", problem)
    made = PREPARE(*given, problem, TILING)
    assert made is not None
    stream, found = sys.modules["cupy"].cuda.get_current_stream(), []
    for handle in (0, 7, 7, 0):
        stream.ptr = handle
        made(*given)
        assert calls[-1][8] == handle
        found.append(int(value_at(int(addresses_of(calls[-1], 7)[6]), np.uint64(0))[0]))
    assert found == [pair_of(0), pair_of(7), pair_of(7), pair_of(0)] and len(set(found)) == 2


def test_out_lies_as_q_does(calls: list[Any]) -> None:
    problem = PROBLEMS["plain"]
    for layout in ("bhsd", "bshd"):
        given = arrays(layout, problem)
        made = PREPARE(*given, problem, TILING)
        assert made is not None
        out, _ = made(*given)
        assert (out.shape, out.strides) == (given[0].shape, given[0].strides)


@pytest.mark.parametrize("layout", ["unaligned", "reversed", "broadcast"])
def test_what_would_be_copied_first_has_no_recipe(
    layout: str, calls: list[Any], driver: Driver
) -> None:
    """And a call copies it once, says so, and is right: the map is of the copy."""
    problem = PROBLEMS["plain"]
    given = arrays(layout, problem)
    assert PREPARE(*given, problem, TILING) is None and not calls
    with pytest.warns(UserWarning, match=r"^[qkv] has strides .* TMA .* copied once") as record:
        RUN(*given, problem, TILING)
    assert [str(one.message)[0] for one in record] == ["q", "k", "v"]
    maps = [driver.of(one) for one in calls[0][3][:3]]
    assert not {told.address for told in maps} & {x.ctypes.data for x in given}
    assert [told.strides for told in maps] == [
        (16 * 2, n * 16 * 2, 3 * n * 16 * 2) for n in (17, 23, 23)
    ]


def test_a_recipe_keeps_no_array_of_its_first_call(calls: list[Any]) -> None:
    problem = PROBLEMS["plain"]
    given = arrays("bhsd", problem)
    made = PREPARE(*given, problem, TILING)
    assert made is not None and kept_alive(given) == []


def test_a_grid_fills_the_gpu_once_and_takes_all_items(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks go on to the next item; the kernel is told how many there are."""
    problem = AttentionProblem(2, 3, 500, 23, 64, "float16")
    plan = plan_flash_wgmma(problem, TILING)
    assert plan.steps[0].grid == 2 * 3 * 4
    for sms, grid in ((132, 24), (24, 24), (7, 7)):
        monkeypatch.setattr(run_wgmma, "sm_count", lambda sms=sms: sms)
        assert filling_the_gpu(plan).steps[0].grid == grid
        RUN(*arrays("bhsd", problem), problem, TILING)
        _, (launched,), _, args, _, _ = calls[-1]
        names = [name for _, name in parameters(plan.kernel, "flash_wgmma", plan.macros)]
        assert launched == grid and args[names.index("items")] == 24


def test_a_backward_recipe_makes_maps_of_each_calls_arrays(
    calls: list[Any], driver: Driver
) -> None:
    problem = AttentionProblem(2, 3, 17, 23, 16, "float16", "bottom_right")
    tiling = Tiling(128, 128)
    given = [x.view(Array) for x in backward_arrays(problem).values()]
    made = PREPARE_BACKWARD(*given, problem, tiling, False)
    assert made is not None and not calls
    plan = run_wgmma_backward.plan_wgmma_backward.plan_flash_wgmma_backward(problem, tiling)
    entry = "flash_wgmma_backward_keys"
    names = [name for _, name in parameters(plan.kernel, entry, plan.macros)]
    for inputs in (given, copies(given), given):
        calls.clear()
        dq, dk, dv = made(*inputs)
        assert (dq.shape, dk.shape, dv.shape) == tuple(x.shape for x in inputs[1:4])
        _, keys, _ = calls
        addresses = addresses_of(keys, len(names))
        for name, array in zip(("d_out", "q", "k", "v"), inputs[:4], strict=True):
            at = int(addresses[names.index(f"{name}_map")])
            told = driver.of(value_at(at, np.zeros(1, MAP_DTYPE)))
            assert told.address == array.ctypes.data and told.box == (64, 128, 1, 1)
    assert len(driver.encoded) == 8, "of each array once"


def test_gradients_of_what_would_be_copied_have_no_recipe(calls: list[Any]) -> None:
    problem = AttentionProblem(2, 3, 17, 23, 16, "float16")
    given = [x.view(Array) for x in backward_arrays(problem).values()]
    given[2] = on_gpu(given[2][:, :, ::-1]).view(Array)
    assert PREPARE_BACKWARD(*given, problem, Tiling(128, 128), False) is None and not calls
