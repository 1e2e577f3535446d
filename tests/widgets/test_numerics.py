""" "Is it exact?": the sentence, the table and the paper's ratio follow from recorded errors."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

import fa_kernels as fa
from fa_kernels.session import Session, session
from fa_kernels.widgets.numerics import numerics
from fa_kernels.widgets.text import labels
from tests.figures.test_numerics import CPU_ID, FAST, GPU_ID, STANDARD, error, some_errors
from tests.measure.rows import write_run

TEXT = labels("numerics")


def plain(html: str) -> str:
    return " ".join(unescape(re.sub("<[^>]*>", " ", html)).split())


def recorded_in(root: Path, **about: str) -> Session:
    rows = [*some_errors(), *some_errors(inputs="outliers"), *some_errors(dtype="float32")]
    write_run(root, rows, CPU_ID if about else GPU_ID, kind="numerics", **about)
    return session("numpy", root=root)


def test_it_is_at_the_front_door() -> None:
    assert fa.numerics is numerics


def test_the_sentence_is_computed(tmp_path: Path) -> None:
    view = numerics(device="h200", session=recorded_in(tmp_path))
    said = plain(view.sentence.value)
    assert "N = 4096, d = 64, normal inputs, fp16: flash is off by 0.5 rounding units;" in said
    first = "In fp16 flash is 1.00 times as far off as the exact result rounded once."
    assert said.startswith(first)
    assert "on tensor cores, which take P in fp16, by 1;" in said
    assert "stored in fp16, by 2, 4.0× as much as flash" in said
    assert "units (flash)" in said
    assert view.figure.alt.startswith(said.strip())
    (at,) = view.line(STANDARD)
    assert at.rmse == pytest.approx(2.0**-12, rel=1e-5)


def test_table_3_is_held_against_the_ratios(tmp_path: Path) -> None:
    view = numerics("outliers", device="h200", session=recorded_in(tmp_path))
    said = plain(view.sentence.value)
    assert "3.2e-04 for standard and 1.9e-04 for FlashAttention, 1.7×" in said
    assert "standard has 2.0× to 2.0× the RMSE" in said and TEXT["verdicts"]["same_way"] in said
    other = tmp_path / "other"
    near = [error(FAST, 2.0**-13, inputs="outliers"), error(STANDARD, 2.0**-13, inputs="outliers")]
    long = {"inputs": "outliers", "seqlen_k": 8192}
    rows = [*some_errors(inputs="outliers")[:2], *near, *some_errors(**long)]
    write_run(other, [*rows, error("flash_q_outer", 2.0**-14, inputs="outliers")], GPU_ID,
              kind="numerics")  # fmt: skip
    view = numerics("outliers", device="h200", session=session("numpy", root=other))
    assert TEXT["verdicts"]["within"] in plain(view.sentence.value)


def test_where_it_was_computed_is_said(tmp_path: Path) -> None:
    used = recorded_in(tmp_path, device="CPU (NumPy 2.4.6)")
    view = numerics(device="h200", session=used)
    assert f"{TEXT['by_numpy']} on CPU (NumPy 2.4.6), recorded run {CPU_ID}" in plain(
        view.table.value
    )
    assert TEXT["numpy"] in view.figure.spec["layout"]["annotations"][0]["text"]


def test_choices_move_it_and_what_is_missing_is_said(tmp_path: Path, bare: Session) -> None:
    view = numerics(device="h200", session=recorded_in(tmp_path / "runs"))
    view.inputs.value = "outliers"
    assert TEXT["inputs_said"]["outliers"] in plain(view.sentence.value)
    view.head_dim.value = 128
    assert plain(view.sentence.value).strip() == TEXT["said_nothing"]
    nothing = numerics(device="h200", session=bare)
    assert plain(nothing.sentence.value).strip() == TEXT["said_nothing"]
    assert TEXT["not_recorded"] in plain(nothing.table.value)


def test_bad_values_are_refused(bare: Session) -> None:
    with pytest.raises(ValueError, match="inputs = 'uniform' is not measured here: use normal"):
        numerics("uniform", session=bare)
    with pytest.raises(ValueError, match="d = 96 is not measured here: use 64, 128"):
        numerics(d=96, session=bare)
