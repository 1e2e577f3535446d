"""The arguments of the front door, checked against each other: the problem they make, its extras.

Nothing is allocated here: masks become views, broadcast by stride 0.
"""

from __future__ import annotations

from typing import Any

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda import arrays
from fa_kernels.extras import Extras
from fa_kernels.packed import Packed
from fa_kernels.problem import HOST_ITEMSIZE, AttentionProblem, causal_name, dtype_name

_LAYOUT = "(batch, nheads, seqlen, head_dim)"
_OVER = "batch, nheads, seqlen_q, seqlen_k"
_OVER_PACKED = "sequences, nheads, longest_q, longest_k"
_WITH_GRAD = (
    "and {door} records no gradient: call fa_kernels.integrations.torch.attention, which does, "
    "or pass {name}.detach()."
)


def problem_and_extras(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool | str = False,
    window: tuple[int | None, int | None] | None = None,
    mask: Any = None,
    bias: Any = None,
    block_mask: BlockMask | None = None,
    softmax_scale: float | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    dropout_keep: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
) -> tuple[AttentionProblem, Extras]:
    """The problem that arrays and options of `fa.attention` describe, and what it brings along.

    Returns:
        The problem; mask, bias and dropout_keep as views of q's kind over the attention matrix.

    Raises:
        TypeError, ValueError, NotImplementedError: naming value, limit and remedy.
    """
    _check_inputs(q, k, v)
    _check_block_mask(block_mask)
    if dropout_keep is not None and seed is not None:
        raise ValueError(
            f"seed = {seed!r} with dropout_keep: the mask is given, so none is drawn. "
            "Pass one of them."
        )
    packed = _packed(cu_seqlens_q, cu_seqlens_k, q, k)
    batch, seqlen_q, seqlen_k = q.shape[0], q.shape[2], k.shape[2]
    if packed is not None:
        batch, seqlen_q, seqlen_k = packed.sequences, packed.longest_q, packed.longest_k
    over = (batch, q.shape[1], seqlen_q, seqlen_k)
    names = _OVER if packed is None else _OVER_PACKED
    extras = Extras(
        mask=_over_scores("mask", mask, q, over, names),
        bias=_over_scores("bias", bias, q, over, names),
        dropout_keep=_over_scores("dropout_keep", dropout_keep, q, over, names),
    )
    if q.shape[1] == 0:  # no head attends as little as no batch, which a problem can say
        packed, over = None, (0, 1, seqlen_q, seqlen_k)
    return AttentionProblem(
        *over,
        q.shape[3],
        dtype_name(q.dtype, HOST_ITEMSIZE),
        causal_name(causal),
        softmax_scale,
        nheads_kv=k.shape[1] or None,
        block_mask=None if 0 in over else block_mask,  # nothing to mask: the result is known
        window=window,
        dropout_p=dropout_p,
        seed=seed,
        masked=mask is not None,
        bias_dtype=None if bias is None else dtype_name(bias.dtype, HOST_ITEMSIZE),
        keep_given=dropout_keep is not None,
        packed=packed,
    ), extras


def _check_inputs(q: Any, k: Any, v: Any) -> None:
    """q, k and v are arrays of one kind and dtype, with shapes that belong together."""
    named = {"q": q, "k": k, "v": v}
    for name, array in named.items():
        refuse(name, array, "fa.attention")
    refuse_mixed(named)
    expected = (q.shape[0], k.shape[1], k.shape[2], q.shape[3])
    if tuple(k.shape) != expected or tuple(v.shape) != expected:
        raise ValueError(
            f"shapes do not belong together: q {tuple(q.shape)}, k {tuple(k.shape)}, "
            f"v {tuple(v.shape)}. Batch and head_dim must be equal, and v must be shaped like k."
        )
    nheads, nheads_kv = q.shape[1], k.shape[1]
    if nheads and (nheads_kv == 0 or nheads % nheads_kv):
        raise ValueError(
            f"k and v have {nheads_kv} heads, q has {nheads}: query head h uses k/v head "
            "h // (nheads / nheads_kv), so nheads must be a multiple. Repeat or drop heads."
        )


def refuse(name: str, array: Any, door: str) -> None:
    """Raise unless `array` is a 4-D array that the front door called `door` can take."""
    grad = _WITH_GRAD.format(door=door, name=name)
    arrays.refuse_unusable(name, array, _LAYOUT, grad, range(4, 5))


def refuse_mixed(named: dict[str, Any]) -> None:
    """Raise unless all arrays are of one kind, on one device and of one dtype."""
    *most, last = named
    names = f"{', '.join(most)} and {last}"
    kinds = {name: arrays.kind(array) for name, array in named.items()}
    if len(set(kinds.values())) > 1:
        raise ValueError(f"{names} are of different kinds or devices: {kinds}. Convert them.")
    dtypes = {name: dtype_name(array.dtype, HOST_ITEMSIZE) for name, array in named.items()}
    if len(set(dtypes.values())) > 1:
        raise ValueError(f"{names} have different dtypes: {dtypes}. Cast them to one dtype.")


