"""The front door of decoding: arrays of every kind, in place, and refusals in words."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fa_kernels as fa
from fa_kernels.cuda import launch
from fa_kernels.decode_problem import DecodeProblem
from fa_kernels.measure.check import EPS
from tests.cuda.fake_decode import Gpu, install, on_gpu
from tests.decode_steps import Step, formula, make, steps
from tests.reference.problems import bounded

door: Any = importlib.import_module("fa_kernels.decoding")
PLAIN = DecodeProblem(2, 4, 2, 3, 2, 48, 16, "float32")
PAGED = replace(PLAIN, max_seqlen=None, page_size=16, max_pages=3, num_pages=7)
TOTALS = (48, 17)
each_layout = pytest.mark.parametrize("problem", [PLAIN, PAGED], ids=["contiguous", "paged"])


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    monkeypatch.setattr(door, "kernel_names", lambda: [door.DECODE_KERNEL])
    monkeypatch.setattr(door, "unverified", dict)
    return install(monkeypatch)


# -- results --------------------------------------------------------------------------------


@bounded
@given(steps(), st.one_of(st.none(), st.integers(1, 9)))
def test_it_is_the_formula(step: Step, num_splits: int | None) -> None:
    out, lse = step.call(fa.decode, num_splits=num_splits)
    for got, want in zip((out, lse), formula(step), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_every_dtype(dtype: str) -> None:
    step = make(replace(PLAIN, dtype=dtype), TOTALS)
    out, lse = step.call(fa.decode, num_splits=2)
    assert (out.dtype.name, lse.dtype) == (dtype, np.float32)
    np.testing.assert_allclose(out.astype(float), formula(step)[0], atol=2 * EPS[dtype])
    assert isinstance(step.call(fa.decode, return_lse=False), np.ndarray)


@each_layout
def test_new_tokens_are_written_in_place(problem: DecodeProblem) -> None:
    step = make(problem, TOTALS)
    k, v = step.k.copy(), step.v.copy()
    rest: dict[str, Any] = {"block_table": step.block_table}
    new: dict[str, Any] = {"k_new": step.k_new, "v_new": step.v_new}
    out = fa.decode(step.q, k, v, step.cache_seqlens, **new, **rest)
    again = fa.decode(step.q, k, v, step.totals, **rest)  # now they are in the caches
    np.testing.assert_array_equal(out, again)
    assert np.isnan(step.k).sum() - np.isnan(k).sum() == 2 * 2 * 2 * 16


@pytest.mark.parametrize("lengths", [18, np.int64(18), [18, 18], np.array([18, 18])])
def test_one_length_for_all(lengths: Any) -> None:
    step = make(PLAIN, (20, 20))
    out = fa.decode(step.q, step.k.copy(), step.v.copy(), lengths, k_new=step.k_new,
                    v_new=step.v_new)  # fmt: skip
    np.testing.assert_allclose(out, formula(step)[0], atol=1e-6)


def test_an_empty_cache_gives_zero_and_minus_infinity() -> None:
    step = make(replace(PLAIN, seqlen_new=0), (0, 0))
    out, lse = step.call(fa.decode, num_splits=3)
    assert not out.any() and bool((lse == -np.inf).all())


def test_generation_token_by_token_is_attention() -> None:
    """Six steps, each appending its token, are the rows of causal attention."""
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((2, h, 6, 16)).astype("f4") for h in (4, 2, 2))
    k_cache, v_cache = np.full((2, 2, 2, 16, 16), np.nan, np.float32)
    whole = fa.attention(q, k, v, causal=True)
    for t in range(6):
        at = np.s_[:, :, t : t + 1]
        out = fa.decode(q[at], k_cache, v_cache, t, k_new=k[at], v_new=v[at], num_splits=1 + t)
        np.testing.assert_allclose(out, whole[at], atol=1e-6)
    np.testing.assert_array_equal(k_cache[:, :, :6], k)


@each_layout
def test_torch_tensors_in_place(problem: DecodeProblem) -> None:
    torch = pytest.importorskip("torch")
    step = make(replace(problem, dtype="bfloat16"), TOTALS)

    def tensor(array: np.ndarray | None) -> Any:
        if array is None or array.dtype == np.int32:
            return None if array is None else torch.from_numpy(array)
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)

    k, v = tensor(step.k), tensor(step.v)
    names = ("k_new", "v_new", "block_table")
    options = {name: tensor(getattr(step, name)) for name in names}
    lengths = torch.from_numpy(step.cache_seqlens)
    out, lse = fa.decode(tensor(step.q), k, v, lengths, **options, return_lse=True)
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    want, _ = step.call(fa.decode)
    np.testing.assert_array_equal(out.view(torch.int16).numpy().view(ml_dtypes.bfloat16), want)
    assert int(k.isnan().sum()) < int(np.isnan(step.k.astype("f4")).sum())


# -- refusals -------------------------------------------------------------------------------

GOOD = make(PLAIN, TOTALS)
GOOD_PAGED = make(PAGED, TOTALS)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "k_new alone": ({"v_new": None}, "k_new without v_new: a token has a key and a value"),
    "v_new alone": ({"k_new": None}, "v_new without k_new"),
    "a list": ({"q": [1.0]}, "q is a list: pass a NumPy, CuPy or torch array"),
    "axes": ({"q": GOOD.q[0]}, r"q has shape \(4, 3, 16\): expected 4 axes"),
    "dtypes": ({"q": GOOD.q.astype("f2")}, "have different dtypes"),
    "unlike caches": ({"v_cache": GOOD.v[:, :, :-1]}, "they must be alike"),
    "batch": ({"q": GOOD.q[:1]}, "a cache made of pages needs a block_table"),
    "head_dim": ({"q": GOOD.q[..., :8]}, "head_dim must be equal"),
    "heads": ({"q": GOOD.q[:, :3]}, "nheads_kv = 2 does not divide nheads = 3"),
    "k_new's heads": ({"k_new": GOOD.q[:, :, :2]}, r"k_new has shape \(2, 4, 2, 16\)"),
    "overflow": ({"cache_seqlens": 47}, "cache_seqlens = 47 .* With 2 new tokens the cache of 48"),
    "of one": ({"cache_seqlens": [3, 47]}, r"cache_seqlens\[1\] = 47 is out of range: .* 0 and 46"),
    "negative": ({"cache_seqlens": np.array([-1, 3])}, r"cache_seqlens\[0\] = -1"),
    "real": ({"cache_seqlens": np.array([1.0, 3.0])}, "cache_seqlens is float64: pass whole"),
    "a bool": ({"cache_seqlens": True}, "cache_seqlens = True is not a whole number"),
    "too many": ({"cache_seqlens": [1, 2, 3]}, r"must be \(batch,\) = \(2,\)"),
    "splits": ({"num_splits": 129}, "num_splits = 129 is out of range: it must be between 1 and"),
    "window": ({"window": 3}, "window = 3 is not a pair"),
    "scale": ({"softmax_scale": float("inf")}, "softmax_scale = inf is not a finite number"),
    "backend": ({"backend": "gpu"}, "backend = 'gpu' is not known"),
}  # fmt: skip
PAGED_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "page size": ({"k_cache": GOOD_PAGED.k[:, :, :15], "v_cache": GOOD_PAGED.v[:, :, :15]},
                  "page_size = 15 is out of range"),
    "not of 16": ({name: np.zeros((7, 2, 24, 16), "f4") for name in ("k_cache", "v_cache")},
                  "page_size = 24 is not a multiple of 16"),
    "no such page": ({"block_table": np.array([[0, 1, 7], [3, 4, 5]])},
                     r"block_table\[0, 2\] = 7 is out of range: the cache has pages 0 to 6"),
    "page below 0": ({"block_table": np.array([[0, 1, 2], [3, -1, 5]])}, r"block_table\[1, 1\]"),
    "table's batch": ({"block_table": GOOD_PAGED.block_table[:1]}, "q has batch 2"),  # type: ignore[index]
    "table's dtype": ({"block_table": np.zeros((2, 3))}, "block_table is float64"),
    "overflow": ({"cache_seqlens": 47}, "the cache of 48 would overflow"),
}  # fmt: skip


def refused(step: Step, options: dict[str, Any]) -> None:
    given = {"q": step.q, "k_cache": step.k.copy(), "v_cache": step.v.copy(),
             "cache_seqlens": step.cache_seqlens, "k_new": step.k_new, "v_new": step.v_new,
             "block_table": step.block_table} | options  # fmt: skip
    before = given["k_cache"].copy()
    try:
        fa.decode(**given)
    finally:
        np.testing.assert_array_equal(given["k_cache"], before)


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_before_anything_is_written(name: str) -> None:
    options, said = REFUSED[name]
    with pytest.raises((ValueError, TypeError), match=said):
        refused(GOOD, options)


@pytest.mark.parametrize("name", PAGED_REFUSED)
def test_bad_pages_are_refused_before_anything_is_written(name: str) -> None:
    options, said = PAGED_REFUSED[name]
    with pytest.raises(ValueError, match=said):
        refused(GOOD_PAGED, options)


def test_pages_behind_the_last_token_are_not_looked_at() -> None:
    table = GOOD_PAGED.block_table
    assert table is not None
    other = table.copy()
    other[1, 2] = -1  # 17 tokens lie in two pages
    out, want = (replace(GOOD_PAGED, block_table=t).call(fa.decode)[0] for t in (other, table))
    np.testing.assert_array_equal(out, want)


def test_head_dim_has_a_limit() -> None:
    q, cache = np.zeros((1, 1, 1, 257), "f4"), np.zeros((1, 1, 16, 257), "f4")
    with pytest.raises(ValueError, match="head_dim = 257 is out of range: .* 1 and 256"):
        fa.decode(q, cache, cache, 3)


def test_a_cache_that_cannot_be_written_is_refused() -> None:
    shared = np.broadcast_to(GOOD.k[:1], GOOD.k.shape)
    frozen = GOOD.k.copy()
    frozen.flags.writeable = False
    for cache, how in ((shared, "read-only"), (frozen, "read-only")):
        with pytest.raises(ValueError, match=f"k_cache is {how}"):
            refused(GOOD, {"k_cache": cache})
    without = replace(GOOD, problem=replace(PLAIN, seqlen_new=0), k_new=None, v_new=None)
    assert np.isfinite(replace(without, k=frozen, totals=np.array([9, 9])).call(fa.decode)[0]).all()


def test_torch_tensors_that_cannot_be_used_are_refused() -> None:
    torch = pytest.importorskip("torch")
    q, cache = torch.zeros(1, 1, 1, 8), torch.zeros(1, 1, 16, 8)
    new = {"k_new": q, "v_new": q}
    with pytest.raises(NotImplementedError, match=r"q requires grad.*pass q\.detach\(\)"):
        fa.decode(q.clone().requires_grad_(), cache, cache, 3)
    with pytest.raises(ValueError, match="v_cache is a broadcast view"):
        fa.decode(q, cache, cache[:, :, :1].expand(1, 1, 16, 8), 3, **new)


# -- on a GPU -------------------------------------------------------------------------------


def half(problem: DecodeProblem) -> Step:
    return make(replace(problem, dtype="float16"), TOTALS)


def placed(step: Step) -> Any:
    """The step with its arrays on the GPU."""
    names = ("q", "k", "v", "k_new", "v_new", "block_table")
    return replace(step, **{name: on_gpu(getattr(step, name)) for name in names})


@each_layout
@pytest.mark.parametrize("num_splits", [None, 1, 3])
def test_gpu_arrays_go_to_the_kernels(
    gpu: Gpu, problem: DecodeProblem, num_splits: int | None
) -> None:
    step = half(problem)
    there = placed(step)
    lengths = on_gpu(step.cache_seqlens)
    options = {"k_new": there.k_new, "v_new": there.v_new, "block_table": there.block_table}
    out = fa.decode(there.q, there.k, there.v, lengths, num_splits=num_splits, **options)
    assert type(out) is type(there.q)
    np.testing.assert_allclose(out.get().astype(float), formula(step)[0], atol=2e-3)
    assert gpu.entries[:2] == ["decode_split_kv_append", "decode_split_kv_attend"]
    assert np.isnan(there.k.get()).sum() < np.isnan(step.k).sum(), "written in place"


@each_layout
def test_host_arrays_through_the_gpu_are_written_in_place_too(
    gpu: Gpu, problem: DecodeProblem
) -> None:
    step = half(problem)
    k, v = step.k.copy(), step.v.copy()
    new: dict[str, Any] = {"k_new": step.k_new, "v_new": step.v_new}
    new |= {"block_table": step.block_table}
    out = fa.decode(step.q, k, v, step.cache_seqlens, backend="cuda", **new)
    assert type(out) is np.ndarray and "decode_split_kv_append" not in gpu.entries
    np.testing.assert_allclose(out.astype(float), formula(step)[0], atol=2e-3)
    assert np.isnan(k).sum() < np.isnan(step.k).sum()


def test_lengths_on_the_gpu_are_not_looked_at(gpu: Gpu) -> None:
    step = placed(half(replace(PLAIN, seqlen_new=0)))
    fa.decode(step.q, step.k, step.v, on_gpu(np.array([99, -3], np.int32)))
    assert gpu.entries[0] == "decode_split_kv_attend"
    with pytest.raises(ValueError, match="int64 on a GPU, kernels read int32: cast it"):
        fa.decode(step.q, step.k, step.v, on_gpu(np.array([3, 3])))


def test_auto_never_runs_an_unverified_kernel(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    step = placed(half(replace(PLAIN, seqlen_new=0)))
    monkeypatch.setattr(door, "unverified", lambda: {door.DECODE_KERNEL: "changed"})
    with pytest.raises(NotImplementedError, match=r"not verified on a GPU \(changed\): run `make"):
        fa.decode(step.q, step.k, step.v, 9)
    monkeypatch.setattr(door, "kernel_names", list)
    with pytest.raises(NotImplementedError, match=r"not verified on a GPU \(missing\)"):
        fa.decode(step.q, step.k, step.v, 9)
    assert not gpu.launches
    fa.decode(step.q, step.k, step.v, 9, backend="cuda")
    assert gpu.launches


def test_a_graph_takes_lengths_from_the_gpu(gpu: Gpu) -> None:
    step = placed(half(replace(PLAIN, seqlen_new=0)))
    gpu.capturing = True
    with pytest.raises(ValueError, match="cache_seqlens lies on the host while a CUDA graph is"):
        fa.decode(step.q, step.k, step.v, [9, 9])
    fa.decode(step.q, step.k, step.v, 9)
    fa.decode(step.q, step.k, step.v, on_gpu(np.array([9, 9], np.int32)))
    paged = placed(half(replace(PAGED, seqlen_new=0)))
    table = paged.block_table.get()
    with pytest.raises(ValueError, match="block_table lies on the host"):
        fa.decode(paged.q, paged.k, paged.v, 9, block_table=table)


def test_what_the_kernel_does_not_take_is_refused(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = placed(make(replace(PLAIN, seqlen_new=0), TOTALS))
    with pytest.raises(NotImplementedError, match="dtype = float32: .* tensor cores .*Cast q"):
        fa.decode(wide.q, wide.k, wide.v, 9)
    step = placed(half(replace(PLAIN, seqlen_new=0)))
    across = on_gpu(step.k.transpose(0, 1, 3, 2).copy()).transpose(0, 1, 3, 2)
    with pytest.raises(ValueError, match="k_cache has a last axis that is not contiguous"):
        fa.decode(step.q, across, step.v, 9)
    monkeypatch.setattr("fa_kernels.cuda.decode_call.smem_limit_bytes", lambda: 8)
    with pytest.raises(ValueError, match=r"needs .* of shared memory per block, this GPU allows"):
        fa.decode(step.q, step.k, step.v, 9)
    monkeypatch.setattr(type(gpu.cupy.cuda.Device()), "compute_capability", "75")
    with pytest.raises(NotImplementedError, match="needs compute capability sm_80"):
        fa.decode(step.q, step.k, step.v, 9)
    assert not gpu.launches and not gpu.made


def test_cuda_without_a_gpu_is_refused() -> None:
    if launch.available():
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match="backend = 'cuda' needs CuPy and a CUDA GPU"):
        refused(GOOD, {"backend": "cuda"})
