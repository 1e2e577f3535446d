"""Kinds of arrays without importing the libraries they come from."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from fa_kernels.cuda import arrays
from fa_kernels.extras import Extras
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from tests.cuda.fake_cupy import GpuArray, fake_cupy

PROBLEM = AttentionProblem(2, 3, 4, 5, 6, "float32")
TILING = Tiling(16, 16)


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


def usable(name: str, array: Any) -> None:
    arrays.refuse_unusable(name, array, "(b, h, n, d)", "and so on.", range(4, 5))


def test_a_gpu_tensor_that_needs_no_gradient_is_usable() -> None:
    good = {"shape": (1, 2, 3, 4), "requires_grad": False, "layout": "torch.strided"}
    good["is_neg"] = lambda self: False
    usable("q", fake("torch", device=Device("cuda:0"), **good))
    usable("q", fake("cupy", shape=(1, 2, 3, 4)))
    with pytest.raises(ValueError, match=r"^q lives on mps:0: move it to the CPU or a CUDA GPU"):
        usable("q", fake("torch", device=Device("mps:0"), **good))
    with pytest.raises(NotImplementedError, match=r"^q requires grad, and so on\.$"):
        usable("q", fake("torch", device=Device("cpu"), **{**good, "requires_grad": True}))


def test_other_libraries_are_refused() -> None:
    with pytest.raises(TypeError, match=r"^k is a Tensor: pass a .* array of shape \(b, h, n, d\)"):
        usable("k", fake("jaxlib", shape=(1, 2, 3, 4)))


@pytest.mark.parametrize(
    ("axes", "shape", "sentence"),
    [
        (
            range(4, 5),
            (3,),
            r"^q has shape \(3,\): expected 4 axes, \(n\)\. Add axes of length 1\.",
        ),
        (range(3, 4), (1, 2, 3, 4), r"expected 3 axes, \(n\)\. Drop axes"),
        (range(1, 5), (), r"^q has shape \(\): expected 1 to 4 axes, \(n\)\. Add axes"),
        (range(1, 5), (1,) * 5, r"expected 1 to 4 axes, \(n\)\. Drop axes"),
    ],
)
def test_axes_are_counted(axes: range, shape: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        arrays.refuse_unusable("q", np.zeros(shape), "(n)", "", axes)
    for n in axes:
        arrays.refuse_unusable("q", np.zeros((1,) * n), "(n)", "", axes)


def test_host_arrays_are_not_copied() -> None:
    q = np.zeros((1, 1, 2, 3), np.float32)
    assert arrays.to_numpy(q) is q and arrays.like(q, q) is q
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(1, 1, 2, 3)
    view = arrays.to_numpy(tensor)
    view[...] = 5.0
    assert bool((tensor == 5.0).all())
    assert isinstance(arrays.like(tensor, q), torch.Tensor)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_the_empty_result_attends_nothing(kind: str, dtype: str) -> None:
    q: Any = np.ones((2, 1, 3, 4), dtype)
    if kind == "torch":
        q = pytest.importorskip("torch").from_numpy(q)
    out, lse = arrays.empty_result(q)
    assert type(out) is type(lse) is type(q)
    assert np.asarray(out).dtype == dtype and not np.asarray(out).any()
    assert np.asarray(lse).dtype == {"float16": "float32", "float64": "float64"}[dtype]
    assert np.asarray(lse).shape == (2, 1, 3) and (np.asarray(lse) == -np.inf).all()
    assert (np.asarray(q) == 1).all()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_zeros_of_a_broadcast_view_have_memory_of_their_own(kind: str) -> None:
    view: Any = np.broadcast_to(np.ones((1, 1, 1, 4), np.float32), (2, 3, 5, 4))
    if kind == "torch":
        view = pytest.importorskip("torch").ones(1, 1, 1, 4).expand(2, 3, 5, 4)
    zeros = arrays.zeros_like(view)
    assert type(zeros) is type(view)
    zeros[0, 0, 0, 0] = 1.0
    assert float(zeros.sum()) == 1.0


# -- broadcast views --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("own", [(1, 1, 1, 5), (2, 1, 4, 1), (2, 3, 4, 5), (1, 1, 1, 1)])
def test_a_view_is_taken_apart_and_made_again(own: tuple[int, ...], kind: str) -> None:
    held: Any = np.arange(np.prod(own), dtype=np.float32).reshape(own)
    if kind == "torch":
        held = pytest.importorskip("torch").from_numpy(held)
    view = arrays.broadcast_to(held, (2, 3, 4, 5))
    assert tuple(arrays.compact(view).shape) == own
    assert arrays.compact_bytes(view) == 4 * np.prod(own)
    np.testing.assert_array_equal(np.asarray(arrays.compact(view)), np.asarray(held))


# -- through the host and the GPU -------------------------------------------------------------


def inputs(dtype: str = "float32") -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = ((2, 3, 4, 6), (2, 3, 5, 6), (2, 3, 5, 6))
    return [rng.standard_normal(s).astype(arrays.io_dtype(dtype)) for s in shapes]


def bits(tensor: Any) -> np.ndarray:
    """A torch tensor of any dtype as NumPy integers of its size."""
    torch = sys.modules["torch"]
    sizes = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(sizes[tensor.dtype.itemsize]).numpy()


def to_torch(array: np.ndarray) -> Any:
    torch = pytest.importorskip("torch")
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


class Recorder:
    """Stands for an algorithm: notes what it is given and gives its first and last array back."""

    def __init__(self, extra: tuple[Any, ...] = ()) -> None:
        self.extra = extra

    def __call__(self, *args: Any, extras: Extras, **options: Any) -> tuple[Any, ...]:
        *self.arrays, self.problem, self.tiling = args
        self.extras, self.options = extras, options
        return (self.arrays[0], self.arrays[-1], *self.extra)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_an_algorithm_in_numpy_sees_numpy(kind: str, dtype: str) -> None:
    host = inputs(dtype)
    given: list[Any] = host if kind == "numpy" else [to_torch(x) for x in host]
    mask: Any = np.broadcast_to(np.array([True, False, True, True, False]), (2, 3, 4, 5))
    if kind == "torch":
        mask = to_torch(np.array([True, False, True, True, False])).expand(2, 3, 4, 5)
    record = Recorder()
    results = arrays.run_on_host(record, given, PROBLEM, TILING, Extras(mask=mask), on_step=7)
    for seen, own in zip(record.arrays, host, strict=True):
        assert type(seen) is np.ndarray and np.shares_memory(seen, own)
        assert seen.dtype == own.dtype
    assert (record.problem, record.tiling, record.options) == (PROBLEM, TILING, {"on_step": 7})
    assert type(record.extras.mask) is np.ndarray and record.extras.mask.dtype == bool
    assert record.extras.mask.strides == (0, 0, 0, 1)
    assert record.extras.bias is record.extras.dropout_keep is None
    assert len(results) == 2
    for result, own in zip(results, (given[0], given[-1]), strict=True):
        assert type(result) is type(own) and result.dtype == own.dtype


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for CuPy that also broadcasts."""
    fake = fake_cupy()
    fake.broadcast_to = lambda a, shape: np.broadcast_to(a, shape, subok=True)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_host_arrays_go_to_the_gpu_and_back(kind: str, dtype: str, cupy: Any) -> None:
    host = inputs(dtype)
    given: list[Any] = host if kind == "numpy" else [to_torch(x) for x in host]
    record = Recorder(extra=(None,))
    results = arrays.run_on_gpu(record, given, PROBLEM, TILING, deterministic=True)
    for seen, own in zip(record.arrays, host, strict=True):
        assert type(seen) is GpuArray and seen.dtype == own.dtype
        np.testing.assert_array_equal(seen, own)
    assert record.options == {"deterministic": True}
    assert len(results) == 2, "the traffic is left out"
    for result, own in zip(results, (given[0], given[-1]), strict=True):
        assert type(result) is type(own) and result.dtype == own.dtype
        if kind == "torch":
            np.testing.assert_array_equal(bits(result), bits(own))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_only_what_a_broadcast_view_holds_is_copied(kind: str, cupy: Any) -> None:
    q, k, v = inputs()
    held: dict[str, np.ndarray] = {
        "mask": np.ones((1, 1, 4, 5), bool),
        "bias": np.ones((1, 3, 1, 5), np.float32),
        "dropout_keep": np.ones((2, 1, 1, 1), bool),
    }
    given: dict[str, Any] = held if kind == "numpy" else {n: to_torch(a) for n, a in held.items()}
    extras = Extras(**{n: arrays.broadcast_to(a, (2, 3, 4, 5)) for n, a in given.items()})
    one_head: Any = np.broadcast_to(k[:, :1], k.shape)
    tensors: list[Any] = [q, one_head, v]
    if kind == "torch":
        tensors = [to_torch(q), to_torch(k)[:, :1].expand(k.shape), to_torch(v)]
    record = Recorder(extra=(None,))
    arrays.run_on_gpu(record, tensors, PROBLEM, TILING, extras)
    sizes = [copy.nbytes for copy in cupy.copies]
    assert sizes == [q.nbytes, k.nbytes // 3, v.nbytes, *(a.nbytes for a in held.values())]
    assert record.arrays[1].strides[1] == 0
    np.testing.assert_array_equal(record.arrays[1], one_head)
    for name, array in held.items():
        seen = getattr(record.extras, name)
        assert type(seen) is GpuArray and (seen.shape, seen.dtype) == ((2, 3, 4, 5), array.dtype)
        assert [step == 0 for step in seen.strides] == [n == 1 for n in array.shape]


@pytest.mark.usefixtures("cupy")
def test_big_endian_arrays_are_turned() -> None:
    host = [x.astype(">f4") for x in inputs()]
    record = Recorder(extra=(None,))
    arrays.run_on_gpu(record, host, PROBLEM, TILING)
    assert all(seen.dtype == np.dtype("f4") for seen in record.arrays)
    np.testing.assert_array_equal(record.arrays[0], host[0])


# -- on a GPU ---------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not arrays.available(), reason="needs CuPy and a CUDA GPU")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
@pytest.mark.parametrize("own", [(2, 3, 4, 5), (1, 3, 1, 5), (1, 1, 1, 1)])
def test_torch_tensors_are_used_in_place(own: tuple[int, ...], dtype: str) -> None:
    torch = pytest.importorskip("torch")
    import cupy as real

    held = torch.randn(own, device="cuda") > 0
    held = held if dtype == "bool" else held.to(getattr(torch, dtype))
    view = held.expand(2, 3, 4, 5)
    record = Recorder(extra=(None,))
    q = torch.zeros(2, 3, 4, 5, device="cuda")
    results = arrays.run_on_gpu(record, [q, q], PROBLEM, TILING, Extras(mask=view))
    seen = record.extras.mask
    assert isinstance(seen, real.ndarray) and seen.dtype.name == dtype
    assert seen.data.ptr == held.data_ptr(), "it was copied"
    assert [step == 0 for step in seen.strides] == [
        n == 1 < full for n, full in zip(own, (2, 3, 4, 5), strict=True)
    ]
    assert bool((seen.astype(np.float32) == real.from_dlpack(view.float())).all())
    assert results[0].data_ptr() == q.data_ptr()
