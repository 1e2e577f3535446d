"""The front door: every wrong input is refused in words before anything is allocated or run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fa_kernels as fa
from fa_kernels import call as calls
from fa_kernels.attention import attention
from fa_kernels.block_mask import BlockMask
from fa_kernels.call import AUTO_ORDER, checked_call
from fa_kernels.cuda import arrays, launch
from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.measure.check import Truth
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling, default_tiling
from fa_kernels.units import KIB
from fa_kernels.variants import RUNGS, VARIANTS
from tests.reference.problems import MASKS, SHAPES, Arrays, random_inputs, random_mask


def make(
    batch: int = 2, nheads: int = 3, nq: int = 17, nk: int = 23, d: int = 20, dtype: str = "float32"
) -> Arrays:
    return random_inputs(AttentionProblem(batch, nheads, nq, nk, d), dtype)


#: Every variant with every dtype that it takes.
EACH = [(name, dtype) for name, variant in VARIANTS.items() for dtype in variant.dtypes]
each = pytest.mark.parametrize(("variant", "dtype"), EACH)
SPARSE = [name for name, variant in VARIANTS.items() if variant.block_sparse]


def wide(variant: str) -> str:
    """The dtype with the smallest rounding that a variant takes."""
    return VARIANTS[variant].dtypes[0]


def right(inputs: Arrays, out: Any, lse: Any, variant: str, **options: Any) -> bool:
    """True if every row of out and lse keeps the tolerance rule."""
    call = checked_call(*inputs, variant, None, "numpy", **options)
    rows = np.arange(call.problem.seqlen_q)
    truth = Truth(inputs, call.problem, extras=call.extras, xp=np, rows=rows)
    return truth.check(out, lse, call.variant.roundings(call.problem, call.tiling)).ok


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test if a refused call has allocated a result or run an algorithm."""

    def reached(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("an algorithm was run or a result allocated")

    for name, variant in VARIANTS.items():
        monkeypatch.setitem(VARIANTS, name, replace(variant, reference=reached, run=reached))
    for name in ("to_numpy", "like", "empty_result", "zeros_like", "run_on_host", "run_on_gpu"):
        monkeypatch.setattr(arrays, name, reached)


# -- results --------------------------------------------------------------------------------


@pytest.mark.parametrize(("variant", "dtype"), [("auto", "float32"), ("auto", "bfloat16"), *EACH])
@pytest.mark.parametrize("causal", [False, True, "bottom_right", "top_left"])
@pytest.mark.parametrize("shape", SHAPES)
def test_out_and_lse_are_attention(
    shape: tuple[int, int], causal: bool | str, variant: str, dtype: str
) -> None:
    inputs = make(1, 2, *shape, dtype=dtype)
    out, lse = attention(*inputs, variant=variant, causal=causal, return_lse=True)
    assert right(inputs, out, lse, variant, causal=causal)


@pytest.mark.parametrize("lead", [(1, 1), (1, 3), (2, 1), (2, 3)])
@pytest.mark.parametrize("causal", [False, "bottom_right", "top_left"])
@pytest.mark.parametrize("variant", ["auto", *SPARSE])
def test_a_block_mask_is_attention_over_its_blocks(
    variant: str, causal: bool | str, lead: tuple[int, int]
) -> None:
    dtype = "float32" if variant == "auto" else wide(variant)
    inputs = make(2, 3, 113, 203, dtype=dtype)
    mask = random_mask(113, 203, 24, 40, lead)
    options: dict[str, Any] = {"causal": causal, "block_mask": mask}
    out, lse = attention(*inputs, variant=variant, return_lse=True, **options)
    assert right(inputs, out, lse, variant, **options)
    dense, dense_lse = attention(*inputs, variant=variant, causal=causal, return_lse=True)
    assert not right(inputs, dense, dense_lse, variant, **options), "the mask says nothing"


@pytest.mark.parametrize("variant", SPARSE)
def test_what_a_block_mask_drops_has_no_influence(variant: str) -> None:
    q, k, v = make(1, 2, 64, 64, dtype=wide(variant))
    mask = BlockMask.from_dense(np.eye(4, dtype=bool), 16, 16)
    before = attention(q, k, v, variant=variant, block_mask=mask, tiling=Tiling(16, 16))
    k[:, :, 16:32], v[:, :, 16:32] = 7.0, np.nan  # kept by the second block row alone
    after = attention(q, k, v, variant=variant, block_mask=mask, tiling=Tiling(16, 16))
    same = np.r_[0:16, 32:64]
    assert before[:, :, same].tobytes() == after[:, :, same].tobytes()
    assert np.isnan(after[:, :, 16:32]).all()


@pytest.mark.parametrize("variant", SPARSE)
def test_a_mask_that_keeps_everything_changes_no_bit(variant: str) -> None:
    inputs = make(2, 3, 113, 203, dtype=wide(variant))
    full = BlockMask.from_dense(np.ones((8, 6), bool), 16, 40)
    want = attention(*inputs, variant=variant, causal=True, return_lse=True)
    got = attention(*inputs, variant=variant, causal=True, block_mask=full, return_lse=True)
    assert [x.tobytes() for x in got] == [x.tobytes() for x in want]


@each
def test_shapes_and_dtypes_of_the_results(variant: str, dtype: str) -> None:
    q, k, v = make(dtype=dtype)
    out, lse = attention(q, k, v, variant=variant, return_lse=True)
    assert (type(out), out.shape, out.dtype) == (np.ndarray, q.shape, io_dtype(dtype))
    assert (type(lse), lse.shape, lse.dtype) == (np.ndarray, q.shape[:3], np.float32)
    alone = attention(q, k, v, variant=variant)
    np.testing.assert_array_equal(alone, out)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("causal", MASKS)
def test_torch_in_torch_out(dtype: str, causal: str | None) -> None:
    torch = pytest.importorskip("torch")
    q, k, v = make(dtype=dtype)
    tensors = [torch.from_numpy(x) for x in (q, k, v)]
    out, lse = attention(*tensors, causal=causal or False, return_lse=True)
    want, want_lse = attention(q, k, v, causal=causal or False, return_lse=True)
    assert isinstance(out, torch.Tensor) and isinstance(lse, torch.Tensor)
    assert (out.dtype, lse.dtype) == (tensors[0].dtype, torch.float32)
    assert out.device.type == "cpu" and not out.requires_grad
    np.testing.assert_array_equal(out.numpy(), want)
    np.testing.assert_array_equal(lse.numpy(), want_lse)


@pytest.mark.parametrize("variant", VARIANTS)
def test_torch_bfloat16_in_torch_bfloat16_out(variant: str) -> None:
    """torch gives NumPy no bfloat16: only its bits pass, and they must not be read as integers."""
    torch = pytest.importorskip("torch")
    inputs = make(dtype="bfloat16")
    tensors = [torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) for x in inputs]
    out, lse = attention(*tensors, variant=variant, return_lse=True)
    want, want_lse = attention(*inputs, variant=variant, return_lse=True)
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    np.testing.assert_array_equal(out.view(torch.int16).numpy(), want.view(np.int16))
    np.testing.assert_array_equal(lse.numpy(), want_lse)


