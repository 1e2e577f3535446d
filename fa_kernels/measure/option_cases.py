"""Options of the front door as cases that every kernel must pass: alone, and all at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.extras import Extras
from fa_kernels.measure.cases import DTYPES, Case
from fa_kernels.packed import Packed
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.scores import lowest_of
from fa_kernels.tiling import Tiling

#: Sequences of 37, 0, 113 and 53 rows of q with 64, 6, 0 and 261 keys: two are empty on one side.
PACKED = Packed((0, 37, 37, 150, 203), (0, 64, 70, 70, 331))
_DROP = {"dropout_p": 0.25, "seed": 2**40 + 17}
_ALL: dict[str, Any] = {
    "causal": "bottom_right",
    "window": (90, None),
    "masked": True,
    "bias_dtype": "float32",
    "nheads_kv": 2,
    **_DROP,
}
#: (fields of the problem, shape of mask, bias and dropout mask); see `make_extras`.
OPTIONS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"window": (5, 3)}, ""),
    ({"window": (0, 0)}, ""),
    ({"window": (None, 7)}, ""),
    ({"window": (40, None), "causal": "top_left"}, ""),
    ({"masked": True}, "full"),
    ({"masked": True, "causal": "bottom_right"}, "padding"),
    ({"bias_dtype": "float32"}, "full"),
    ({"bias_dtype": "io", "causal": "top_left"}, "transposed"),
    ({"bias_dtype": "float32", "masked": True, "window": (30, 10)}, "shared"),
    (_DROP, ""),
    ({"dropout_p": 0.5, "keep_given": True, "causal": "bottom_right"}, "full"),
    ({"nheads_kv": 2}, ""),
    ({"nheads_kv": 1, "causal": "bottom_right", **_DROP}, ""),
    ({"packed": PACKED, "causal": "bottom_right"}, ""),
    ({"packed": PACKED, "nheads_kv": 3, "window": (20, 4)}, ""),
    ({"packed": PACKED, **_ALL}, "full"),
    (_ALL, "full"),
    (_ALL | {"bias_dtype": "io", "keep_given": True, "seed": None}, "transposed"),
    ({"softmax_scale": 0.37, "causal": "bottom_right"}, ""),
    ({"softmax_scale": -0.2, "masked": True}, "shared"),
)


def option_cases() -> Iterator[Case]:
    """Every entry of `OPTIONS` in every dtype, two head dimensions and two tilings, and more."""
    for (fields, shape), dtype in itertools.product(OPTIONS, DTYPES):
        for head_dim, tiling in ((64, Tiling(64, 32)), (20, Tiling(17, 33))):
            yield Case(_problem(dtype, head_dim, fields), tiling, extras=shape)
        for head_dim in (64, 256):
            problem = _problem(dtype, head_dim, fields)
            yield Case(problem, Tiling(1, 1), extras=shape, own_tiles=True)
        if "bias_dtype" in fields:
            yield Case(_problem(dtype, 64, fields), Tiling(64, 32), extras=shape, lowest=True)
    rng = np.random.default_rng(1)
    for lead, dtype in itertools.product(((1, 1), (2, 6)), DTYPES):
        for blocks in ((64, 32), (24, 40)):
            keep = rng.random((*lead, -(-203 // blocks[0]), -(-331 // blocks[1]))) < 0.5
            keep[..., 1, :] = keep[..., :, 2] = False
            mask = BlockMask.from_dense(keep, *blocks)
            fields = {**_ALL, "window": (150, 40), "block_mask": mask}
            yield Case(_problem(dtype, 64, fields), Tiling(64, 32), extras="full")
    # Dropout leaves a kernel's own tiles the plan that calls without options have.
    for head_dim, dtype in itertools.product((32, 96, 128, 192), DTYPES):
        yield Case(_problem(dtype, head_dim, _DROP), Tiling(1, 1), own_tiles=True)
    # A row of S too long for shared memory, with a window whose rows do not start at a chunk.
    long = AttentionProblem(1, 1, 65, 20000, 64, "float16", window=(1001, 3))
    yield Case(long, Tiling(64, 64))


def _problem(dtype: str, head_dim: int, fields: dict[str, Any]) -> AttentionProblem:
    fields = dict(fields)
    if fields.get("bias_dtype") == "io":
        fields["bias_dtype"] = dtype
    packed = fields.get("packed")
    if packed is not None:
        sizes = (packed.sequences, 6, packed.longest_q, packed.longest_k)
    else:
        sizes = (2, 6, 203, 331)
    return AttentionProblem(*sizes, head_dim, dtype, **fields)


def make_extras(case: Case, seed: int, xp: Any) -> Extras:
    """Mask, bias and dropout mask that the case's problem asks for, as arrays of `xp`.

    `case.extras` is their shape: "full" differs over everything; "shared" over rows and keys;
    "padding" over batch and keys; "transposed" is full, with neighbouring rows, not keys, next to
    each other in memory. The mask drops a row, the bias holds -inf and, if `case.lowest`, a row of
    finfo.min.
    """
    p = case.problem
    rng = np.random.default_rng(seed)
    full = (p.batch, p.nheads, p.seqlen_q, p.seqlen_k)
    shape = {"shared": (1, 1, *full[2:]), "padding": (p.batch, 1, 1, p.seqlen_k)}
    own = shape.get(case.extras, full)

    def on_device(array: np.ndarray) -> Any:
        if case.extras == "transposed":
            array = np.ascontiguousarray(np.swapaxes(array, 2, 3))
            return xp.broadcast_to(xp.swapaxes(xp.asarray(array), 2, 3), full)
        return xp.broadcast_to(xp.asarray(array), full)

    mask = bias = keep = None
    if p.masked:
        mask = rng.random(own) < 0.7
        if own[2] > 1:
            mask[..., 1, :] = False
        mask = on_device(mask)
    if p.bias_dtype is not None:
        dtype = io_dtype(p.bias_dtype)
        bias = rng.standard_normal(own).astype(dtype)
        bias[rng.random(own) < 0.05] = -np.inf
        if case.lowest:
            bias[..., 2, :] = lowest_of(dtype)
        bias = on_device(bias)
    if p.keep_given:
        keep = on_device(rng.random(own) >= p.dropout_p)
    return Extras(mask, bias, keep)
