"""The table of training steps: what is said follows from the run."""

from __future__ import annotations

from pathlib import Path

import fa_kernels as fa
from fa_kernels.session import session
from tests.figures.synthetic_training import TRAINING_ID, write_training_run


def test_every_model_and_kernel_has_a_line(tmp_path: Path) -> None:
    write_training_run(tmp_path)
    table = fa.training_steps(session=session("numpy", root=tmp_path))
    assert [(row[0], row[1], row[2], row[3]) for row in table.cells()[1:]] == [
        ("1024", "0", "05 flash, tensor cores", "200.0\N{NO-BREAK SPACE}ms"),
        ("1024", "0", "torch flash", "250.0\N{NO-BREAK SPACE}ms"),
        ("1024", "0.1", "05 flash, tensor cores", "300.0\N{NO-BREAK SPACE}ms"),
        ("1024", "0.1", "torch flash", "240.0\N{NO-BREAK SPACE}ms"),
    ]
    assert [row[5] for row in table.cells()[1:]] == ["1.000", "0.800", "1.000", "1.250"]
    assert {row[6] for row in table.cells()[1:]} == {"1 GiB"}
    said = table.sentence()
    assert "0.800 to 1.250 times as fast as with torch flash (faster in 1 of 2)" in said
    assert TRAINING_ID in str(table) and "32,768 tokens" in str(table)
    assert 'data-fa-table="training-steps"' in table._repr_html_()


def test_without_a_run_it_says_how_to_record_one(tmp_path: Path) -> None:
    table = fa.training_steps(session=session("numpy", root=tmp_path))
    assert "make measure ARGS=--training" in str(table) and table.cells()[1:] == []
