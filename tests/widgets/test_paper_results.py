"""Published results beside a run: sentence, table and figure follow from both."""

from __future__ import annotations

import re
import shutil
from html import escape, unescape
from pathlib import Path

import pytest

import fa_kernels as fa
from fa_kernels.measure.paper_bytes import LEVELS
from fa_kernels.measure.paper_results import RESULTS
from fa_kernels.measure.records import MEASURED_DIR, list_runs
from fa_kernels.session import Session, session
from fa_kernels.widgets.paper_results import moved_cells
from fa_kernels.widgets.text import labels
from tests.figures.synthetic_figure2 import FIGURE2_ID, write_figure2
from tests.figures.synthetic_paper import PAPER_ID, write_paper_run
from tests.figures.synthetic_speed import write_speed_run

TEXT = labels("paper_results")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Session:
    root: Path = tmp_path_factory.mktemp("paper")
    write_paper_run(root)
    write_speed_run(root)
    return session("numpy", root=root)


def plain(html: str) -> str:
    return " ".join(unescape(re.sub("<[^>]*>", " ", html)).split())


@pytest.mark.parametrize("key", RESULTS)
def test_every_result_is_drawn_with_and_without_a_run(
    key: str, measured: Session, bare: Session
) -> None:
    for used in (measured, bare):
        widget = fa.paper_results(key, session=used)
        said = plain(widget.sentence.value).strip()
        assert said and widget.figure.alt.startswith(said.split("  ")[0][:40])
        assert not widget.message.value and widget.figure.spec["layout"]
        assert "What follows from the numbers" in widget.table.value


def test_printed_is_hollow_and_joined_by_no_line(measured: Session) -> None:
    data = fa.paper_results("table 9", session=measured).figure.spec["data"]
    printed = [trace for trace in data if trace["name"].endswith(", printed")]
    ours = [trace for trace in data if not trace["name"].endswith(", printed")]
    assert len(printed) == 4 and ours
    assert all(t["mode"] == "markers" and t["marker"]["symbol"].endswith("-open") for t in printed)
    assert all("open" not in t["marker"]["symbol"] and "lines" in t["mode"] for t in ours)


def test_the_table_has_printed_ours_and_ratio(measured: Session) -> None:
    widget = fa.paper_results("table 9", session=measured)
    table = plain(widget.table.value)
    assert "PyTorch, printed" in table and "torch eager, this GPU" in table and "ratio" in table
    assert f"recorded {PAPER_ID}" in table and "printed: A100-40GB" in table
    assert "05 flash, tensor cores, block mask, this GPU" in table
    assert widget.table.value.count("does not fit") == 6  # torch eager and 02 at the longest N
    assert TEXT["beside"] in table and "torch cuDNN, this GPU" in table
    said = plain(widget.sentence.value)
    assert "Latency: trend reproduces. FlashAttention is 3.1 to 9 times as fast as PyTorch" in said
    assert "times those of the A100-40GB" not in said and "times those of the A100-40GB" in table


def test_controls_choose_the_result_and_the_gpu(measured: Session) -> None:
    widget = fa.paper_results(session=measured)
    before = widget.figure.spec
    widget.choice.value = "table 21"
    assert widget.result.key == "table 21" and widget.figure.spec != before
    assert "equal 16 of 16 cells" in widget.sentence.value
    assert widget.gpu.disabled and [slug for _, slug in widget.gpu.options] == ["h200"]


def test_every_gpu_with_a_run_can_be_chosen(tmp_path: Path) -> None:
    write_paper_run(tmp_path)
    write_paper_run(tmp_path, "20260106-h100-paper", "NVIDIA H100 80GB HBM3")
    widget = fa.paper_results(session=session("numpy", root=tmp_path), device="h200")
    assert not widget.gpu.disabled
    assert {slug for _, slug in widget.gpu.options} == {"h200", "h100-sxm"}
    widget.gpu.value = "h100-sxm"
    assert "20260106-h100-paper" in widget.table.value and PAPER_ID not in widget.table.value


