"""The README's table and picture are those of the recorded run; `make figures` redraws them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fa_kernels.figures.kernel_table import BEGIN, kernel_table, with_table
from fa_kernels.figures.readme import PICTURE, README, SIDECAR, provenance, sheet_of
from fa_kernels.measure.records import Run, list_runs, load_run
from fa_kernels.variants import VARIANTS


@pytest.fixture(scope="module")
def run() -> Run:
    return load_run(list_runs(kind="grid")[0])


def test_the_table_is_the_runs(run: Run) -> None:
    text = README.read_text(encoding="utf-8")
    assert with_table(text, kernel_table(run, sheet_of(run))) == text, "run `make figures`"


def test_the_picture_is_the_runs(run: Run) -> None:
    assert PICTURE.exists()
    kept = json.loads(SIDECAR.read_text(encoding="utf-8"))
    assert kept == provenance(run, sheet_of(run)), "run `make figures`"


def test_the_table_has_one_row_for_every_kernel(run: Run) -> None:
    table = kernel_table(run, sheet_of(run))
    for variant in VARIANTS.values():
        assert table.count(f"| `{variant.kernel}` |") == 1
        if variant.control_for:
            (row,) = (r for r in table.splitlines() if f"`{variant.kernel}`" in r)
            assert f"as a control also: {variant.label})" in row
    assert f"`{run.run_id}`" in table


def test_tensor_cores_are_held_against_their_own_peak(run: Run) -> None:
    """As a run that has 05: made of the rows of 04."""
    sheet = sheet_of(run)
    rows = (replace(r, variant="flash_mma") for r in run.rows if r.variant == "flash_q_outer")
    table = kernel_table(replace(run, rows=(*run.rows, *rows)), sheet)
    for kernel, tensor_cores in (("04_flash_q_outer", False), ("05_flash_mma", True)):
        (row,) = (r for r in table.splitlines() if f"`{kernel}`" in r)
        assert f" % of {sheet.peak_tflops('float16', tensor_cores):.0f} |" in row


def test_a_readme_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match=f"no block from {BEGIN}"):
        with_table("# a title", "a table")
