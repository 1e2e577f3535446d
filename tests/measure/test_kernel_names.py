"""Kernels by name where torch's profiler sees them, a reason where it does not."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from fa_kernels.measure import kernel_names
from fa_kernels.measure.kernel_names import kernels_of


def event(key: str, count: int, time: float, device: Any) -> SimpleNamespace:
    return SimpleNamespace(key=key, count=count, self_device_time_total=time, device_type=device)


@pytest.fixture
def profiler(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """A profiler on a GPU that sees what the list holds."""
    torch = pytest.importorskip("torch")
    seen: list[SimpleNamespace] = []

    class profile:
        def __init__(self, activities: list[Any]) -> None:
            assert activities == [torch.profiler.ProfilerActivity.CUDA]

        def __enter__(self) -> Any:
            warnings.warn(
                "Warning: Profiler clears events at the end of each cycle. Only events from the "
                "current cycle will be reported. To keep events, set acc_events=True.",
                stacklevel=2,
            )
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def key_averages(self) -> list[SimpleNamespace]:
            return seen

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr("torch.profiler.profile", profile)
    return seen


def test_kernels_are_named_by_falling_time(profiler: list[SimpleNamespace]) -> None:
    from torch.autograd import DeviceType

    gpu, cpu = DeviceType.CUDA, DeviceType.CPU
    profiler += [
        event("void copy_kernel<float>()", 2, 5.0, gpu),
        event("cudaLaunchKernel", 3, 0.0, cpu),
        event("Memset (Device)", 1, 9.0, gpu),
        event("flash_fwd_kernel", 1, 100.0, gpu),
    ]
    calls: list[int] = []
    assert (
        kernels_of(lambda: calls.append(1)) == "kernels: flash_fwd_kernel; 2 x copy_kernel<float>()"
    )
    assert calls == [1]


def test_long_names_and_many_kernels_are_cut(profiler: list[SimpleNamespace]) -> None:
    from torch.autograd import DeviceType

    profiler += [event(f"{i}" * 1000, 1, 10.0 - i, DeviceType.CUDA) for i in range(5)]
    text = kernels_of(lambda: None)
    assert text.endswith("; and 2 more") and text.startswith("kernels: " + "0" * 110 + "; 1")


@pytest.mark.usefixtures("profiler")
def test_no_other_warning_is_hidden() -> None:
    """torch's own, which the profiler of these tests gives too, is no reason to name no kernel."""

    def call() -> None:
        warnings.warn("something else", stacklevel=2)

    assert kernels_of(call) == "kernels not known: UserWarning: something else"


@pytest.mark.usefixtures("profiler")
def test_a_profiler_that_sees_nothing_says_so() -> None:
    assert kernels_of(lambda: None) == "kernels not known: the profiler saw none"


def test_without_a_gpu_the_kernels_are_not_known() -> None:
    pytest.importorskip("torch")
    assert kernels_of(lambda: None) == "kernels not known: RuntimeError: torch sees no GPU"


def test_a_profiler_that_is_refused_costs_the_names_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(call: Any) -> Any:
        raise RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES\nand more " + "x" * 500)

    monkeypatch.setattr(kernel_names, "_profiled", refused)
    text = kernels_of(lambda: None)
    assert text.startswith("kernels not known: RuntimeError: CUPTI_ERROR") and len(text) < 140
