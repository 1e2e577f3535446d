"""Where softmax without the maximum fails: found by trying, in every dtype."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from fa_kernels.figures.softmax_range import ONLINE, SAFE, UNSAFE, SoftmaxRange
from fa_kernels.widgets import softmax_failures as module
from fa_kernels.widgets.softmax_failures import (
    KEYS,
    dtypes,
    failures_table,
    last_bit,
    measure,
    row_with_largest,
    sentence,
    softmax_failures,
    unsafe_softmax,
)


@pytest.mark.parametrize("name", ["fp16", "fp32", "fp64"])
def test_the_range_is_where_exp_ends(name: str) -> None:
    """Overflow between log(max / keys) and log(max); zero near log(smallest number)."""
    info = np.finfo(dtypes()[name])
    found = measure(dtypes()[name], name)
    top = math.log(float(info.max))
    assert top - math.log(KEYS) - 0.01 <= found.overflow_at <= top + 0.01
    assert found.zero_at == pytest.approx(math.log(info.smallest_subnormal) - math.log(2), abs=0.1)


@pytest.mark.parametrize("name", list(dtypes()))
def test_safe_and_online_work_everywhere_and_alike(name: str) -> None:
    found = measure(dtypes()[name], name)
    bits = {"fp16": 11, "bf16": 8, "fp32": 24, "fp64": 53}[name]
    for way in (SAFE, ONLINE):
        assert found.errors[way] < 8 * 2.0**-bits  # also False for NaN
    assert found.errors[UNSAFE] < 1


def test_just_outside_the_range_it_is_not_a_number() -> None:
    found = measure(np.dtype(np.float16), "fp16")
    values = np.ones((KEYS, 1), np.float16)
    for score in (found.zero_at, found.overflow_at):
        row = row_with_largest(score).astype(np.float16)
        with np.errstate(all="ignore"):
            assert np.isnan(unsafe_softmax(row, values)).all()


def test_the_row_has_the_largest_score_asked_for() -> None:
    for score in (-5.0, 0.0, 12.5):
        row = row_with_largest(score)
        assert row.max() == score and row.min() >= score - abs(score) - 2


def test_the_widget_shows_figure_sentence_and_numbers() -> None:
    shown = softmax_failures()
    said, figure, table = shown.children
    assert "Without the maximum" in said.value and figure.alt in re.sub("<[^>]*>", "", said.value)
    assert 'data-fa-table="softmax-failures"' in table.value
    import plotly.graph_objects as go

    go.Figure(figure.spec)  # plotly checks every name in it


def test_without_ml_dtypes_bf16_is_left_out_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    assert list(dtypes()) == ["fp16", "fp32", "fp64"]
    assert "ml_dtypes" in softmax_failures().children[2].value


def test_the_numbers_in_words_and_table_are_those_measured() -> None:
    found = [measure(np.dtype(np.float32), "fp32")]
    assert f"{found[0].overflow_at:.3g}" in sentence(found)
    assert f"{found[0].overflow_at:.4g}" in failures_table(found)


def said(**errors: tuple[float, float]) -> str:
    """The sentence for (whole row, online) errors by dtype."""
    found = [
        SoftmaxRange(name, -1.0, 1.0, {UNSAFE: 0.0, SAFE: safe, ONLINE: online})
        for name, (safe, online) in errors.items()
    ]
    return sentence(found)


def test_the_sentence_is_true_of_the_table_dtype_by_dtype() -> None:
    bit = 2.0**-52
    words = said(fp16=(1e-3, 1e-3), fp32=(2e-7, 1e-7), fp64=(0.0, bit))
    assert "never larger than the whole row's in fp16 and fp32, and at most one last bit" in words
    assert words.endswith("in fp64.")
    assert "at most 3 last bits in fp64" in said(fp64=(0.0, 2.5 * bit))
    assert "at most 1.5 times the whole row's in fp32" in said(fp32=(2e-7, 3e-7))
    assert "never larger than the whole row's in fp64." in said(fp64=(0.0, 0.0))
    measured = {name: measure(dtype, name) for name, dtype in dtypes().items()}
    never = sentence(list(measured.values())).split("never larger")[1].split("at most")[0]
    for name, found in measured.items():
        assert (name in never) == (found.errors[ONLINE] <= found.errors[SAFE]), name


@pytest.mark.parametrize("name", ["fp16", "fp32", "fp64"])
def test_the_last_bit_is_the_dtypes_own(name: str) -> None:
    assert last_bit(dtypes()[name]) == np.finfo(dtypes()[name]).eps
