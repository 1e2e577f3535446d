"""Which rows a claim is held against."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fa_kernels.device import device
from fa_kernels.measure.claim_tests.evidence import Evidence, Found, at_words, lines, pairs
from tests.measure.rows import ROW, row, write_run

FULL = {"kind": "grid"}


def of(root: Path) -> Evidence:
    return Evidence.on(device("h200"), root)


def test_the_newest_run_with_such_rows_counts(tmp_path: Path) -> None:
    write_run(tmp_path, [row(median=1.5)], "20260102-h200-old")
    write_run(tmp_path, [row(metric="hbm_bytes", unit="B")], "20260103-h200-new")
    write_run(tmp_path, [row()], "20260104-a100-other", device="NVIDIA A100-SXM4-40GB")
    evidence = of(tmp_path)
    assert [run.run_id for run in evidence.runs] == ["20260103-h200-new", "20260102-h200-old"]
    times = evidence.rows("grid", metric="latency_ms")
    assert times.run_id == "20260102-h200-old" and times.source == "recorded 20260102-h200-old"
    assert evidence.rows("grid", metric="hbm_bytes").run_id == "20260103-h200-new"
    assert not evidence.rows("counters") and evidence.rows("speed") == Found()


def test_a_run_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    write_run(tmp_path, [row()], "20260102-h200-good")
    write_run(tmp_path, [row()], "20260103-h200-bad", schema=99)
    assert [run.run_id for run in of(tmp_path).runs] == ["20260102-h200-good"]


def test_masked_rows_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    masked = row(causal="bottom_right")
    write_run(tmp_path, [row(), masked])
    evidence = of(tmp_path)
    assert len(evidence.rows("grid").rows) == 1
    assert len(evidence.rows("grid", dense=False).rows) == 2


def test_pairs_share_problem_and_tiles() -> None:
    flash, standard = ROW, row(variant="standard_tiled")
    others = Found("r", (standard, replace(standard, block_n=64), row(seqlen_q=128)))
    assert pairs(Found("r", (flash,)), others) == [(flash, standard)]
    elsewhere = Found("r", (replace(standard, block_m=16, block_n=16),))
    assert not pairs(Found("r", (flash,)), elsewhere)
    assert len(pairs(Found("r", (flash,)), elsewhere, tiles=False)) == 1


def test_lines_need_three_lengths() -> None:
    rows = [row(seqlen_q=n, seqlen_k=n) for n in (512, 1024, 2048)]
    assert [len(line) for line in lines(rows).values()] == [3]
    assert not lines(rows, least=1024)


def test_a_problem_in_words() -> None:
    words = "B = 4, H = 32, N = 4096, d = 64, fp16"
    assert at_words(("float16", 4, 32, 4096, 64)) == words
    evidence = Evidence.on(device("h200"))
    sheet = evidence.sheet("h200")
    assert sheet is not None and sheet.slug == "h200" and evidence.sheet("abacus") is None