def test_bytes_have_a_table_of_every_name(tmp_path: Path) -> None:
    run_id = "20261130-h200-paper"
    shutil.copytree(MEASURED_DIR / run_id, tmp_path / run_id)
    write_figure2(tmp_path, ("flash_mma", "torch_flash"))
    used = session("numpy", root=tmp_path)
    left = fa.paper_results("fig. 2 left, bytes", session=used)
    heads, body = moved_cells(left.result)
    assert heads == [TEXT["what"], TEXT["pass"], *LEVELS.values()]
    by = {(row[0], row[1]): row[2:] for row in body}
    assert by["05 flash, tensor cores", "forward and backward"] == ["10.1", "10.1", "12", "1.75"]
    assert by["torch flash", "backward"] == ["", "", "12", "1.75"]
    assert by["04 flash", "forward and backward"][2:] == [TEXT["not_read"]] * 2
    assert 'data-fa-table="paper-bytes"' in left.table.value
    marks = {t["name"]: t for t in left.figure.spec["data"] if t["name"] in LEVELS.values()}
    assert {name: len(trace["x"]) for name, trace in marks.items()} == {"L2 ↔ SM": 2, "DRAM": 2}
    right = fa.paper_results("fig. 2 right, bytes", session=used)
    names = [trace["name"] for trace in right.figure.spec["data"]]
    assert [name for name in names if name.startswith("05")] == [
        f"05 flash, tensor cores, {name}" for name in LEVELS.values()
    ]
    assert not [name for name in names if name.startswith("04") and "DRAM" in name]
    assert (
        FIGURE2_ID in right.table.value and 'data-fa-table="paper-result"' not in right.table.value
    )


def test_bytes_without_a_run_are_modelled_and_say_how_to_read_the_rest(bare: Session) -> None:
    widget = fa.paper_results("fig. 2 right, bytes", session=bare)
    assert {t["name"].split(", ")[-1] for t in widget.figure.spec["data"]} == {LEVELS["launched"]}
    assert "filled: recorded" not in str(widget.figure.spec["layout"]["annotations"])
    assert 'make measure ARGS="--counters --shapes figure2"' in plain(widget.table.value)


def test_without_a_run_it_says_how_to_record_one(bare: Session) -> None:
    widget = fa.paper_results("table 18", session=bare)
    assert "python -m fa_kernels measure --paper" in widget.sentence.value
    assert TEXT["no_run"] in widget.table.value
    empty = fa.paper_results("fig. 2 right", session=bare).figure.spec
    assert empty["data"] == []
    assert TEXT["nothing"] in [note["text"] for note in empty["layout"]["annotations"]]


def test_all_verdicts_in_one_table(measured: Session, bare: Session) -> None:
    table = fa.paper_verdicts(session=measured)
    heads, *rows = table.cells()
    assert heads == [TEXT[name] for name in ("column_about", "quantity", "verdict", "why")]
    assert [row[0] for row in rows].count("FlashAttention, table 21, version 2022-06-24") == 2
    assert "FlashAttention, fig. 2 left, another version" in [row[0] for row in rows]
    assert "2 × reproduces" in table.caption() or "1 × reproduces" in table.caption()
    html = table._repr_html_()
    assert PAPER_ID in str(table) and 'data-fa-table="paper-verdicts"' in html
    long = [one.why for one in table.verdicts if len(one.why) > 200]
    assert long and html.count("<details") == sum("; " in why for why in long)
    for why in long:  # folded, not shortened
        first, _, rest = why.partition("; ")
        assert escape(first) in html and escape(rest) in html
    assert TEXT["no_run"] in fa.paper_verdicts(session=bare).caption()


def test_what_is_not_there_is_refused(bare: Session) -> None:
    with pytest.raises(ValueError, match="result = 'table 22' is not known"):
        fa.paper_results("table 22", session=bare)
    with pytest.raises(ValueError, match="no-such-gpu"):
        fa.paper_results(device="no-such-gpu", session=bare)
    with pytest.raises(TypeError, match="is not a session"):
        fa.paper_verdicts(session="h200")


def test_the_recorded_runs_are_shown() -> None:
    """Those of this checkout; a run of kind "paper" fills every table of times."""
    used = session("numpy")
    assert "reproduces" in fa.paper_results("FA2 figs. 4-7", session=used).sentence.value
    widget = fa.paper_results("table 18", session=used)
    ours = [line for line in widget.result.lines if not line.published]
    assert bool(ours) == bool(list_runs(kind="paper"))


def test_verdicts_about_one_thing() -> None:
    """The parts of the sentences that say it, word for word, and no others."""
    used = session("numpy")  # another test may have left one without these runs
    whole = {(v.about, v.quantity): v for v in fa.paper_verdicts(session=used).verdicts}
    found = fa.paper_verdicts("block-sparse", session=used).verdicts
    assert {v.about.split(", ")[1] for v in found} >= {"table 9", "table 20", "fig. 2 right"}
    for one in found:
        of = whole[one.about, one.quantity]
        assert one.word == of.word
        for part in one.why.rstrip(".").split("; "):
            assert part in of.why and ("block-sparse" in one.quantity or "block-sparse" in part)
    with pytest.raises(ValueError, match="no verdict says anything of 'cheese'"):
        fa.paper_verdicts("cheese")
