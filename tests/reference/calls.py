"""Calls with every option, alone and combined, for property tests: what Hypothesis draws from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.extras import Extras
from fa_kernels.packed import Packed
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.flash import flash_kv_outer, flash_kv_outer_io, flash_q_outer
from fa_kernels.reference.naive import standard_naive
from fa_kernels.reference.standard import standard_tiled
from fa_kernels.tiling import Tiling
from tests.reference.problems import MASKS, Arrays, random_inputs, random_mask

FLASH = {"q_outer": flash_q_outer, "kv_outer": flash_kv_outer, "kv_outer_io": flash_kv_outer_io}
STANDARD = {"naive": standard_naive, "tiled": standard_tiled}
Reference = Callable[..., Any]
every_reference = pytest.mark.parametrize(
    "reference", [*FLASH.values(), *STANDARD.values()], ids=[*FLASH, *STANDARD]
)
ODD = Tiling(5, 7)

side = st.one_of(st.none(), st.integers(0, 25))
windows = st.one_of(st.none(), st.tuples(side, side))
lengths = st.integers(1, 34)
tilings = st.builds(Tiling, st.integers(1, 40), st.integers(1, 40))


@dataclass(frozen=True)
class Call:
    """One call of attention: sizes and options, tiles, and the arrays they speak of."""

    problem: AttentionProblem
    tiling: Tiling
    extras: Extras
    inputs: Arrays


def assert_close(got: Any, want: Any) -> None:
    """Within fp64 rounding of scores as large as fp16's lowest number; infinities the same."""
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-9)


def random_extras(problem: AttentionProblem, seed: int = 0) -> Extras:
    """The arrays that the problem says it has, each broadcast along some axes.

    The mask drops every key of some rows, the bias holds -inf, finfo.min and rows of nothing else.
    """
    rng = np.random.default_rng(seed)
    full = (problem.batch, problem.nheads, problem.seqlen_q, problem.seqlen_k)

    def shape() -> tuple[int, ...]:
        return tuple(n if rng.random() < 0.7 else 1 for n in full)

    mask = bias = keep = None
    if problem.masked:
        own = shape()
        mask = rng.random(own) < 0.7
        mask &= rng.random((*own[:3], 1)) < 0.9
        mask = np.broadcast_to(mask, full)
    if problem.bias_dtype is not None:
        own, dtype = shape(), io_dtype(problem.bias_dtype)
        values = rng.standard_normal(own)
        # Of float32 in any case: what frameworks add to mask, whatever the dtype of the scores.
        lowest = float(np.finfo(np.float16 if dtype.itemsize == 2 else np.float32).min)
        values[rng.random(own) < 0.1] = lowest
        values[np.broadcast_to(rng.random((*own[:3], 1)) < 0.1, own)] = lowest
        values[rng.random(own) < 0.1] = -np.inf
        bias = np.broadcast_to(values.astype(dtype), full)
    if problem.keep_given:
        keep = np.broadcast_to(rng.random(shape()) < 0.6, full)
    return Extras(mask, bias, keep)


@st.composite
def problems(draw: st.DrawFn, *, block_masks: bool = True, dtype: str = "float16") -> Any:
    """Problems of any shape with any options. Half of the options are off in most of them."""
    group, kv = draw(st.sampled_from((1, 1, 2, 3))), draw(st.integers(1, 2))
    dropout = draw(st.sampled_from((None, None, "drawn", "given")))
    options: dict[str, Any] = {
        "head_dim": draw(st.integers(1, 9)),
        "dtype": dtype,
        "causal": draw(st.sampled_from(MASKS)),
        "window": draw(windows),
        "nheads_kv": kv,
        "masked": draw(st.booleans()),
        "bias_dtype": draw(st.sampled_from((None, None, "float32", dtype))),
        "dropout_p": 0.0 if dropout is None else draw(st.sampled_from((0.1, 0.5, 0.9))),
        "seed": draw(st.integers(0, 2**64 - 1)) if dropout == "drawn" else None,
        "keep_given": dropout == "given",
    }
    if draw(st.booleans()) and draw(st.booleans()):
        sequences = draw(
            st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=4)
        )
        ends = [np.cumsum([0, *column]).tolist() for column in zip(*sequences, strict=True)]
        packed = Packed(*map(tuple, ends))
        sizes = (len(sequences), kv * group, packed.longest_q, packed.longest_k)
        return AttentionProblem(*sizes, **options, packed=packed)
    batch, nq, nk = draw(st.integers(1, 2)), draw(lengths), draw(lengths)
    if block_masks and draw(st.booleans()):
        lead = draw(st.sampled_from(((1, 1), (1, kv * group), (batch, 1), (batch, kv * group))))
        options["block_mask"] = random_mask(
            nq, nk, draw(lengths), draw(lengths), lead, density=0.6, seed=nq * 41 + nk
        )
    return AttentionProblem(batch, kv * group, nq, nk, **options)


@st.composite
def calls(
    draw: st.DrawFn, *, block_masks: bool = True, dtype: str = "float16", io: str = "float64"
) -> Any:
    """`problems` of `dtype` with tiles and arrays; q, k and v of dtype `io`."""
    problem = draw(problems(block_masks=block_masks, dtype=dtype))
    seed = draw(st.integers(0, 2**16))
    extras, inputs = random_extras(problem, seed), random_inputs(problem, io, seed)
    return Call(problem, draw(tilings), extras, inputs)
