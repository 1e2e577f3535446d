"""Slopes near the laws' exponents, where the laws hold; the same from counts as from the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fa_kernels.device import Device
from fa_kernels.figures.point import Point
from fa_kernels.figures.recorded import RecordedRun
from fa_kernels.figures.recorded_numbers import RecordedNumbers
from fa_kernels.figures.theta_law import around, exponents, law, theta_law
from fa_kernels.measure.records import Run, load_run
from fa_kernels.measure.verdict import fit_exponent
from fa_kernels.variants import ALGORITHMS, VARIANTS
from tests.figures.synthetic_counters import COUNTERS_ID, write_counters
from tests.measure.rows import write_run as write_rows


def test_a_slope_is_the_power() -> None:
    assert fit_exponent([(x, 7 * x**1.5) for x in (1, 2, 4, 9)]) == pytest.approx(1.5)
    with pytest.raises(ValueError, match="two different x"):
        fit_exponent([(2, 5), (2, 6)])


def slopes(point: Point, name: str, model: str = "paper") -> dict[str, float]:
    line = theta_law(point).lines[name]
    return {q: one.exponent for q, one in getattr(line, model).items()}


def test_standard_is_n_squared(h200: Device) -> None:
    point = Point.of(16384, 64, 64, "float16", h200)
    for name in ("standard_naive", "standard_tiled"):
        found = slopes(point, name)
        assert found["N"] == pytest.approx(2, abs=0.02)
        assert found["d"] == pytest.approx(0, abs=0.02)
        assert found["M"] == 0
    assert slopes(point, "standard_naive", "launched")["d"] == pytest.approx(1, abs=0.03)


def test_flash_is_n_squared_d_squared_over_m(h200: Device) -> None:
    point = Point.of(16384, 64, 32, "float16", h200)
    for model in ("paper", "launched"):
        found = slopes(point, "flash_kv_outer", model)
        expected = {"N": 2, "d": 2, "M": -1}
        assert found == {q: pytest.approx(e, abs=0.05) for q, e in expected.items()}


def test_q_outer_follows_b_r(h200: Device) -> None:
    """N² d / B_r: while B_r = M / 4d as the law, once B_r = d a larger M saves nothing."""
    small = slopes(Point.of(16384, 128, 16, "float16", h200), "flash_q_outer")
    assert small["M"] == pytest.approx(-1, abs=0.05)
    assert small["d"] == pytest.approx(2, abs=0.1)
    large = slopes(Point.of(16384, 32, 128, "float16", h200), "flash_q_outer")
    assert large["M"] == 0
    assert large["d"] == pytest.approx(0, abs=0.1)
    assert (
        "here d up to d = 128, where" in theta_law(Point.of(16384, 32, 128, "float16", h200)).note
    )


@pytest.mark.parametrize("pattern", ["local", "butterfly", "random"])
def test_block_sparse_adds_s(h200: Device, pattern: str) -> None:
    point = Point.of(16384, 64, 32, "float16", h200, pattern, 1 / 8)
    for model in ("paper", "launched"):
        found = slopes(point, "flash_kv_outer", model)
        assert found["s"] == pytest.approx(1, abs=0.1)
        assert found["N"] == pytest.approx(2, abs=0.1)
        assert found["M"] == pytest.approx(-1, abs=0.1)
    assert slopes(point, "standard_tiled")["s"] == 0
    assert "s" not in slopes(Point.of(16384, 64, 32, "float16", h200), "flash_kv_outer")


def test_counted_is_the_launched_model_again(h200: Device, run: RecordedRun) -> None:
    found = theta_law(Point.of(4096, 64, 32, "float16", h200), run)
    assert found.run_id == run.run_id
    for name in ALGORITHMS:
        line = found.lines[name]
        assert set(line.counted) == {"N", "d", "M"}
        for quantity, one in line.counted.items():
            assert one.values == line.launched[quantity].values
            assert one.exponent == pytest.approx(line.launched[quantity].exponent, abs=1e-5)
    nothing = theta_law(Point.of(4096, 60, 33, "float16", h200), run)
    assert nothing.run_id is None


def test_dram_grows_as_the_l2_lets_it(h200: Device) -> None:
    """The committed counters: what the L2 answers takes a power off N, and never one of S and P."""
    runs = RecordedNumbers.of_counters(h200)
    found = theta_law(Point.of(4096, 64, 64, "float16", h200), counters=runs)
    assert found.counters_id is not None and found.run_id is None
    flash, standard = found.lines["flash_q_outer"], found.lines["standard_tiled"]
    assert flash.dram["N"].exponent == pytest.approx(1, abs=0.05)
    assert flash.dram["d"].exponent == pytest.approx(1, abs=0.05)
    assert flash.launched["N"].exponent == pytest.approx(2, abs=0.05)
    assert standard.dram["N"].exponent == pytest.approx(2, abs=0.05)
    assert flash.dram["N"].values == (512, 1024, 2048, 4096, 8192, 16384)
    assert flash.dram["M"].values == (16, 64, 192)


def test_one_run_of_counters_gives_all_slopes_and_masks_have_none(
    h200: Device, tmp_path: Path
) -> None:
    write_counters(tmp_path, (16, 64))
    small = load_run(COUNTERS_ID, tmp_path)
    newer = "20260104-h200-counters"
    write_rows(tmp_path, [r for r in small.rows if r.seqlen_q == 1024], newer, kind="counters")
    runs = RecordedNumbers.of_counters(h200, tmp_path)
    assert [run.run_ids for run in runs] == [[newer], [COUNTERS_ID]]
    point = Point.of(4096, 64, 64, "float16", h200)
    found = theta_law(point, counters=runs)
    assert found.counters_id == COUNTERS_ID, "the run with more points, though it is older"
    assert found.lines["flash_q_outer"].dram["N"].values == (1024, 4096)
    assert theta_law(point).counters_id is None
    masked = Point.of(4096, 64, 64, "float16", h200, "local", 1 / 4)
    assert theta_law(masked, counters=runs).counters_id is None


def test_counted_in_the_kernels_s_has_its_slope(h200: Device, measured_run: Run) -> None:
    point = Point.of(4096, 64, 64, "float16", h200, "local", 1 / 4)
    found = theta_law(point, RecordedRun(measured_run))
    for name in ("flash_kv_outer", "flash_q_outer"):
        line = found.lines[name]
        assert line.counted["s"].exponent == pytest.approx(line.launched["s"].exponent, abs=1e-3)
        assert line.counted["s"].exponent == pytest.approx(1, abs=0.1)


def test_the_edges_have_fewer_points(h200: Device) -> None:
    point = Point.of(1, 256, 1, "float16", h200)
    assert [p.seqlen for p in around(point, "N")] == [1, 2, 4]
    assert [p.problem.head_dim for p in around(point, "d")] == [128, 256]
    assert "d 128 to 256" in theta_law(point).ranges
    ragged = Point.of(4096, 64, 192, "float16", h200, "local", 1 / 4)
    assert theta_law(ragged).ranges.endswith("s 0.0909 to 0.545")
    tiny = Point.of(4096, 64, 4, "float16", h200, "local", 1.0)
    assert max(p.density for p in around(tiny, "s")) == 1.0


def test_masks_that_take_long_are_left_out(h200: Device) -> None:
    point = Point.of(65536, 64, 60, "float16", h200, "random", 1 / 8)
    assert [p.seqlen for p in around(point, "N")] == [16384, 32768, 65536]
    assert "N 16384 to 65536" in theta_law(point).ranges


def test_text_has_no_negative_zero(h200: Device) -> None:
    line = theta_law(Point.of(4096, 64, 64, "float16", h200)).lines["standard_tiled"]
    assert exponents(line.paper) == "N^1.98 d^0.02 M^0.00"


def test_the_law_is_the_variants_own_word_for_it(h200: Device) -> None:
    dense = Point.of(4096, 64, 32, "float16", h200)
    masked = Point.of(4096, 64, 32, "float16", h200, "local", 1 / 4)
    for variant in VARIANTS.values():
        named = replace(variant, name="another", law="X / M")
        assert law(named, dense) == "X / M"
        assert law(named, masked) == ("N d + X s / M" if variant.block_sparse else "X / M")
    assert law(VARIANTS["flash_q_outer"], masked) == "N d + N² d s / B_r"
