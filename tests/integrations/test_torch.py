"""The operators under autograd, torch.compile and autocast, and what they keep and copy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fa_kernels as fa
from fa_kernels.call import checked_backward_call
from fa_kernels.dropout import dropout_keep

torch = pytest.importorskip("torch")
checkpoint = pytest.importorskip("torch.utils.checkpoint").checkpoint

from fa_kernels.integrations import operators  # noqa: E402
from fa_kernels.integrations.torch import attention  # noqa: E402

#: Small: a numerical gradient takes two runs for every number in q, k and v.
BATCH, NHEADS, NHEADS_KV, SEQLEN_Q, SEQLEN_K, HEAD_DIM = 2, 4, 2, 4, 5, 2


def random(*shape: int, dtype: Any = torch.float64, seed: int = 0) -> Any:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def keep(*shape: int, seed: int = 0) -> Any:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) > 0.3


def inputs(dtype: Any = torch.float64, grad: bool = True) -> list[Any]:
    shapes = ((NHEADS, SEQLEN_Q), (NHEADS_KV, SEQLEN_K), (NHEADS_KV, SEQLEN_K))
    return [
        random(BATCH, nheads, seqlen, HEAD_DIM, dtype=dtype, seed=i).requires_grad_(grad)
        for i, (nheads, seqlen) in enumerate(shapes)
    ]


def mask_with_an_empty_row() -> Any:
    mask = keep(SEQLEN_Q, SEQLEN_K, seed=1)
    mask[2] = False
    return mask


#: Every kind of option, by itself; each value is made anew for every test.
OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": lambda: {},
    "bottom_right": lambda: {"causal": True},
    "top_left": lambda: {"causal": "top_left"},
    "window": lambda: {"window": (2, 1)},
    "left window": lambda: {"window": (1, None)},
    "mask": lambda: {"mask": mask_with_an_empty_row()},
    "bias": lambda: {"bias": random(1, NHEADS, SEQLEN_Q, SEQLEN_K, seed=5)},
    "block mask": lambda: {
        "block_mask": fa.BlockMask.from_dense(np.array([[1, 0], [1, 1]], bool), 3, 4)
    },
    "scale": lambda: {"softmax_scale": 0.7},
    "dropout": lambda: {"dropout_p": 0.3, "seed": 2**64 - 3},
    "given dropout": lambda: {"dropout_p": 0.3, "dropout_keep": keep(SEQLEN_Q, SEQLEN_K, seed=2)},
    "tiling": lambda: {"tiling": fa.Tiling(2, 3), "variant": "flash_kv_outer"},
    "all": lambda: {
        "causal": True,
        "window": (4, None),
        "mask": keep(BATCH, 1, SEQLEN_Q, SEQLEN_K, seed=3),
        "bias": random(SEQLEN_Q, SEQLEN_K, seed=6),
        "softmax_scale": 0.4,
        "dropout_p": 0.2,
        "seed": 11,
        "deterministic": True,
    },
}
every_option = pytest.mark.parametrize("name", OPTIONS)


class Spy:
    """Stands before a function and notes what comes in."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.tensors: list[Any] = []
        self.options: dict[str, Any] = {}

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        self.tensors, self.options = list(tensors), options
        return self.function(*tensors, **options)


def packed_call() -> tuple[list[Any], dict[str, Any]]:
    q = random(1, NHEADS, 6, HEAD_DIM, seed=1).requires_grad_()
    k, v = (random(1, NHEADS_KV, 8, HEAD_DIM, seed=i).requires_grad_() for i in (2, 3))
    bounds = {"cu_seqlens_q": [0, 2, 2, 6], "cu_seqlens_k": torch.tensor([0, 3, 4, 8])}
    return [q, k, v], {"causal": True, **bounds}


def gradients(call: Callable[..., Any], tensors: list[Any]) -> list[Any]:
    out, lse = call(*tensors)
    lse = lse.masked_fill(lse.isinf(), 0.0)
    return [out, lse, *torch.autograd.grad((out * out.detach()).sum() + lse.cos().sum(), tensors)]


# -- gradients -------------------------------------------------------------------------------------


@every_option
def test_gradients_are_those_of_the_formula(name: str) -> None:
    options = OPTIONS[name]()
    assert torch.autograd.gradcheck(lambda *x: attention(*x, **options), inputs())