#: fp32 sums in another order; in fp16 one unit of a value of about 1.
ATOL = {"float32": 1e-6, "float16": 2e-3}


def strange_views(q: np.ndarray) -> dict[str, np.ndarray]:
    """The values of `q` in other places of memory."""
    backwards = np.ascontiguousarray(q[:, :, ::-1, ::-1])[:, :, ::-1, ::-1]
    spaced = np.zeros((*q.shape[:3], 2 * q.shape[3]), q.dtype)[..., ::2]
    shifted = np.zeros(q.size + 1, q.dtype)[1:].reshape(q.shape)
    spaced[...] = shifted[...] = q
    return {
        "batch, seqlen, heads, d": np.ascontiguousarray(q.transpose(0, 2, 1, 3)).transpose(
            0, 2, 1, 3
        ),
        "negative strides": backwards,
        "every other element": spaced,
        "Fortran order": np.asfortranarray(q),
        "shifted by one element": shifted,
        "big-endian": q.astype(q.dtype.newbyteorder(">")),
        "read-only": np.frombuffer(q.tobytes(), q.dtype).reshape(q.shape),
    }


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", strange_views(make()[0]))
def test_strange_strides_give_the_same_result(name: str, variant: str) -> None:
    q, k, v = make(dtype=wide(variant))
    want, want_lse = attention(q, k, v, variant=variant, causal=True, return_lse=True)
    views = [strange_views(x)[name] for x in (q, k, v)]
    out, lse = attention(*views, variant=variant, causal=True, return_lse=True)
    np.testing.assert_allclose(out, want, rtol=0, atol=ATOL[wide(variant)])
    np.testing.assert_allclose(lse, want_lse, rtol=0, atol=1e-6)