def check_saved(d_out: Any, q: Any, out: Any, lse: Any) -> None:
    """What the backward pass takes besides q, k and v: kinds, dtypes and shapes.

    Raises:
        TypeError, ValueError, NotImplementedError: naming the array, its shape and the right one.
    """
    door = "fa.attention_backward"
    refuse("d_out", d_out, door)
    refuse("out", out, door)
    grad = _WITH_GRAD.format(door=door, name="lse")
    arrays.refuse_unusable("lse", lse, "(batch, nheads, seqlen_q)", grad, range(3, 4))
    refuse_mixed({"q": q, "d_out": d_out, "out": out})
    if arrays.kind(lse) != arrays.kind(q):
        raise ValueError(f"lse is {arrays.kind(lse)}, q is {arrays.kind(q)}: convert it.")
    for name, array in {"d_out": d_out, "out": out, "lse": lse}.items():
        shape = tuple(q.shape[: len(array.shape)])
        if tuple(array.shape) != shape:
            remedy = "Pass what fa.attention(..., return_lse=True) gave for this q."
            if name == "d_out":
                remedy = "It is the gradient of out and has its shape."
            raise ValueError(
                f"{name} has shape {tuple(array.shape)}, q has {tuple(q.shape)}: it must be "
                f"{shape}. {remedy}"
            )
    want = "float64" if dtype_name(q.dtype, HOST_ITEMSIZE) == "float64" else "float32"
    if (have := dtype_of(lse)) != want:
        raise ValueError(
            f"lse is {have}, it must be {want}: pass what fa.attention(..., return_lse=True) gave."
        )


def dtype_of(array: Any) -> str:
    """The name of any dtype, also of one that is no io dtype."""
    return getattr(array.dtype, "name", None) or str(array.dtype).removeprefix("torch.")


def _check_block_mask(block_mask: Any) -> None:
    if block_mask is not None and not isinstance(block_mask, BlockMask):
        raise TypeError(
            f"block_mask is a {type(block_mask).__name__}: make one with "
            "fa.BlockMask.from_dense(keep_blocks, block_m, block_n) or fa.BlockMask.pattern(...)."
        )


def _over_scores(name: str, array: Any, q: Any, shape: tuple[int, ...], names: str) -> Any:
    """`array` as a view of `shape`, whose axes are called `names`; stride 0 where it repeats."""
    if array is None:
        return None
    grad = (
        f"and its gradient is not given: pass {name}.detach(), or add it to the scores of a "
        "standard attention of torch's."
    )
    arrays.refuse_unusable(name, array, f"that broadcasts to ({names})", grad, range(1, 5))
    if arrays.kind(array) != arrays.kind(q):
        raise ValueError(
            f"{name} is {arrays.kind(array)}, q is {arrays.kind(q)}: convert it to q's kind and "
            "device."
        )
    have = dtype_of(array)
    if name == "bias" and have == "bool":
        raise ValueError("bias is bool: a bias is added to the scores; pass it as mask.")
    if name != "bias" and have != "bool":
        other = ", or pass what is to be added to the scores as bias" if name == "mask" else ""
        raise ValueError(f"{name} is {have}: pass a bool array, True = keep{other}.")
    if name == "bias" and have not in HOST_ITEMSIZE:
        raise ValueError(f"bias is {have}: cast it to q's dtype or to float32.")
    own = tuple(array.shape)
    padded = (1,) * (4 - len(own)) + own
    if any(n not in (1, full) for n, full in zip(padded, shape, strict=True)):
        raise ValueError(
            f"{name} has shape {own}, which does not broadcast to ({names}) = {shape}: give every "
            "axis its whole length, or 1."
        )
    return arrays.broadcast_to(array, shape)


def _packed(cu_seqlens_q: Any, cu_seqlens_k: Any, q: Any, k: Any) -> Packed | None:
    """The bounds of packed sequences, checked against the arrays that hold them."""
    if cu_seqlens_q is None and cu_seqlens_k is None:
        return None
    if cu_seqlens_q is None or cu_seqlens_k is None:
        missing = "cu_seqlens_q" if cu_seqlens_q is None else "cu_seqlens_k"
        raise ValueError(
            f"{missing} is missing: packed sequences need the bounds of q and those of k and v, "
            "which may be the same."
        )
    packed = Packed(_on_host(cu_seqlens_q), _on_host(cu_seqlens_k))
    if q.shape[0] != 1:
        raise ValueError(
            f"batch = {q.shape[0]} with cu_seqlens: packed sequences stand behind one another in "
            "(1, nheads, total, head_dim). Reshape q, k and v."
        )
    for name, total, array in (("q", packed.total_q, q), ("k", packed.total_k, k)):
        if total != array.shape[2]:
            raise ValueError(
                f"cu_seqlens_{name} ends at {total}, {name} has {array.shape[2]} rows: the last "
                "bound must be the total length. Cut the array or mend the bounds."
            )
    return packed


def _on_host(bounds: Any) -> Any:
    """Bounds as a list; those on a GPU are copied, for which the host waits."""
    if arrays.library_of(bounds) == "cupy":
        bounds = bounds.get()
    return bounds.tolist() if hasattr(bounds, "tolist") else bounds
