"""The trace table: NumPy alone, beside a recorded trace, and beside a live kernel."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fa_kernels.measure import traces
from fa_kernels.measure.traces import TraceProblem
from fa_kernels.session import Session
from fa_kernels.trace import Trace
from fa_kernels.widgets.trace_table import trace_table

NO_GPU = Session("numpy")
SMALL: dict[str, Any] = {"N": 12, "d": 4, "row": 3, "block_m": 4, "block_n": 4}
PROBLEM = TraceProblem(12, 4, 3, 4, 4)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No trace of the checkout takes part."""
    monkeypatch.setattr(traces, "TRACES_DIR", tmp_path)
    return tmp_path


def as_kernel(trace: Trace, off: float = 1e-5) -> Trace:
    return dataclasses.replace(trace, backend="cuda", l=trace.l + np.float32(off))


@pytest.mark.parametrize("variant", ["flash_q_outer", "flash_kv_outer"])
def test_numpy_alone_says_what_is_missing(variant: str) -> None:
    table = trace_table(**SMALL, variant=variant, session=NO_GPU)
    assert table.cuda is None and table.cells()[0][1] == "m NumPy"
    assert len(table.cells()) == 1 + 3
    assert "No GPU in use, and no recorded trace" in str(table)
    last = "after every step" if variant == "flash_kv_outer" else "once, after the last step"
    assert last in table.caption()
    assert 'data-fa-table="trace"' in table._repr_html_()


def test_both_loop_orders_hold_the_same_m_l_alpha() -> None:
    one, two = (
        trace_table(**SMALL, variant=name, session=NO_GPU).numpy
        for name in ("flash_q_outer", "flash_kv_outer")
    )
    for name in ("m", "l", "alpha"):
        assert getattr(one, name) == pytest.approx(getattr(two, name), rel=1e-5)
    assert one.acc / one.l[:, None] == pytest.approx(two.acc, rel=1e-4, abs=1e-6)


def test_a_live_kernel_stands_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    real = TraceProblem.trace

    def trace(self: TraceProblem, backend: str) -> Trace:
        made = real(self, "numpy")
        return as_kernel(made) if backend == "cuda" else made

    monkeypatch.setattr(TraceProblem, "trace", trace)
    table = trace_table(**SMALL, session=Session("cuda", "NVIDIA H200"))
    assert "traced now on NVIDIA H200" in str(table)
    assert table.cells()[0][1:3] == ["m NumPy", "m CUDA"]
    assert table.apart["m"] == 0.0 and 0 < table.apart["l"] < 1e-4


def test_a_recorded_trace_stands_beside(folder: Path) -> None:
    content = {
        "schema": 1, "device": "NVIDIA H200", "commit": "abc", "started": "2026",
        "problem": dataclasses.asdict(PROBLEM),
        "trace": traces._to_json(as_kernel(PROBLEM.trace("numpy"))),
    }  # fmt: skip
    (folder / "20261130-h200.json").write_text(json.dumps(content), encoding="utf-8")
    table = trace_table(**SMALL, session=NO_GPU)
    assert "recorded on NVIDIA H200 (20261130-h200)" in str(table)
    assert table.cuda is not None
    # A trace of another problem is not shown beside this one.
    assert trace_table(**SMALL, seed=1, session=NO_GPU).cuda is None


def test_a_corrupt_file_is_a_sentence(folder: Path) -> None:
    (folder / "broken.json").write_text("{", encoding="utf-8")
    assert "broken.json cannot be read" in trace_table(**SMALL, session=NO_GPU).caption()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"N": 0}, "N = 0 is out of range: it must be between 1 and 4096"),
        ({"row": 12}, "row = 12 is out of range: it must be between 0 and 11"),
        ({"N": "256"}, "N = '256' is not a whole number"),
        ({"d": 0.5}, "d = 0.5 is not a whole number"),
        ({"row": None}, "row = None is not a whole number"),
        ({"block_n": 0}, "block_n = 0 is out of range"),
        ({"seed": -1}, "seed = -1 is out of range: it must be between 0 and"),
    ],
)
def test_refusals(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        trace_table(**(SMALL | arguments), session=NO_GPU)


def test_a_variant_without_a_trace_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="no online softmax to trace"):
        trace_table(**SMALL, variant="standard_tiled", session=NO_GPU)


def test_whole_floats_are_numbers() -> None:
    floats = {name: float(value) for name, value in SMALL.items()}
    table = trace_table(**floats, seed=0.0, session=NO_GPU)  # type: ignore[arg-type]
    assert table.problem == PROBLEM and "row 3 of one head with N = 12," in table.caption()
