"""What only a GPU can show: the front door on CuPy and torch arrays, Run and Cancel, notebooks."""

from __future__ import annotations

import importlib.util
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fa_kernels as fa
from fa_kernels.attention import checked_call
from fa_kernels.cuda import mask_arrays, work_counters
from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.cuda.launch import available, gpu_arch
from fa_kernels.cuda.run import RowTrace
from fa_kernels.measure.cases import LAYOUTS, MAPPED_LAYOUTS, Case, make_inputs
from fa_kernels.measure.check import EPS, Truth
from fa_kernels.variants import ALGORITHMS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not available(), reason="needs CuPy and a CUDA GPU"),
]
NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_WIDGETS = importlib.util.find_spec("anywidget") is not None


#: Variants that this GPU runs, by name; with every dtype that they take; those that take a block
#: mask; with a trace.
HERE = {name: v for name, v in fa.VARIANTS.items() if not available() or v.runs_on(gpu_arch())}
EACH = [(name, dtype) for name, v in HERE.items() for dtype in v.dtypes]
SPARSE = [(name, dtype) for name, dtype in EACH if fa.VARIANTS[name].block_sparse]
TRACED = [(name, dtype) for name, dtype in EACH if fa.VARIANTS[name].traced]
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="needs torch")


def inputs(dtype: str = "float16", seqlen: int = 203, head_dim: int = 64) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    shape = (2, 3, seqlen, head_dim)
    return [rng.standard_normal(shape).astype(io_dtype(dtype)) for _ in range(3)]


def check(
    arrays: list[np.ndarray],
    out: np.ndarray,
    lse: np.ndarray,
    variant: str = "auto",
    **options: Any,
) -> None:
    """`options`: causal, block_mask and tiling of the call."""
    tiling = options.pop("tiling", None)
    q, k, v = arrays
    call = checked_call(q, k, v, variant, tiling, "numpy", **options)
    roundings = call.variant.roundings(call.problem, call.tiling)
    result = Truth(arrays, call.problem, xp=np).check(out, lse, roundings)
    assert result.ok, result


@pytest.mark.parametrize(("variant", "dtype"), EACH)
def test_numpy_arrays_through_the_gpu(variant: str, dtype: str) -> None:
    arrays = inputs(dtype)
    out, lse = fa.attention(*arrays, variant=variant, backend="cuda", causal=True, return_lse=True)
    assert isinstance(out, np.ndarray) and out.dtype == io_dtype(dtype)
    check(arrays, out, lse, variant, causal=True)


@pytest.mark.parametrize(("variant", "dtype"), EACH)
def test_cupy_arrays_of_every_dtype(variant: str, dtype: str) -> None:
    import cupy

    arrays = inputs(dtype)
    out, lse = fa.attention(*map(cupy.asarray, arrays), variant=variant, return_lse=True)
    assert isinstance(out, cupy.ndarray)
    assert (out.dtype, lse.dtype) == (io_dtype(dtype), np.float32)
    check(arrays, out.get(), lse.get(), variant)