def test_broadcast_heads_are_read_where_they_are() -> None:
    q, k, v = make()
    one_head = np.broadcast_to(k[:, :1], k.shape)
    want = attention(q, np.ascontiguousarray(one_head), v)
    np.testing.assert_allclose(attention(q, one_head, v), want, rtol=0, atol=1e-6)


def test_torch_views_give_the_same_result() -> None:
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x) for x in make())
    views = [x.permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3) for x in (q, k, v)]
    assert not views[0].is_contiguous()
    torch.testing.assert_close(attention(*views), attention(q, k, v), rtol=0, atol=1e-6)


@each
def test_the_inputs_are_never_modified(variant: str, dtype: str) -> None:
    inputs = make(dtype=dtype)
    before = [x.copy() for x in inputs]
    out = attention(*inputs, variant=variant, causal=True)
    out[...] = 7.0  # nor does the result share their memory
    for x, y in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_tiling_does_not_change_the_result(variant: str) -> None:
    q, k, v = make(dtype=wide(variant))
    want = attention(q, k, v, variant=variant)
    # A 16-bit O is rounded at each of 23 passes.
    atol = {"float32": 1e-6, "float16": 23 * 2.0**-11}[wide(variant)]
    for tiling in (Tiling(1, 1), Tiling(5, 16), Tiling(4096, 4096)):
        out = attention(q, k, v, variant=variant, tiling=tiling)
        np.testing.assert_allclose(out, want, rtol=0, atol=atol)


def test_softmax_scale() -> None:
    q, k, v = make()
    out = attention(q, k, v, softmax_scale=0.0)
    np.testing.assert_allclose(out, np.broadcast_to(v.mean(2, keepdims=True), q.shape), atol=1e-6)


def test_overflow_and_nan_follow_the_inputs_silently() -> None:
    q, k, v = make(dtype="float16")
    q[0, 0, 0] = np.inf
    q[0, 0, 1] = 6e4
    k[0, 0, 0] = 6e4
    for variant in VARIANTS:
        out = attention(q, k, v, variant=variant)  # warnings are errors in this suite
        assert np.isnan(out[0, 0, 0]).all() and np.isfinite(out[1]).all()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize(
    ("nq", "nk", "batch", "nheads"),
    [(0, 5, 2, 3), (5, 0, 2, 3), (0, 0, 2, 3), (5, 5, 0, 3), (5, 5, 2, 0), (0, 0, 0, 0)],
)
def test_zero_rows_give_zeros_and_minus_infinity(
    nq: int, nk: int, batch: int, nheads: int, kind: str, dtype: str
) -> None:
    """Sizes may be 0: attending no key at all gives out 0, lse -inf."""
    some = make(2, 3, 5, 5, dtype=dtype)
    inputs: tuple[Any, ...] = tuple(
        np.ascontiguousarray(x[:batch, :nheads, :n])
        for x, n in zip(some, (nq, nk, nk), strict=True)
    )
    if kind == "torch":
        inputs = tuple(map(pytest.importorskip("torch").from_numpy, inputs))
    out, lse = attention(*inputs, return_lse=True)
    assert type(out) is type(lse) is type(inputs[0])
    out, lse = np.asarray(out), np.asarray(lse)
    assert out.shape == (batch, nheads, nq, 20) and out.dtype == dtype
    assert lse.shape == (batch, nheads, nq)
    assert lse.dtype == {"float16": "float32", "float64": "float64"}[dtype]
    assert not out.any() and (lse == -np.inf).all()


