"""What only a GPU can show: the front door on CuPy and torch arrays, Run and Cancel, notebooks."""

from __future__ import annotations

import importlib.util
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fa_kernels as fa
from fa_kernels.cuda.launch import available
from fa_kernels.measure.check import Truth

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not available(), reason="needs CuPy and a CUDA GPU"),
]
NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_WIDGETS = importlib.util.find_spec("anywidget") is not None


def inputs(dtype: str = "float16", seqlen: int = 203, head_dim: int = 64) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal((2, 3, seqlen, head_dim)).astype(dtype) for _ in range(3)]


def check(arrays: list[np.ndarray], out: np.ndarray, lse: np.ndarray, causal: bool = False) -> None:
    from fa_kernels.attention import problem_of

    problem = problem_of(*arrays, causal=causal)
    result = Truth(arrays, problem, xp=np).check(out, lse)
    assert result.ok, result


@pytest.mark.parametrize("variant", fa.VARIANTS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_numpy_arrays_through_the_gpu(variant: str, dtype: str) -> None:
    arrays = inputs(dtype)
    out, lse = fa.attention(*arrays, variant=variant, backend="cuda", causal=True, return_lse=True)
    assert isinstance(out, np.ndarray)
    check(arrays, out, lse, causal=True)


@pytest.mark.parametrize("variant", fa.VARIANTS)
def test_cupy_views_cost_no_copy(variant: str) -> None:
    import cupy

    arrays = inputs()
    # (batch, seqlen, heads, d) in memory, seen as (batch, heads, seqlen, d).
    views = [cupy.asarray(a.transpose(0, 2, 1, 3).copy()).transpose(0, 2, 1, 3) for a in arrays]
    out, lse = fa.attention(*views, variant=variant, return_lse=True)  # a warning is an error
    assert isinstance(out, cupy.ndarray)
    check(arrays, out.get(), lse.get())


def test_a_last_axis_that_is_not_contiguous_is_copied_and_reported() -> None:
    import cupy

    arrays = inputs()
    wide = [cupy.asarray(np.repeat(a, 2, axis=-1))[..., ::2] for a in arrays]
    with pytest.warns(UserWarning, match="not contiguous"):
        out, lse = fa.attention(*wide, return_lse=True)
    check(arrays, out.get(), lse.get())


@pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
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


@pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
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
    assert set(timed) == set(fa.VARIANTS), panel.note.value
    assert all(row.status == "ok" and row.median for row in timed.values())
    for variant in fa.VARIANTS.values():
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
