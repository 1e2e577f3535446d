"""Two runs beside each other: what is said follows from both, or says why nothing can be."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

import fa_kernels as fa
from fa_kernels.measure.records import Row
from fa_kernels.session import Session, session
from fa_kernels.widgets.run_comparison import RunComparison, compare_runs
from fa_kernels.widgets.text import labels
from tests.figures.synthetic_pairs import (
    A100,
    A100_ID,
    NEW_ID,
    OLD_ID,
    slower,
    write_pair_run,
)
from tests.figures.synthetic_training import TRAINING_ID, write_training_run

TEXT = labels("run_comparison")


def words(html: str) -> str:
    return unescape(re.sub("<[^>]+>", " ", html))


def said(view: RunComparison) -> str:
    return " ".join(words(view.sentence.value).split())


def our_new_kernels(row: Row) -> Row:
    """Twice as fast as before, one call four times; the peers as before."""
    if row.provider != "fa_kernels":
        return row
    far = (row.variant, row.seqlen_q, row.block_n) == ("flash_q_outer", 512, 64)
    return slower(row, 0.25 if far else 0.5)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Session:
    root: Path = tmp_path_factory.mktemp("runs")
    write_pair_run(root, OLD_ID, commit="1111111aaaa", torch="2.11", notes=["Warm <day>."])
    write_pair_run(root, NEW_ID, our_new_kernels, commit="2222222bbbb", torch="2.11", dirty=True)
    write_training_run(root)
    return session("numpy", root=root)


@pytest.fixture(scope="module")
def two_gpus(tmp_path_factory: pytest.TempPathFactory) -> Session:
    root: Path = tmp_path_factory.mktemp("gpus")
    write_pair_run(root, OLD_ID)
    write_pair_run(root, A100_ID, lambda row: slower(row, 3.0), A100, seqlens=(256, 512, 1024))
    return session("numpy", root=root)


def test_it_opens_with_the_two_newest_grids_the_older_first(runs: Session) -> None:
    view = fa.compare_runs(session=runs)
    assert (view.first.value, view.second.value) == (OLD_ID, NEW_ID)
    assert view.first.texts[view.first.index] == f"{OLD_ID} · NVIDIA H200, 2026-01-02"
    assert view.recorded is not None and view.metric.value == "latency_ms"


def test_our_kernels_and_the_peers_are_told_apart(runs: Session) -> None:
    view = compare_runs(session=runs)
    assert f"Time of {OLD_ID} over {NEW_ID}" in said(view)
    assert "Our kernels (commits 1111111 and 2222222): 2 (2 to 2)" in said(view)
    assert "Peers (torch 2.11 in both): 1.000 (1.000 to 1.000)" in said(view)
    assert view.figure.alt.startswith(said(view).strip())


def test_the_farthest_calls_are_named_with_both_values(runs: Session) -> None:
    view = compare_runs(session=runs)
    note = words(view.note.value)
    assert "Farthest from the median ratio: flash, B = " in note
    assert "N = 512, d = 64, fp16, tiles 64 × 64" in note and "(4)" in note
    assert "on the other side, torch" in note and "(1.000)" in note
    assert view.table.value.count("<tr>") == 11, "ten and the head"


def test_caption_and_fold_say_where_both_come_from(runs: Session) -> None:
    view = compare_runs(session=runs)
    caption = words(view.table.value)
    for part in (OLD_ID, NEW_ID, "NVIDIA H200", "driver synthetic", "1111111 (clean)",
                 "2222222 (with changes)", "they differ in: commit, dirty."):  # fmt: skip
        assert part in caption
    assert "Warm <day>." in words(view.about.value) and "<day>" not in view.about.value


def test_equal_bytes_are_said_to_be(runs: Session) -> None:
    view = compare_runs(metric="hbm_bytes", session=runs)
    recorded = view.recorded
    assert recorded is not None
    note, count = words(view.note.value), len(recorded.counted)
    assert f"equal to the byte in all {count} numbers" in note
    assert f"memory of our kernels in all {len(recorded.memory)}" in note
    assert "median 1.000, " in said(view) and TEXT["caption_none"][:12] in words(view.table.value)


def test_bytes_that_differ_are_named_with_both_commits(tmp_path: Path) -> None:
    def more(row: Row) -> Row:
        wrong = row.variant == "flash_q_outer" and row.metric in ("hbm_v_bytes", "peak_mem_bytes")
        if row.median is None or not (wrong or (row.provider, row.metric) == PEER):
            return row
        return replace(row, p20=row.median + 8, median=row.median + 8, p80=row.median + 8)

    PEER = ("torch_eager", "extra_mem_bytes")
    write_pair_run(tmp_path, OLD_ID, commit="1111111aaaa")
    write_pair_run(tmp_path, NEW_ID, more, commit="2222222bbbb")
    note = words(compare_runs(session=session("numpy", root=tmp_path)).note.value)
    assert "What was counted inside kernels differs in " in note
    assert "The memory of our kernels differs in " in note
    assert (
        "flash, B = " in note and "kernels changed between the commits (1111111, 2222222)" in note
    )
    assert "The memory of peers differs in 2 of " in note and "(torch eager)" in note
    assert "are equal to the byte" not in note


def test_two_gpus_are_named_and_what_only_one_holds_is_counted(two_gpus: Session) -> None:
    view = compare_runs(A100_ID, OLD_ID, session=two_gpus)
    assert f"Time of {A100_ID} ({A100}) over {OLD_ID} (NVIDIA H200)" in said(view)
    assert "median 3, nine tenths lie between 3 and 3." in said(view)
    assert view.recorded is not None
    alone = view.recorded.alone("latency_ms")
    assert alone[0] > 0 == alone[1]
    assert f"only the first run holds {alone[0]}, only the second 0" in words(view.note.value)
    assert {trace["type"] for trace in view.figure.spec["data"]} == {"bar", "scatter"}
    assert {t["mode"] for t in view.figure.spec["data"] if "mode" in t} == {"markers"}
    back = compare_runs(OLD_ID, session=two_gpus)
    assert back.second.value == A100_ID and "median 0.333" in said(back)


def test_controls_lead_to_another_view(runs: Session) -> None:
    view = compare_runs(session=runs)
    view.first.value = NEW_ID
    assert view.second.value == OLD_ID and f"Time of {NEW_ID} over {OLD_ID}" in said(view)
    view.metric.value = "extra_mem_bytes"
    assert "Extra memory of" in said(view)
    view.head_dim.value, view.dtype.value = 64, "float16"
    assert not view.message.value and view.setting.head_dim == 64


def test_another_kind_brings_its_own_calls_and_quantities(runs: Session) -> None:
    view = compare_runs(metric="hbm_bytes", d=64, session=runs)
    view.first.value = TRAINING_ID
    assert (view.second.value, view.metric.value) == ("", "latency_ms")
    assert 'Only one run of the kind "training" is recorded' in said(view)
    assert view.recorded is None and view.figure.spec["data"] == [] and not view.table.value
    view.first.value = OLD_ID
    assert view.second.value == NEW_ID and view.recorded is not None


def test_training_steps_are_compared_and_their_memory_is_no_claim(tmp_path: Path) -> None:
    write_training_run(tmp_path)
    write_training_run(tmp_path, "20260106-h200-training", factor=2.0)
    view = compare_runs(TRAINING_ID, session=session("numpy", root=tmp_path))
    assert "at 4 calls that both runs hold: median 0.5, all lie between 0.5 and 0.5" in said(view)
    assert "to the byte" not in words(view.note.value)
    assert view.recorded is not None and view.recorded.memory == []


def test_no_call_in_common_is_said(tmp_path: Path) -> None:
    write_pair_run(tmp_path, OLD_ID, seqlens=(256,))
    write_pair_run(tmp_path, NEW_ID, seqlens=(512,))
    view = compare_runs(session=session("numpy", root=tmp_path))
    assert f"{OLD_ID} and {NEW_ID} hold no call in common" in said(view)


def test_a_choice_that_both_lack_is_said(tmp_path: Path) -> None:
    for name in (OLD_ID, NEW_ID):
        write_pair_run(tmp_path, name)
    view = compare_runs(session=session("numpy", root=tmp_path))
    view.recorded = None
    view.dtype.offer([*view.dtype.options, ("fp32", "float32")], "float32")
    assert "Both runs hold no call with a ratio of time in fp32, d = any" in said(view)


def test_a_run_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    write_pair_run(tmp_path, OLD_ID)
    write_pair_run(tmp_path, NEW_ID)
    rows = tmp_path / NEW_ID / "rows.csv"
    rows.write_text(rows.read_text().replace("latency_ms", "latency_parsec"))
    view = compare_runs(session=session("numpy", root=tmp_path))
    assert "latency_parsec" in said(view) and view.recorded is None


def test_a_run_of_an_unknown_kind_is_offered_and_says_why(tmp_path: Path) -> None:
    write_pair_run(tmp_path, OLD_ID)
    write_pair_run(tmp_path, NEW_ID, kind="poetry")
    view = compare_runs(session=session("numpy", root=tmp_path))
    assert "kind 'poetry'" in said(view)


def test_one_run_or_none_is_said(tmp_path: Path, bare: Session) -> None:
    assert "No run is recorded here" in said(compare_runs(session=bare))
    write_pair_run(tmp_path, OLD_ID)
    used = session("numpy", root=tmp_path)
    for view in (compare_runs(session=used), compare_runs(second=OLD_ID, session=used)):
        assert f'Only one run of the kind "grid" is recorded ({OLD_ID})' in said(view)
        assert (view.first.value, view.second.value) == (OLD_ID, "")


def test_bad_arguments_are_refused_in_words(runs: Session) -> None:
    with pytest.raises(ValueError, match="first = 'nothing' is no run that can be compared"):
        compare_runs("nothing", session=runs)
    with pytest.raises(ValueError, match="not two runs of one kind: beside .* choose"):
        compare_runs(OLD_ID, TRAINING_ID, session=runs)
    with pytest.raises(ValueError, match="not two runs of one kind"):
        compare_runs(OLD_ID, OLD_ID, session=runs)
    with pytest.raises(ValueError, match="metric = 'speed' is not in both runs: use one of 'lat"):
        compare_runs(metric="speed", session=runs)
    with pytest.raises(ValueError, match="d = 96 is not in both runs: use one of 64"):
        compare_runs(d=96, session=runs)
    with pytest.raises(ValueError, match="dtype = 'float32' is not in both"):
        compare_runs(dtype="fp32", session=runs)
    with pytest.raises(TypeError, match="is not a session"):
        compare_runs(session="numpy")  # type: ignore[arg-type]


def test_the_two_recorded_grids_agree_to_the_byte() -> None:
    view = compare_runs("20261129-h200-grid", "20261130-h200-grid", session=session("numpy"))
    assert view.recorded is not None and len(view.recorded.counted) > 3000
    assert all(first == second for first, second in (p.values for p in view.recorded.counted))
    assert all(first == second for first, second in (p.values for p in view.recorded.memory))


def test_ceilings_are_not_offered(tmp_path: Path) -> None:
    write_pair_run(tmp_path, OLD_ID)
    about = json.loads((tmp_path / OLD_ID / "run.json").read_text())
    other = tmp_path / "20260109-h200-ceilings"
    other.mkdir()
    about |= {"run_id": other.name, "kind": "ceilings"}
    (other / "run.json").write_text(json.dumps(about))
    view = compare_runs(session=session("numpy", root=tmp_path))
    assert [value for _, value in view.first.options] == [OLD_ID]
