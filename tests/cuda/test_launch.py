"""The checked way to a launch without a GPU: NumPy arrays stand in for CuPy's."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fa_kernels.cuda import launch as subject
from fa_kernels.cuda.launch import available, launch, rows_aligned, usable
from fa_kernels.cuda.plan import plan_standard_tiled
from fa_kernels.measure.cases import LAYOUTS, Case, make_inputs
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.model import TENSORS
from fa_kernels.variants import VARIANTS, Variant

PROBLEM = AttentionProblem(2, 3, 17, 23, 16, "float16", "bottom_right")
TILING = Tiling(16, 16)


class GpuArray(np.ndarray):
    """A NumPy array with what the launch code asks of a CuPy array."""

    device: Any = SimpleNamespace(id=0)

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self) -> np.ndarray:
        return self.view(np.ndarray)


def on_gpu(array: np.ndarray) -> Any:
    return array.view(GpuArray)


class Kernel:
    """Notes its launches."""

    max_dynamic_shared_size_bytes = 48 * 1024

    def __init__(self, entry: str, calls: list[Any]) -> None:
        self.entry, self.calls = entry, calls

    def __call__(self, grid: Any, block: Any, args: Any, shared_mem: int) -> None:
        self.calls.append((self.entry, grid, block, args, shared_mem, self))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A stand-in for CuPy with one GPU, and the launches made on it."""
    made: list[Any] = []
    fake = SimpleNamespace(
        ndarray=GpuArray,
        cuda=SimpleNamespace(Device=lambda: SimpleNamespace(id=0), is_available=lambda: True),
        empty=lambda shape, dtype: on_gpu(np.empty(shape, dtype)),
        empty_like=lambda a: on_gpu(np.empty(a.shape, a.dtype)),
        zeros=lambda shape, dtype: on_gpu(np.zeros(shape, dtype)),
        ascontiguousarray=lambda a: on_gpu(np.array(a, order="C")),
    )
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(subject, "smem_limit_bytes", lambda: 227 * 1024)
    monkeypatch.setattr(subject, "load_entry", lambda name, macros, entry: Kernel(entry, made))
    return made


def inputs(layout: str = "bhsd", problem: AttentionProblem = PROBLEM) -> list[Any]:
    return [on_gpu(x) for x in make_inputs(Case(problem, TILING, layout), 0, np)]


# -- strides and alignment ------------------------------------------------------------------


def test_rows_are_aligned_if_every_row_starts_at_16_bytes() -> None:
    def of(shape: tuple[int, ...], dtype: str = "float16") -> Any:
        return on_gpu(np.zeros(shape, dtype))

    assert rows_aligned(of((2, 3, 5, 64)), of((1, 1, 1, 8)))
    assert not rows_aligned(of((2, 3, 5, 63)))
    assert not rows_aligned(of((2, 3, 5, 64)), of((2, 3, 5, 20)))
    assert rows_aligned(of((2, 3, 5, 20), "float32")) and not rows_aligned(of((2, 3, 5, 18), "f4"))
    assert rows_aligned(of((1, 1, 1, 63))), "one row has no stride to be wrong"
    shifted = on_gpu(np.zeros(2 * 5 * 64 + 1, np.float16)[1:]).reshape(1, 2, 5, 64)
    assert not rows_aligned(shifted), "every stride is right and the start is not"


def test_the_layouts_of_verify_are_what_they_say() -> None:
    d64 = AttentionProblem(2, 3, 17, 23, 64, "float16")
    for layout in LAYOUTS:
        q = inputs(layout, d64)[0]
        assert q.shape == (2, 3, 17, 64)
        assert q.strides[-1] == q.itemsize, "none of them may need a copy"
        assert rows_aligned(q) == (layout != "unaligned")
    assert not inputs("bshd", d64)[0].flags.c_contiguous


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_rows_are_used_in_place(layout: str) -> None:
    q = inputs(layout)[0]
    assert usable("q", q) is q


@pytest.mark.usefixtures("calls")
def test_a_last_axis_that_is_not_contiguous_is_copied_once_and_reported() -> None:
    q = on_gpu(np.arange(2 * 3 * 4 * 8, dtype=np.float32).reshape(2, 3, 4, 8))
    for view in (q[..., ::2], q[..., ::-1], q.transpose(0, 1, 3, 2)):
        with pytest.warns(UserWarning, match=r"q.*copied once.*contiguous last axis") as record:
            copy = usable("q", view)
        assert len(record) == 1
        assert copy.flags.c_contiguous
        np.testing.assert_array_equal(copy, view)
    one_column = q[..., ::8]
    assert usable("q", one_column) is one_column  # d = 1: there is no next element


