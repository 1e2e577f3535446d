"""Decoding as only a GPU can show it: CuPy arrays, torch tensors, streams, CUDA graphs."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fa_kernels as fa
from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.cuda.launch import available
from fa_kernels.cuda.run_decode import block_rows, merges_on_chip, run_decode
from fa_kernels.decode_problem import DecodeProblem
from fa_kernels.measure.check import EPS
from fa_kernels.traffic.decode_model import launched_decode
from tests.decode_steps import Step, formula, make

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not available(), reason="needs CuPy and a CUDA GPU"),
]
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
PLAIN = DecodeProblem(3, 8, 2, 2, 2, 480, 64, "float16")
PAGED = replace(PLAIN, max_seqlen=None, page_size=32, max_pages=15, num_pages=50)
TOTALS = (480, 2, 333)
each_layout = pytest.mark.parametrize("problem", [PLAIN, PAGED], ids=["contiguous", "paged"])
each_dtype = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
ARRAYS = ("q", "k", "v", "k_new", "v_new", "block_table", "cache_seqlens")


def on_gpu(step: Step) -> dict[str, Any]:
    """The arrays of a step as CuPy's, the caches by the front door's names."""
    import cupy

    found = {name: getattr(step, name) for name in ARRAYS}
    placed = {name: None if x is None else cupy.asarray(x) for name, x in found.items()}
    return placed | {"k_cache": placed.pop("k"), "v_cache": placed.pop("v")}


def to_torch(array: Any) -> Any:
    import torch

    if array is None:
        return None
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).cuda().view(torch.bfloat16)
    return torch.from_numpy(array.copy()).cuda()


def in_torch(step: Step) -> dict[str, Any]:
    """As `on_gpu`, torch tensors."""
    placed = {name: to_torch(getattr(step, name)) for name in ARRAYS}
    return placed | {"k_cache": placed.pop("k"), "v_cache": placed.pop("v")}


def from_torch(tensor: Any) -> np.ndarray:
    import torch

    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).cpu().numpy().view(io_dtype("bfloat16"))
    return tensor.cpu().numpy()


def near(got: np.ndarray, want: np.ndarray, dtype: str) -> None:
    """Within a few roundings of P, and of out: |out| stays near 1."""
    np.testing.assert_allclose(got.astype(np.float64), want, atol=4 * EPS[dtype])


@each_dtype
@each_layout
@pytest.mark.parametrize("num_splits", [None, 1, 5])
def test_cupy_arrays(problem: DecodeProblem, dtype: str, num_splits: int | None) -> None:
    step = make(replace(problem, dtype=dtype), TOTALS)
    given = on_gpu(step)
    out, lse = fa.decode(**given, num_splits=num_splits, backend="cuda", return_lse=True)
    want_out, want_lse = formula(step)
    near(out.get(), want_out, dtype)
    np.testing.assert_allclose(lse.get(), want_lse, atol=1e-3)
    # In the caches now: the same step without an append, which the kernel reads back.
    given |= {"k_new": None, "v_new": None}
    given["cache_seqlens"] = given["cache_seqlens"] + np.int32(problem.seqlen_new)
    again = fa.decode(**given, num_splits=num_splits, backend="cuda")
    assert bool((again == out).all())


@needs_torch
@each_dtype
@each_layout
def test_torch_tensors_in_place(problem: DecodeProblem, dtype: str) -> None:
    import torch

    step = make(replace(problem, dtype=dtype), TOTALS)
    given = in_torch(step)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        out, lse = fa.decode(**given, backend="cuda", return_lse=True)
    stream.synchronize()
    assert (out.dtype, lse.dtype) == (given["q"].dtype, torch.float32)
    near(from_torch(out), formula(step)[0], dtype)
    host = step.call(fa.decode, backend="numpy")[0]
    near(from_torch(out), host.astype(np.float64), dtype)
    k, v = step.k.copy(), step.v.copy()
    rest = {name: getattr(step, name) for name in ("k_new", "v_new", "block_table")}
    fa.decode(step.q, k, v, step.cache_seqlens, **rest)
    for mine, theirs in ((given["k_cache"], k), (given["v_cache"], v)):
        np.testing.assert_array_equal(from_torch(mine).view(np.int16), theirs.view(np.int16))


@each_layout
def test_numpy_arrays_through_the_gpu(problem: DecodeProblem) -> None:
    step = make(problem, TOTALS)
    out, _ = step.call(fa.decode, backend="cuda")
    assert isinstance(out, np.ndarray)
    near(out, formula(step)[0], "float16")


def test_one_number_for_all_and_an_empty_cache() -> None:
    step = make(replace(PLAIN, seqlen_new=0), (0, 0, 0))
    given = on_gpu(step) | {"cache_seqlens": 0}
    out, lse = fa.decode(**given, backend="cuda", num_splits=4, return_lse=True)
    assert not out.any() and bool((lse == -np.inf).all())


@each_layout
def test_a_cupy_graph_reads_its_arrays_at_each_replay(problem: DecodeProblem) -> None:
    import cupy

    steps = [make(replace(problem, seqlen_new=1), totals, seed=n)
             for n, totals in enumerate(((100, 50, 480), (101, 51, 479)))]  # fmt: skip
    given = on_gpu(steps[0])
    fa.decode(**given, backend="cuda", num_splits=3)  # compiles
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        out = fa.decode(**given, backend="cuda", num_splits=3)
        graph = stream.end_capture()
        others = [cupy.full((1 << 18,), np.nan, np.float32) for _ in range(16)]
        for step in steps:
            for name, array in on_gpu(step).items():
                if array is not None:
                    given[name][...] = array
            graph.launch(stream)
            stream.synchronize()
            near(out.get(), formula(step)[0], "float16")
    assert len(others) == 16


@needs_torch
@each_layout
def test_a_torch_graph_generates_token_by_token(problem: DecodeProblem) -> None:
    """The lengths grow within the graph, as a server's do."""
    import torch

    step = make(replace(problem, seqlen_q=1, seqlen_new=1), (400, 2, 333), dtype="float16")
    given = in_torch(step)
    keep = {name: given[name].clone() for name in ("k_cache", "v_cache", "cache_seqlens")}
    fa.decode(**given, backend="cuda", num_splits=3)  # compiles
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = fa.decode(**given, backend="cuda", num_splits=3)
        given["cache_seqlens"].add_(1)
    for name, kept in keep.items():
        given[name].copy_(kept)
    found = []
    for _ in range(3):
        graph.replay()
        found.append(out.clone())
    assert given["cache_seqlens"].tolist() == [402, 4, 335]
    for name, kept in keep.items():
        given[name].copy_(kept)
    for graphed in found:
        eager = fa.decode(**given, backend="cuda", num_splits=3)
        assert torch.equal(graphed, eager)
        given["cache_seqlens"].add_(1)


