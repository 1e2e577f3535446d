"""CUDA tensors: gradients in autograd's own thread, on the caller's stream, without copies."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from fa_kernels.cuda.launch import available

torch = pytest.importorskip("torch")

from fa_kernels.integrations import sdpa  # noqa: E402
from fa_kernels.integrations.torch import attention, scaled_dot_product_attention  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (available() and torch.cuda.is_available()), reason="needs CuPy and a CUDA GPU"
    ),
]
DEVICE = "cuda"
#: Named, so that a kernel that waits for its verification is tested too.
VARIANTS = ("flash_q_outer", "flash_kv_outer", "standard_tiled")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BATCH, NHEADS, NHEADS_KV, SEQLEN_Q, SEQLEN_K, HEAD_DIM = 2, 4, 2, 113, 203, 40


def random(*shape: int, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def bshd_views(dtype: Any, device: str = DEVICE) -> list[Any]:
    """q, k, v and d_out as models have them: (batch, seqlen, heads, d), seen transposed."""
    shapes = ((SEQLEN_Q, NHEADS), (SEQLEN_K, NHEADS_KV), (SEQLEN_K, NHEADS_KV), (SEQLEN_Q, NHEADS))
    # Rounded once, so that every dtype and the truth start from the same numbers.
    rounded = (random(BATCH, *shape, HEAD_DIM, seed=i).bfloat16() for i, shape in enumerate(shapes))
    return [x.to(device, dtype).transpose(1, 2) for x in rounded]


def options(dtype: Any, device: str = DEVICE) -> dict[str, Any]:
    mask = random(BATCH, 1, 1, SEQLEN_K, seed=8) > -1.0
    bias = random(NHEADS, SEQLEN_Q, SEQLEN_K, seed=9).bfloat16()
    return {
        "causal": True,
        "window": (150, None),
        "mask": mask.to(device),
        "bias": bias.to(device, dtype),
        "dropout_p": 0.2,
        "seed": 2**63 + 5,
    }


def out_and_gradients(call: Callable[..., Any], views: list[Any]) -> list[Any]:
    q, k, v, d_out = (x.detach() for x in views)
    tensors = [x.requires_grad_() for x in (q, k, v)]
    out = call(*tensors)
    return [out.detach(), *torch.autograd.grad(out, tensors, d_out)]


def truth() -> list[Any]:
    """In float64 on the host, the same dropout included."""
    call = lambda *x: attention(*x, **options(torch.float64, "cpu"))  # noqa: E731
    return out_and_gradients(call, bshd_views(torch.float64, "cpu"))


def assert_near(got: list[Any], want: list[Any], dtype: Any) -> None:
    """Within the rounding of the dtype; in fp32, sums over 203 keys round too."""
    units = 64 if dtype == torch.float32 else 8
    for mine, true in zip(got, want, strict=True):
        error = (mine.double().cpu() - true).abs().max()
        assert error <= units * torch.finfo(dtype).eps * true.abs().max()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_all_options_over_transposed_views(variant: str, dtype: Any) -> None:
    call = lambda *x: attention(*x, variant=variant, **options(dtype))  # noqa: E731
    assert_near(out_and_gradients(call, bshd_views(dtype)), truth(), dtype)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dropout_p", [0.0, 0.2])
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_repeated_calls_on_tensor_cores(dtype: Any, dropout_p: float, deterministic: bool) -> None:
    """Calls that need no more than a recipe: the second is launched from what the first laid out,
    with other tensors and another seed."""
    for seed in (7, 2**63 + 5):
        given: dict[str, Any] = {"causal": True, "dropout_p": dropout_p}
        given |= {"seed": seed} if dropout_p else {}
        gpu = given | {"variant": "flash_mma", "deterministic": deterministic}
        got = out_and_gradients(functools.partial(attention, **gpu), bshd_views(dtype))
        assert got[0].stride() == bshd_views(dtype)[0].stride()  # no copy on the way to a model
        views = bshd_views(torch.float64, "cpu")
        want = out_and_gradients(functools.partial(attention, **given), views)
        assert_near(got, want, dtype)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_all_options_on_tensor_cores(dtype: Any) -> None:
    call = lambda *x: attention(*x, variant="flash_mma", **options(dtype))  # noqa: E731
    assert_near(out_and_gradients(call, bshd_views(dtype)), truth(), dtype)


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradient_of_lse(variant: str) -> None:
    q, k, v, _ = (x.detach() for x in bshd_views(torch.float32))
    q, k = q.requires_grad_(), k.requires_grad_()
    _, lse = attention(q, k, v, variant=variant, return_lse=True)
    got = torch.autograd.grad(lse.sin().sum(), (q, k))
    scores = q @ k.repeat_interleave(NHEADS // NHEADS_KV, 1).mT * HEAD_DIM**-0.5
    want = torch.autograd.grad(scores.logsumexp(-1).sin().sum(), (q, k))
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-4, rtol=1e-3)


def test_work_is_done_on_the_callers_stream() -> None:
    """The inputs are written late on a side stream: any other stream would read the zeros."""
    views, want = bshd_views(torch.float32), truth()
    call = lambda *x: attention(*x, variant="flash_q_outer", **options(torch.float32))  # noqa: E731
    out_and_gradients(call, views)  # compiled, so that no compilation hides a race
    late = [torch.zeros_like(x) for x in views]
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(200_000_000)  # about a tenth of a second
        for target, source in zip(late, views, strict=True):
            target.copy_(source)
        got = out_and_gradients(call, late)
    torch.cuda.synchronize()
    assert_near(got, want, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_compiled_graph_gives_the_same_bits(dtype: Any) -> None:
    torch._dynamo.reset()

    given = options(dtype) | {"variant": "flash_q_outer", "deterministic": True}
    call = lambda q, k, v: attention(q, k, v, **given)  # noqa: E731
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    views = bshd_views(dtype)
    for got, want in zip(
        out_and_gradients(compiled, views), out_and_gradients(call, views), strict=True
    ):
        assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_drop_in_agrees_with_torchs_own(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    named = functools.partial(attention, variant="flash_q_outer")
    monkeypatch.setattr(sdpa, "attention", named)
    mask = random(SEQLEN_Q, SEQLEN_K) > -1.0

    def by(function: Callable[..., Any], views: list[Any]) -> list[Any]:
        given = {"attn_mask": mask.to(views[0].device), "enable_gqa": True}
        return out_and_gradients(lambda *x: function(*x, **given), views)

    of_torch = torch.nn.functional.scaled_dot_product_attention
    want = by(of_torch, bshd_views(torch.float64, "cpu"))
    assert_near(by(scaled_dot_product_attention, bshd_views(dtype)), want, dtype)
