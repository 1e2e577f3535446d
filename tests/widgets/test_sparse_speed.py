"""The time that a mask saves: what is said follows from the run, and without one it says so."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

import fa_kernels as fa
from fa_kernels.session import Session, session
from fa_kernels.widgets.text import labels
from tests.figures import synthetic_sparse
from tests.figures.synthetic_sparse import SPARSE_ID, write_sparse_run

TEXT = labels("sparse_speed")


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Session:
    root: Path = tmp_path_factory.mktemp("sparse")
    write_sparse_run(root)
    return session("numpy", root=root)


def plain(html: str) -> str:
    return unescape(re.sub("<[^>]*>", " ", html)).replace("\N{NO-BREAK SPACE}", " ")


def test_the_sentence_is_computed(timed: Session) -> None:
    said = plain(fa.sparse_speed(session=timed).sentence.value)
    assert "Forward: with 1/32 of the" in said and "Backward: with 1/32 of the" in said
    assert "little more than s × dense was asked of it, which it keeps at 6 of 6 densities." in said
    assert "FlexAttention takes 1.25 times as long." in said
    # Half the dense time: 1.02 s + 0.01 ms is less from a quarter on, not at a half.
    assert said.count("Faster than dense cuDNN from s = 1/4 down.") == 2


def test_the_rung_is_the_one_that_the_run_has_timed(
    tmp_path: Path, timed: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = fa.sparse_speed(session=timed)
    assert old.sentence.value.count("of the blocks rung 05 takes") == 2
    assert "asked of rung 05 at" in old.table.value and "05: median" in old.table.value
    monkeypatch.setattr(synthetic_sparse, "OURS", "flash_wgmma")
    write_sparse_run(tmp_path)
    new = fa.sparse_speed(session=session("numpy", root=tmp_path))
    assert new.sentence.value.count("of the blocks rung 06 takes") == 2
    assert "asked of rung 06 at" in new.table.value
    for head in ("06: median", "FlexAttention / time of 06", "dense cuDNN / time of 06"):
        assert head in new.table.value


def test_another_run_makes_another_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthetic_sparse, "FACTOR", 1.5)
    monkeypatch.setattr(synthetic_sparse, "FLEX", 0.8)
    monkeypatch.setattr(synthetic_sparse, "CUDNN", 0.01)
    write_sparse_run(tmp_path)
    said = plain(fa.sparse_speed(65536, session=session("numpy", root=tmp_path)).sentence.value)
    assert "keeps at 0 of 6 densities, otherwise it takes up to" in said
    assert "FlexAttention takes 0.8 times as long." in said
    assert "Dense cuDNN is faster at every density." in said


def test_the_table_has_every_call_with_its_limit_and_its_lists(timed: Session) -> None:
    widget = fa.sparse_speed(session=timed)
    table = widget.table.value
    assert f"recorded {SPARSE_ID}" in table and "B = 2, H = 16, N = 8192, d = 128, bf16" in table
    # Two passes of a dense call, six densities and two other masks.
    assert table.count("<tr>") == (1 + 3) + 1 + 2 * 9
    assert "local, causal" in table and "40 µs on the GPU" in plain(table)
    widget.seqlen.value = 65536
    assert "N = 65536" in widget.table.value and "local, causal" not in widget.table.value
    widget.head_dim.value = 64
    assert "d = 64" in widget.table.value and not widget.figure.stale


def test_without_a_run_it_says_so(bare: Session) -> None:
    widget = fa.sparse_speed(session=bare)
    assert "make measure ARGS=--sparse" in widget.sentence.value
    assert TEXT["not_recorded"] in widget.table.value and widget.figure.spec["data"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"N": 4096}, "N = 4096 is not measured here: use 8192, 65536"),
        ({"d": 80}, "d = 80 is not measured here: use 64, 128"),
    ],
)
def test_what_is_not_measured_is_refused(arguments: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fa.sparse_speed(**arguments)


def test_a_pin_compares_both_passes_and_the_peers(timed: Session) -> None:
    widget = fa.sparse_speed(session=timed)
    found = widget.headline()
    forward = widget.panels[0].curves
    assert forward.dense and forward.ours
    assert found["forward, no mask"] == (forward.dense.ms, "ms")
    least = min(forward.ours)
    assert (forward.ours[least].ms, "ms") in found.values()
    if forward.flex:
        assert (forward.flex[min(forward.flex)].ms, "ms") in found.values()
    assert any(name.startswith("backward") for name in found)
