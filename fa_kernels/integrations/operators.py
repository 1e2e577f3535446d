"""`torch.ops.fa_kernels`: the front door as two operators with shapes and autograd.

An operator takes tensors, numbers and strings alone, so that torch can trace it without running it.
`OPTIONS` says how each option of `fa.attention` travels; `packed_...` pack, `_unpacked` unpacks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fa_kernels.attention import attention as front_door
from fa_kernels.attention import attention_backward as front_door_backward
from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda.recipe import lies_by_rows
from fa_kernels.tiling import Tiling

#: Name and type of every option, in the order of the operators' arguments, tensors first.
OPTIONS = {
    "mask": "Tensor?",
    "bias": "Tensor?",
    "dropout_keep": "Tensor?",
    "seed": "Tensor?",  # int64 on the CPU; its 64 bits are the seed
    "cu_seqlens_q": "Tensor?",
    "cu_seqlens_k": "Tensor?",
    "block_keep": "Tensor?",
    "block_size": "int[]",  # of the block mask; empty without one
    "window": "int[]",  # left, right; -1 where a side is unbounded
    "tiling": "int[]",  # block_m, block_n; empty for the default
    "causal": "str",  # "" for none
    "variant": "str",
    "backend": "str",
    "softmax_scale": "float?",
    "dropout_p": "float",
    "deterministic": "bool",
}
_TENSOR_OPTIONS = sum(kind == "Tensor?" for kind in OPTIONS.values())
_ARGUMENTS = ", ".join(f"{kind} {name}" for name, kind in OPTIONS.items())
_UNBOUNDED = -1


def packed_options(**options: Any) -> tuple[Any, ...]:
    """Options that are tensors, numbers and strings already, in the operators' order."""
    return tuple(options[name] for name in OPTIONS)


def packed_window(window: tuple[int | None, int | None] | None) -> list[int]:
    """(left, right) as whole numbers."""
    return [_UNBOUNDED if side is None else side for side in window or (None, None)]


def packed_block_mask(block_mask: BlockMask | None) -> tuple[Tensor | None, list[int]]:
    """A block mask as (keep, [block_m, block_n])."""
    if block_mask is None:
        return None, []
    # A copy, since the mask's own array is read-only, which torch does not know.
    keep = torch.from_numpy(block_mask.keep.copy())
    return keep, [block_mask.block_m, block_mask.block_n]


def _unpacked_window(window: list[int]) -> tuple[int | None, int | None] | None:
    left, right = (None if side == _UNBOUNDED else side for side in window)
    return None if left is None and right is None else (left, right)


def _unpacked(options: tuple[Any, ...]) -> dict[str, Any]:
    """The front door's keyword arguments, for both directions."""
    # Below autograd tensors still say that they require grad, which the front door refuses.
    named = {
        name: option.detach() if isinstance(option, Tensor) else option
        for name, option in zip(OPTIONS, options, strict=True)
    }
    keep, sizes = named.pop("block_keep"), named.pop("block_size")
    seed = named["seed"]
    return named | {
        "block_mask": None if keep is None else BlockMask(keep.numpy(force=True), *sizes),
        "causal": named["causal"] or False,
        "seed": None if seed is None else seed.item() % 2**64,
        "tiling": Tiling(*named["tiling"]) if named["tiling"] else None,
        "window": _unpacked_window(named["window"]),
    }


def _laid_out_as(x: Tensor, result: Tensor) -> Tensor:
    """`result` (batch, nheads, seqlen, head_dim) by rows if x lies so, else contiguous.

    A model joins the heads of a row before it goes on, in both directions: one copy less.
    """
    if lies_by_rows(x.shape, x.stride()):
        return result.transpose(1, 2).contiguous().transpose(1, 2)
    return result.contiguous()


def _empty_as(x: Tensor) -> Tensor:
    """What `_laid_out_as` gives, without values."""
    if lies_by_rows(x.shape, x.stride()):
        return x.new_empty(x.transpose(1, 2).shape).transpose(1, 2)
    return x.new_empty(x.shape)


def _forward_now(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    """(out, lse) of `fa.attention`; out (batch, nheads, seqlen_q, head_dim), laid out as q."""
    named = _unpacked(options)
    del named["deterministic"]  # the forward pass always is
    out, lse = front_door(q.detach(), k.detach(), v.detach(), **named, return_lse=True)
    return _laid_out_as(q, out), lse.contiguous()


attention_forward = torch.library.custom_op(
    "fa_kernels::attention_forward",
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, {_ARGUMENTS}) -> (Tensor, Tensor)",
)(_forward_now)


@attention_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    lse_dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return _empty_as(q), q.new_empty(q.shape[:-1], dtype=lse_dtype)


