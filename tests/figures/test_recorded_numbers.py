"""Looking up single numbers over several runs: exactly this point, the first run that has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fa_kernels.device import Device, device
from fa_kernels.figures.recorded_numbers import RecordedNumbers
from fa_kernels.measure.records import load_run
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from tests.figures.synthetic import RUN_ID, write_run
from tests.figures.synthetic_counters import COUNTERS_ID, SHAPES, write_counters
from tests.measure.rows import write_run as write_rows

TILING = Tiling(64, 128)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("both")
    write_run(root, seqlens=(1024, 4096), head_dims=(64,))
    write_counters(root)
    return root


def test_both_kinds_of_runs_are_searched(root: Path, h200: Device) -> None:
    numbers = RecordedNumbers.on(h200, load_run(RUN_ID, root), root)
    assert numbers.run_ids == [RUN_ID, COUNTERS_ID]
    for metric, run_id in (("latency_ms", RUN_ID), ("dram_bytes", COUNTERS_ID)):
        found = numbers.find("flash_q_outer", SHAPES[0], TILING, metric)
        assert found is not None and found.run_id == run_id


def test_shapes_that_differ_in_batch_alone_are_kept_apart(root: Path, h200: Device) -> None:
    numbers = RecordedNumbers.on(h200, None, root)
    first, second = (
        numbers.find("flash_q_outer", shape, TILING, "dram_bytes") for shape in SHAPES[:2]
    )
    assert first and second and second.value > 1.5 * first.value


def test_counters_of_several_runs_are_never_mixed_within_a_call(tmp_path: Path) -> None:
    """A newer run of one shape does not hide the others, and answers for its own alone."""
    write_counters(tmp_path)
    newer = COUNTERS_ID.replace("0103", "0104")
    old = load_run(COUNTERS_ID, tmp_path)
    again = [
        replace(row, p20=1.0, median=1.0, p80=1.0)
        for row in old.rows
        if row.problem == SHAPES[0] and row.metric == "dram_bytes"
    ]
    write_rows(tmp_path, again, newer, kind="counters")
    numbers = RecordedNumbers.on(device("h200"), None, tmp_path)
    assert numbers.run_ids == [newer, COUNTERS_ID]
    of_newer = numbers.find("flash_q_outer", SHAPES[0], TILING, "dram_bytes")
    assert of_newer and (of_newer.value, of_newer.run_id) == (1.0, newer)
    assert numbers.find("flash_q_outer", SHAPES[0], TILING, "l2_bytes") is None
    elsewhere = numbers.find("flash_q_outer", SHAPES[2], TILING, "l2_bytes")
    assert elsewhere and elsewhere.run_id == COUNTERS_ID


def test_nothing_is_interpolated(root: Path, h200: Device) -> None:
    numbers = RecordedNumbers.on(h200, None, root)
    elsewhere = AttentionProblem.of_tokens(2048, 64)
    assert numbers.find("flash_q_outer", elsewhere, TILING, "dram_bytes") is None
    assert numbers.find("flash_q_outer", SHAPES[0], Tiling(64, 96), "dram_bytes") is None
    assert numbers.find("flash_q_outer", SHAPES[0], TILING, "l2_hit_pct") is None


def test_a_kernel_without_tiles_is_found_with_any(root: Path, h200: Device) -> None:
    numbers = RecordedNumbers.on(h200, None, root)
    assert numbers.find("standard_naive", SHAPES[0], Tiling(16, 16), "dram_bytes")


def test_devices_are_never_joined(root: Path) -> None:
    assert RecordedNumbers.on(device("a100-40gb"), load_run(RUN_ID, root), root).run_ids == []
