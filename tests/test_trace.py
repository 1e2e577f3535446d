"""Traces of one row against the prefix itself: softmax over the keys seen so far, in float64."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import fa_kernels as fa
from fa_kernels.attention import attention
from fa_kernels.cuda import arrays
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.trace import Trace, trace_row
from fa_kernels.variants import VARIANTS
from tests.reference.problems import Arrays, allowed_pairs, random_inputs, random_mask

TRACED = [name for name, variant in VARIANTS.items() if variant.traced]
NQ, NK = 40, 56
TILING = Tiling(16, 16)
#: fp32 sums of a few hundred terms; a 16-bit O adds a unit per visit.
ATOL = {"float32": 1e-5, "float16": 5e-3}
WHERE = [(0, 0, 0), (1, 2, 39), (1, 0, 17)]

each_traced = pytest.mark.parametrize("variant", TRACED)
each_row = pytest.mark.parametrize("where", WHERE)


def make(variant: str, nq: int = NQ, nk: int = NK) -> Arrays:
    dtype = VARIANTS[variant].dtypes[0]
    return random_inputs(AttentionProblem(2, 3, nq, nk, 20, dtype), dtype)


def traced(variant: str, where: tuple[int, int, int], inputs: Arrays, **options: Any) -> Trace:
    batch, head, row = where
    options = {"tiling": TILING, **options}
    return trace_row(*inputs, batch=batch, head=head, row=row, variant=variant, **options)


def assert_is_the_prefix(trace: Trace, inputs: Arrays, allowed: np.ndarray) -> None:
    """m, l, alpha and acc of every visit, from the scores of the keys visited so far."""
    q, k, v = (x[trace.batch, trace.head].astype(np.float64) for x in inputs)
    s = k @ q[trace.row] / np.sqrt(q.shape[-1])
    s[~allowed] = -np.inf
    atol = ATOL[inputs[0].dtype.name]
    seen = np.zeros(len(s), bool)
    m_before = -np.inf
    for i, (start, stop) in enumerate(zip(trace.key_start, trace.key_stop, strict=True)):
        seen[start:stop] = True
        m = s[seen].max()
        safe = 0.0 if m == -np.inf else m
        p = np.exp(np.where(seen, s, -np.inf) - safe)
        assert trace.m[i] == pytest.approx(m, abs=1e-5)
        assert trace.l[i] == pytest.approx(p.sum(), rel=1e-5, abs=1e-12)
        assert trace.alpha[i] == pytest.approx(np.exp(m_before - safe), rel=1e-5, abs=1e-12)
        out = p @ v / (p.sum() or 1.0)
        np.testing.assert_allclose(trace.output[i], out, rtol=0, atol=atol)
        acc = out if trace.normalised else p @ v
        np.testing.assert_allclose(trace.acc[i], acc, rtol=1e-5, atol=atol)
        m_before = m
    assert not (allowed & ~seen).any(), "a key of this row was never visited"


@each_row
@pytest.mark.parametrize("causal", [False, "bottom_right", "top_left"])
@each_traced
def test_every_visit_is_the_softmax_of_the_prefix(
    variant: str, causal: bool | str, where: tuple[int, int, int]
) -> None:
    inputs = make(variant)
    trace = traced(variant, where, inputs, causal=causal)
    problem = AttentionProblem(2, 3, NQ, NK, 20, causal=str(causal) if causal else None)
    assert_is_the_prefix(trace, inputs, allowed_pairs(problem)[where[2]])


@each_row
@pytest.mark.parametrize("lead", [(1, 1), (2, 3)])
@pytest.mark.parametrize("causal", [False, "bottom_right"])
@each_traced
def test_a_block_mask_skips_visits(
    variant: str, causal: bool | str, lead: tuple[int, int], where: tuple[int, int, int]
) -> None:
    inputs = make(variant)
    mask = random_mask(NQ, NK, 16, 8, lead, seed=2)
    trace = traced(variant, where, inputs, causal=causal, block_mask=mask)
    problem = AttentionProblem(
        2, 3, NQ, NK, 20, causal=str(causal) if causal else None, block_mask=mask
    )
    whole = np.broadcast_to(allowed_pairs(problem), (2, 3, NQ, NK))[where[0], where[1]]
    assert_is_the_prefix(trace, inputs, whole[where[2]])
    rows = whole[where[2] // 16 * 16 :][:16]  # a visit is one of the row's Q tile
    visited = [j for j in range(0, NK, 16) if rows[:, j : j + 16].any()]
    assert trace.key_start.tolist() == visited
    dense = traced(variant, where, inputs, causal=causal)
    assert len(trace.key_start) <= len(dense.key_start)


def test_some_of_those_masks_did_skip() -> None:
    mask = random_mask(NQ, NK, 16, 8, seed=2)
    variant = "flash_q_outer"
    trace = traced(variant, (0, 0, 0), make(variant), block_mask=mask)
    assert 0 < len(trace.key_start) < 4


@each_row
@pytest.mark.parametrize("causal", [False, True])
@each_traced
def test_the_last_output_is_attentions_row(
    variant: str, causal: bool, where: tuple[int, int, int]
) -> None:
    inputs = make(variant)
    out, lse = attention(*inputs, variant=variant, causal=causal, tiling=TILING, return_lse=True)
    trace = traced(variant, where, inputs, causal=causal)
    last = trace.output[-1].astype(out.dtype).astype(np.float64)
    # One head alone may be summed in another order: a unit of fp32, or of a rounding that flips.
    unit = {"float32": 1e-6, "float16": 2.0**-9}[out.dtype.name]
    np.testing.assert_allclose(last, out[where].astype(np.float64), rtol=0, atol=unit)
    assert trace.m[-1] + np.log(trace.l[-1]) == pytest.approx(lse[where], abs=1e-5)


def test_whole_floats_choose_the_same_row() -> None:
    q, k, v = make("flash_q_outer")
    whole, number = (
        trace_row(q, k, v, row=row, tiling=Tiling(16, 16), batch=batch)  # type: ignore[arg-type]
        for row, batch in ((3.0, 0.0), (3, 0))
    )
    assert (whole.row, whole.batch) == (3, 0)
    np.testing.assert_array_equal(whole.acc, number.acc)


@each_traced
def test_only_algorithm_1_keeps_acc_normalised(variant: str) -> None:
    trace = traced(variant, WHERE[1], make(variant))
    divides_every_time = {
        "flash_kv_outer": True,
        "flash_kv_outer_io": True,
        "flash_q_outer_one_block": False,
        "flash_q_outer": False,
    }
    assert trace.normalised == divides_every_time[variant]
    assert (trace.output is trace.acc) == trace.normalised
    assert (trace.variant, trace.backend) == (variant, "numpy")
    assert (trace.batch, trace.head, trace.row) == WHERE[1]


@each_traced
def test_shapes_and_dtypes_of_a_trace(variant: str) -> None:
    trace = traced(variant, WHERE[1], make(variant))
    assert trace.key_start.tolist() == [0, 16, 32, 48]
    assert trace.key_stop.tolist() == [16, 32, 48, 56]
    assert trace.key_start.dtype == trace.key_stop.dtype == np.int64
    for column in (trace.m, trace.l, trace.alpha):
        assert (column.shape, column.dtype) == ((4,), np.float32)
    assert (trace.acc.shape, trace.acc.dtype) == ((4, 20), np.float32)
    assert trace.alpha[0] == 0.0, "nothing was there before the first visit"


@each_traced
def test_a_row_that_attends_nothing(variant: str) -> None:
    """Under bottom_right the first rows of a tall problem: visited with their tile, or never."""
    inputs = make(variant, 56, 40)  # rows 0..15 attend nothing
    never = traced(variant, (0, 0, 3), inputs, causal=True)
    assert len(never.key_start) == 0 and never.acc.shape == (0, 20)
    with_its_tile = traced(variant, (0, 0, 3), inputs, causal=True, tiling=Tiling(32, 16))
    assert (with_its_tile.m == -np.inf).all() and len(with_its_tile.m) == 1
    assert not with_its_tile.l.any() and not with_its_tile.output.any()


@each_traced
def test_the_scale_is_the_calls(variant: str) -> None:
    inputs = make(variant)
    trace = traced(variant, WHERE[2], inputs, softmax_scale=0.0)
    assert not trace.m.any() and trace.l.tolist() == [16.0, 32.0, 48.0, 56.0]
    assert trace.alpha.tolist() == [0.0, 1.0, 1.0, 1.0]


@each_traced
def test_grouped_heads_are_traced_with_their_key_head(variant: str) -> None:
    dtype = VARIANTS[variant].dtypes[0]
    q, k, v = random_inputs(AttentionProblem(2, 6, NQ, NK, 20, dtype, nheads_kv=2), dtype)
    for head in (0, 2, 3, 5):
        trace = traced(variant, (1, head, 17), (q, k, v), causal=True)
        spread = (q, np.repeat(k, 3, axis=1), np.repeat(v, 3, axis=1))
        allowed = allowed_pairs(AttentionProblem(1, 1, NQ, NK, 20, causal="bottom_right"))[17]
        assert_is_the_prefix(trace, spread, allowed)


def test_torch_tensors_give_the_same_trace() -> None:
    torch = pytest.importorskip("torch")
    inputs = make("flash_q_outer")
    ours = traced("flash_q_outer", WHERE[1], inputs)
    tensors: Any = tuple(map(torch.from_numpy, inputs))
    theirs = traced("flash_q_outer", WHERE[1], tensors)
    for name in ("key_start", "key_stop", "m", "l", "alpha", "acc"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


def test_bfloat16_inputs_are_traced_in_fp32() -> None:
    inputs = random_inputs(AttentionProblem(2, 3, NQ, NK, 20), "bfloat16")
    trace = traced("flash_kv_outer", WHERE[1], inputs)
    wide: Any = tuple(x.astype(np.float32) for x in inputs)
    assert trace.acc.dtype == np.float32
    assert_is_the_prefix(trace, wide, np.ones(NK, bool))


def test_the_inputs_are_left_as_they_are() -> None:
    inputs = make("flash_q_outer")
    for x in inputs:
        x.setflags(write=False)
    traced("flash_q_outer", WHERE[0], inputs)


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"row": 40}, ValueError, r"row = 40 is out of range: .*between 0 and 39\. Choose one"),
        ({"row": -1}, ValueError, r"row = -1 is out of range"),
        ({"row": 1.5}, ValueError, r"row = 1\.5 is not a whole number"),
        ({"row": None}, ValueError, r"row = None is not a whole number"),
        ({"batch": 2}, ValueError, r"batch = 2 is out of range: .*between 0 and 1"),
        ({"head": 3}, ValueError, r"head = 3 is out of range: .*between 0 and 2"),
        (
            {"variant": "standard_tiled"}, NotImplementedError,
            r"variant = 'standard_tiled' has no online softmax to trace: use 'flash_q_outer' or",
        ),
        ({"variant": "standard_naive"}, NotImplementedError, r"has no online softmax to trace"),
        ({"variant": "flash"}, ValueError, r"variant = 'flash' is not known"),
        ({"variant": "flash_kv_outer_io"}, NotImplementedError, r"does not take float32"),
        ({"tiling": (16, 16)}, TypeError, r"is not a Tiling"),
        ({"causal": "upper"}, ValueError, r"causal = 'upper' is not known"),
        ({"block_mask": np.ones((1, 1), bool)}, TypeError, r"block_mask is a ndarray"),
        ({"backend": "tpu"}, ValueError, r"backend = 'tpu' is not known"),
    ],
)  # fmt: skip
def test_refused_in_words_before_anything_runs(
    options: dict[str, Any],
    error: type[Exception],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrays, "to_numpy", lambda x: pytest.fail("it ran"))
    call = partial(trace_row, *make("flash_q_outer"))
    with pytest.raises(error, match=sentence):
        call(**{"row": 0, **options})


@pytest.mark.parametrize("shape", [(0, 8), (8, 0)])
def test_nothing_to_trace(shape: tuple[int, int]) -> None:
    """No row is refused as a row that is not there; no key gives a trace without visits."""
    inputs = make("flash_q_outer", *shape)
    if shape[0] == 0:
        with pytest.raises(ValueError, match="row = 0 is out of range"):
            trace_row(*inputs, row=0)
        return
    for variant in ("flash_q_outer", "flash_kv_outer"):
        trace = trace_row(*inputs, row=0, variant=variant)
        assert len(trace.m) == 0 and trace.output.shape == (0, 20)


def test_without_a_gpu_backend_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "available", lambda: False)
    with pytest.raises(ValueError, match=r"backend = 'cuda' needs CuPy and a CUDA GPU"):
        trace_row(*make("flash_q_outer"), row=0, backend="cuda")


def test_the_package_offers_it() -> None:
    assert fa.trace_row is trace_row
