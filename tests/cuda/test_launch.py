"""The checked way to a launch without a GPU: NumPy arrays stand in for CuPy's."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda import launch as subject
from fa_kernels.cuda.launch import available, launch, load_in_parallel
from fa_kernels.cuda.plan import plan_flash_q_outer, plan_standard_tiled
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.variants import VARIANTS
from tests.cuda.fake_cupy import PROBLEM, TILING, inputs

# -- arguments ------------------------------------------------------------------------------


@pytest.mark.parametrize("scalar", [1, 0.125, True, None, "64", [1]])
def test_python_scalars_are_refused(calls: list[Any], scalar: object) -> None:
    """A raw kernel would read 8 bytes of a Python float where it expects 4."""
    plan = VARIANTS["flash_q_outer"].plan(PROBLEM, TILING)
    with pytest.raises(TypeError, match=r"must be a NumPy scalar of the kernel's width"):
        launch(plan, plan.steps[0], [inputs()[0], np.int32(1), scalar])
    assert not calls


def test_an_array_on_another_gpu_is_refused(calls: list[Any]) -> None:
    plan = VARIANTS["flash_q_outer"].plan(PROBLEM, TILING)
    other = inputs()[0]
    other.device = SimpleNamespace(id=1)
    with pytest.raises(ValueError, match=r"lives on GPU 1, the current GPU is 0: move it, or wrap"):
        launch(plan, plan.steps[0], [other])
    assert not calls


def test_more_than_48_kib_is_opted_in_to(calls: list[Any]) -> None:
    plan = VARIANTS["flash_q_outer"].plan(PROBLEM, TILING)
    for smem_bytes, limit in ((48 * 1024, 48 * 1024), (64 * 1024, 64 * 1024)):
        launch(plan, replace(plan.steps[0], smem_bytes=smem_bytes), [])
        assert calls[-1][4] == smem_bytes
        assert calls[-1][5].max_dynamic_shared_size_bytes == limit


def test_available_needs_cupy_and_a_gpu(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert available() is True
    monkeypatch.setattr(sys.modules["cupy"].cuda, "is_available", lambda: False)
    assert available() is False
    monkeypatch.setitem(sys.modules, "cupy", None)  # `import cupy` raises ImportError
    assert available() is False


# -- refusals before anything is allocated ----------------------------------------------------


def test_an_older_gpu_than_the_kernel_is_written_for_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    volta = SimpleNamespace(Device=lambda: SimpleNamespace(compute_capability="70"))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=volta))
    with pytest.raises(NotImplementedError, match=r"needs .* sm_75 or later, this GPU is sm_70"):
        subject.refuse_old_gpu("04_flash_q_outer", 75)
    subject.refuse_old_gpu("04_flash_q_outer", 70)


@pytest.mark.parametrize(("arch", "runs"), [(80, False), (90, True), (100, False), (120, False)])
def test_a_kernel_of_one_architecture_is_refused_on_older_and_newer_ones(
    arch: int, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wgmma is there on sm_90 alone: a later GPU has no such instructions."""
    gpu = SimpleNamespace(Device=lambda *_: SimpleNamespace(id=0, compute_capability=str(arch)))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=gpu))
    subject._arch.cache_clear()
    variant, loaded = VARIANTS["flash_wgmma"], []
    monkeypatch.setattr(subject, "load_entry", lambda *build: loaded.append(build[0]))
    problem = AttentionProblem(1, 1, 64, 64, 64, "float16")
    load_in_parallel(
        [VARIANTS[n].plan(problem, Tiling(64, 64)) for n in ("flash_mma", variant.name)]
    )
    subject._arch.cache_clear()
    assert sorted(loaded) == ["05_flash_mma", variant.kernel][: 1 + runs]
    assert variant.runs_on(arch) == runs
    if runs:
        subject.refuse_old_gpu(variant.kernel, variant.min_arch)
        return
    said = rf"{variant.kernel} .* sm_90a alone, this GPU is sm_{arch}: use variant='auto' or "
    with pytest.raises(NotImplementedError, match=said):
        subject.refuse_old_gpu(variant.kernel, variant.min_arch)


def test_a_row_of_scores_that_a_block_may_not_have_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a T4 the tiles fit, but a row of 16384 scores and two reductions are 65792 bytes."""
    monkeypatch.setattr(subject, "smem_limit_bytes", lambda: 64 * 1024)
    problem = AttentionProblem(1, 1, 64, 16384, 64, "float16")
    plan = plan_standard_tiled(problem, Tiling(32, 32))
    with pytest.raises(ValueError, match=r"N_k = 16384: .* this GPU allows 64 KiB: use variant="):
        subject.refuse_on_this_gpu(plan, problem, Tiling(32, 32))


def test_a_mask_that_is_just_too_much_is_refused_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiles take the whole limit; what the kernel declares for its list does not fit on top."""
    tiling, sizes = Tiling(128, 348), (2048, 2088)
    mask = BlockMask.pattern("local", *sizes, tiling.block_m, tiling.block_n, 0.5)
    problem = AttentionProblem(1, 1, *sizes, 32, "float16", block_mask=mask)
    plan = plan_flash_q_outer(problem, tiling)
    monkeypatch.setattr(subject, "smem_limit_bytes", lambda: plan.layout.smem_bytes)
    with pytest.raises(
        ValueError, match=r"B_c = 348, B_r = 128 and the mask need .* smaller tiles"
    ):
        subject.refuse_on_this_gpu(plan, problem, tiling)


def test_more_memory_than_is_free_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimpleNamespace(memGetInfo=lambda: (2**30, 2**34))
    fake = SimpleNamespace(
        cuda=SimpleNamespace(runtime=runtime),
        get_default_memory_pool=lambda: SimpleNamespace(free_bytes=lambda: 2**30),
    )
    monkeypatch.setitem(sys.modules, "cupy", fake)
    subject.refuse_memory("standard_tiled", 2**31)
    with pytest.raises(ValueError, match=r"needs 3 GiB of GPU memory, 2 GiB is free: use variant="):
        subject.refuse_memory("standard_tiled", 3 * 2**30)
    subject.refuse_memory("standard_tiled", 3 * 2**30, 2**31)  # what another pool holds unused
    with pytest.raises(ValueError, match="1 GiB is free"):
        subject.refuse_memory("standard_tiled", 2**31, 0)


def test_each_build_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[str, str]] = []

    def load_entry(name: str, macros: Any, entry: str) -> None:
        loaded.append((name, entry))

    monkeypatch.setattr(subject, "load_entry", load_entry)
    plan = VARIANTS["flash_q_outer"].plan
    plans = [plan(PROBLEM, TILING), plan(PROBLEM, TILING), plan(PROBLEM, TILING, trace=True)]
    plans.append(VARIANTS["standard_tiled"].plan(PROBLEM, TILING))
    assert load_in_parallel(plans) == 3
    assert sorted(loaded) == [
        ("02_standard_tiled", "standard_tiled_scores"),
        ("04_flash_q_outer", "flash_q_outer"),
        ("04_flash_q_outer", "flash_q_outer"),
    ]


def test_a_build_that_fails_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_entry(name: str, macros: Any, entry: str) -> None:
        raise RuntimeError("04 does not compile")

    monkeypatch.setattr(subject, "load_entry", load_entry)
    with pytest.raises(RuntimeError, match="does not compile"):
        load_in_parallel([VARIANTS["flash_q_outer"].plan(PROBLEM, TILING)])
