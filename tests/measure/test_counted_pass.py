"""One pass by itself: who has it, what it needs, what it launches."""

from __future__ import annotations

import pytest

from fa_kernels.cuda import launch
from fa_kernels.measure import counted_pass, paper_entries
from fa_kernels.measure.counted_pass import (
    TRAINED,
    backward_plans,
    entry_of,
    training_contender,
)
from fa_kernels.measure.speed_backward import FIG2_LEFT
from fa_kernels.units import KIB
from fa_kernels.variants import VARIANTS

TRAINABLE = [name for name, variant in VARIANTS.items() if variant.backward is not None]


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (launch, paper_entries, counted_pass):
        monkeypatch.setattr(module, "smem_limit_bytes", lambda: 227 * KIB)


@pytest.mark.parametrize(
    ("provider", "variant", "pass_"),
    [
        ("fa3", "flash_attn_func", "bwd"),
        ("fa_kernels", "standard_naive", "both"),
        ("fa_kernels", "flash_mma", "fwd"),
        ("torch_flash", "sdpa", "step"),
    ],
)
def test_who_has_no_such_pass_is_named(provider: str, variant: str, pass_: str) -> None:
    who = variant if provider == "fa_kernels" else provider
    with pytest.raises(ValueError, match=f"{who} has no pass '{pass_}': name one with a backward"):
        entry_of(provider, variant, FIG2_LEFT, pass_)


@pytest.mark.parametrize("variant", TRAINABLE)
def test_a_pass_needs_what_it_keeps_and_has_the_tiles_of_the_backward(variant: str) -> None:
    backward = VARIANTS[variant].backward
    assert backward is not None
    tiling = backward.tiling_for(FIG2_LEFT, 227 * KIB)
    for pass_ in TRAINED:
        made = training_contender("fa_kernels", variant, FIG2_LEFT, pass_)
        assert made.key == ("fa_kernels", variant, tiling.block_m, tiling.block_n)
        assert made.workspace_bytes >= backward.saved_bytes(FIG2_LEFT)


@pytest.mark.parametrize("variant", TRAINABLE)
def test_both_launches_the_forward_before_the_backward(variant: str) -> None:
    forward, backward = backward_plans(FIG2_LEFT, variant, "both")
    assert backward_plans(FIG2_LEFT, variant, "bwd") == (backward,)
    assert forward.kernel == VARIANTS[variant].kernel and "backward" in backward.kernel
