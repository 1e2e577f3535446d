"""FlexAttention without its compiler, and packages that are not here: the calls they would get."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fa_kernels.block_mask import BlockMask
from fa_kernels.measure import packaged
from fa_kernels.measure.baselines import BASELINES
from fa_kernels.measure.check import Truth
from fa_kernels.measure.packaged import fa3_decode_forward
from fa_kernels.measure.torch_tensors import prepare_with
from fa_kernels.problem import AttentionProblem
from tests.reference.problems import MASKS, random_inputs


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """torch on the CPU, whose `compile` leaves a function as it is."""
    found = pytest.importorskip("torch")  # first: what it imports may ask for cupy
    monkeypatch.setitem(sys.modules, "cupy", np)
    asked: list[dict[str, Any]] = []

    def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        asked.append(options)
        return function

    monkeypatch.setattr(found, "compile", compiled)
    monkeypatch.setattr(found.compiler, "reset", lambda: asked.clear())
    packaged._compiled_for.cache_clear()  # of another test's torch
    return SimpleNamespace(module=found, asked=asked)


def checked(problem: AttentionProblem, name: str = "flex") -> bool:
    inputs = random_inputs(problem, problem.dtype)
    out = BASELINES[name].prepare(*inputs, problem)()
    return bool(Truth(inputs, problem, xp=np).check(out).ok)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("causal", MASKS)
@pytest.mark.parametrize("shape", [(33, 47), (47, 47), (150, 260)])
def test_flex_is_attention(shape: tuple[int, int], causal: str | None, torch: Any) -> None:
    assert checked(AttentionProblem(2, 3, *shape, 16, "float32", causal, softmax_scale=0.3))
    # The first one is ours; FlexAttention outside a compiler asks for one of its own.
    assert torch.asked[0] == {"dynamic": False, "fullgraph": True}, "compiled anew for a problem"


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("causal", [None, "bottom_right"])
@pytest.mark.parametrize("blocks", [(64, 32), (128, 256)])
@pytest.mark.parametrize("pattern", ["local", "butterfly", "random"])
def test_flex_keeps_the_blocks_of_a_mask(
    pattern: str, blocks: tuple[int, int], causal: str | None
) -> None:
    mask = BlockMask.pattern(pattern, 300, 520, *blocks, 0.5)
    problem = AttentionProblem(1, 2, 300, 520, 16, "float32", causal, block_mask=mask)
    assert checked(problem)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_is_compiled_anew_for_other_sizes_alone(torch: Any) -> None:
    compiled: list[int] = []
    for n, density in ((256, 0.5), (256, 1.0), (384, 0.5), (384, 1.0)):
        mask = BlockMask.pattern("butterfly", n, n, 128, 128, density)
        assert checked(AttentionProblem(1, 1, n, n, 16, "float32", block_mask=mask))
        compiled.append(torch.asked.count({"dynamic": False, "fullgraph": True}))
        torch.asked.clear()
    assert compiled == [1, 0, 1, 0]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.usefixtures("torch")
def test_flex_keeps_another_set_of_blocks_per_head() -> None:
    keep = np.array([[[[1, 0], [1, 1]], [[1, 1], [0, 1]], [[1, 1], [1, 1]]]], dtype=bool)
    mask = BlockMask(keep, 64, 64)
    assert checked(AttentionProblem(2, 3, 128, 128, 16, "float32", block_mask=mask))


@pytest.fixture
def package(torch: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """fa3-fwd and flash-attn-4 as they were published, with torch's SDPA inside."""
    seen: dict[str, Any] = {}

    def flash_attn_func(
        q: Any, k: Any, v: Any, softmax_scale: float | None = None, causal: bool = False
    ) -> Any:
        seen.update(shape=tuple(q.shape), strides=q.stride(), causal=causal)
        seen["config"] = sys.modules.get("flash_attn_config")
        inner = [x.transpose(1, 2) for x in (q, k, v)]
        sdpa = torch.module.nn.functional.scaled_dot_product_attention
        out = sdpa(*inner, is_causal=causal, scale=softmax_scale).transpose(1, 2)
        return (out, None) if seen.get("with_lse") else out

    monkeypatch.delitem(sys.modules, "flash_attn_config", raising=False)
    for name in ("fa3_fwd_config", "fa3_fwd_interface", "flash_attn", "flash_attn.cute"):
        module = ModuleType(name)
        module.__dict__["flash_attn_func"] = flash_attn_func
        monkeypatch.setitem(sys.modules, name, module)
    yield seen
    sys.modules.pop("flash_attn_config", None)


@pytest.mark.parametrize("with_lse", [False, True])
@pytest.mark.parametrize("causal", [None, "top_left", "bottom_right"])
@pytest.mark.parametrize("name", ["fa3", "fa4"])
def test_packages_get_their_layout_without_a_copy(
    name: str, causal: str | None, with_lse: bool, package: dict[str, Any]
) -> None:
    package["with_lse"] = with_lse
    assert checked(AttentionProblem(2, 3, 47, 47, 32, "float32", causal, softmax_scale=0.3), name)
    assert package["shape"] == (2, 47, 3, 32) and package["strides"][1] == 32
    assert package["causal"] == (causal is not None)


def test_fa3_finds_its_build_flags_under_the_old_name(package: dict[str, Any]) -> None:
    checked(AttentionProblem(1, 1, 8, 8, 32, "float32"), "fa3")
    assert package["config"] is sys.modules["fa3_fwd_config"]


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("name", ["fa3", "fa4"])
def test_a_causal_mask_that_packages_align_otherwise_is_refused(name: str) -> None:
    problem = AttentionProblem(1, 1, 8, 9, 32, "float32", "top_left")
    with pytest.raises(NotImplementedError, match="is bottom_right: compare square problems"):
        checked(problem, name)


def test_fa3_has_a_function_for_caches(package: dict[str, Any]) -> None:
    """Whose lengths lie on the GPU, and which is asked to choose its own number of splits."""
    module = sys.modules["fa3_fwd_interface"]

    def with_kvcache(q: Any, k: Any, v: Any, **options: Any) -> Any:
        package.update(options)
        return module.__dict__["flash_attn_func"](q, k, v, options["softmax_scale"])

    module.__dict__["flash_attn_with_kvcache"] = with_kvcache
    problem = AttentionProblem(2, 3, 1, 47, 32, "float32")
    inputs = random_inputs(problem, "float32")
    out = prepare_with(fa3_decode_forward)(*inputs, problem)()
    assert Truth(inputs, problem, xp=np).check(out).ok
    assert package["cache_seqlens"].tolist() == [47, 47]
    assert (package["num_splits"], package["causal"]) == (0, False)
    assert package["config"] is sys.modules["fa3_fwd_config"]


@pytest.mark.usefixtures("package")
def test_fa4_gives_gradients() -> None:
    problem = AttentionProblem(1, 2, 16, 16, 32, "float32", "bottom_right")
    q, k, v = random_inputs(problem, "float32")
    d_out = random_inputs(problem, "float32", seed=1)[0]
    prepare = BASELINES["fa4"].prepare_training
    assert prepare is not None
    both, backward = prepare(q, k, v, d_out, problem)
    for one, other in zip(both(), backward(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert BASELINES["fa3"].prepare_training is None, "fa3-fwd has a forward alone"