def test_decode_is_the_end_of_attention() -> None:
    import cupy

    rng = cupy.random.default_rng(0)
    q, k, v = (
        rng.standard_normal((2, h, 300, 128), dtype=np.float32).astype(np.float16)
        for h in (8, 2, 2)
    )
    whole, whole_lse = fa.attention(q, k, v, causal=True, variant="flash_mma", return_lse=True)
    k_cache, v_cache = (cupy.full((2, 2, 304, 128), np.nan, np.float16) for _ in "kv")
    k_cache[:, :, :297], v_cache[:, :, :297] = k[:, :, :297], v[:, :, :297]
    new = {"k_new": k[:, :, 297:], "v_new": v[:, :, 297:]}
    out, lse = fa.decode(
        q[:, :, 297:], k_cache, v_cache, 297, **new, backend="cuda", return_lse=True
    )
    near(out.get(), whole[:, :, 297:].get().astype(np.float64), "float16")
    np.testing.assert_allclose(lse.get(), whole_lse[:, :, 297:].get(), atol=1e-4)


@each_layout
@pytest.mark.parametrize("num_splits", [1, 5, 9])
def test_counters_are_the_model(problem: DecodeProblem, num_splits: int) -> None:
    given = on_gpu(make(problem, TOTALS))
    arrays = (given.pop(name) for name in ("q", "k_cache", "v_cache", "cache_seqlens"))
    q, k, v, lengths = arrays
    counted = run_decode(q, k, v, lengths, problem, num_splits, count_traffic=True, **given)[2]
    rows = block_rows(problem, num_splits)
    assert counted is not None
    on_chip = merges_on_chip(problem, num_splits)
    assert launched_decode(problem, TOTALS, num_splits, rows, on_chip).same_as(counted)