@pytest.mark.parametrize("name", ["none", "bias", "dropout", "all"])
def test_lse_has_gradients_too(name: str) -> None:
    options = OPTIONS[name]()

    def both(*tensors: Any) -> tuple[Any, Any]:
        out, lse = attention(*tensors, return_lse=True, **options)
        return out, lse.masked_fill(lse.isinf(), 0.0)  # no difference quotient there

    assert torch.autograd.gradcheck(both, inputs())


def test_lse_of_an_empty_row_passes_no_nan_on() -> None:
    q, k, v = inputs()
    _, lse = attention(q, k, v, mask=mask_with_an_empty_row(), return_lse=True)
    dq, dk = torch.autograd.grad(torch.logaddexp(lse, lse).sum(), (q, k))  # NaN at -inf
    assert dq.isfinite().all() and dk.isfinite().all() and (dq[:, :, 2] == 0).all()


def test_gradients_of_packed_sequences() -> None:
    tensors, options = packed_call()
    assert torch.autograd.gradcheck(lambda *x: attention(*x, return_lse=True, **options), tensors)


@pytest.mark.parametrize(
    "needs", [(True, False, False), (False, True, False), (False, False, True)]
)
def test_one_input_alone_can_require_grad(needs: tuple[bool, ...]) -> None:
    tensors = [x.detach().requires_grad_(need) for x, need in zip(inputs(), needs, strict=True)]
    attention(*tensors).sum().backward()
    assert [x.grad is not None for x in tensors] == list(needs)


@every_option
def test_same_numbers_as_the_front_door(name: str) -> None:
    options, tensors = OPTIONS[name](), inputs()
    d_out = random(BATCH, NHEADS, SEQLEN_Q, HEAD_DIM, seed=9)
    out, lse = attention(*tensors, return_lse=True, **options)
    grads = torch.autograd.grad(out, tensors, d_out)

    deterministic = options.pop("deterministic", False)
    plain = [x.detach() for x in tensors]
    want_out, want_lse = fa.attention(*plain, return_lse=True, **options)
    backward: Any = fa.attention_backward
    want = backward(d_out, *plain, want_out, want_lse, deterministic=deterministic, **options)
    for got, expected in zip((out, lse, *grads), (want_out, want_lse, *want), strict=True):
        assert torch.equal(got, expected)


def test_fully_masked_row_gives_and_gets_nothing() -> None:
    q, k, v = inputs()
    out, lse = attention(q, k, v, mask=mask_with_an_empty_row(), return_lse=True)
    out.sum().backward()
    assert (out[:, :, 2] == 0).all() and torch.isneginf(lse[:, :, 2]).all()
    assert (q.grad[:, :, 2] == 0).all() and q.grad[:, :, 1].all()
    assert k.grad.isfinite().all() and v.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_error_is_that_of_a_plain_run_in_the_same_dtype(dtype: Any) -> None:
    if dtype == torch.bfloat16:
        pytest.importorskip("ml_dtypes")
    d_out = random(BATCH, NHEADS, SEQLEN_Q, HEAD_DIM, dtype=dtype, seed=9)

    def run(call: Callable[..., Any], dtype: Any) -> list[Any]:
        tensors = [x.detach().to(dtype).requires_grad_() for x in inputs(d_out.dtype)]
        out = call(*tensors)
        return [x.double() for x in (out, *torch.autograd.grad(out, tensors, d_out.to(dtype)))]

    def plain(q: Any, k: Any, v: Any) -> Any:
        k, v = (x.repeat_interleave(NHEADS // NHEADS_KV, 1) for x in (k, v))
        return (q @ k.mT * HEAD_DIM**-0.5).softmax(-1) @ v

    got, of_plain, truth = run(attention, dtype), run(plain, dtype), run(plain, torch.float64)
    for i, (x, y, true) in enumerate(zip(got, of_plain, truth, strict=True)):
        limit = (3 if i else 2) * (y - true).abs().max() + torch.finfo(dtype).eps * true.abs().max()
        assert (x - true).abs().max() <= limit


# -- what torch's machinery sees -------------------------------------------------------------------


def operator_arguments(options: dict[str, Any], tensors: list[Any]) -> tuple[Any, ...]:
    """What `attention` hands to the operator for these options."""
    spy = Spy(operators.forward)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operators, "forward", spy)
        attention(*tensors, **options)
    return tuple(spy.tensors)


@pytest.mark.parametrize("name", ["none", "bias", "block mask", "dropout", "all"])
def test_operators_pass_torchs_own_check(name: str) -> None:
    arguments = operator_arguments(OPTIONS[name](), inputs())
    torch.library.opcheck(operators.attention_forward, arguments)
    plain = tuple(x.detach() if isinstance(x, torch.Tensor) else x for x in arguments)
    out, lse = operators.attention_forward(*plain)
    torch.library.opcheck(
        operators.attention_backward, (torch.ones_like(out), *plain[:3], out, lse, *plain[3:])
    )


def test_what_torch_records_or_transforms_goes_by_the_operators() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    q, k, v = (x.detach() for x in inputs())
    call = lambda a, b, c: attention(a, b, c)  # noqa: E731
    traced = make_fx(call)(q, k, v)
    assert torch.equal(traced(2 * q, k, v), call(2 * q, k, v))  # no constant of the first q
    several = torch.stack([q, 2 * q])
    batched = torch.vmap(lambda a: attention(a, k, v))(several)
    assert torch.equal(batched, torch.stack([call(a, k, v) for a in several]))


def test_gradients_of_several_outputs_at_once() -> None:
    q, k, v = inputs()
    out = attention(q, k, v)
    several = torch.randn(2, *out.shape, dtype=out.dtype)
    (together,) = torch.autograd.grad(out, q, several, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(out, q, d_out, retain_graph=True)[0] for d_out in several]
    assert torch.equal(together, torch.stack(one_by_one))


@every_option
def test_at_once_or_by_the_operators_the_bits_are_the_same(name: str) -> None:
    call = lambda q, k, v: attention(q, k, v, return_lse=True, **OPTIONS[name]())  # noqa: E731
    at_once = gradients(call, inputs())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operators, "forward", operators.attention_forward)
        by_operators = gradients(call, inputs())
    assert all(torch.equal(a, b) for a, b in zip(at_once, by_operators, strict=True))


