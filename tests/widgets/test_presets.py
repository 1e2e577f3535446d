"""Presets: at most eight, each from a source that the repository holds."""

from __future__ import annotations

import csv
import re
from typing import Any

import pytest

import fa_kernels as fa
from fa_kernels.measure.about import ROOT
from fa_kernels.model_shape import model_shape
from fa_kernels.session import Session
from fa_kernels.widgets.presets import PRESETS, about, preset_of
from fa_kernels.widgets.text import labels

VIEWS = (
    "what_fits", "roofline", "ladder", "utilisation", "recompute_cost", "crossing", "lower_bound",
)  # fmt: skip


def claims() -> dict[str, str]:
    with (ROOT / "data/paper/claims.csv").open(encoding="utf-8") as file:
        return {row["id"]: row["claim"] for row in csv.DictReader(file)}


def length_in_words(n: int) -> str:
    return str(n) if n < 1024 else f"{n // 1024}K"


def test_there_are_at_most_eight_ascending_and_each_says_what_it_is() -> None:
    assert len(PRESETS) <= 8
    assert list(PRESETS) == sorted(PRESETS, key=lambda name: PRESETS[name].N)
    assert set(labels("presets")["about"]) == set(PRESETS)
    for name, preset in PRESETS.items():
        assert name.endswith(f" {length_in_words(preset.N)}")
        assert about(name).split("N = ")[1].startswith(f"{preset.N}, d = {preset.d}")
        assert preset_of(*preset.sizes) == name


def test_what_names_the_paper_is_in_it() -> None:
    said, lengths = claims(), set()
    with (ROOT / "data/paper/flashattention.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            lengths.add((row["seqlen"], row["head_dim"]))
    for name, preset in PRESETS.items():
        assert preset.claim or preset.model, f"{name} has no source"
        if not preset.claim:
            continue
        assert (str(preset.N), str(preset.d)) in lengths, f"{name} is in none of its tables"
        claim, family = said[preset.claim], name.rsplit(" ", 1)[0]
        if family == "LRA":
            assert "Long-Range Arena" in claim  # the claims do not say its lengths
            assert "1K to 4K" in about(name) and 1024 <= preset.N <= 4096
        else:
            assert family in claim
            assert re.search(rf"\b{length_in_words(preset.N)}\b", claim)


def test_what_names_a_model_has_its_head_dimension_and_fits_its_context() -> None:
    for name, preset in PRESETS.items():
        if preset.model:
            sheet = model_shape(preset.model)
            assert preset.d == sheet.head_dim
            assert sheet.context == preset.N or preset.claim, name


@pytest.mark.parametrize("function", VIEWS)
def test_the_list_sets_both_in_one_redraw_and_follows_them(function: str, bare: Session) -> None:
    view: Any = getattr(fa, function)(session=bare)
    assert view.preset.value == "GPT-2 4K", "as it opens"
    calls: list[Any] = []
    draw = view.draw

    def counted(setting: Any, stamp: float) -> None:
        calls.append(setting)
        draw(setting, stamp)

    view.draw = counted
    view.head_dim.error = "old"
    view.preset.value = "Llama 3 8K"
    assert len(calls) == 1 and (calls[0].N, calls[0].d) == (8192, 128)
    assert view.head_dim.error == "" and view.preset.about == about("Llama 3 8K")
    view.seqlen.value = 300
    assert view.preset.value == "" and len(calls) == 2
    view.preset.value = ""
    view.seqlen.value, view.head_dim.value = 512, 64
    assert view.preset.value == "BERT-large 512"
    view.reset()
    assert view.preset.value == "GPT-2 4K"