def to_torch(array: np.ndarray) -> Any:
    """A host array as a torch tensor on the GPU; torch takes bfloat16 from NumPy as bits."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)
    return torch.from_numpy(array).cuda()


def from_torch(tensor: Any) -> np.ndarray:
    import torch

    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).cpu().numpy().view(io_dtype("bfloat16"))
    return tensor.cpu().numpy()


@needs_torch
@pytest.mark.parametrize(("variant", "dtype"), EACH)
def test_torch_tensors_of_every_dtype(variant: str, dtype: str) -> None:
    import torch

    arrays = inputs(dtype)
    tensors = [to_torch(a) for a in arrays]
    out, lse = fa.attention(*tensors, variant=variant, causal=True, return_lse=True)
    assert isinstance(out, torch.Tensor) and out.device == tensors[0].device
    assert (out.dtype, lse.dtype) == (tensors[0].dtype, torch.float32)
    check(arrays, from_torch(out), lse.cpu().numpy(), variant, causal=True)


# -- block masks ----------------------------------------------------------------------------


def masks(seqlen: int) -> dict[str, fa.BlockMask]:
    """Blocks of the tiles' size, blocks that they cut, and one mask for every head."""
    per_head = np.random.default_rng(1).random((2, 3, -(-seqlen // 24), -(-seqlen // 40))) < 0.4
    per_head[..., 1, :] = False  # these query rows attend nothing
    return {
        "tiles": fa.BlockMask.pattern("local", seqlen, seqlen, 64, 64, 0.5),
        "butterfly": fa.BlockMask.pattern("butterfly", seqlen, seqlen, 32, 32, 0.5),
        "per head": fa.BlockMask.from_dense(per_head, 24, 40),
    }


@pytest.mark.parametrize("causal", [False, True, "top_left"])
@pytest.mark.parametrize("name", masks(203))
@pytest.mark.parametrize(("variant", "dtype"), SPARSE)
def test_block_masks_on_cupy_arrays(
    variant: str, dtype: str, name: str, causal: bool | str
) -> None:
    import cupy

    arrays = inputs(dtype)
    options: dict[str, Any] = {"causal": causal, "tiling": fa.Tiling(64, 64)}
    options["block_mask"] = masks(203)[name]
    on_gpu = [cupy.asarray(a) for a in arrays]
    out, lse = fa.attention(*on_gpu, variant=variant, return_lse=True, **options)
    check(arrays, out.get(), lse.get(), variant, **options)
    again = fa.attention(*on_gpu, variant=variant, **options)  # lists from the cache
    assert bool((again == out).all())


@needs_torch
@pytest.mark.parametrize("name", masks(203))
@pytest.mark.parametrize(("variant", "dtype"), SPARSE)
def test_block_masks_on_torch_tensors(variant: str, dtype: str, name: str) -> None:
    import torch

    arrays = inputs(dtype)
    options: dict[str, Any] = {"block_mask": masks(203)[name], "causal": True}
    with torch.cuda.stream(torch.cuda.Stream()):  # lists made on one stream are used on others
        tensors = [to_torch(a) for a in arrays]
        out, lse = fa.attention(*tensors, variant=variant, return_lse=True, **options)
        torch.cuda.current_stream().synchronize()
    check(arrays, from_torch(out), lse.cpu().numpy(), variant, **options)


@pytest.mark.parametrize("variant", [n for n in ("flash_wgmma", "flash_mma", "flash_q_outer")
                                     if n in HERE])  # fmt: skip
def test_a_block_mask_in_a_cupy_graph(variant: str) -> None:
    """After a call on another stream; without one it is refused, and the capture stays usable."""
    import cupy

    options: dict[str, Any] = {"variant": variant, "block_mask": masks(203)["per head"]}
    q, k, v = (cupy.asarray(a) for a in inputs())
    kept = mask_arrays.KEPT
    kept.clear()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        with pytest.raises(ValueError, match="block_mask are not on the GPU yet"):
            fa.attention(q, k, v, **options)
        stream.end_capture()
    want = fa.attention(q, k, v, **options)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        out = fa.attention(q, k, v, **options)
        graph = stream.end_capture()
        for _ in range(2):
            out[...] = 0
            graph.launch(stream)
            stream.synchronize()
            assert bool((out == want).all())


def test_packed_sequences_in_a_cupy_graph() -> None:
    """After a call on another stream; without one it is refused, and the capture stays usable."""
    import cupy

    from fa_kernels.cuda import packed_arrays

    q, k, v = (cupy.asarray(a[:1]) for a in inputs())
    bounds: dict[str, Any] = {
        "cu_seqlens_q": [0, 50, q.shape[2]],
        "cu_seqlens_k": [0, 70, k.shape[2]],
    }
    packed_arrays.KEPT.clear()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        with pytest.raises(ValueError, match="packed sequences are not on the GPU yet"):
            fa.attention(q, k, v, **bounds)
        stream.end_capture()
    want = fa.attention(q, k, v, **bounds)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        out = fa.attention(q, k, v, **bounds)
        graph = stream.end_capture()
    for number in range(1, 33):  # others, which drop whatever may be dropped
        other: dict[str, Any] = {
            "cu_seqlens_q": [0, number, q.shape[2]],
            "cu_seqlens_k": [0, 9, k.shape[2]],
        }
        fa.attention(q, k, v, **other)
    out[...] = 0
    cupy.cuda.Device().synchronize()
    with stream:
        graph.launch(stream)
        stream.synchronize()
    assert bool((out == want).all())


@needs_torch
def test_a_block_mask_in_a_torch_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward; what the graph reads outlives every other mask."""
    import torch

    options: dict[str, Any] = {"variant": "flash_mma", "block_mask": masks(203)["butterfly"]}
    q, k, v = (to_torch(a) for a in inputs())

    def step() -> tuple[Any, ...]:
        out, lse = fa.attention(q, k, v, return_lse=True, **options)
        rest = {"deterministic": True, **options}
        return (out, *fa.attention_backward(out, q, k, v, out, lse, **rest))

    want = step()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        found = step()
    monkeypatch.setattr(mask_arrays.KEPT, "_limit_bytes", 1)
    for number in range(1, 65):  # others, which drop whatever may be dropped
        keep = np.random.default_rng(number).random((7, 7)) < 0.5
        mask = fa.BlockMask.from_dense(keep, 32, 32)
        fa.attention(q, k, v, variant="flash_mma", block_mask=mask)
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))


def test_a_block_mask_leaves_fewer_bytes_to_move() -> None:
    import cupy

    problem = fa.AttentionProblem(2, 3, 512, 512, 64, "float16")
    mask = fa.BlockMask.pattern("local", 512, 512, 64, 64, 0.25)
    arrays = [cupy.asarray(a) for a in inputs(seqlen=512)]
    for variant in (v for v in HERE.values() if v.block_sparse):
        for masked in (problem, replace(problem, block_mask=mask)):
            counted = variant.run(*arrays, masked, fa.Tiling(64, 64), count_traffic=True)[2]
            assert counted is not None
            assert counted.same_as(variant.launched(masked, fa.Tiling(64, 64)))


# -- traces ---------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["numpy", "cupy", "torch"])
@pytest.mark.parametrize(("variant", "dtype"), TRACED)
def test_the_kernels_trace_beside_numpys(variant: str, dtype: str, kind: str, masked: bool) -> None:
    arrays = inputs(dtype)
    given: list[Any] = arrays
    if kind == "cupy":
        import cupy

        given = [cupy.asarray(a) for a in arrays]
    elif kind == "torch":
        if not HAS_TORCH:
            pytest.skip("needs torch")
        given = [to_torch(a) for a in arrays]
    options: dict[str, Any] = {"row": 150, "batch": 1, "head": 2, "causal": True}
    options |= {"variant": variant, "tiling": fa.Tiling(32, 32)}
    options["block_mask"] = masks(203)["butterfly"] if masked else None
    ours = fa.trace_row(*given, backend="cuda", **options)
    want = fa.trace_row(*arrays, backend="numpy", **options)
    assert (ours.backend, ours.normalised) == ("cuda", want.normalised)
    np.testing.assert_array_equal(ours.key_start, want.key_start)
    np.testing.assert_array_equal(ours.key_stop, want.key_stop)
    np.testing.assert_allclose(ours.m, want.m, rtol=0, atol=1e-5)
    np.testing.assert_allclose(ours.alpha, want.alpha, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours.l, want.l, rtol=1e-4)
    # A 16-bit O is rounded at every visit, not always to the same side.
    atol = 8 * EPS[dtype] if variant == "flash_kv_outer_io" else 1e-4
    np.testing.assert_allclose(ours.acc, want.acc, rtol=1e-4, atol=atol)


def test_tracing_does_not_change_the_output() -> None:
    import cupy

    problem = fa.AttentionProblem(2, 3, 203, 203, 64, "float16", "bottom_right")
    arrays = [cupy.asarray(a) for a in inputs()]
    for variant in (v for v in fa.VARIANTS.values() if v.traced):
        out, lse, _ = variant.run(*arrays, problem, fa.Tiling(32, 32))
        trace = RowTrace(1, 2, 150)
        again, lse_again, _ = variant.run(*arrays, problem, fa.Tiling(32, 32), trace=trace)
        assert bool((again == out).all()) and bool((lse_again == lse).all())
        assert trace.records is not None and np.isfinite(trace.records).all()


# -- views and streams ----------------------------------------------------------------------


@pytest.mark.parametrize("variant", HERE)  # all of them take fp16
def test_cupy_views_cost_no_copy(variant: str) -> None:
    import cupy

    arrays = inputs()
    # (batch, seqlen, heads, d) in memory, seen as (batch, heads, seqlen, d).
    views = [cupy.asarray(a.transpose(0, 2, 1, 3).copy()).transpose(0, 2, 1, 3) for a in arrays]
    out, lse = fa.attention(*views, variant=variant, return_lse=True)  # a warning is an error
    assert isinstance(out, cupy.ndarray)
    check(arrays, out.get(), lse.get(), variant)


def test_a_last_axis_that_is_not_contiguous_is_copied_and_reported() -> None:
    import cupy

    arrays = inputs()
    wide = [cupy.asarray(np.repeat(a, 2, axis=-1))[..., ::2] for a in arrays]
    with pytest.warns(UserWarning, match="so it was copied once"):
        out, lse = fa.attention(*wide, return_lse=True)
    check(arrays, out.get(), lse.get())


needs_warpgroups = pytest.mark.skipif("flash_wgmma" not in HERE, reason="needs sm_90")


@needs_warpgroups
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in MAPPED_LAYOUTS])
def test_what_tma_cannot_read_is_copied_and_right(layout: str) -> None:
    """`verify` leaves these layouts out, since there nothing may be copied."""
    import cupy

    problem = fa.AttentionProblem(2, 3, 113, 203, 64, "float16", "bottom_right")
    on_gpu = make_inputs(Case(problem, fa.Tiling(128, 64), layout), 5, cupy)
    arrays = [x.get() for x in on_gpu]
    with pytest.warns(UserWarning, match="TMA reads rows .* so it was copied once"):
        out, lse = fa.attention(*on_gpu, variant="flash_wgmma", causal=True, return_lse=True)
    check(arrays, out.get(), lse.get(), "flash_wgmma", causal=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "auto" takes a variant that reads them where they lie
        out, lse = fa.attention(*on_gpu, causal=True, return_lse=True)
    check(arrays, out.get(), lse.get(), "flash_mma", causal=True)


@needs_warpgroups
def test_captured_calls_hand_out_their_work_apart() -> None:
    """Graphs that run beside each other and beside their stream: every item once, in each."""
    import cupy

    # More items than a GPU has SMs, so that blocks ask for the next one.
    inputs_of = [[cupy.asarray(a) for a in inputs(seqlen=3000)] for _ in range(2)]
    options: dict[str, Any] = {"variant": "flash_wgmma", "tiling": fa.Tiling(64, 64)}
    want = [fa.attention(*x, **options) for x in inputs_of]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    graphs, outs = [], []
    for stream, x in zip(streams, inputs_of, strict=True):
        with stream:
            fa.attention(*x, **options)  # a capture allocates nothing that is not in the pool
            stream.synchronize()
            stream.begin_capture()
            outs.append(fa.attention(*x, **options))
            graphs.append(stream.end_capture())
    for _ in range(20):
        for stream, graph, x in zip(streams, graphs, inputs_of, strict=True):
            with stream:
                graph.launch(stream)
                outs.append(fa.attention(*x, **options))
    cupy.cuda.Device().synchronize()
    for number, out in enumerate(outs):
        assert bool((out == want[number % 2]).all()), number


@needs_warpgroups
@needs_torch
def test_the_first_counters_may_be_made_in_a_torch_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch captures in a mode that forbids cudaMalloc to every thread."""
    import torch

    tensors = [torch.from_numpy(a).cuda() for a in inputs(seqlen=3000)]
    options: dict[str, Any] = {"variant": "flash_wgmma", "tiling": fa.Tiling(64, 64)}
    want = fa.attention(*tensors, **options)
    monkeypatch.setattr(work_counters, "_OF_DEVICE", {})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fa.attention(*tensors, **options)
    assert len(work_counters._OF_DEVICE) == 1, "made now"
    for _ in range(3):
        out.zero_()
        graph.replay()
        assert torch.equal(out, want)


@needs_warpgroups
def test_threads_on_their_own_default_streams_hand_out_work_apart() -> None:
    """All threads name theirs by one handle."""
    import cupy

    arrays = [cupy.asarray(a) for a in inputs(seqlen=3000)]
    options: dict[str, Any] = {"variant": "flash_wgmma", "tiling": fa.Tiling(64, 64)}
    want = fa.attention(*arrays, **options)
    cupy.cuda.Device().synchronize()

    def calls() -> list[Any]:
        with cupy.cuda.Stream.ptds:
            outs = [fa.attention(*arrays, **options) for _ in range(50)]
            cupy.cuda.Stream.ptds.synchronize()
        return outs

    with ThreadPoolExecutor(4) as threads:
        rounds = [future.result() for future in [threads.submit(calls) for _ in range(4)]]
    assert all(bool((out == want).all()) for outs in rounds for out in outs)


@needs_torch
def test_torch_tensors_on_their_own_stream() -> None:
    import torch

    arrays = inputs()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # the inputs below arrive late: only stream order can help
        tensors = [torch.from_numpy(a).cuda(non_blocking=True) * 1 for a in arrays]
        out, lse = fa.attention(*tensors, return_lse=True)
        doubled = out * 2
    stream.synchronize()
    assert isinstance(out, torch.Tensor)
    assert torch.equal(doubled, out * 2)
    check(arrays, out.cpu().numpy(), lse.cpu().numpy())


@needs_torch
def test_a_tensor_on_the_cpu_goes_through_the_gpu_and_back() -> None:
    import torch

    arrays = inputs()
    out, lse = fa.attention(*map(torch.from_numpy, arrays), backend="cuda", return_lse=True)
    assert out.device.type == "cpu"
    check(arrays, out.numpy(), lse.numpy())


def test_tiles_above_the_gpus_limit_are_refused_in_words() -> None:
    arrays = inputs("float32", head_dim=128)
    with pytest.raises(ValueError, match=r"needs .* of shared memory .* lower M"):
        fa.attention(*arrays, backend="cuda", tiling=fa.Tiling(64, 512).clipped(4096, 4096))


def test_empty_inputs_launch_nothing() -> None:
    import cupy

    q = cupy.zeros((1, 2, 5, 64), np.float16)
    empty = cupy.zeros((1, 2, 0, 64), np.float16)
    out, lse = fa.attention(q, empty, empty, return_lse=True)
    assert not out.any()
    assert bool((lse == -np.inf).all())


@pytest.fixture
def explorer() -> Any:
    if not HAS_WIDGETS:
        pytest.skip("needs anywidget")
    session = fa.session(backend="cuda")
    return fa.explorer(N=1024, d=64, M_kib=64, session=session)


def test_run_measures_every_variant_live(explorer: Any) -> None:
    panel = explorer.run_panel
    panel.start()
    panel.background.join(120)
    timed = {row.variant: row for row in panel.rows if row.metric == "latency_ms"}
    assert set(ALGORITHMS) <= set(timed), panel.note.value
    assert all(row.status == "ok" and row.median for row in timed.values())
    for variant in (fa.VARIANTS[name] for name in timed):
        counted = [
            r.median for r in panel.rows if (r.variant, r.metric) == (variant.name, "hbm_bytes")
        ]
        point = explorer.point
        assert counted == [variant.launched(point.problem, point.tiling).total_bytes]
    live = [trace for trace in explorer.figure.spec["data"] if trace.get("name") == "live"]
    assert live, "the live points are not in the figure"


def test_cancel_stops_and_keeps_what_is_there(explorer: Any) -> None:
    session = fa.session(backend="cuda")
    long_run = fa.explorer(N=32768, d=64, M_kib=64, session=session).run_panel
    first = threading.Event()
    heard = long_run.on_result

    def on_result(row: Any) -> None:
        heard(row)
        first.set()

    long_run.background.listener.on_result = on_result
    long_run.start()
    assert first.wait(120), long_run.note.value
    start = time.monotonic()
    long_run.stop()
    long_run.background.join(60)
    assert time.monotonic() - start < 30
    assert long_run.rows
    assert "ancel" in long_run.note.value
    assert long_run.cancel.disabled


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_live(path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(path.parent)}}
    )
    client.execute()
    outputs = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
    banner = [o for o in outputs if "live on" in str(o.get("data", {}))]
    assert banner, "the banner does not say that the kernels are live"
