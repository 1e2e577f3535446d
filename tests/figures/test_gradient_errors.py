"""Errors on a log axis: zero, NaN and infinity have a place or are left out, never drawn wrong."""

from __future__ import annotations

import math

from fa_kernels.figures.gradient_errors import NAMES, Errors, gradient_errors_spec
from fa_kernels.widgets.text import labels

TEXT = labels("gradient_check")


def spec_of(errors: Errors) -> dict:
    return gradient_errors_spec(dict.fromkeys(NAMES, errors), TEXT)


def test_verdicts() -> None:
    fine = Errors(1.0, 1e-10, 1e-3, 0.5, 1e-6)
    assert fine.ok and fine.catches
    assert not Errors(1.0, 1e-5, 1e-3, 1e-9, 1e-6).ok
    assert not Errors(1.0, 1e-10, 1e-3, 1e-9, 1e-6).catches
    assert not Errors(1.0, math.nan, 1e-3, 1e-9, 1e-6).ok, "NaN never passes"
    assert Errors(1.0, 1e-10, 1e-3, math.nan, 1e-6).catches


def test_zero_is_drawn_at_the_edge_and_nan_not_at_all() -> None:
    spec = spec_of(Errors(1.0, 0.0, math.nan, math.inf, 1e-6))
    traces = {trace["name"]: trace for trace in spec["data"]}
    assert traces["fp64"]["x"] == [1e-17] * 3
    assert traces["fp16"]["x"] == traces["wrong"]["x"] == []
    low, high = spec["layout"]["xaxis"]["range"]
    assert low < -17 < high


def test_the_limit_is_a_line_in_every_row() -> None:
    limit = next(t for t in spec_of(Errors(1.0, 1e-10, 1e-3, 0.5, 1e-6))["data"]
                 if t["name"] == "limit")  # fmt: skip
    assert limit["x"].count(1e-6) == 6 and limit["x"].count(None) == 3