@pytest.mark.parametrize(("nq", "nk", "batch"), [(0, 5, 2), (5, 0, 2), (5, 5, 0)])
def test_a_block_mask_of_nothing_is_no_reason_to_refuse(nq: int, nk: int, batch: int) -> None:
    mask = random_mask(nq, nk, 64, 64)
    out, lse = attention(*make(batch, 3, nq, nk), block_mask=mask, return_lse=True)
    assert not out.any() and (lse == -np.inf).all()


# -- refusals -------------------------------------------------------------------------------

q, k, v = make()
LONG_VIEW = np.broadcast_to(np.zeros((1, 1, 1, 1), np.float32), (1, 1, 10**9, 64))
bf16 = q.astype(ml_dtypes.bfloat16)

Call = Callable[[], Any]
REFUSED: dict[str, tuple[Call, type[Exception], str]] = {
    "a list": (lambda: attention([1.0], k, v), TypeError, r"^q is a list: pass a NumPy"),
    "None": (lambda: attention(q, None, v), TypeError, r"^k is a NoneType: pass a NumPy"),
    "text": (lambda: attention(q, k, "v"), TypeError, r"^v is a str: pass a NumPy"),
    "a number": (lambda: attention(1.0, k, v), TypeError, r"^q is a float: pass"),
    "3 axes": (
        lambda: attention(q[0], k, v), ValueError, r"^q has shape \(3, 17, 20\): .*Add axes",
    ),
    "5 axes": (lambda: attention(q, k[None], v), ValueError, r"^k has shape .*expected 4 axes"),
    "a scalar array": (lambda: attention(np.float32(1), k, v), ValueError, r"^q has shape \(\)"),
    "float64 for a 16-bit variant": (
        lambda: attention(*(x.astype("f8") for x in (q, k, v)), variant="flash_kv_outer_io"),
        NotImplementedError, r"does not take float64: cast q, k and v to one of float16, bfloat16",
    ),
    "integers": (
        lambda: attention(*(x.astype("i4") for x in (q, k, v))), ValueError, r"dtype = int32",
    ),
    "complex": (
        lambda: attention(*(x.astype("c8") for x in (q, k, v))), ValueError, r"dtype = complex64",
    ),
    "fp32 for a 16-bit variant": (
        lambda: attention(q, k, v, variant="flash_kv_outer_io"), NotImplementedError,
        r"variant = 'flash_kv_outer_io' does not take float32: .* one of float16, bfloat16",
    ),
    "bf16 and fp32": (
        lambda: attention(bf16, k, v), ValueError, r"different dtypes: \{'q': 'bfloat16', 'k': 'fl",
    ),
    "keep_blocks for a block mask": (
        lambda: attention(q, k, v, block_mask=np.ones((1, 1), bool)), TypeError,
        r"block_mask is a ndarray: make one with fa\.BlockMask\.from_dense",
    ),
    "a block mask of other lengths": (
        lambda: attention(q, k, v, block_mask=random_mask(33, 23, 16, 16)), ValueError,
        r"block_mask has 3 x 2 blocks of 16 x 16; seqlen_q = 17, seqlen_k = 23 needs 2 x 2\. B",
    ),
    "a block mask of other heads": (
        lambda: attention(q, k, v, block_mask=random_mask(17, 23, 16, 16, (1, 2))), ValueError,
        r"block_mask is for \(batch, nheads\) = \(1, 2\), the call has \(2, 3\)",
    ),
    "a block mask for naive": (
        lambda: attention(
            q, k, v, variant="standard_naive", block_mask=random_mask(17, 23, 16, 16)
        ),
        NotImplementedError,
        r"'standard_naive' does not take a block_mask: use one of 'flash_kv_outer', ",
    ),
    "a block mask for tiled": (
        lambda: attention(
            q, k, v, variant="standard_tiled", block_mask=random_mask(17, 23, 16, 16)
        ),
        NotImplementedError,
        r"'standard_tiled' does not take a block_mask: .*'flash_q_outer', .*'flash_wgmma'\.",
    ),
    "mixed dtypes": (
        lambda: attention(q, k.astype("f2"), v), ValueError,
        r"different dtypes: .*'k': 'float16'.*Cast them to one",
    ),
    "other batch": (
        lambda: attention(q[:1], k, v), ValueError,
        r"shapes do not belong together: q \(1, 3, 17, 20\), k \(2, 3, 23, 20\)",
    ),
    "other head_dim": (lambda: attention(q[..., :19], k, v), ValueError, r"head_dim must be eq"),
    "v unlike k": (lambda: attention(q, k, v[:, :, 1:]), ValueError, r"v must be shaped like k"),
    "v with other d": (lambda: attention(q, k, v[..., 1:]), ValueError, r"v must be shaped like"),
    "grouped heads": (
        lambda: attention(q, k[:, :2], v[:, :2]), ValueError,
        r"k and v have 2 heads, q has 3: .* nheads must be a multiple\. Repeat or drop",
    ),
    "k and v without heads": (
        lambda: attention(q, k[:, :0], v[:, :0]), ValueError, r"k and v have 0 heads, q has 3",
    ),
    "more heads of k than of q": (
        lambda: attention(q[:, :1], k, v), ValueError, r"k and v have 3 heads, q has 1: ",
    ),
    "d = 0": (
        lambda: attention(q[..., :0], k[..., :0], v[..., :0]), ValueError,
        r"head_dim = 0 is out of range: it must be between 1 and 256\. \w",
    ),
    "d = 257": (
        lambda: attention(*[np.zeros((1, 1, 2, 257), "f2")] * 3), ValueError,
        r"head_dim = 257 is out of range: it must be between 1 and 256\. Split or pad",
    ),
    "N = 10^9": (
        lambda: attention(LONG_VIEW, LONG_VIEW, LONG_VIEW), ValueError,
        r"seqlen_q = 1000000000 is out of range: .*16777216\. Shorten",
    ),
    "NaN scale": (
        lambda: attention(q, k, v, softmax_scale=math.nan), ValueError,
        r"softmax_scale = nan is not a finite number: pass None for 1/sqrt\(head_dim\) = 0\.2236",
    ),
    "text scale": (
        lambda: attention(q, k, v, softmax_scale="big"),  # type: ignore[arg-type]
        ValueError, r"softmax_scale = 'big' is not",
    ),
    "unknown causal": (
        lambda: attention(q, k, v, causal="upper"), ValueError,
        r"causal = 'upper' is not known: use False, True",
    ),
    "causal None": (
        lambda: attention(q, k, v, causal=None), ValueError, r"causal = None",  # type: ignore[arg-type]
    ),
    "causal 1": (
        lambda: attention(q, k, v, causal=1),  # type: ignore[arg-type]
        ValueError, r"causal = 1 is not known",
    ),
    "unknown variant": (
        lambda: attention(q, k, v, variant="flash"), ValueError,
        r"variant = 'flash' is not known \(did you mean 'flash_q_outer'\?\): use 'auto' or one of",
    ),
    "variant None": (
        lambda: attention(q, k, v, variant=None),  # type: ignore[arg-type]
        ValueError, r"variant = None is not known",
    ),
    "unknown backend": (
        lambda: attention(q, k, v, backend="tpu"), ValueError,
        r"backend = 'tpu' is not known: use 'auto', 'cuda' or 'numpy'",
    ),
    "tiling as a tuple": (
        lambda: attention(q, k, v, tiling=(64, 64)),  # type: ignore[arg-type]
        TypeError, r"tiling = \(64, 64\) is not a Tiling: pass fa\.Tiling",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("what", REFUSED)
def test_refused_in_words_before_anything_runs(what: str) -> None:
    call, error, sentence = REFUSED[what]
    with pytest.raises(error, match=sentence):
        call()


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("where", ["leaf", "result"])
def test_a_tensor_that_requires_grad_is_not_detached_silently(where: str) -> None:
    torch = pytest.importorskip("torch")
    tensors = [torch.from_numpy(x) for x in make()]
    tensors[1].requires_grad_()
    if where == "result":
        tensors[1] = tensors[1] * 2
    with pytest.raises(
        NotImplementedError,
        match=r"^k requires grad.*fa_kernels\.integrations\.torch\.attention.*k\.detach\(\)",
    ):
        attention(*tensors)


def test_the_remedy_for_a_tensor_that_requires_grad_works() -> None:
    torch = pytest.importorskip("torch")
    tensors = [torch.from_numpy(x).requires_grad_() for x in make()]
    assert attention(*(t.detach() for t in tensors)).shape == tensors[0].shape


@pytest.mark.usefixtures("nothing_runs")
def test_mixed_kinds_are_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match=r"different kinds or devices: .*'k': 'torch:cpu'.*Conv"):
        attention(q, torch.from_numpy(k), v)


@pytest.mark.usefixtures("nothing_runs")
def test_torch_dtypes_and_devices_are_refused_in_words() -> None:
    torch = pytest.importorskip("torch")
    tensors = [torch.from_numpy(x) for x in make()]
    with pytest.raises(NotImplementedError, match=r"does not take float32: cast .*bfloat16"):
        attention(*tensors, variant="flash_kv_outer_io")
    with pytest.raises(ValueError, match="dtype = int32 is not supported"):
        attention(*(t.int() for t in tensors))
    with pytest.raises(ValueError, match=r"q lives on meta: move it to the CPU or a CUDA GPU"):
        attention(*(t.to("meta") for t in tensors))


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_cuda_without_a_gpu_is_refused_with_the_remedy(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "available", lambda: False)
    inputs: tuple[Any, ...] = make()
    if kind == "torch":
        inputs = tuple(map(pytest.importorskip("torch").from_numpy, inputs))
    with pytest.raises(ValueError, match=r"backend = 'cuda' needs .*use 'auto' or 'numpy'"):
        attention(*inputs, backend="cuda")


@pytest.mark.usefixtures("nothing_runs")
def test_masked_arrays_are_not_taken_for_plain_ones() -> None:
    """Their mask would be ignored without a word."""
    masked = np.ma.masked_array(q, mask=q > 1.0)
    with pytest.raises(TypeError, match=r"^q is a MaskedArray: pass"):
        attention(masked, k, v)


# -- "auto" ---------------------------------------------------------------------------------


def test_auto_lists_every_rung_and_no_control() -> None:
    assert sorted(AUTO_ORDER) == sorted(RUNGS)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Tiling]]:
    """A GPU with 99 KiB per block that notes what it was asked to run and gives its inputs back."""
    launches: list[tuple[Any, Tiling]] = []

    def run_on_gpu(run: Any, inputs: Any, problem: Any, tiling: Tiling, extras: Any) -> Any:
        launches.append((run, tiling))
        return inputs[:2]

    monkeypatch.setattr(arrays, "available", lambda: True)
    monkeypatch.setattr(arrays, "run_on_gpu", run_on_gpu)
    monkeypatch.setattr(calls, "smem_limit_bytes", lambda: 99 * KIB)
    monkeypatch.setattr(launch, "smem_limit_bytes", lambda: 99 * KIB)
    monkeypatch.setattr(calls, "refuse_memory", lambda what, need, pool: None)
    monkeypatch.setattr(calls, "refuse_old_gpu", refuse_old_gpu(80))
    return launches


