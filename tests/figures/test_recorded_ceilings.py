"""What a GPU does at most: which source says it, and which run."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_kernels.device import Device, device, list_devices
from fa_kernels.figures.recorded_ceilings import MeasuredCeilings, register_gb_s, sheet_rate
from fa_kernels.measure.ceiling_records import CEILINGS, FILE, LATER
from tests.figures.synthetic_ceilings import RUN_ID, rate_of, write_ceilings_run


@pytest.mark.parametrize("slug", list_devices())
@pytest.mark.parametrize("name", CEILINGS)
def test_every_rate_has_a_source_or_is_none(slug: str, name: str) -> None:
    rate = sheet_rate(device(slug), name)
    if rate.value is not None:
        assert rate.value > 0 and "http" in rate.source
    assert (rate.value is None) == (
        name.startswith("l2_") or (name.startswith("matmul_bf16") and slug == "t4")
    )


def test_shared_memory_of_an_a100_is_the_papers_19_tb_s() -> None:
    rate = sheet_rate(device("a100-40gb"), "smem_read")
    assert rate.derived and rate.value == pytest.approx(19e3, rel=0.03)


def test_registers_feed_three_operands_and_take_one_result(h200: Device) -> None:
    """128 multiply-adds a clock and SM, 16 bytes each."""
    per_clock = register_gb_s(h200.fp32_tflops) / (h200.sm_count * h200.boost_clock_mhz / 1e3)
    assert per_clock == pytest.approx(128 * 16, rel=0.01)


def test_what_is_no_ceiling_is_refused(h200: Device) -> None:
    with pytest.raises(ValueError, match="'nvlink' is no ceiling: use one of hbm_copy"):
        sheet_rate(h200, "nvlink")


def test_the_newest_run_of_the_device_is_taken(tmp_path: Path, h200: Device) -> None:
    assert not MeasuredCeilings.on(h200, tmp_path)
    write_ceilings_run(tmp_path, run_id="20260101-h200-ceilings")
    write_ceilings_run(tmp_path)
    write_ceilings_run(tmp_path, run_id="20280101-a100-ceilings", slug="a100-80gb")
    found = MeasuredCeilings.on(h200, tmp_path)
    assert found.run_id == RUN_ID and found.rate("l2_read") == rate_of("l2_read")
    assert found.rate("nvlink") is None
    assert not MeasuredCeilings.on(device("t4"), tmp_path)


def test_the_l2_is_the_one_whose_answers_serve_one_sm(tmp_path: Path, h200: Device) -> None:
    write_ceilings_run(tmp_path)
    assert MeasuredCeilings.on(h200, tmp_path).l2_gb_s == rate_of("l2_read_apart")
    write_ceilings_run(tmp_path / "old", LATER)
    old = MeasuredCeilings.on(h200, tmp_path / "old")
    assert old.l2_gb_s == rate_of("l2_read") != rate_of("l2_read_apart")


def test_a_run_that_cannot_be_read_counts_as_none(tmp_path: Path, h200: Device) -> None:
    write_ceilings_run(tmp_path, run_id="20260101-h200-ceilings")
    write_ceilings_run(tmp_path)
    (tmp_path / RUN_ID / FILE).write_text("nothing\n", encoding="utf-8")
    assert MeasuredCeilings.on(h200, tmp_path).run_id == "20260101-h200-ceilings"
    write_ceilings_run(tmp_path, tuple(CEILINGS), "20280101-h200-ceilings")
    assert MeasuredCeilings.on(h200, tmp_path).run_id == "20260101-h200-ceilings"
