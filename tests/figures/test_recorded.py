"""Lookups in a recorded run: exact matches only, and words for what is not there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fa_kernels.device import Device, device
from fa_kernels.figures.point import Point
from fa_kernels.figures.recorded import RecordedRun, RecordedRuns, is_at, read_run
from fa_kernels.measure.records import Run, load_run
from fa_kernels.variants import ALGORITHMS, VARIANTS
from tests.figures.synthetic import RUN_ID, SEQLENS, write_run


def at(h200: Device, n: object = 4096, d: int = 64, kib: int = 192) -> Point:
    return Point.of(n, d, kib, "float16", h200)


def test_a_row_is_found_by_its_tiles(run: RecordedRun, h200: Device) -> None:
    row = run.row("flash_q_outer", at(h200), "latency_ms")
    assert row is not None
    assert (row.block_m, row.block_n, row.seqlen_q) == (64, 384, 4096)


def test_peers_do_not_depend_on_the_budget(run: RecordedRun, h200: Device) -> None:
    rows = [run.row("torch_flash", at(h200, kib=kib), "latency_ms") for kib in (16, 100, 192)]
    assert rows[0] is not None
    assert rows == [rows[0]] * 3


def test_a_curve_is_what_was_recorded_and_no_more(run: RecordedRun, h200: Device) -> None:
    curve = run.curve("flash_q_outer", at(h200), "latency_ms")
    assert [row.seqlen_q for row in curve] == list(SEQLENS)


def test_our_variants_come_first(run: RecordedRun, h200: Device) -> None:
    names = run.names(at(h200), "latency_ms")
    assert names == [*ALGORITHMS, "torch_eager", "torch_flash", "torch_cudnn"]


def test_an_untiled_variants_row_is_found_without_tiles(run: RecordedRun, h200: Device) -> None:
    rows = [run.row("standard_naive", at(h200, kib=kib), "hbm_bytes") for kib in (16, 100, 192)]
    assert rows[0] is not None
    assert (rows[0].block_m, rows[0].block_n) == (None, None)
    assert rows == [rows[0]] * 3


def masked(h200: Device, pattern: str = "local", density: float = 1 / 8, kib: int = 64) -> Point:
    return Point.of(4096, 64, kib, "float16", h200, pattern, density)


def test_a_masked_row_is_found_by_pattern_blocks_and_density(
    run: RecordedRun, h200: Device
) -> None:
    row = run.row("flash_q_outer", masked(h200), "hbm_bytes")
    assert row is not None
    assert (row.block_mask, row.density) == ("local 64x128", 1 / 8)
    assert row.median == masked(h200).traffic(VARIANTS["flash_q_outer"]).total_bytes
    dense = run.row("flash_q_outer", at(h200, kib=64), "hbm_bytes")
    assert dense is not None
    assert (dense.block_mask, dense.density) == ("", 1.0)
    for other in (masked(h200, "random"), masked(h200, density=1 / 4), masked(h200, kib=16)):
        assert run.row("flash_q_outer", other, "hbm_bytes") is None
    standard = run.row("standard_tiled", masked(h200), "hbm_bytes")
    assert standard is not None
    assert standard.block_mask == ""


def test_densities_are_compared_by_what_they_keep(run: RecordedRun, h200: Device) -> None:
    """The file holds six digits of a third; the row of 11 of 32 blocks is that of 0.34375."""
    row = run.row("flash_q_outer", masked(h200), "latency_ms")
    assert row is not None
    near = RecordedRun(Run(run.run_id, run.run.about, (replace(row, density=0.125001),)))
    assert near.row("flash_q_outer", masked(h200), "latency_ms") is not None
    assert is_at(replace(row, density=0.125001), masked(h200))
    assert not is_at(replace(row, density=0.25), masked(h200))
    assert not is_at(row, at(h200, kib=64))


def test_a_run_without_masks_says_so(run: RecordedRun, h200: Device) -> None:
    assert run.missing_mask(masked(h200)) is None
    assert run.missing_mask(at(h200)) is None
    assert run.missing_mask(masked(h200, kib=100)) is None, "`missing` says what is wrong there"
    rows = tuple(row for row in run.run.rows if not row.block_mask)
    said = RecordedRun(Run(run.run_id, run.run.about, rows)).missing_mask(masked(h200))
    assert said is not None
    assert said.endswith("none was recorded at this d, dtype and M")


@pytest.mark.parametrize(
    ("d", "kib", "words"),
    [
        (64, 192, None),
        (96, 192, "no run at d = 96; recorded: 32, 64, 128"),
        (64, 100, "no run at M = 100 KiB; recorded: 16, 32, 64, 128, 192 KiB"),
    ],
)
def test_what_is_missing_is_said(
    run: RecordedRun, h200: Device, d: int, kib: int, words: str | None
) -> None:
    assert run.missing(at(h200, d=d, kib=kib)) == words


def test_a_missing_dtype_is_said(tmp_path: Path, h200: Device) -> None:
    write_run(tmp_path, dtypes=("float32",), head_dims=(64,), seqlens=(512,))
    run = RecordedRun(load_run(RUN_ID, tmp_path))
    assert run.missing(at(h200)) == "no run in fp16; recorded: fp32"


def test_a_missing_length_is_said(run: RecordedRun, h200: Device) -> None:
    assert run.missing_seqlen(at(h200)) is None
    text = run.missing_seqlen(at(h200, n=3000))
    assert text == "no run at N = 3000; recorded: powers of two from 128 to 65536"


def test_runs_are_found_by_device(tmp_path: Path) -> None:
    write_run(tmp_path, head_dims=(64,), seqlens=(512,))
    other = "20260103-t4-synthetic"
    write_run(tmp_path, other, "Tesla T4", head_dims=(64,), seqlens=(512,))
    runs = RecordedRuns(load_run(RUN_ID, tmp_path), tmp_path)
    found = {slug: runs.on(device(slug)) for slug in ("h200", "t4", "rtx-4090")}
    assert found["h200"] is not None
    assert found["h200"].run_id == RUN_ID
    assert found["t4"] is not None
    assert found["t4"].run_id == other
    assert found["rtx-4090"] is None


def test_a_corrupt_run_hides_no_other(tmp_path: Path) -> None:
    write_run(tmp_path, head_dims=(64,), seqlens=(512,))
    broken = tmp_path / "20270101-h200-broken"
    broken.mkdir()
    (broken / "run.json").write_text("{", encoding="utf-8")
    (tmp_path / "20270102-h200-folder" / "run.json").mkdir(parents=True)
    deep = tmp_path / "20270103-h200-deep"
    deep.mkdir()
    (deep / "run.json").write_text("[" * 100_000, encoding="utf-8")
    found = RecordedRuns(None, tmp_path).on(device("h200"))
    assert found is not None
    assert found.run_id == RUN_ID


def test_whatever_load_run_raises_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(run_id: str, root: Path | None = None) -> None:
        raise RecursionError

    monkeypatch.setattr("fa_kernels.figures.recorded.load_run", broken)
    text = read_run("20260101-h200-x")
    assert isinstance(text, str)
    assert text.startswith("The recorded run '20260101-h200-x' cannot be read (RecursionError)")


def test_the_share_of_the_peak_is_the_recorded_rows(h200: Device, measured_run: Run) -> None:
    run, point = RecordedRun(measured_run), at(h200, kib=64)
    row = run.row("flash_q_outer", point, "latency_ms")
    assert row is not None
    assert row.median is not None
    share = 100 * 4 * 64 * 4096**2 * 128 / (row.median * 1e-3) / 67e12
    assert 20 < share < 60
    text = run.achieved(point)
    assert text.startswith("naive standard reaches ")
    assert text.endswith(f" % and flash {share:.0f} % of the H200 SXM's fp32 peak")
    # Only the naive kernel has no tiles, and so a time at every M.
    assert run.achieved(at(h200, kib=24)).startswith("naive standard reaches ")
    assert "flash" not in run.achieved(at(h200, kib=24))
    # Standard does not fit, and K/V outer was estimated to take too long.
    assert run.achieved(at(h200, n=65536, d=32, kib=64)).startswith("flash reaches ")
