"""Every published table and figure has a result, and every result its printed numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_kernels.device import device
from fa_kernels.measure.paper import load_paper
from fa_kernels.measure.paper_numbers import PaperNumbers
from fa_kernels.measure.paper_results import RESULTS, all_verdicts, result
from fa_kernels.measure.records import load_run
from tests.figures.synthetic_paper import PAPER_ID, TOO_LONG, write_paper_run
from tests.figures.synthetic_peers import PEERS_ID, write_peers_run

H200 = device("h200")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> PaperNumbers:
    root: Path = tmp_path_factory.mktemp("paper")
    write_paper_run(root)
    return PaperNumbers([load_run(PAPER_ID, root)])


@pytest.mark.parametrize("key", RESULTS)
def test_a_result_without_a_run_has_its_printed_numbers_alone(key: str) -> None:
    found = result(key, PaperNumbers(), H200)
    assert found.verdicts and not found.runs
    assert all(line.published or line.level == "launched" for line in found.lines)
    assert all(dot.ours is None for dot in found.dots)
    printed = [v for line in found.lines if line.published for _, v in line.points]
    printed += [dot.printed for dot in found.dots if dot.printed]
    assert bool(printed) == ("fig. 2 right" not in key)  # whose values were not transcribed


def test_every_printed_number_of_a_table_is_shown(measured: PaperNumbers) -> None:
    for where in [key for key in RESULTS if key.startswith("table")]:
        rows = [r for r in load_paper() if r.where == where and r.value is not None]
        found = result(where, measured, H200)
        shown = [p for line in found.lines if line.published for p in line.points]
        assert sorted(shown) == sorted((float(r.seqlen or 0), r.value) for r in rows)


def test_a_table_has_our_lines_and_says_what_does_not_fit(measured: PaperNumbers) -> None:
    found = result("table 9", measured, H200)
    ours = {(line.algorithm, line.series): line for line in found.lines if not line.published}
    assert ("PyTorch", "torch_eager") in ours and ("", "torch_cudnn") in ours
    assert ("", "standard_tiled") in ours and ("Megatron", "") not in ours
    for line in (ours["", "standard_tiled"], ours["PyTorch", "torch_eager"]):
        assert line.absent[0] == (float(TOO_LONG), "does not fit")
        assert max(x for x, _ in line.points) == TOO_LONG / 2  # beyond the last that is printed
    assert found.runs == (PAPER_ID,)


def test_figure_2_left_has_both_versions_and_everybody_else(measured: PaperNumbers) -> None:
    found = result("fig. 2 left", measured, H200)
    about = [(dot.name, dot.about) for dot in found.dots]
    assert about[0] == ("standard", "version 2022-06")
    assert ("FlashAttention", "another version") in about
    assert ("flash_kv_outer", "") in about and ("torch_cudnn", "") in about
    assert [dot.ours for dot in found.dots].count(None) == 0
    counted = result("fig. 2 left, bytes", measured, H200)
    assert {dot.series for dot in counted.dots if dot.about} == {"standard_tiled", "flash_kv_outer"}


def test_all_verdicts_are_of_every_table_and_figure_that_is_held(measured: PaperNumbers) -> None:
    found = all_verdicts(measured, H200)
    held = {(row.paper, row.where) for row in load_paper()}
    assert {(v.about.split(" (")[0], v.about.split("), ")[1].split(", ")[0]) for v in found} == held
    papers = [v.about.split(" (")[0] for v in found]
    assert papers == sorted(papers)


def test_an_unknown_result_is_refused() -> None:
    with pytest.raises(ValueError, match=r"result = 'table 8' is not known: use one of fig\. 2"):
        result("table 8", PaperNumbers(), H200)


def test_flashattention_3_has_its_dtype_and_our_rung_beside_it(tmp_path: Path) -> None:
    write_peers_run(tmp_path)
    numbers = PaperNumbers([load_run(PEERS_ID, tmp_path)])
    found = result("FA3 figs. 5-7", numbers, H200)
    fa3, rung = found.dots[2:4]
    assert (fa3.name, fa3.about, fa3.printed) == ("FlashAttention-3", "no mask, here bf16", 648.0)
    assert fa3.ours == pytest.approx(301, rel=1e-4) and fa3.series == "fa3"
    assert (rung.name, rung.about, rung.printed) == ("flash_mma", "no mask in bf16", None)
    assert rung.ours == pytest.approx(300, rel=1e-4)
    assert len(found.dots) == 6 + 2 and {dot.about for dot in found.dots[:2]} == {"no mask"}
