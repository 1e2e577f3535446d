"""Peers compute the same problem: torch on the CPU stands in for torch on the GPU."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fa_kernels.measure import baselines
from fa_kernels.measure.baselines import BASELINES, GRID_PEERS, checked_peers, packages_of
from fa_kernels.measure.check import Truth
from fa_kernels.measure.check_backward import BackwardTruth
from fa_kernels.problem import ITEMSIZE, AttentionProblem
from tests.reference.problems import MASKS, random_inputs


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = pytest.importorskip("torch")  # first: what it imports may ask for cupy
    monkeypatch.setitem(sys.modules, "cupy", np)  # from_dlpack: tensors come back as NumPy arrays
    return found


def test_the_registry_is_keyed_by_provider() -> None:
    assert all(b.provider == name and b.summary for name, b in BASELINES.items())
    assert list(BASELINES) == [
        "torch_eager", "torch_flash", "torch_cudnn", "torch_math", "torch_efficient", "flex",
        "fa3", "fa4",
    ]  # fmt: skip
    assert list(BASELINES)[:3] == list(GRID_PEERS), "recorded runs and their legends begin so"
    assert all(set(b.dtypes) <= set(ITEMSIZE) for b in BASELINES.values())


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("causal", MASKS)
@pytest.mark.parametrize("shape", [(33, 47), (47, 47)])
def test_eager_is_attention(shape: tuple[int, int], causal: str | None) -> None:
    problem = AttentionProblem(2, 3, *shape, 20, "float32", causal, softmax_scale=0.3)
    inputs = random_inputs(problem, "float32")
    out = BASELINES["torch_eager"].prepare(*inputs, problem)()
    assert Truth(inputs, problem, xp=np).check(out).ok


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("name", ["torch_flash", "torch_math"])
@pytest.mark.parametrize("causal", [None, "top_left", "bottom_right"])
def test_sdpa_by_the_named_backend_is_attention(causal: str | None, name: str) -> None:
    problem = AttentionProblem(2, 3, 47, 47, 32, "float32", causal, softmax_scale=0.3)
    inputs = random_inputs(problem, "float32")
    out = BASELINES[name].prepare(*inputs, problem)()
    assert Truth(inputs, problem, xp=np).check(out).ok


@pytest.mark.parametrize("name", ["torch_cudnn", "torch_efficient"])
def test_the_named_backend_is_the_one_that_runs(name: str, torch: Any) -> None:
    """These have no CPU kernel: were another backend taken silently, this would give a result."""
    problem = AttentionProblem(1, 1, 8, 8, 32, "float16")
    call = BASELINES[name].prepare(*random_inputs(problem, "float16"), problem)
    with pytest.raises(RuntimeError):
        call()


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("name", ["torch_flash", "torch_cudnn", "torch_math", "torch_efficient"])
def test_a_causal_mask_that_torch_aligns_otherwise_is_refused(name: str) -> None:
    problem = AttentionProblem(1, 1, 8, 9, 32, "float16", "bottom_right")
    with pytest.raises(NotImplementedError, match="is_causal is top_left"):
        BASELINES[name].prepare(*random_inputs(problem, "float16"), problem)


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("name", ["torch_eager", "torch_flash"])
def test_the_gradients_of_both_calls_are_right(name: str) -> None:
    problem = AttentionProblem(2, 3, 47, 47, 16, "float32")
    inputs = random_inputs(problem, "float32")
    d_out = random_inputs(problem, "float32")[0]
    prepare = BASELINES[name].prepare_training
    assert prepare is not None
    truth = BackwardTruth(inputs, d_out, problem, xp=np)
    both, backward = prepare(*inputs, d_out, problem)
    for call in (both, backward, backward):  # the second backward has the same saved forward
        assert truth.check(*call()).ok


@pytest.mark.usefixtures("torch")
def test_dropout_drops_and_keeps_the_mean() -> None:
    problem = AttentionProblem(4, 8, 64, 64, 16, "float32", dropout_p=0.5, seed=0)
    q, k, v = random_inputs(problem, "float32")
    call = BASELINES["torch_eager"].prepare(q, k, np.ones_like(v), problem)
    sums = call()  # of what is kept of P, over 1 - p
    assert sums.std() > 0.01 and abs(float(sums.mean()) - 1.0) < 0.05
    dense = BASELINES["torch_eager"].prepare(q, k, np.ones_like(v), replace(problem, dropout_p=0.0))
    assert np.allclose(dense(), 1.0, atol=1e-5)


def test_training_by_torch_alone_holds_more_with_dropout() -> None:
    problem = AttentionProblem(1, 2, 64, 64, 16, "float16")
    eager = BASELINES["torch_eager"]
    dropped = replace(problem, dropout_p=0.1, seed=0)
    for need in (eager.workspace_bytes, eager.training_workspace_bytes):
        assert 2 * 2 * 64 * 64 * 2 <= need(problem) < need(dropped)
    assert BASELINES["torch_flash"].training_workspace_bytes(dropped) == 0


def test_a_peer_that_is_not_known_is_refused_with_those_that_are() -> None:
    assert checked_peers(("fa3", "flex")) == ("fa3", "flex")
    with pytest.raises(ValueError, match=r"peers \['fa9'\] are not known: .*torch_eager.*fa4"):
        checked_peers(("fa3", "fa9"))


def test_a_peer_is_installed_with_its_package_and_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": "2.11.0", "fa3-fwd": "0.0.3"}
    monkeypatch.setattr(baselines, "_version", versions.get)
    assert [n for n, b in BASELINES.items() if not b.installed] == ["fa4"]
    assert packages_of(tuple(BASELINES)) == {"fa3-fwd": "0.0.3"}
    versions.pop("torch")
    assert not any(b.installed for b in BASELINES.values())