def refuse_old_gpu(arch: int) -> Callable[[str, int], None]:
    """`launch.refuse_old_gpu` on a GPU of that compute capability."""

    def refuse(kernel: str, min_arch: int) -> None:
        if arch < min_arch:
            raise NotImplementedError(f"{kernel} needs sm_{min_arch}")

    return refuse


def test_tiles_and_memory_are_refused_before_anything_is_copied(
    launched: list[tuple[Any, Tiling]], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = np.zeros((1, 1, 512, 64), np.float32)
    with pytest.raises(ValueError, match=r"needs .* of shared memory per block, this GPU allows"):
        attention(long, long, long, variant="flash_q_outer", backend="cuda", tiling=Tiling(64, 512))
    asked: list[int] = []
    monkeypatch.setattr(calls, "refuse_memory", lambda what, need, pool: asked.append(need))
    attention(long, long, long, backend="cuda", variant="standard_tiled")
    everything = 4 * long.nbytes + 4 * 512 + 2 * 4 * 512 * 512  # q, k, v, out; lse; S and P
    mask = np.broadcast_to(np.ones((1, 512), bool), (512, 512))  # 512 bytes of it are there
    attention(long, long, long, backend="cuda", variant="standard_tiled", mask=mask)
    assert asked == [everything, everything + 512]
    assert len(launched) == 2


def test_more_host_memory_than_there_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls.os, "sysconf", lambda name: 1000, raising=False)
    with pytest.raises(ValueError, match=r"standard_tiled needs .* use variant='flash_q_outer'"):
        attention(*[np.zeros((1, 1, 600, 8), np.float32)] * 3, variant="standard_tiled")


