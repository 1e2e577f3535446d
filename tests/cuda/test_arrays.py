"""Kinds of arrays without importing the libraries they come from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fa_kernels.cuda import arrays
from fa_kernels.problem import AttentionProblem


def fake(module: str, **attributes: Any) -> Any:
    """An object that says it comes from `module`."""
    return type("Tensor", (), {"__module__": module, **attributes})()


class Device:
    def __init__(self, text: str, index: int = 0) -> None:
        self.text, self.id, self.type = text, index, text.split(":")[0]

    def __str__(self) -> str:
        return self.text


@pytest.mark.parametrize(
    ("array", "kind", "on_gpu"),
    [
        (np.zeros(1), "numpy", False),
        (fake("cupy", device=Device("", 1)), "cupy:1", True),
        (fake("cupy._core.core", device=Device("")), "cupy:0", True),
        (fake("torch", device=Device("cpu")), "torch:cpu", False),
        (fake("torch", device=Device("cuda:1")), "torch:cuda:1", True),
        (fake("torch.nn.parameter", device=Device("cpu")), "torch:cpu", False),
    ],
)
def test_kinds(array: Any, kind: str, on_gpu: bool) -> None:
    assert arrays.kind(array) == kind
    assert arrays.on_gpu(array) == on_gpu


def test_a_gpu_tensor_that_needs_no_gradient_is_usable() -> None:
    good = {"shape": (1, 2, 3, 4), "requires_grad": False, "layout": "torch.strided"}
    good["is_neg"] = lambda self: False
    arrays.refuse_unusable("q", fake("torch", device=Device("cuda:0"), **good))
    arrays.refuse_unusable("q", fake("cupy", shape=(1, 2, 3, 4)))
    with pytest.raises(ValueError, match=r"^q lives on mps:0: move it to the CPU or a CUDA GPU"):
        arrays.refuse_unusable("q", fake("torch", device=Device("mps:0"), **good))


def test_other_libraries_are_refused() -> None:
    with pytest.raises(TypeError, match=r"^k is a Tensor: pass a NumPy, CuPy or torch array"):
        arrays.refuse_unusable("k", fake("jaxlib", shape=(1, 2, 3, 4)))


def test_host_arrays_are_not_copied() -> None:
    q = np.zeros((1, 1, 2, 3), np.float32)
    assert arrays.to_numpy(q) is q and arrays.like(q, q) is q
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(1, 1, 2, 3)
    view = arrays.to_numpy(tensor)
    view[...] = 5.0
    assert bool((tensor == 5.0).all())
    assert isinstance(arrays.like(tensor, q), torch.Tensor)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_the_empty_result_attends_nothing(kind: str) -> None:
    problem = AttentionProblem(2, 1, 3, 0, 4, "float16")
    q: Any = np.ones((2, 1, 3, 4), np.float16)
    if kind == "torch":
        q = pytest.importorskip("torch").from_numpy(q)
    out, lse = arrays.empty_result(q, problem)
    assert type(out) is type(lse) is type(q)
    assert np.asarray(out).dtype == np.float16 and not np.asarray(out).any()
    assert np.asarray(lse).dtype == np.float32
    assert np.asarray(lse).shape == (2, 1, 3) and (np.asarray(lse) == -np.inf).all()
    assert (np.asarray(q) == 1).all()
