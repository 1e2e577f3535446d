"""The drop-in beside torch's own function on the CPU, argument by argument, both directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fa_kernels.dropout import dropout_keep

torch = pytest.importorskip("torch")

from fa_kernels.integrations import sdpa  # noqa: E402
from fa_kernels.integrations.torch import attention, scaled_dot_product_attention  # noqa: E402

of_torch = torch.nn.functional.scaled_dot_product_attention

#: Tolerances as in torch's own tests of its CPU kernels; fp64 is rounding alone.
TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-5, torch.bfloat16: 3e-2}
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)

SHAPE = (2, 3, 4, 8, 5)  # batch, batch, heads, seqlen_q, head_dim


def random(*shape: int, dtype: Any = torch.float64, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)


def keep(*shape: int, seed: int = 0) -> Any:
    """True in most places and in every row: without a key torch gives NaN in some releases."""
    mask = torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) > 0.3
    mask[..., 0] = True
    return mask


def inputs(
    q: tuple[int, ...], k: tuple[int, ...], dtype: Any = torch.float64
) -> tuple[Any, Any, Any]:
    q_, k_, v_ = (
        random(*shape, dtype=dtype, seed=i).requires_grad_() for i, shape in enumerate((q, k, k))
    )
    return q_, k_, v_


def both_ways(
    function: Callable[..., Any], tensors: tuple[Any, ...], **arguments: Any
) -> list[Any]:
    """Output and gradients."""
    out = function(*tensors, **arguments)
    d_out = random(*out.shape, dtype=out.dtype, seed=7)
    return [out, *torch.autograd.grad(out, tensors, d_out)]


def assert_same(tensors: tuple[Any, ...], **arguments: Any) -> None:
    got = both_ways(scaled_dot_product_attention, tensors, **arguments)
    want = both_ways(of_torch, tensors, **arguments)
    atol = TOLERANCE[tensors[0].dtype]
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs, atol=atol, rtol=atol)


ARGUMENTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "none": lambda dtype: {},
    "is_causal": lambda dtype: {"is_causal": True},
    "scale": lambda dtype: {"scale": 0.3},
    "negative scale": lambda dtype: {"scale": -0.3},
    "bool mask of 2 axes": lambda dtype: {"attn_mask": keep(8, 11)},
    "bool mask of padding": lambda dtype: {"attn_mask": keep(3, 1, 1, 11)},
    "bool mask of heads": lambda dtype: {"attn_mask": keep(4, 8, 11)},
    "bool mask of rows": lambda dtype: {"attn_mask": keep(8, 11, seed=2)[None, None]},
    "float mask": lambda dtype: {"attn_mask": random(3, 4, 8, 11, dtype=dtype)},
    "float mask of batch 1": lambda dtype: {"attn_mask": random(1, 4, 8, 11, dtype=dtype)},
    "float mask with -inf": lambda dtype: {
        "attn_mask": torch.zeros(8, 11, dtype=dtype).masked_fill(~keep(8, 11), -torch.inf),
        "scale": 0.7,
    },
    "float mask with the lowest number": lambda dtype: {
        "attn_mask": torch.zeros(8, 11, dtype=dtype).masked_fill(
            ~keep(8, 11), torch.finfo(dtype).min
        )
    },
}


@dtypes
@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_argument_means_what_it_means_in_torch(name: str, dtype: Any) -> None:
    if dtype == torch.bfloat16:
        pytest.importorskip("ml_dtypes")
    tensors = inputs((3, 4, 8, 5), (3, 4, 11, 5), dtype)
    assert_same(tensors, **ARGUMENTS[name](dtype))


@dtypes
def test_grouped_heads(dtype: Any) -> None:
    if dtype == torch.bfloat16:
        pytest.importorskip("ml_dtypes")
    for q, k in (
        ((2, 6, 8, 5), (2, 2, 11, 5)),
        ((6, 8, 5), (1, 11, 5)),
        ((2, 3, 4, 8, 5), (2, 3, 2, 9, 5)),
    ):
        assert_same(inputs(q, k, dtype), enable_gqa=True, is_causal=True)


def test_fp32_mask_over_lower_precision() -> None:
    pytest.importorskip("ml_dtypes")
    mask = random(8, 11, dtype=torch.float32)
    assert_same(inputs((3, 4, 8, 5), (3, 4, 11, 5), torch.bfloat16), attn_mask=mask)


@pytest.mark.parametrize("shape", [SHAPE[i:] for i in range(4)] + [(2, 1, *SHAPE)], ids=len)
def test_any_number_of_axes(shape: tuple[int, ...]) -> None:
    tensors = inputs(shape, (*shape[:-2], 11, shape[-1]))
    assert_same(tensors)
    assert_same(tensors, is_causal=True)
    assert_same(tensors, attn_mask=keep(8, 11))


@pytest.mark.parametrize(
    "lead", [(2, 3, 4), (1, 3, 4), (2, 1, 1), (1, 1, 4), (3, 1), (4,), ()], ids=str
)
def test_masks_broadcast_over_several_batch_axes(lead: tuple[int, ...]) -> None:
    tensors = inputs((2, 3, 4, 8, 5), (2, 3, 4, 11, 5))
    assert_same(tensors, attn_mask=keep(*lead, 8, 11))
    assert_same(tensors, attn_mask=random(*lead, 1, 11))


@pytest.mark.parametrize(
    ("q", "k"),
    [
        ((1, 4, 8, 5), (3, 4, 11, 5)),
        ((3, 4, 8, 5), (1, 4, 11, 5)),
        ((3, 4, 8, 5), (3, 1, 11, 5)),
        ((3, 1, 8, 5), (1, 4, 11, 5)),
        ((2, 1, 4, 8, 5), (1, 3, 4, 11, 5)),
    ],
    ids=str,
)
def test_batch_and_heads_broadcast(q: tuple[int, ...], k: tuple[int, ...]) -> None:
    assert_same(inputs(q, k), scale=0.5)


@pytest.mark.parametrize(
    ("q", "k"),
    [((2, 3, 0, 5), (2, 3, 4, 5)), ((2, 3, 4, 5), (2, 3, 0, 5)), ((0, 3, 4, 5), (0, 3, 4, 5))],
    ids=["no query", "no key", "no batch"],
)
def test_empty_tensors(q: tuple[int, ...], k: tuple[int, ...]) -> None:
    assert_same(inputs(q, k))


def test_fully_masked_row_is_zero_in_both_directions() -> None:
    tensors = inputs((1, 2, 4, 5), (1, 2, 6, 5))
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[1] = False
    out, dq, dk, dv = both_ways(scaled_dot_product_attention, tensors, attn_mask=mask)
    assert (out[:, :, 1] == 0).all() and (dq[:, :, 1] == 0).all()
    assert out.isfinite().all() and dk.isfinite().all() and dv.isfinite().all()


def test_transposed_and_folded_views_reach_the_kernels_uncopied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[tuple[Any, ...], Any]] = []

    def spy(*tensors: Any, **options: Any) -> Any:
        seen.append((tensors, options["mask"]))
        return attention(*tensors, **options)

    monkeypatch.setattr(sdpa, "attention", spy)
    bshd = random(2, 8, 3, 5).transpose(1, 2)
    folded = random(2, 3, 4, 8, 5)
    padding = keep(2, 1, 1, 8)
    scaled_dot_product_attention(bshd, bshd, bshd, attn_mask=padding)
    scaled_dot_product_attention(folded, folded, folded)
    scaled_dot_product_attention(folded[0, 0], folded[0, 0], folded[0, 0])
    for (tensors, _), source in zip(seen, (bshd, folded, folded), strict=True):
        assert {x.data_ptr() for x in tensors} == {source.data_ptr()}
        assert all(x.dim() == 4 for x in tensors)
    assert seen[0][0][0].stride() == bshd.stride()
    assert seen[0][1].data_ptr() == padding.data_ptr()


def test_dropout_is_applied_whenever_it_is_given() -> None:
    q, k, v = inputs((2, 3, 8, 5), (2, 3, 11, 5))
    torch.manual_seed(4)
    with torch.no_grad():  # there is no mode to ask
        out = scaled_dot_product_attention(q, k, v, dropout_p=0.375)
    torch.manual_seed(4)
    seed = int(torch.randint(2**63 - 1, ()))
    kept = dropout_keep(0.375, seed, np.arange(2), np.arange(3), np.arange(8), np.arange(11))
    p = (q @ k.mT * 5**-0.5).softmax(-1) * torch.from_numpy(kept) / 0.625
    torch.testing.assert_close(out, p @ v, atol=1e-13, rtol=0)
    assert 0.5 < kept.mean() < 0.7


def test_causal_means_top_left_when_lengths_differ() -> None:
    q, k, v = inputs((1, 1, 2, 5), (1, 1, 6, 5))
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(out[0, 0, 0], v[0, 0, 0])  # the first row sees the first key alone


def test_compiles_whole() -> None:
    torch._dynamo.reset()
    tensors = inputs((2, 4, 8, 5), (2, 2, 11, 5))
    mask = keep(2, 1, 8, 11)

    def call(q: Any, k: Any, v: Any) -> Any:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    for got, want in zip(both_ways(compiled, tensors), both_ways(call, tensors), strict=True):
        assert torch.equal(got, want)


# -- refusals --------------------------------------------------------------------------------------

Q, K = (2, 4, 8, 6), (2, 4, 11, 6)


@pytest.mark.parametrize(
    ("shapes", "arguments", "error", "words"),
    [
        ((Q, K, K), {"attn_mask": keep(8, 11), "is_causal": True}, ValueError, "top_left"),
        ((Q, (2, 2, 11, 6), (2, 2, 11, 6)), {}, ValueError, "enable_gqa=True"),
        ((Q, (2, 3, 11, 6), (2, 3, 11, 6)), {"enable_gqa": True}, ValueError, "a divisor"),
        ((Q, (2, 2, 11, 6), K), {"enable_gqa": True}, ValueError, "not 2 and 4"),
        ((Q, K, (2, 4, 10, 6)), {}, ValueError, "the same seqlen"),
        ((Q, (2, 4, 11, 5), (2, 4, 11, 5)), {}, ValueError, "the same head_dim"),
        ((Q, (3, 4, 11, 6), (3, 4, 11, 6)), {}, ValueError, "batch axes must be equal"),
        ((Q, (4, 11, 6), (4, 11, 6)), {}, ValueError, "number of axes"),
        (((6,), (6,), (6,)), {}, ValueError, "at least 2"),
        ((Q, K, K), {"attn_mask": keep(3, 1, 8, 11)}, ValueError, r"\(3, 1, 8, 11\)"),
        ((Q, K, K), {"attn_mask": keep(8, 10)}, ValueError, r"scores \(2, 4, 8, 11\)"),
        (((8, 6),) + ((11, 6),) * 2, {"attn_mask": keep(1, 8, 11)}, ValueError, r"\(8, 11\)"),
        ((Q, K, K), {"attn_mask": torch.ones(8, 11, dtype=torch.int64)}, TypeError, "int64"),
        ((Q, K, K), {"attn_mask": np.ones((8, 11), bool)}, TypeError, "attn_mask is bool"),
        ((Q, K, K), {"attn_mask": random(8, 11, dtype=torch.float16)}, ValueError, "float16"),
        ((Q, K, K), {"dropout_p": 1.0}, ValueError, "below 1"),
        ((Q, K, K), {"dropout_p": -0.1}, ValueError, "at least 0"),
    ],
)  # fmt: skip
def test_what_torch_refuses_is_refused_in_words(
    shapes: tuple[tuple[int, ...], ...], arguments: dict[str, Any], error: type, words: str
) -> None:
    with pytest.raises(error, match=words):
        scaled_dot_product_attention(*(random(*shape) for shape in shapes), **arguments)


def test_dtypes_must_agree() -> None:
    q, k = random(*Q), random(*K, dtype=torch.float32)
    with pytest.raises(ValueError, match="different dtypes"):
        scaled_dot_product_attention(q, k, k)


def test_head_dim_of_value_must_be_that_of_query() -> None:
    with pytest.raises(NotImplementedError, match=r"head_dim 7, query 6.*[Pp]ad"):
        scaled_dot_product_attention(random(*Q), random(*K), random(2, 4, 11, 7))


def test_float_mask_that_requires_grad_is_refused() -> None:
    mask = random(8, 11).requires_grad_()
    with pytest.raises(NotImplementedError, match="scaled_dot_product_attention"):
        scaled_dot_product_attention(random(*Q), random(*K), random(*K), attn_mask=mask)


def test_arrays_are_refused() -> None:
    with pytest.raises(TypeError, match="query is a ndarray"):
        scaled_dot_product_attention(np.zeros(Q), np.zeros(K), np.zeros(K))