@every_option
def test_compiles_whole_and_gives_the_same_bits(name: str) -> None:
    torch._dynamo.reset()
    options = OPTIONS[name]()
    call = lambda q, k, v: attention(q + 0, k, v, return_lse=True, **options)  # noqa: E731
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    for got, want in zip(gradients(compiled, inputs()), gradients(call, inputs()), strict=True):
        assert torch.equal(got, want)


def test_compiled_graph_serves_other_sizes_and_seeds() -> None:
    torch._dynamo.reset()
    call = lambda q, seed: attention(q, q, q, causal=True, dropout_p=0.5, seed=seed)  # noqa: E731
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True, dynamic=True)
    for seqlen, seed in ((6, 1), (9, 2), (12, 2**63 + 7)):
        q = random(1, 2, seqlen, HEAD_DIM)
        assert torch.equal(compiled(q, seed), call(q, seed))


def test_packed_sequences_compile() -> None:
    torch._dynamo.reset()
    tensors, options = packed_call()
    call = lambda q, k, v: attention(q, k, v, return_lse=True, **options)  # noqa: E731
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    for got, want in zip(gradients(compiled, tensors), gradients(call, tensors), strict=True):
        assert torch.equal(got, want)


def test_meta_tensors_give_shapes() -> None:
    q = torch.empty(2, 6, 300, 64, device="meta", dtype=torch.bfloat16)
    k = torch.empty(2, 3, 500, 64, device="meta", dtype=torch.bfloat16)
    out, lse = attention(q, k, k, causal=True, return_lse=True)
    assert (out.shape, out.dtype, out.is_contiguous()) == (q.shape, q.dtype, True)
    assert (lse.shape, lse.dtype) == (q.shape[:3], torch.float32)


