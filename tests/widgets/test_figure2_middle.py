"""Figure 2 (middle): what is drawn and said is what runs hold, each under its own name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import fa_kernels as fa
from fa_kernels.measure.records import MEASURED_DIR
from fa_kernels.session import Session, session
from fa_kernels.widgets.text import labels
from tests.figures.synthetic_paper import write_paper_run

TEXT = labels("figure2_middle")
COUNTERS = "20261130-h200-counters"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Session:
    root: Path = tmp_path_factory.mktemp("middle")
    write_paper_run(root)
    shutil.copytree(MEASURED_DIR / COUNTERS, root / COUNTERS)
    return session("numpy", root=root)


def drawn(widget: object) -> list[str]:
    names = [trace["name"] for trace in widget.figure.spec["data"]]  # type: ignore[attr-defined]
    return [next(key for key, said in TEXT["names"].items() if said == name) for name in names]


def test_without_a_run_models_alone_are_drawn(bare: Session) -> None:
    widget = fa.figure2_middle(session=bare)
    assert drawn(widget) == ["paper", "launched"]
    assert "measure --paper" in widget.sentence.value
    heads = [note["text"] for note in widget.figure.spec["layout"]["annotations"]]
    assert TEXT["not_recorded"] in heads[0]


def test_every_quantity_has_its_own_line_and_column(measured: Session) -> None:
    widget = fa.figure2_middle(session=measured)
    assert set(drawn(widget)) == set(TEXT["names"])
    for name in TEXT["names"].values():
        assert name in widget.table.value
    assert widget.table.value.count(TEXT["cannot"]) == 5  # at B_c = 512: all but the models
    assert COUNTERS in widget.table.value and "least at 128" in widget.sentence.value
    assert "more shared memory" in widget.figure.spec["layout"]["annotations"][0]["text"]


def test_time_begins_at_zero_and_bytes_are_on_a_log_axis(measured: Session) -> None:
    layout = fa.figure2_middle(session=measured).figure.spec["layout"]
    assert layout["yaxis"]["range"][0] == 0 and layout["yaxis2"]["type"] == "log"


def test_the_recorded_counters_are_shown_today() -> None:
    """Notebook 09: L2 and DRAM fall nearly as the launched bytes do."""
    sizes = fa.figure2_middle(session=session("numpy")).sizes
    for one in sizes[:3]:
        assert one.dram_bytes and one.l2
        assert one.dram_bytes == pytest.approx(one.launched_bytes, rel=0.05)
        assert one.l2.value == pytest.approx(one.launched_bytes, rel=0.05)