def test_the_strides_argument_is_three_int64_in_elements(calls: list[Any]) -> None:
    for layout in LAYOUTS:
        q, k, v = inputs(layout)
        VARIANTS["flash_q_outer"].run(q, k, v, PROBLEM, TILING)
        args = calls[-1][3]
        for array, strides in zip((q, k, v), (args[1], args[3], args[5]), strict=True):
            assert strides.nbytes == 24 and strides.shape == (1,)
            want = [stride // array.itemsize for stride in array.strides[:3]]
            assert list(strides[0].tolist()) == want


def test_offsets_beyond_32_bits_are_passed_in_full(calls: list[Any]) -> None:
    row = on_gpu(np.zeros((1, 1, 1, 16), np.float16))
    far = np.lib.stride_tricks.as_strided(row, (1, 1, 1, 16), (2**40, 2**36, 32, 2), subok=True)
    problem = AttentionProblem(1, 1, 1, 1, 16, "float16")
    VARIANTS["flash_q_outer"].run(far, row, row, problem, TILING)
    assert calls[-1][3][1][0].tolist() == (2**39, 2**35, 16)


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


#: ctypes-like widths of the scalars after the arrays and strides, from the kernels' signatures.
SCALARS = {
    "flash_q_outer": [np.int32, np.int32, np.int32, np.int64, np.float32],
    "standard_tiled_scores": [np.int32, np.int32, np.int32, np.int64, np.float32],
    "standard_tiled_softmax": [np.int32, np.int32, np.int64, np.int64],
    "standard_tiled_output": [np.int32, np.int32, np.int32, np.int64],
}


@pytest.mark.parametrize("count", [False, True])
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_launches_follow_the_plan_with_scalars_of_the_kernels_width(
    variant: Variant, count: bool, calls: list[Any]
) -> None:
    q, k, v = inputs()
    out, lse, traffic = variant.run(q, k, v, PROBLEM, TILING, count_traffic=count)
    assert (out.shape, out.dtype) == (q.shape, q.dtype)
    assert (lse.shape, lse.dtype) == (q.shape[:3], np.float32)
    assert (traffic is None) == (not count)
    plan = variant.plan(PROBLEM, TILING)
    assert [c[0] for c in calls] == [step.entry for step in plan.steps]
    for (entry, grid, block, args, smem, _), step in zip(calls, plan.steps, strict=True):
        assert (grid, block, smem) == ((step.grid,), (step.threads,), step.smem_bytes)
        assert [type(a) for a in args if isinstance(a, np.generic)] == SCALARS[entry]
        counters = [a for a in args if isinstance(a, GpuArray) and a.dtype == np.uint64]
        assert [a.shape for a in counters] == [(len(TENSORS), 2)] * count


def test_counters_come_back_by_tensor(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    class Counts(Kernel):
        def __call__(self, grid: Any, block: Any, args: Any, shared_mem: int) -> None:
            args[-1][...] = np.arange(14, dtype=np.uint64).reshape(7, 2) + 2**40

    monkeypatch.setattr(subject, "load_entry", lambda name, macros, entry: Counts(entry, calls))
    _, _, traffic = VARIANTS["flash_q_outer"].run(*inputs(), PROBLEM, TILING, count_traffic=True)
    assert traffic is not None
    assert traffic.read_bytes == {t: 2 * i + 2**40 for i, t in enumerate(TENSORS)}
    assert traffic.written_bytes == {t: 2 * i + 1 + 2**40 for i, t in enumerate(TENSORS)}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_too_much_shared_memory_is_refused_before_anything_is_allocated(
    variant: Variant, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "smem_limit_bytes", lambda: 1024)
    monkeypatch.setattr(sys.modules["cupy"], "empty", lambda *a: pytest.fail("allocated"))
    with pytest.raises(ValueError, match=r"B_c = 16, B_r = 16 needs .* this GPU allows 1 KiB"):
        variant.run(*inputs(), PROBLEM, TILING)
    assert not calls


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


def test_a_row_of_scores_that_a_block_may_not_have_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a T4 the tiles fit, but a row of 16384 scores and two reductions are 65792 bytes."""
    monkeypatch.setattr(subject, "smem_limit_bytes", lambda: 64 * 1024)
    problem = AttentionProblem(1, 1, 64, 16384, 64, "float16")
    plan = plan_standard_tiled(problem, Tiling(32, 32))
    with pytest.raises(ValueError, match=r"N_k = 16384: .* this GPU allows 64 KiB: use variant="):
        subject.refuse_on_this_gpu(plan, problem, Tiling(32, 32))


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


def test_arrays_that_are_not_the_problems_are_refused(calls: list[Any]) -> None:
    """A kernel would read out of bounds."""
    q, k, v = inputs()
    longer = replace(PROBLEM, seqlen_k=PROBLEM.seqlen_k + 1)
    with pytest.raises(ValueError, match=r"^k is float\d+ of shape .*, the problem says"):
        subject.run_flash_q_outer(q, k, v, longer, TILING)
    assert not calls
