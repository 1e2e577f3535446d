"""A GPU that is not there for decoding: launches of 07_decode_split_kv do in NumPy what they say.

The stand-ins take the kernels' arguments in their order, so a wrong order shows; how the keys were
split does not: the first split gets them all. They count what the reference moves.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fa_kernels.cuda import decode_call, launch, recipe_decode, run_decode
from fa_kernels.decode_problem import DecodeProblem
from fa_kernels.reference.decode import append, flash_decode, merge
from fa_kernels.traffic.counter import CountingHbm
from fa_kernels.traffic.model import ALL_TENSORS
from tests.cuda.fake_cupy import GpuArray, fake_cupy


class Device:
    """The one GPU."""

    id = 0
    compute_capability = "90"
    attributes = {  # noqa: RUF012
        "MultiProcessorCount": 132,
        "MaxSharedMemoryPerBlockOptin": 227 * 1024,
        "MaxSharedMemoryPerMultiprocessor": 228 * 1024,
    }

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def synchronize(self) -> None:
        pass


class CupyArray(GpuArray):
    """What the front door takes for a CuPy array."""

    device = Device()


CupyArray.__module__ = "cupy"


def on_gpu(array: np.ndarray | None) -> Any:
    """A copy of `array` on the GPU; None stays None."""
    return None if array is None else array.copy().view(CupyArray)


class Gpu:
    """CuPy's stand-in, the launches that were made, and what was made on the GPU."""

    def __init__(self) -> None:
        self.capturing = False
        self.launches: list[tuple[Any, Any, tuple[Any, ...]]] = []
        self.made: list[Any] = []
        self.cupy = fake_cupy()
        stream = SimpleNamespace(ptr=0, is_capturing=lambda: self.capturing)
        self.cupy.ndarray = CupyArray
        self.cupy.cuda.Device = lambda *_: Device()
        self.cupy.cuda.get_current_stream = lambda: stream
        self.cupy.empty = self._empty
        self.cupy.zeros = lambda *args: np.zeros(*args).view(CupyArray)
        self.cupy.asarray = on_gpu
        self.cupy.full = lambda *args: np.full(*args).view(CupyArray)
        for name in ("random", "stack", "abs", "where", "isfinite", "isnan", "all", "any", "exp",
                     "log", "swapaxes", "nan_to_num", "arange", "maximum"):  # fmt: skip
            setattr(self.cupy, name, getattr(np, name))
        self.cupy.get_default_memory_pool = lambda: SimpleNamespace(total_bytes=lambda: 0)
        self.cupy.cuda.Stream = lambda non_blocking: Stream(self)
        self.cupy.ascontiguousarray = lambda a: np.ascontiguousarray(a).view(CupyArray)

    def _empty(self, shape: Any, dtype: Any) -> Any:
        """Poisoned: what is not written shows."""
        made = np.empty(shape, dtype).view(CupyArray)
        made.view(np.uint8).reshape(-1)[...] = 0xFF
        self.made.append(made)
        return made

    def launch(self, plan: Any, step: Any, args: Any) -> None:
        """Note a launch and do what it would."""
        self.launches.append((plan, step, tuple(args)))
        assert all(isinstance(a, (np.generic, np.ndarray)) for a in args)
        if self.capturing:
            return
        plain = [a.view(np.ndarray) if isinstance(a, GpuArray) else a for a in args]
        _KERNELS[step.entry](plan, plain)

    @property
    def entries(self) -> list[str]:
        """Which kernels were launched, in order."""
        return [step.entry for _, step, _ in self.launches]


class Graph:
    """Launches that were captured, to be made again."""

    def __init__(self, gpu: Gpu, launches: list[Any]) -> None:
        self.gpu, self.launches = gpu, launches

    def launch(self, stream: Any) -> None:
        for launch_ in self.launches:
            self.gpu.launch(*launch_)


class Stream:
    """A stream that captures: launches in between are noted, not made."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def begin_capture(self) -> None:
        self.gpu.capturing, self.begin = True, len(self.gpu.launches)

    def end_capture(self) -> Graph:
        self.gpu.capturing = False
        return Graph(self.gpu, self.gpu.launches[self.begin :])

    def synchronize(self) -> None:
        pass


def install(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """The stand-in in CuPy's place for one test."""
    gpu = Gpu()
    monkeypatch.setitem(sys.modules, "cupy", gpu.cupy)
    monkeypatch.setattr(run_decode, "launch", gpu.launch)
    monkeypatch.setattr(launch, "available", lambda: True)
    monkeypatch.setattr("fa_kernels.cuda.arrays.available", lambda: True)
    for module in (decode_call, run_decode):
        monkeypatch.setattr(module, "smem_limit_bytes", lambda: 227 * 1024)
    monkeypatch.setattr(recipe_decode, "key", lambda *given: None)  # what repeats goes elsewhere
    return gpu


