"""Gradients against central differences: every mask passes, and what is wrong is caught."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import fa_kernels as fa
from fa_kernels.widgets import gradient_check as module
from fa_kernels.widgets.finite_differences import central_differences
from fa_kernels.widgets.gradient_check import KINDS, Chosen, by_backward, by_differences, check
from fa_kernels.widgets.headline import differences
from fa_kernels.widgets.text import labels

TEXT = labels("gradient_check")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "d"), [(1, 1), (3, 2), (16, 4), (23, 5)])
def test_every_mask_passes(kind: str, n: int, d: int) -> None:
    found = check(Chosen.of(n, d, kind, 7))
    assert all(errors.ok for errors in found.values())
    assert all(errors.fp16 < 0.05 for errors in found.values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_without_delta_is_caught(kind: str) -> None:
    found = check(Chosen.of(16, 4, kind, 0))
    assert found["dq"].catches and found["dk"].catches
    assert not found["dv"].catches, "the formula of dV has no delta"


def test_a_dropout_mask_of_another_seed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.attention_backward

    def with_other_seed(*tensors: Any, **options: Any) -> Any:
        return real(*tensors, **options | {"seed": options["seed"] + 1})

    monkeypatch.setattr(module, "attention_backward", with_other_seed)
    widget = module.GradientCheck(Chosen.of(12, 3, "dropout", 0))
    assert widget.sentence.value.count("Failed:") == 1 and TEXT["beyond"] in widget.table.value


def test_differences_of_a_quadratic_are_its_derivative() -> None:
    q, k, v = (np.random.default_rng(i).standard_normal((1, 1, 20, 16)) for i in range(3))

    def loss(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        return np.asarray((q * q + 2 * k * v).sum(axis=(1, 2, 3)))

    dq, dk, dv = central_differences(loss, q, k, v)
    for found, expected in ((dq, 2 * q), (dk, 2 * v), (dv, 2 * k)):
        np.testing.assert_allclose(found, expected, atol=1e-7)


def test_shapes() -> None:
    chosen = Chosen.of(5, 3, "causal", 0)
    for found in (by_differences(chosen), by_backward(chosen)):
        assert [gradient.shape for gradient in found] == [(1, 1, 5, 3)] * 3


def test_the_widget_runs_again_at_every_change() -> None:
    widget = fa.gradient_check()
    first = widget.table.value
    assert "Passed: all 192 entries" in widget.sentence.value
    assert "dQ and dK are off by up to" in widget.sentence.value
    widget.run.click()
    assert widget.table.value != first and "seed 1;" in widget.table.value
    for kind in KINDS:
        widget.kind.value = kind
        assert "Passed" in widget.sentence.value and widget.message.value == ""
    widget.seqlen.value, widget.head_dim.value = 9, 2
    assert f"all {3 * 9 * 2} entries" in widget.sentence.value


def test_one_key_has_a_softmax_that_nothing_moves() -> None:
    """P is 1 whatever Q and K are, so their gradients are 0; without delta they would not be."""
    widget = fa.gradient_check(N=1, d=1, kind="none")
    assert widget.errors["dq"].largest == 0 and widget.errors["dq"].catches


def test_the_largest_sizes_are_still_quick() -> None:
    started = time.perf_counter()
    found = check(Chosen.of(48, 16, "causal_dropout", 0))
    assert time.perf_counter() - started < 10  # about 0.4 s on a laptop
    assert all(errors.ok for errors in found.values())


@pytest.mark.parametrize(
    ("options", "said"),
    [({"N": 65}, "N = 65"), ({"d": 0}, "d = 0"), ({"kind": "alibi"}, "kind = 'alibi'"),
     ({"seed": -1}, "seed = -1"), ({"N": 2.5}, "N = 2.5")],
)  # fmt: skip
def test_bad_values_are_refused_in_words(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fa.gradient_check(**options)


def test_a_pin_compares_the_errors_of_all_three_gradients() -> None:
    widget = fa.gradient_check()
    numbers = {value for value, _ in widget.headline().values()}
    assert numbers == {error for e in widget.errors.values() for error in (e.fp64, e.fp16)}
    (changed, _) = differences(widget.headline(), fa.gradient_check(N=32).headline())
    assert changed and all("e-" in words for _, words in changed)