def test_autocast_casts_as_for_torchs_own() -> None:
    pytest.importorskip("ml_dtypes")
    q, k, v = inputs(torch.float32)
    bias = random(SEQLEN_Q, SEQLEN_K, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = attention(q, k, v, bias=bias)
        like = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        in_float64 = attention(*inputs())
    assert out.dtype == like.dtype == torch.bfloat16
    assert in_float64.dtype == torch.float64
    out.float().sum().backward()
    assert q.grad.dtype == torch.float32
    plain = [x.detach().bfloat16() for x in (q, k, v)]
    assert torch.equal(out, fa.attention(*plain, bias=bias))


# -- memory ----------------------------------------------------------------------------------------


def test_no_score_is_kept_for_the_backward_pass() -> None:
    kept = []

    def note(tensor: Any) -> Any:
        kept.append(tuple(tensor.shape))
        return tensor

    q = random(1, 2, 50, HEAD_DIM).requires_grad_()
    mask = keep(50, 50)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        attention(q, q, q, mask=mask, dropout_p=0.1)
    rows = (1, 2, 50)
    assert sorted(kept) == sorted([(), (50, 50), rows, *[(*rows, HEAD_DIM)] * 4])


@pytest.fixture
def spies(monkeypatch: pytest.MonkeyPatch) -> tuple[Spy, Spy]:
    forward, backward = Spy(fa.attention), Spy(fa.attention_backward)
    monkeypatch.setattr(operators, "front_door", forward)
    monkeypatch.setattr(operators, "front_door_backward", backward)
    return forward, backward


def test_transposed_tensors_are_not_copied(spies: tuple[Spy, Spy]) -> None:
    forward, backward = spies
    bshd = [random(2, 6, 3, HEAD_DIM, seed=i).requires_grad_() for i in range(3)]
    views = [x.transpose(1, 2) for x in bshd]
    d_out = random(2, 6, 3, HEAD_DIM, seed=4).transpose(1, 2)
    attention(*views).backward(d_out)
    for seen, view in zip(forward.tensors, views, strict=True):
        assert (seen.data_ptr(), seen.stride()) == (view.data_ptr(), view.stride())
    for seen, view in zip(backward.tensors[:4], (d_out, *views), strict=True):
        assert (seen.data_ptr(), seen.stride()) == (view.data_ptr(), view.stride())
    assert all(x.grad.shape == x.shape for x in bshd)


@pytest.mark.parametrize("traced", [False, True])
def test_results_lie_as_their_inputs_do(traced: bool) -> None:
    """By rows, as a model has them, or contiguous: what torch traces must be what it gets."""
    q = random(2, 6, 3, HEAD_DIM, seed=1).transpose(1, 2)
    k, v = random(2, 3, 5, HEAD_DIM, seed=2), random(2, 5, 3, HEAD_DIM, seed=3).transpose(1, 2)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    run = torch.compile(attention, backend="aot_eager") if traced else attention
    out = run(*leaves)
    given = torch.autograd.grad(out, leaves, random(2, 3, 6, HEAD_DIM, seed=4))
    assert out.stride() == given[0].stride() == q.stride()
    assert given[1].is_contiguous() and not given[0].is_contiguous()
    assert given[2].stride() == v.stride()


@pytest.mark.parametrize(
    ("dtype", "tiling", "variant"),
    [
        (torch.float64, None, "flash_q_outer"),
        (torch.float32, None, "flash_q_outer"),
        (torch.float16, None, "flash_mma"),
        (torch.bfloat16, None, "flash_mma"),
        (torch.float16, fa.Tiling(2, 3), "flash_q_outer"),
    ],
    ids=str,
)
def test_gradients_of_auto_are_of_a_variant_that_takes_dtype_and_tiles(
    dtype: Any, tiling: fa.Tiling | None, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    front_door = sys.modules[fa.attention_backward.__module__]
    taken: list[str] = []

    def checked(*tensors: Any, **options: Any) -> Any:
        call = checked_backward_call(*tensors, **options)
        taken.append(call.variant.name)
        return call

    monkeypatch.setattr(front_door, "checked_backward_call", checked)
    attention(*inputs(dtype), tiling=tiling).sum().backward()
    assert taken == [variant]


def test_fp32_is_refused_by_name_where_tensor_cores_would_round_it() -> None:
    with pytest.raises(NotImplementedError, match=r"'flash_mma' does not take float32: cast"):
        attention(*inputs(torch.float32), variant="flash_mma")


def test_gradient_that_torch_only_expands_is_written_out(spies: tuple[Spy, Spy]) -> None:
    attention(*inputs()).sum().backward()  # its gradient is one number with stride 0
    assert spies[1].tensors[0].is_contiguous()


@pytest.mark.parametrize("wanted", [None, True, False])
def test_deterministic_follows_torch_unless_given(
    wanted: bool | None, spies: tuple[Spy, Spy]
) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        out = attention(*inputs(), deterministic=wanted)
    finally:
        torch.use_deterministic_algorithms(False)
    out.sum().backward()  # what counts is what was set for the forward pass
    assert spies[1].options["deterministic"] is (wanted is None or wanted)


# -- dropout ---------------------------------------------------------------------------------------


def test_seed_is_drawn_from_torchs_generator() -> None:
    tensors = inputs()
    torch.manual_seed(1)
    first, second = (attention(*tensors, dropout_p=0.5) for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(attention(*tensors, dropout_p=0.5), first)
    assert not torch.equal(first, second)


def test_generator_stays_where_it_is_without_dropout() -> None:
    before = torch.get_rng_state()
    attention(*inputs(), dropout_p=0.0)
    attention(*inputs(), dropout_p=0.3, seed=1)
    attention(*inputs(), dropout_p=0.3, dropout_keep=keep(SEQLEN_Q, SEQLEN_K))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("seed", [0, 7, 2**63 - 1, 2**63, 2**64 - 1])
def test_all_64_bits_of_a_seed_arrive(seed: int) -> None:
    rows, cols = np.arange(SEQLEN_Q), np.arange(SEQLEN_K)
    kept = dropout_keep(0.375, seed, np.arange(BATCH), np.arange(NHEADS), rows, cols)
    tensors = inputs()
    drawn = attention(*tensors, dropout_p=0.375, seed=seed)
    given = attention(*tensors, dropout_p=0.375, dropout_keep=torch.from_numpy(kept))
    assert torch.equal(drawn, given)


def test_checkpointing_repeats_the_dropout() -> None:
    call = lambda *x: attention(*x, dropout_p=0.5)  # noqa: E731
    tensors = inputs()
    grads = []
    for run in (call, lambda *x: checkpoint(call, *x, use_reentrant=False)):
        torch.manual_seed(2)
        grads.append(torch.autograd.grad(run(*tensors).sin().sum(), tensors))
    assert all(map(torch.equal, *grads))


# -- refusals --------------------------------------------------------------------------------------


def test_bias_that_requires_grad_is_refused() -> None:
    bias = random(SEQLEN_Q, SEQLEN_K).requires_grad_()
    with pytest.raises(NotImplementedError, match=r"bias requires grad.*bias\.detach\(\)"):
        attention(*inputs(), bias=bias)
    with torch.no_grad():
        attention(*inputs(), bias=bias)


def test_second_derivative_is_refused_in_words() -> None:
    tensors = inputs()
    (dq,) = torch.autograd.grad(attention(*tensors).sum(), tensors[:1], create_graph=True)
    with pytest.raises(NotImplementedError, match="no derivative of its own.*MATH"):
        dq.sum().backward()


@pytest.mark.parametrize("tiling", [None, fa.Tiling(16, 16), fa.Tiling(2, 3)])
@pytest.mark.parametrize(
    ("variant", "partner"),
    [(n, p) for n, v in fa.VARIANTS.items() if (p := v.control_for or v.same_algorithm)],
)
def test_variant_without_a_backward_of_its_own_has_its_partners(
    variant: str, partner: str, tiling: fa.Tiling | None
) -> None:
    gradients = []
    for name in (variant, partner):
        tensors = inputs(torch.float16)
        attention(*tensors, variant=name, tiling=tiling, causal=True).sum().backward()
        gradients.append([x.grad for x in tensors])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-3)


def test_variant_without_a_backward_is_refused_before_it_runs() -> None:
    with pytest.raises(NotImplementedError, match="standard_naive.*no backward.*'flash_q_outer'"):
        attention(*inputs(), variant="standard_naive")
    attention(*inputs(grad=False), variant="standard_naive")
    with torch.no_grad():
        attention(*inputs(), variant="standard_naive")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"variant": "flash"}, ValueError, "did you mean 'flash_q_outer'"),
        ({"variant": None}, ValueError, "variant = None is not known"),
        ({"causal": "left"}, ValueError, "causal = 'left'"),
        ({"window": 3}, ValueError, "is not a pair"),
        ({"dropout_p": 1.0}, ValueError, "below 1"),
        ({"dropout_p": 0.1, "seed": -1}, ValueError, "seed = -1"),
        ({"block_mask": torch.ones(2, 2)}, TypeError, "block_mask is a Tensor"),
        ({"tiling": (64, 64)}, TypeError, "is not a Tiling"),
        ({"softmax_scale": float("nan")}, ValueError, "not a finite number"),
        ({"softmax_scale": "wide"}, ValueError, "softmax_scale = 'wide'"),
        ({"mask": np.ones((5, 7), bool)}, TypeError, "mask is a ndarray"),
        ({"mask": torch.ones(3, 7, dtype=torch.bool)}, ValueError, r"\(3, 7\)"),
        ({"cu_seqlens_q": [0, 5]}, ValueError, "cu_seqlens_k is missing"),
        ({"backend": "rocm"}, ValueError, "backend = 'rocm'"),
    ],
)
def test_bad_options_are_refused_in_words(options: dict[str, Any], error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        attention(*inputs(), **options)


def test_arrays_that_are_no_tensors_are_refused() -> None:
    q = np.zeros((1, 1, 4, 4), np.float32)
    with pytest.raises(TypeError, match=r"q is a ndarray.*fa\.attention"):
        attention(q, q, q)
