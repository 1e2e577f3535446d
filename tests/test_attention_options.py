"""Options of the front door: torch's meaning of those it has, packed sequences, and all at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fa_kernels as fa
from fa_kernels.attention import attention, attention_backward
from fa_kernels.tiling import Tiling
from tests.reference.problems import bounded, random_mask
from tests.reported_cases import (
    BACKENDS,
    SPARSE,
    Case,
    backward_of,
    dtypes_of,
    judge,
    random_case,
    run,
)

every_backend = pytest.mark.parametrize("backend", BACKENDS)
every_variant = pytest.mark.parametrize("variant", fa.VARIANTS)


# -- torch's scaled_dot_product_attention -----------------------------------------------------

RNG = np.random.default_rng(0)
MASK = RNG.random((2, 1, 17, 23)) < 0.6
MASK[..., 0] = True  # torch gives NaN or 0 for a row that attends nothing, by version
#: Options of ours, and the arguments of torch that mean the same.
SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "is_causal": ({"causal": "top_left"}, {"is_causal": True}),
    "bool mask": ({"mask": MASK}, {"attn_mask": MASK}),
    "bool mask of two axes": ({"mask": MASK[0, 0]}, {"attn_mask": MASK[0, 0]}),
    "bool mask of keys": ({"mask": MASK[:, :, :1]}, {"attn_mask": MASK[:, :, :1]}),
    "float mask": (
        {"bias": (bias := RNG.standard_normal((4, 17, 23)).astype(np.float32))},
        {"attn_mask": bias},
    ),
    "float mask of -inf": (
        {"bias": (minus := np.where(MASK, 0.0, -np.inf).astype(np.float32))},
        {"attn_mask": minus},
    ),
    "scale": ({"softmax_scale": 0.3}, {"scale": 0.3}),
    "negative scale": ({"softmax_scale": -0.3}, {"scale": -0.3}),
    "mask and scale": ({"mask": MASK, "softmax_scale": 0.3}, {"attn_mask": MASK, "scale": 0.3}),
}  # fmt: skip


def as_torch(options: dict[str, Any]) -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    return {
        name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        for name, value in options.items()
    }


@pytest.mark.parametrize("nheads_kv", [4, 2, 1])
@pytest.mark.parametrize("name", SAME)
def test_torch_means_the_same(name: str, nheads_kv: int) -> None:
    torch = pytest.importorskip("torch")
    case = random_case("float32", 17, 23, 20, batch=2, nheads=4, nheads_kv=nheads_kv)
    q, k, v = (torch.from_numpy(x) for x in case.inputs)
    ours, theirs = (as_torch(options) for options in SAME[name])
    want = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, enable_gqa=nheads_kv < 4, **theirs
    )
    for variant in fa.VARIANTS.values():
        if "float32" in variant.dtypes:
            out = attention(q, k, v, variant=variant.name, **ours)
            torch.testing.assert_close(out, want, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("nheads_kv", [4, 2])
@pytest.mark.parametrize("name", SAME)
def test_torchs_gradients_are_the_same(name: str, nheads_kv: int) -> None:
    """In float64, against its autograd: to ten digits."""
    torch = pytest.importorskip("torch")
    case = random_case("float32", 17, 23, 20, batch=2, nheads=4, nheads_kv=nheads_kv)
    assert case.d_out is not None
    q, k, v = (torch.from_numpy(x).double().requires_grad_() for x in case.inputs)
    d_out = torch.from_numpy(case.d_out).double()
    ours, theirs = (as_torch(options) for options in SAME[name])
    if "attn_mask" in theirs and theirs["attn_mask"].dtype != torch.bool:
        theirs["attn_mask"] = theirs["attn_mask"].double()
    want = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, enable_gqa=nheads_kv < 4, **theirs
    )
    want.backward(d_out)
    inputs = [x.detach() for x in (q, k, v)]
    out, lse = attention(*inputs, return_lse=True, **ours)
    saved: Any = (d_out, *inputs, out, lse)
    torch.testing.assert_close(out, want.detach(), rtol=1e-10, atol=1e-10)
    for variant in ("standard_tiled", "flash_kv_outer", "flash_q_outer"):
        found = attention_backward(*saved, variant=variant, **ours)
        for gradient, x in zip(found, (q, k, v), strict=True):
            torch.testing.assert_close(gradient, x.grad, rtol=1e-10, atol=1e-10)


# -- NaN stays where it is --------------------------------------------------------------------

EVERYTHING: dict[str, Any] = {
    "causal": True, "window": (9, None), "mask": RNG.random((40, 40)) < 0.8,
    "bias": RNG.standard_normal((1, 4, 1, 40)).astype(np.float16), "dropout_p": 0.2, "seed": 5,
}  # fmt: skip


@every_backend
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("options", [{}, EVERYTHING], ids=["plain", "everything"])
@every_variant
def test_nan_in_one_query_row_stays_in_it(
    variant: str, options: dict[str, Any], value: float, backend: str
) -> None:
    """Other rows keep every bit, forward and in dq; dk and dv are sums over rows, and lose it."""
    case = random_case(
        "float16", 40, 40, 32, nheads=4, nheads_kv=2, tiling=Tiling(16, 16), **options
    )
    clean = run(case, variant, backend)
    q, k, v = case.inputs
    q = q.copy()
    q[0, 1, 20, 3] = value
    dirty = run(Case((q, k, v), options, case.d_out, case.tiling), variant, backend)
    assert clean.gradients is not None and dirty.gradients is not None
    others = np.ones((1, 4, 40), bool)
    others[0, 1, 20] = False
    for before, after in ((clean.out, dirty.out), (clean.lse, dirty.lse)):
        assert before[others].tobytes() == after[others].tobytes()
    atomic = backend == "cuda" and backward_of(variant) == "flash_q_outer"
    before, after = clean.gradients[0][others], dirty.gradients[0][others]
    np.testing.assert_allclose(after, before, rtol=0, atol=2e-3 if atomic else 0)
    assert np.isnan(dirty.out[0, 1, 20]).any()
    for gradient in dirty.gradients[1:]:  # the other group of heads
        assert np.isfinite(gradient[:, 1]).all()


@every_backend
@every_variant
def test_a_key_of_nan_has_no_influence_where_it_is_masked(variant: str, backend: str) -> None:
    """Of k; v must be finite everywhere, since 0 times NaN is NaN."""
    mask = np.ones((40, 40), bool)
    mask[:20, 30] = False
    for options in ({"mask": mask}, {"causal": True}, {"window": (40, 5)}):
        case = random_case("float16", 40, 40, gradients=False, **options)
        q, k, v = (x.copy() for x in case.inputs)
        clean = run(case, variant, backend)
        k[:, :, 30] = np.nan
        dirty = run(Case((q, k, v), options), variant, backend)
        assert clean.out[:, :, :20].tobytes() == dirty.out[:, :, :20].tobytes()
        assert np.isnan(dirty.out[:, :, 35]).all()


# -- packed sequences -------------------------------------------------------------------------

#: (lengths of q, lengths of k): equal, ragged, empty on either side, one alone.
LENGTHS = [
    ([17, 40, 3], [17, 40, 3]), ([5, 30], [33, 2]), ([0, 12, 0, 7], [4, 12, 0, 0]), ([25], [31]),
]  # fmt: skip


def packed_case(dtype: str, lengths: tuple[list[int], list[int]], **options: Any) -> Case:
    of_q, of_k = (np.cumsum([0, *n]) for n in lengths)
    return random_case(
        dtype, int(of_q[-1]), int(of_k[-1]), 24, nheads=4, nheads_kv=2,
        cu_seqlens_q=of_q.tolist(), cu_seqlens_k=of_k.tolist(), **options,
    )  # fmt: skip


def one_by_one(case: Case) -> list[tuple[Case, slice, slice]]:
    """Every packed sequence as a call of its own, with the drawn dropout mask given."""
    options = dict(case.options)
    of_q, of_k = options.pop("cu_seqlens_q"), options.pop("cu_seqlens_k")
    seed, p = options.pop("seed", None), options.get("dropout_p", 0.0)
    singles = []
    for i in range(len(of_q) - 1):
        rows, keys = slice(*of_q[i : i + 2]), slice(*of_k[i : i + 2])
        nq, nk = rows.stop - rows.start, keys.stop - keys.start
        own = {n: x[i : i + 1, :, :nq, :nk] for n, x in options.items() if np.ndim(x) == 4}
        if seed is not None:
            heads = np.arange(case.inputs[0].shape[1])
            keep = fa.dropout_keep(p, seed, i, heads, np.arange(nq), np.arange(nk))
            own["dropout_keep"] = keep[None]
        q, k, v = (x[:, :, cut] for x, cut in zip(case.inputs, (rows, keys, keys), strict=True))
        assert case.d_out is not None
        one = Case((q, k, v), {**options, **own}, case.d_out[:, :, rows], case.tiling)
        singles.append((one, rows, keys))
    return singles


@every_backend
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("causal", [False, True, "top_left"])
@every_variant
def test_packed_rows_attend_their_own_sequence(
    variant: str, causal: bool | str, lengths: tuple[list[int], list[int]], backend: str
) -> None:
    for dtype in dtypes_of(variant, "float32", "bfloat16"):
        case = packed_case(dtype, lengths, causal=causal, window=(20, None))
        assert not (faults := judge(case, variant, run(case, variant, backend))), faults


PACKED_OPTIONS: dict[str, dict[str, Any]] = {
    "drawn dropout": {"dropout_p": 0.3, "seed": 11},
    "given dropout": {"dropout_p": 0.3, "dropout_keep": RNG.random((3, 4, 40, 40)) < 0.7},
    "mask": {"mask": RNG.random((3, 1, 40, 40)) < 0.7},
    "bias": {"bias": RNG.standard_normal((3, 4, 40, 40)).astype(np.float32), "causal": True},
}


@every_backend
@pytest.mark.parametrize("name", PACKED_OPTIONS)
@every_variant
def test_packed_sequences_are_calls_of_their_own(variant: str, name: str, backend: str) -> None:
    """Masks have a batch for every sequence; dropout is drawn by its number."""
    (dtype,) = dtypes_of(variant, "float32")
    case = packed_case(dtype, LENGTHS[0], tiling=Tiling(16, 16), **PACKED_OPTIONS[name])
    packed = run(case, variant, backend)
    assert packed.gradients is not None
    # Bits differ where BLAS sums other shapes; in 16 bits a sum near a tie may round elsewhere.
    atol = {"float32": 2e-6, "float16": 4e-3}[dtype]
    for one, rows, keys in one_by_one(case):
        alone = run(one, variant, backend)
        assert alone.gradients is not None
        np.testing.assert_allclose(packed.out[:, :, rows], alone.out, rtol=1e-3, atol=atol)
        np.testing.assert_allclose(packed.lse[:, :, rows], alone.lse, rtol=1e-5, atol=atol)
        cuts = (rows, keys, keys)
        for got, want, cut in zip(packed.gradients, alone.gradients, cuts, strict=True):
            np.testing.assert_allclose(got[:, :, cut], want, rtol=1e-3, atol=2 * atol)


def test_bounds_of_any_kind_give_the_same() -> None:
    torch = pytest.importorskip("torch")
    case = packed_case("float32", LENGTHS[1])
    options = {**case.options}
    want = attention(*case.inputs, **options)
    of_q, of_k = options["cu_seqlens_q"], options["cu_seqlens_k"]
    for convert in (tuple, np.array, torch.tensor, lambda x: torch.tensor(x, dtype=torch.int32)):
        kinds: dict[str, Any] = {"cu_seqlens_q": convert(of_q), "cu_seqlens_k": convert(of_k)}
        np.testing.assert_array_equal(attention(*case.inputs, **kinds), want)


# -- dropout ----------------------------------------------------------------------------------


def test_the_seed_draws_the_mask_that_the_package_shows() -> None:
    case = random_case("float32", 30, 37, nheads=3, batch=2, dropout_p=0.375, seed=2**63 + 5)
    heads, batches = np.arange(3), np.arange(2)
    keep = fa.dropout_keep(0.375, 2**63 + 5, batches, heads, np.arange(30), np.arange(37))
    given = {"dropout_p": 0.375, "dropout_keep": keep}
    for variant in (v.name for v in fa.VARIANTS.values() if "float32" in v.dtypes):
        drawn = run(case, variant, "numpy")
        shown = run(Case(case.inputs, given, case.d_out), variant, "numpy")
        assert drawn.out.tobytes() == shown.out.tobytes()
        assert drawn.gradients is not None and shown.gradients is not None
        for a, b in zip(drawn.gradients, shown.gradients, strict=True):
            assert a.tobytes() == b.tobytes()


@every_variant
def test_no_tiling_draws_another_mask(variant: str) -> None:
    (dtype,) = dtypes_of(variant, "float32")
    for tiling in (Tiling(1, 7), Tiling(16, 16), Tiling(64, 64)):
        case = random_case(dtype, 30, 37, dropout_p=0.5, seed=3, tiling=tiling)
        assert not (faults := judge(case, variant, run(case, variant, "numpy"))), faults


def test_a_probability_of_zero_is_no_dropout() -> None:
    case = random_case("float32", 30, 37)
    plain = attention(*case.inputs)
    for options in ({"dropout_p": 0.0}, {"dropout_p": 0, "seed": 4}, {"seed": 4}):
        assert attention(*case.inputs, **options).tobytes() == plain.tobytes()


# -- everything at once -----------------------------------------------------------------------

windows = st.one_of(st.none(), st.tuples(*[st.one_of(st.none(), st.integers(0, 30))] * 2))


@st.composite
def any_case(draw: st.DrawFn) -> tuple[Case, str]:
    """A variant, and a call with any of the options; shapes broadcast in any way."""
    variant = draw(st.sampled_from(list(fa.VARIANTS)))
    dtype = draw(st.sampled_from(fa.VARIANTS[variant].dtypes))
    batch, kv, group = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    nq, nk, d = draw(st.integers(1, 50)), draw(st.integers(1, 50)), draw(st.integers(1, 24))
    nheads, rng = kv * group, np.random.default_rng(draw(st.integers(0, 2**16)))
    over = (batch, nheads, nq, nk)

    def shape() -> tuple[int, ...]:
        return tuple(n if draw(st.booleans()) else 1 for n in over)[draw(st.integers(0, 3)) :]

    options: dict[str, Any] = {
        "causal": draw(st.sampled_from((False, True, "top_left"))),
        "window": draw(windows),
        "softmax_scale": draw(st.sampled_from((None, None, 0.0, -0.5, 1.5))),
    }
    if draw(st.booleans()):
        options["mask"] = rng.random(shape()) < 0.7
    if draw(st.booleans()):
        options["bias"] = rng.standard_normal(shape()).astype(np.float32)
        options["bias"][rng.random(options["bias"].shape) < 0.1] = -np.inf
    if draw(st.booleans()):
        options |= {"dropout_p": draw(st.sampled_from((0.1, 0.5))), "seed": draw(st.integers(0, 9))}
    elif draw(st.booleans()):
        options |= {"dropout_p": 0.3, "dropout_keep": rng.random(shape()) < 0.7}
    if variant in SPARSE and draw(st.booleans()):
        blocks = (draw(st.integers(1, 50)), draw(st.integers(1, 50)))
        lead = draw(st.sampled_from(((1, 1), (batch, nheads))))
        options["block_mask"] = random_mask(nq, nk, *blocks, lead, density=0.7)
    tiling = Tiling(draw(st.integers(1, 40)), draw(st.integers(1, 40)))
    sizes: dict[str, Any] = {"batch": batch, "nheads": nheads, "nheads_kv": kv}
    return random_case(dtype, nq, nk, d, **sizes, tiling=tiling, **options), variant


@bounded
@given(any_case())
def test_any_options_together_are_the_formula_and_the_chain_rule(drawn: tuple[Case, str]) -> None:
    case, variant = drawn
    assert not (faults := judge(case, variant, run(case, variant, "numpy"))), faults