def test_auto_takes_the_first_variant_verified_on_a_gpu(
    launched: list[tuple[Any, Tiling]], monkeypatch: pytest.MonkeyPatch
) -> None:
    able = [VARIANTS[name] for name in AUTO_ORDER if "float32" in VARIANTS[name].dtypes]
    first, second, third, last = able
    assert second.block_sparse is last.block_sparse is False
    mask = random_mask(17, 23, 16, 16)

    def chosen(pending: dict[str, str], **options: Any) -> Any:
        monkeypatch.setattr(calls, "unverified", lambda: pending)
        attention(q, k, v, backend="cuda", **options)
        return launched[-1][0]

    everything = {variant.kernel: "changed" for variant in VARIANTS.values()}
    assert chosen({}) is first.run
    assert chosen({first.kernel: "changed"}) is second.run
    assert chosen({first.kernel: "changed"}, block_mask=mask) is third.run
    alone = {kernel: why for kernel, why in everything.items() if kernel != last.kernel}
    assert chosen(alone) is last.run
    with pytest.raises(NotImplementedError, match="no kernel for float32 is verified"):
        chosen(alone, block_mask=mask)
    with pytest.raises(NotImplementedError, match=r"changed.*run `make verify`, or name a variant"):
        chosen(everything)
    assert chosen(everything, variant=first.name) is first.run
    # The NumPy execution is the specification itself: no kernel has to be verified for it.
    np.testing.assert_allclose(attention(q, k, v), attention(q, k, v, variant=first.name))
    attention(q, k, v, block_mask=mask)


