"""Steps of fixed places: what they read and write, and what happens where no graph can be made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fa_kernels.measure import generation_steps
from fa_kernels.measure.generation_steps import Steps

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def model(implementation: str) -> Any:
    config = transformers.GPT2Config(
        n_positions=32, n_layer=2, n_embd=16, n_head=2, vocab_size=64, bos_token_id=0,
        eos_token_id=None, initializer_range=0.1, attn_implementation=implementation,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config).double().eval()


@pytest.fixture(autouse=True)
def on_the_cpu() -> None:
    from fa_kernels.integrations import fixed_cache

    fixed_cache.register(backend="numpy")


TOKENS = torch.arange(24).reshape(2, 12) * 7 % 64


@pytest.mark.parametrize("implementation", ["eager", "fa_kernels_fixed"])
def test_a_step_has_the_logits_of_the_whole_text(implementation: str) -> None:
    used = model(implementation)
    steps = Steps(used, TOKENS[:, :5], 12, implementation == "eager")
    whole = model("eager")
    for _ in range(2):  # the second text finds nothing of the first one
        found = [steps.begin(TOKENS[:, :5])]
        for n in range(5, 11):
            steps.token.copy_(TOKENS[:, n : n + 1])
            steps.step()
            found.append(steps.logits)
            assert torch.equal(steps.token[:, 0], steps.logits.argmax(-1))
        right = whole(TOKENS[:, :11], use_cache=False).logits[:, 4:]
        torch.testing.assert_close(torch.stack(found, 1), right)
    assert int(steps.cache.position) == 11 and steps.cache.lengths.tolist() == [12, 12]


def test_places_do_not_move() -> None:
    """A graph writes where it wrote when it was captured."""
    steps = Steps(model("eager"), TOKENS[:, :5], 12, True)

    def places() -> list[int]:
        tensors = [steps.token, steps.mask, steps.cache.position, steps.cache.lengths]
        for layer in steps.cache.layers:
            tensors += [layer.keys, layer.values]
        return [tensor.data_ptr() for tensor in tensors]

    before = places()
    steps.begin(TOKENS[:, :7])
    steps.step()
    assert places() == before


def test_what_can_be_captured_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    replayed: list[int] = []

    def captured(step: Callable[[], None]) -> Callable[[], None]:
        def replay() -> None:
            step()
            replayed.append(1)

        return replay

    monkeypatch.setattr(generation_steps, "_captured", captured)
    steps = Steps(model("eager"), TOKENS[:, :5], 12, True)
    steps.begin(TOKENS[:, :5])
    steps.step()
    assert len(replayed) == 1 and steps.how == "a step is one CUDA graph"


def test_a_failed_capture_leaves_the_plain_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def captured(step: Callable[[], None]) -> Callable[[], None]:
        step()
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    monkeypatch.setattr(generation_steps, "_captured", captured)
    steps = Steps(model("eager"), TOKENS[:, :5], 12, True)
    assert steps.how == (
        "each step a plain call, no CUDA graph: RuntimeError: operation not permitted when stream "
        "is capturing"
    )
    first = steps.begin(TOKENS[:, :5])
    steps.token.copy_(first.argmax(-1, keepdim=True))
    steps.step()
    assert int(steps.cache.position) == 6


def test_without_room_no_graph_is_tried() -> None:
    steps = Steps(model("eager"), TOKENS[:, :10], 12, True)
    assert steps.how.startswith("each step a plain call: no room")