def _backward_now(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) of `fa.attention_backward`, shaped and laid out as q, k and v."""
    # torch itself makes gradients of stride 0 (out.sum().backward()): no warning to the caller.
    d_out = d_out if d_out.stride(-1) == 1 else d_out.contiguous()
    tensors = (x.detach() for x in (d_out, q, k, v, out, lse))
    dq, dk, dv = front_door_backward(*tensors, **_unpacked(options))
    return _laid_out_as(q, dq), _laid_out_as(k, dk), _laid_out_as(v, dv)


attention_backward = torch.library.custom_op(
    "fa_kernels::attention_backward",
    mutates_args=(),
    schema=(
        "(Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
        f"{_ARGUMENTS}) -> (Tensor, Tensor, Tensor)"
    ),
)(_backward_now)


@attention_backward.register_fake
def _(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_as(q), _empty_as(k), _empty_as(v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """What the backward pass needs: no S and no P."""
    tensors, rest = inputs[: 3 + _TENSOR_OPTIONS], inputs[3 + _TENSOR_OPTIONS :]
    ctx.save_for_backward(*output, *tensors)
    ctx.rest = rest
    ctx.set_materialize_grads(False)  # an lse that nobody differentiates costs nothing


def _backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None) -> tuple[Tensor | None, ...]:
    return _gradients(ctx, d_out, d_lse, attention_forward, attention_backward)


def _gradients(
    ctx: Any,
    d_out: Tensor | None,
    d_lse: Tensor | None,
    forward: Callable[..., tuple[Tensor, Tensor]],
    backward: Callable[..., tuple[Tensor, Tensor, Tensor]],
) -> tuple[Tensor | None, ...]:
    """Of every argument of the forward operator; by the operators, or by what they run."""
    out, lse, q, k, v, *tensors = ctx.saved_tensors
    options = (*tensors, *ctx.rest)
    grads: list[Tensor | None] = [None, None, None]
    if d_out is not None:
        grads = list(backward(d_out, q, k, v, out, lse, *options))
    if d_lse is not None:
        through_lse = _through_lse(d_lse, q, k, lse, options, forward, backward)
        for i, grad in enumerate(through_lse):
            so_far = grads[i]
            grads[i] = grad if so_far is None else so_far + grad
    return (*grads, *(None for _ in OPTIONS))


def _through_lse(
    d_lse: Tensor,
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    options: tuple[Any, ...],
    forward: Callable[..., tuple[Tensor, Tensor]],
    backward: Callable[..., tuple[Tensor, Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """What the gradient of lse adds to dq and dk: d lse_i / d s_ij is P_ij, before dropout.

    dq = scale d_lse (P K) is a forward pass with K in the place of V, dk = scale Pᵀ (d_lse q) what
    its backward pass gives as dv.
    """
    named = dict(zip(OPTIONS, options, strict=True))
    scale = named["softmax_scale"]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    undropped = packed_options(**named | {"dropout_p": 0.0, "seed": None, "dropout_keep": None})
    # A row that attends nothing has lse -inf, where gradients of logarithms and sums are NaN.
    weights = (scale * d_lse).masked_fill(lse.isneginf(), 0.0).unsqueeze(-1)
    p_k, _ = forward(q, k, k, *undropped)
    weighted_q = (weights * q).to(q.dtype)
    _, _, dk = backward(weighted_q, q, k, k, p_k, lse, *undropped)
    return (weights * p_k).to(q.dtype), dk


def _keep_nothing(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    pass


def _refuse_second_derivative(ctx: Any, *grads: Tensor | None) -> tuple[None, ...]:
    raise NotImplementedError(
        "the backward pass of fa_kernels has no derivative of its own: for second derivatives "
        "(create_graph=True) use torch.nn.functional.scaled_dot_product_attention under "
        "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)."
    )


attention_forward.register_autograd(_backward, setup_context=_keep)
attention_backward.register_autograd(_refuse_second_derivative, setup_context=_keep_nothing)


class _Eager(torch.autograd.Function):
    """What the forward operator does, without what torch does around an operator of Python's.

    An operator takes torch's dispatcher longer than a small call takes a GPU.
    """

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
        return _forward_now(*inputs)

    setup_context = staticmethod(_keep)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        d_out, d_lse = grads
        # create_graph=True: only the operator knows what to say.
        if torch.is_grad_enabled() or _is_watched(d_out, d_lse):
            return _backward(ctx, d_out, d_lse)
        return _gradients(ctx, d_out, d_lse, _forward_now, _backward_now)


def _is_watched(*tensors: Tensor | None) -> bool:
    """True where torch has to see the operator: it compiles, a mode records or changes what is
    dispatched (make_fx, selective checkpointing), a transform such as vmap is under way, or a
    tensor has no memory or ways of its own."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0:
        return True
    if torch._C._are_functorch_transforms_active():
        return True
    return any(
        type(x) not in (Tensor, torch.nn.Parameter)
        or x.is_meta
        or torch._C._functorch.is_legacy_batchedtensor(x)
        for x in tensors
        if x is not None
    )


def forward(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    """(out, lse), differentiable: by the operator where torch looks, else at once."""
    if _is_watched(q, k, v):
        return attention_forward(q, k, v, *options)
    return _Eager.apply(q, k, v, *options)