def as_half(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Arrays:
    return q.astype(np.float16), k.astype(np.float16), v.astype(np.float16)


def test_auto_takes_tensor_cores_where_dtype_tiles_and_gpu_allow_it(
    launched: list[tuple[Any, Tiling]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "unverified", lambda: {})
    mma, plain = VARIANTS["flash_mma"], VARIANTS["flash_q_outer"]
    long = as_half(*make(1, 1, 512, 512, 64, "float32"))

    def chosen(inputs: Arrays, tiling: Tiling | None = None) -> tuple[Any, Tiling]:
        attention(*inputs, backend="cuda", tiling=tiling)
        return launched[-1]

    assert chosen(long) == (mma.run, mma.default_tiling(64, 2, 99 * KIB))
    assert chosen(make(1, 1, 512, 512, 64, "float32"))[0] is plain.run
    assert chosen(long, Tiling(64, 32)) == (mma.run, Tiling(64, 32))
    for odd in (Tiling(64, 40), Tiling(24, 64), Tiling(1, 1)):
        assert chosen(long, odd) == (plain.run, odd)
    for much, kib, of in (
        (Tiling(64, 384), 227, "registers per thread"),
        (Tiling(16, 256), 99, "shared memory per block"),
    ):
        monkeypatch.setattr(launch, "smem_limit_bytes", lambda kib=kib: kib * KIB)
        with pytest.raises(ValueError, match=of):
            attention(*long, backend="cuda", variant=mma.name, tiling=much)
        assert chosen(long, much) == (plain.run, much)

    monkeypatch.setattr(calls, "refuse_old_gpu", refuse_old_gpu(75))
    assert chosen(long)[0] is plain.run
    with pytest.raises(NotImplementedError, match="05_flash_mma needs sm_80"):
        attention(*long, backend="cuda", variant="flash_mma")


def test_tensor_cores_refuse_in_words_what_they_cannot_have(
    launched: list[tuple[Any, Tiling]],
) -> None:
    named: dict[str, Any] = {"backend": "cuda", "variant": "flash_mma"}
    with pytest.raises(NotImplementedError, match=r"'flash_mma' does not take float32: cast .*16"):
        attention(q, k, v, **named)
    half = as_half(q, k, v)
    with pytest.raises(ValueError, match=r"^block_n = 24: .* of 16, so use 16, or variant='flash_"):
        attention(*half, **named, tiling=Tiling(16, 24))
    with pytest.raises(ValueError, match=r"^block_m = 8: .* of 16, so use 16, or variant='flash_"):
        attention(*half, **named, tiling=Tiling(8, 16))
    assert not launched


def test_auto_takes_any_tiles_on_numpy() -> None:
    half = as_half(q, k, v)
    for tiling in (None, Tiling(16, 16), Tiling(5, 7)):
        call = checked_call(*half, "auto", tiling, "numpy")
        odd = tiling == Tiling(5, 7)
        assert call.variant.name == ("flash_q_outer" if odd else "flash_mma")
        same = attention(*half, variant="flash_q_outer", tiling=call.tiling)
        assert attention(*half, tiling=tiling).tobytes() == same.tobytes()


def test_the_default_tiling_on_a_gpu_is_that_gpus(launched: list[tuple[Any, Tiling]]) -> None:
    inputs = make(1, 1, 512, 512, 128, "float32")
    attention(*inputs, variant="flash_q_outer", backend="cuda")
    assert launched[-1][1] == default_tiling(128, 4, 99 * KIB) != default_tiling(128, 4)


def test_tiles_are_clipped_to_the_sequences(launched: list[tuple[Any, Tiling]]) -> None:
    attention(q, k, v, variant="flash_q_outer", backend="cuda", tiling=Tiling(64, 128))
    assert launched[-1][1] == Tiling(32, 32)  # 17 query rows, 23 keys


def test_the_package_offers_the_calls() -> None:
    assert fa.attention is attention
    offered = {"attention", "trace_row", "VARIANTS", "Tiling", "AttentionProblem", "BlockMask"}
    offered |= {"attention_backward", "dropout_keep"}
    assert offered <= set(fa.__all__)
    assert set(fa.__all__) <= set(dir(fa))
    with pytest.raises(AttributeError, match="no attribute 'atention'"):
        fa.atention  # noqa: B018
