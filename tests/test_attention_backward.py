"""The front door's gradients: what they are, of which kind, and what is refused before they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fa_kernels as fa
from fa_kernels import call as calls
from fa_kernels.attention import attention, attention_backward
from fa_kernels.cuda import arrays, launch
from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.units import KIB
from fa_kernels.variants import VARIANTS
from tests.reference.problems import random_mask
from tests.reported_cases import Case, Result, judge, random_case, run

WITH_BACKWARD = [name for name, variant in VARIANTS.items() if variant.backward is not None]
#: Those without a backward of their own, and whose they use.
PARTNERED = {
    name: v.control_for or v.same_algorithm
    for name, v in VARIANTS.items()
    if v.backward is None and (v.control_for or v.same_algorithm)
}
each_backward = pytest.mark.parametrize("variant", WITH_BACKWARD)


def each_backward_of(*dtypes: str, auto: bool = False) -> pytest.MarkDecorator:
    """(variant, dtype): every variant with a backward, in those of the dtypes that it takes."""
    pairs = [("auto", dtype) for dtype in dtypes if auto]
    pairs += [(name, dtype) for name in WITH_BACKWARD for dtype in dtypes if takes(name, dtype)]
    return pytest.mark.parametrize(("variant", "dtype"), pairs)


def takes(variant: str, dtype: str) -> bool:
    """float64 runs in NumPy, for those that take the widest io dtype."""
    return ("float32" if dtype == "float64" else dtype) in VARIANTS[variant].dtypes


case = random_case("float32", 17, 23, 20, batch=2, nheads=6, nheads_kv=3)
q, k, v = case.inputs
assert case.d_out is not None
d_out = case.d_out
out, lse = attention(q, k, v, return_lse=True)
SAVED = (d_out, q, k, v, out, lse)


def saved_for(variant: str) -> tuple[np.ndarray, ...]:
    """SAVED in the widest dtype that a variant takes; lse is fp32 beside all of them."""
    io = io_dtype(VARIANTS[variant].dtypes[0])
    return (*(x.astype(io) for x in SAVED[:-1]), lse)


def as_torch(array: np.ndarray) -> Any:
    torch = pytest.importorskip("torch")
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


# -- results ----------------------------------------------------------------------------------


@pytest.mark.parametrize("deterministic", [False, True])
@each_backward_of("float32", "float16", "bfloat16", auto=True)
def test_gradients_are_those_of_attention(variant: str, deterministic: bool, dtype: str) -> None:
    one = random_case(dtype, 70, 50, 24, batch=2, nheads=4, nheads_kv=2, causal=True)
    assert one.d_out is not None
    name = "flash_q_outer" if variant == "auto" else variant
    of = attention(*one.inputs, variant=name, return_lse=True, **one.options)
    gradients = attention_backward(
        one.d_out, *one.inputs, *of, variant=variant, deterministic=deterministic, **one.options
    )
    assert not (faults := judge(one, name, Result(of[0], of[1], gradients))), faults
    for gradient, x in zip(gradients, one.inputs, strict=True):
        assert type(gradient) is np.ndarray
        assert (gradient.shape, gradient.dtype) == (x.shape, io_dtype(dtype))


@each_backward_of("float64")
def test_a_step_along_the_gradient_changes_the_sum_by_as_much(variant: str, dtype: str) -> None:
    """Central differences of sum(d_out * out) in float64, along random directions."""
    options: dict[str, Any] = {
        "causal": True, "window": (12, None), "dropout_p": 0.2, "seed": 9,
        "mask": np.random.default_rng(1).random((17, 23)) < 0.9,
        "bias": np.random.default_rng(2).standard_normal((6, 17, 23)),
    }  # fmt: skip
    wide = [x.astype(dtype) for x in (q, k, v)]
    d_out64 = d_out.astype(dtype)
    of = attention(*wide, variant=variant, return_lse=True, **options)
    gradients = attention_backward(d_out64, *wide, *of, variant=variant, **options)
    rng, step = np.random.default_rng(3), 1e-5
    for at in range(3):
        direction = rng.standard_normal(wide[at].shape)
        sums = []
        for sign in (1, -1):
            moved = list(wide)
            moved[at] = wide[at] + sign * step * direction
            sums.append((attention(*moved, variant=variant, **options) * d_out64).sum())
        slope = (sums[0] - sums[1]) / (2 * step)
        assert slope == pytest.approx((gradients[at] * direction).sum(), rel=1e-7)


@each_backward_of("float32", "bfloat16", "float64")
def test_torch_in_torch_out(variant: str, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    host = [x.astype(io_dtype(dtype)) for x in (q, k, v)]
    of = attention(*host, variant=variant, return_lse=True)
    saved = (d_out.astype(io_dtype(dtype)), *host, *of)
    want = attention_backward(*saved, variant=variant)
    found = attention_backward(*map(as_torch, saved), variant=variant)
    for ours, theirs in zip(want, found, strict=True):
        assert isinstance(theirs, torch.Tensor) and theirs.dtype == getattr(torch, dtype)
        assert torch.equal(theirs, as_torch(ours))


@each_backward
def test_every_bit_is_the_same_again(variant: str) -> None:
    for deterministic in (False, True):
        first, second = (
            attention_backward(*saved_for(variant), variant=variant, deterministic=deterministic)
            for _ in range(2)
        )
        assert [x.tobytes() for x in first] == [x.tobytes() for x in second]


@each_backward
def test_the_inputs_are_left_as_they_are(variant: str) -> None:
    given = saved_for(variant)
    frozen = [x.copy() for x in given]
    for x in frozen:
        x.setflags(write=False)
    for gradient in attention_backward(*frozen, variant=variant):
        gradient[...] = 7.0
    for x, y in zip(frozen, given, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("variant", PARTNERED)
def test_without_a_backward_of_its_own_it_has_its_partners_gradients(variant: str) -> None:
    half: Any = (*(x.astype(np.float16) for x in SAVED[:-1]), lse)
    partner = PARTNERED[variant]
    assert partner is not None
    ours, theirs = (attention_backward(*half, variant=name) for name in (variant, partner))
    assert [x.tobytes() for x in ours] == [x.tobytes() for x in theirs]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("nq", "nk", "batch", "nheads"), [(0, 5, 2, 3), (5, 0, 2, 3), (5, 5, 0, 3), (5, 5, 2, 0)]
)
def test_nothing_to_attend_gives_zeros(
    nq: int, nk: int, batch: int, nheads: int, kind: str
) -> None:
    some = [np.ones((batch, nheads, n, 8), np.float16) for n in (nq, nq, nk, nk)]
    given: list[Any] = some if kind == "numpy" else [as_torch(x) for x in some]
    of = attention(*given[1:], return_lse=True)
    gradients = attention_backward(*given, *of)
    for gradient, x in zip(gradients, given[1:], strict=True):
        assert type(gradient) is type(x) and gradient.shape == x.shape
        assert not np.asarray(gradient).any()


@each_backward_of("float32", "float16")
def test_another_forward_pass_will_do(variant: str, dtype: str) -> None:
    """out and lse are what they are, whoever computed them."""
    inputs = (q.astype(dtype), k.astype(dtype), v.astype(dtype))
    one = Case(inputs, {"causal": True}, d_out.astype(dtype))
    assert one.d_out is not None
    for forward in ("standard_tiled", "flash_kv_outer", "flash_q_outer"):
        of = attention(*inputs, variant=forward, causal=True, return_lse=True)
        found = attention_backward(one.d_out, *inputs, *of, variant=variant, causal=True)
        assert not (faults := judge(one, variant, Result(of[0], of[1], found))), faults


@each_backward
def test_the_tiling_does_not_change_the_gradients(variant: str) -> None:
    given = saved_for(variant)
    for tiling in (None, Tiling(1, 3), Tiling(16, 16), Tiling(5, 64)):
        one = Case((given[1], given[2], given[3]), {}, given[0], tiling)
        result = run(one, variant, "numpy")
        assert not (faults := judge(one, variant, result)), faults


# -- refusals ---------------------------------------------------------------------------------


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test if a refused call has allocated a result or run an algorithm."""

    def reached(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("an algorithm was run or a result allocated")

    for name, variant in VARIANTS.items():
        if variant.backward is not None:
            backward = replace(variant.backward, reference=reached, run=reached)
            monkeypatch.setitem(VARIANTS, name, replace(variant, backward=backward))
    for name in ("to_numpy", "zeros_like", "run_on_host", "run_on_gpu"):
        monkeypatch.setattr(arrays, name, reached)


Call = Callable[[], Any]
REFUSED: dict[str, tuple[Call, type[Exception], str]] = {
    "naive": (
        lambda: attention_backward(*SAVED, variant="standard_naive"), NotImplementedError,
        r"'standard_naive' has no backward pass: use 'auto' or one of 'standard_tiled', 'flash_",
    ),
    "unknown variant": (
        lambda: attention_backward(*SAVED, variant="flash"), ValueError, r"variant = 'flash' is",
    ),
    "blocks for standard": (
        lambda: attention_backward(
            *SAVED, variant="standard_tiled", block_mask=random_mask(17, 23, 8, 8)
        ),
        NotImplementedError, r"'standard_tiled' does not take a block_mask: use one of 'flash_kv",
    ),
    "fp32 for a 16-bit control": (
        lambda: attention_backward(*SAVED, variant="flash_kv_outer_io"), NotImplementedError,
        r"'flash_kv_outer_io' does not take float32",
    ),
    "fp32 for tensor cores": (
        lambda: attention_backward(*SAVED, variant="flash_mma"), NotImplementedError,
        r"'flash_mma' does not take float32: cast .* or use .* 'flash_q_outer'",
    ),
    "d_out of k's shape": (
        lambda: attention_backward(k, q, k, v, out, lse), ValueError,
        r"^d_out has shape \(2, 3, 23, 20\), q has",
    ),
    "out and lse in turn": (
        lambda: attention_backward(d_out, q, k, v, lse, out), ValueError,
        r"^out has shape \(2, 6, 17\): expected 4 axes",
    ),
    "v of another length": (
        lambda: attention_backward(d_out, q, k, v[:, :, 1:], out, lse), ValueError,
        r"v must be shaped like k",
    ),
    "no seed": (
        lambda: attention_backward(*SAVED, dropout_p=0.1), ValueError, r"dropout_p = 0\.1 needs a",
    ),
    "a mask of floats": (
        lambda: attention_backward(*SAVED, mask=np.ones((17, 23))), ValueError, r"^mask is float64",
    ),
    "unknown backend": (
        lambda: attention_backward(*SAVED, backend="tpu"), ValueError, r"backend = 'tpu' is not kn",
    ),
    "a tuple of tiles": (
        lambda: attention_backward(*SAVED, tiling=(64, 64)),  # type: ignore[arg-type]
        TypeError, r"tiling = \(64, 64\) is not a Tiling",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("what", REFUSED)
def test_refused_in_words_before_anything_runs(what: str) -> None:
    call, error, sentence = REFUSED[what]
    with pytest.raises(error, match=sentence):
        call()


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("at", range(6))
def test_tensors_that_require_grad_are_refused(at: int) -> None:
    """There is no gradient of a gradient: it would silently be missing."""
    given = [as_torch(x).clone() for x in SAVED]
    given[at].requires_grad_()
    name = ("d_out", "q", "k", "v", "out", "lse")[at]
    with pytest.raises(NotImplementedError, match=rf"^{name} requires grad, .*{name}\.detach\(\)"):
        attention_backward(*given)


@pytest.mark.usefixtures("nothing_runs")
def test_without_a_gpu_backend_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "available", lambda: False)
    with pytest.raises(ValueError, match=r"backend = 'cuda' needs .*use 'auto' or 'numpy'"):
        attention_backward(*SAVED, backend="cuda")


@pytest.mark.usefixtures("nothing_runs")
def test_more_host_memory_than_there_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls.os, "sysconf", lambda name: 20, raising=False)
    with pytest.raises(ValueError, match=r"^the backward of standard_tiled needs .* beside its in"):
        attention_backward(*SAVED, variant="standard_tiled")


# -- on a GPU ---------------------------------------------------------------------------------


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A GPU with 99 KiB per block that notes what it was asked to run."""
    launches: list[dict[str, Any]] = []

    def run_on_gpu(
        run: Any, inputs: Any, problem: Any, tiling: Any, extras: Any, **rest: Any
    ) -> Any:
        launches.append({"run": run, "inputs": inputs, "tiling": tiling, **rest})
        return inputs[1:4]

    monkeypatch.setattr(arrays, "available", lambda: True)
    monkeypatch.setattr(arrays, "run_on_gpu", run_on_gpu)
    monkeypatch.setattr(calls, "smem_limit_bytes", lambda: 99 * KIB)
    monkeypatch.setattr(launch, "smem_limit_bytes", lambda: 99 * KIB)
    monkeypatch.setattr(calls, "refuse_memory", lambda what, need, pool: None)
    monkeypatch.setattr(calls, "refuse_old_gpu", lambda kernel, min_arch: None)
    return launches


def test_the_kernel_gets_what_was_passed(launched: list[dict[str, Any]]) -> None:
    for deterministic in (False, True):
        attention_backward(
            *SAVED, backend="cuda", variant="flash_q_outer", deterministic=deterministic
        )
        backward = VARIANTS["flash_q_outer"].backward
        assert backward is not None
        asked = launched[-1]
        assert asked["run"] is backward.run and asked["deterministic"] is deterministic
        assert all(x is y for x, y in zip(asked["inputs"], SAVED, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_auto_takes_the_first_backward_that_is_verified(
    dtype: str, launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the status of the backward kernel: that of the forward says nothing about it."""
    of_dtype: tuple[np.ndarray, ...] = (*(x.astype(dtype) for x in SAVED[:-1]), lse)
    in_order = [VARIANTS[name] for name in calls.AUTO_ORDER if name in WITH_BACKWARD]
    problem = AttentionProblem(2, 6, 17, 23, 20, dtype)
    able = [variant for variant in in_order if variant.takes(problem)]
    kernels = [v.backward.kernel for v in able if v.backward is not None]
    forward = {v.kernel: "changed" for v in VARIANTS.values()}
    for number, variant in enumerate(able):
        pending = dict.fromkeys(kernels[:number], "never run")
        monkeypatch.setattr(calls, "unverified", lambda pending=pending: {**forward, **pending})
        attention_backward(*of_dtype, backend="cuda")
        assert variant.backward is not None and launched[-1]["run"] is variant.backward.run
    monkeypatch.setattr(calls, "unverified", lambda: dict.fromkeys(kernels, "never run"))
    with pytest.raises(NotImplementedError, match=rf"^no backward kernel for {dtype} is verified"):
        attention_backward(*of_dtype, backend="cuda")
    attention_backward(*of_dtype, backend="cuda", variant="flash_q_outer")
    attention_backward(*of_dtype)  # the NumPy execution needs no kernel


def long_call(dtype: str, head_dim: int) -> tuple[np.ndarray, ...]:
    """d_out, q, k, v, out and lse of one head of 512 rows, all zero."""
    long = [np.zeros((1, 1, 512, head_dim), dtype)] * 5
    return (*long, np.zeros((1, 1, 512), np.float32))


def test_auto_takes_tensor_cores_where_dtype_tiles_and_gpu_allow_it(
    launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the plan, the tiles and the kernel of the backward: its forward takes other tiles."""
    monkeypatch.setattr(calls, "unverified", lambda: {})
    mma, plain = VARIANTS["flash_mma"].backward, VARIANTS["flash_q_outer"].backward
    assert mma is not None and plain is not None
    half = long_call("float16", 64)

    def chosen(of: tuple[np.ndarray, ...], tiling: Tiling | None = None) -> tuple[Any, Tiling]:
        attention_backward(*of, backend="cuda", tiling=tiling)
        return launched[-1]["run"], launched[-1]["tiling"]

    assert chosen(half) == (mma.run, mma.default_tiling(64, 2, 99 * KIB))
    assert chosen(long_call("float32", 64)) == (plain.run, plain.default_tiling(64, 4, 99 * KIB))
    assert chosen(half, Tiling(32, 64)) == (mma.run, Tiling(32, 64))
    for odd in (Tiling(17, 33), Tiling(64, 40), Tiling(1, 1)):
        assert chosen(half, odd) == (plain.run, odd)
        with pytest.raises(ValueError, match=r"tensor cores take whole fragments of 16, so use"):
            attention_backward(*half, backend="cuda", variant="flash_mma", tiling=odd)
    # Two stages of Q and dO are more than two of K and V: the forward has these tiles here.
    wide, square = long_call("float16", 128), Tiling(64, 64)
    problem = AttentionProblem(1, 1, 512, 512, 128, "float16")
    assert VARIANTS["flash_mma"].plan(problem, square).smem_bytes < 99 * KIB
    assert chosen(wide, square) == (plain.run, square)
    with pytest.raises(ValueError, match=r"needs .* of shared memory per block, this GPU allows"):
        attention_backward(*wide, backend="cuda", variant="flash_mma", tiling=square)
    with pytest.raises(ValueError, match=r"leaves no registers for dk and dv: use block_n = 64 or"):
        attention_backward(*wide, backend="cuda", variant="flash_mma", tiling=Tiling(16, 192))

    def old(kernel: str, min_arch: int) -> None:
        if min_arch > 75:
            raise NotImplementedError(f"{kernel} needs sm_{min_arch}")

    monkeypatch.setattr(calls, "refuse_old_gpu", old)
    assert chosen(half) == (plain.run, plain.default_tiling(64, 2, 99 * KIB))
    with pytest.raises(NotImplementedError, match="05_flash_mma_backward needs sm_80"):
        attention_backward(*half, backend="cuda", variant="flash_mma")


def test_auto_takes_any_tiles_on_numpy() -> None:
    half = saved_for("flash_mma")
    for tiling in (None, Tiling(16, 16), Tiling(17, 33)):
        call = calls.checked_backward_call(half, "auto", tiling, "numpy")
        odd = tiling == Tiling(17, 33)
        assert call.variant.name == ("flash_q_outer" if odd else "flash_mma")
        found = attention_backward(*half, tiling=tiling)
        for name in ("flash_q_outer", "flash_mma"):  # one algorithm, which takes any tiles here
            same = attention_backward(*half, variant=name, tiling=call.tiling)
            assert [x.tobytes() for x in found] == [x.tobytes() for x in same]


@each_backward
def test_the_default_tiling_is_the_backwards(
    variant: str, launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tiles hold more than those of the forward pass."""
    limit = 227 * KIB if VARIANTS[variant].max_arch == 90 else 99 * KIB
    for module in (calls, launch):
        monkeypatch.setattr(module, "smem_limit_bytes", lambda: limit)
    dtype = VARIANTS[variant].dtypes[0]
    attention_backward(*long_call(dtype, 128), backend="cuda", variant=variant)
    backward = VARIANTS[variant].backward
    assert backward is not None
    itemsize = io_dtype(dtype).itemsize
    assert launched[-1]["tiling"] == backward.default_tiling(128, itemsize, limit)


def test_memory_and_tiles_are_refused_before_anything_is_copied(
    launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(calls, "refuse_memory", lambda what, need, pool: asked.append(need))
    problem = AttentionProblem(2, 6, 17, 23, 20, "float32", nheads_kv=3)
    attention_backward(*SAVED, backend="cuda", variant="flash_q_outer")
    backward = VARIANTS["flash_q_outer"].backward
    assert backward is not None
    inputs = sum(x.nbytes for x in SAVED)
    gradients = q.nbytes + k.nbytes + v.nbytes
    assert asked == [inputs + gradients + backward.workspace_bytes(problem)]
    long = [np.zeros((1, 1, 512, 64), np.float32)] * 5
    of = (*long, np.zeros((1, 1, 512), np.float32))
    with pytest.raises(ValueError, match=r"needs .* (shared memory per block|registers per t)"):
        attention_backward(*of, backend="cuda", variant="flash_q_outer", tiling=Tiling(160, 160))
    assert len(launched) == 1


def test_float64_is_for_the_host_alone(launched: list[dict[str, Any]]) -> None:
    wide = [x.astype(np.float64) for x in SAVED]
    sentence = r"^dtype = float64 runs on backend 'numpy' alone, .* cast q, k and v to float32, or"
    with pytest.raises(NotImplementedError, match=sentence):
        attention(*wide[1:4], backend="cuda")
    with pytest.raises(NotImplementedError, match=sentence):
        attention_backward(*wide, backend="cuda")
    assert not launched
    assert attention_backward(*wide)[0].dtype == np.float64


def test_the_package_offers_it() -> None:
    assert fa.attention_backward is attention_backward