def _take(args: list[Any], *names: str) -> dict[str, Any]:
    """The next arguments by name; "name*" is an array with its strides, which are its own."""
    found = {}
    for name in names:
        value = args.pop(0)
        if name.endswith("*"):
            strides = args.pop(0)
            whole = [
                0 if n == 1 and s % 16 else s
                for s, n in zip(value.strides, value.shape, strict=True)
            ]
            assert list(strides[0].tolist()) == [s // value.itemsize for s in whole[:3]], name
        elif isinstance(value, np.generic):
            assert value.dtype in (np.int32, np.int64, np.float32)
            value = value.item()
        found[name.rstrip("*")] = value
    return found


def _problem(q_shape: tuple[int, ...], k: np.ndarray, new: int, a: dict[str, Any]) -> DecodeProblem:
    batch, nheads, seqlen_q, head_dim = q_shape
    pages: dict[str, Any] = {"max_seqlen": a["capacity"]}
    if "block_table" in a:
        assert a["page_size"] == k.shape[2] and a["block_table"].dtype == np.int32
        assert a["stride"] == a["block_table"].strides[0] // 4
        max_pages = a["capacity"] // a["page_size"]
        pages = {"max_seqlen": None, "page_size": a["page_size"], "max_pages": max_pages}
        pages["num_pages"] = len(k)
    window = (a["left"], None) if "left" in a else None
    scale = a.get("scale_log2", 0.0) / np.log2(np.e)
    return DecodeProblem(
        batch=batch, nheads=nheads, nheads_kv=k.shape[1], seqlen_q=seqlen_q, seqlen_new=new,
        head_dim=head_dim, dtype=k.dtype.name, window=window, softmax_scale=scale, **pages,
    )  # fmt: skip


_PAGED = ("block_table", "stride", "page_size")


def _finish(plan: Any, args: list[Any], a: dict[str, Any]) -> dict[str, Any]:
    a = a | (_take(args, *_PAGED) if plan.macros["PAGED"] else {})
    a["totals"] = args.pop() if plan.macros["COUNT_TRAFFIC"] else None
    assert not args, "more arguments than parameters"
    return a


def _add(totals: np.ndarray | None, hbm: CountingHbm) -> None:
    """What was moved, in the order of io.cuh."""
    if totals is not None:
        for column, moved in enumerate((hbm.read_bytes, hbm.written_bytes)):
            totals[:, column] += np.array([moved[t] for t in ALL_TENSORS], np.uint64)


def _append(plan: Any, args: list[Any]) -> None:
    names = ("k_new*", "v_new*", "k*", "v*", "lengths", "chunks", "nheads_kv", "seqlen_new")
    a = _finish(plan, args, _take(args, *names, "capacity"))
    batch, heads, new, head_dim = a["k_new"].shape
    assert a["chunks"] == batch * heads * new * -(-head_dim // 8)
    assert (heads, new) == (a["nheads_kv"], a["seqlen_new"])
    problem = _problem((batch, heads, 1, head_dim), a["k"], new, a)
    rest = (problem, a.get("block_table"))
    hbm = CountingHbm()
    lengths = a["lengths"].tolist()
    if max(lengths) + new > a["capacity"]:  # what does not fit is dropped
        return
    append(a["k"], a["v"], a["k_new"], a["v_new"], lengths, *rest, hbm=hbm)
    _add(a["totals"], hbm)


def _split_kv(plan: Any, args: list[Any]) -> None:
    a = _take(args, "q*", "k*", "v*", "out*", "lse", "partial_out", "partial_lse", "lengths")
    a |= _take(args, "nheads", "group", "seqlen_q", "seqlen_new", "capacity", "num_splits")
    a |= _take(args, "left", "right") if plan.macros["WINDOW"] else {}
    a = _finish(plan, args, a | _take(args, "scale_log2"))
    assert (a["nheads"], a["seqlen_q"]) == a["q"].shape[1:3]
    assert a["group"] == a["nheads"] // a["k"].shape[1]
    problem = _problem(a["q"].shape, a["k"], a["seqlen_new"], a)
    totals = np.minimum(a["lengths"] + a["seqlen_new"], a["capacity"])
    hbm = CountingHbm()
    out, lse = flash_decode(
        a["q"], a["k"], a["v"], totals, problem, a["num_splits"], hbm=hbm,
        block_table=a.get("block_table"), block_rows=plan.macros["GROUP_ROWS"],
        merged_on_chip=plan.macros["CLUSTER"] > 1,
    )  # fmt: skip
    _add(a["totals"], hbm)  # with what the merge moves
    assert plan.macros["CLUSTER"] in (1, a["num_splits"])
    if plan.macros["CLUSTER"] == a["num_splits"]:
        a["out"][...], a["lse"][...] = out, lse
        return
    assert a["partial_out"].shape == (a["num_splits"], *out.shape)
    a["partial_lse"][...] = -np.inf
    a["partial_lse"][0], a["partial_out"][0] = lse, out


def _merge(plan: Any, args: list[Any]) -> None:
    names = ("partial_out", "partial_lse", "out*", "lse", "nheads", "seqlen_q", "rows")
    a = _take(args, *names, "num_splits")
    assert a["rows"] == a["lse"].size
    assert len(a["partial_lse"]) == a["num_splits"]
    a["out"][...], a["lse"][...] = merge(a["partial_out"], a["partial_lse"])


_KERNELS = {
    "decode_split_kv_append": _append,
    "decode_split_kv_attend": _split_kv,
    "decode_split_kv_merge": _merge,
}
