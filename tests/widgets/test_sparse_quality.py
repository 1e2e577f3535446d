"""What masks lose on recorded maps: computed from the file, and without one it says so."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import fa_kernels as fa
from fa_kernels.figures.map_quality import ASKED, NAMES, curves
from fa_kernels.figures.sparse_quality import asked_words
from fa_kernels.measure.maps import list_maps, load_maps
from tests.measure.synthetic_maps import NAME, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path)
    load_maps.cache_clear()
    curves.cache_clear()
    return tmp_path


def plain(html: str) -> str:
    return unescape(re.sub("<[^>]*>", " ", html))


def test_the_sentence_is_of_the_chosen_mask(folder: Path) -> None:
    widget = fa.sparse_quality(folder=folder)
    chosen = widget.qualities["local"][ASKED.index(0.25)]
    said = plain(widget.sentence.value)
    assert said.strip().startswith("Layer 1, head 1: local with ")
    assert f"keeps {100 * chosen.own.mass:.1f} % of the probability" in said
    assert f"as many blocks in every row keeps {100 * chosen.best.mass:.1f} %" in said
    widget.pattern.value = "best"
    assert "as many blocks" not in widget.sentence.value


def test_controls_move_figure_and_table(folder: Path) -> None:
    widget = fa.sparse_quality(folder=folder)
    first = widget.figure.spec
    widget.head.value = 1
    assert "Layer 1, head 2" in widget.sentence.value and widget.figure.spec != first
    second = widget.figure.spec
    widget.density.value = 0.5
    assert "Density asked for: 1/2" in widget.table.value and not widget.figure.stale
    # The curves are the same, the mask below is another.
    assert widget.figure.spec["data"][:-1] == second["data"][:-1]
    assert widget.figure.spec["data"][-1] != second["data"][-1]
    assert widget.table.value.count("<tr>") == 1 + len(NAMES)
    assert NAME in widget.table.value and "held-out loss 1.5" in widget.table.value


def test_the_figure_has_a_line_per_mask_in_both_panels(folder: Path) -> None:
    widget = fa.sparse_quality(folder=folder)
    lines = [d for d in widget.figure.spec["data"] if d["type"] == "scatter"]
    assert len(lines) == 2 * len(NAMES)
    looks = {(d["line"]["color"], d["line"]["dash"], d["marker"]["symbol"]) for d in lines}
    assert len(looks) == len(NAMES), "no two are alike"
    mass = [one.own.mass for one in widget.qualities["random"]]
    assert any(line["y"] == mass and line["yaxis"] == "y" for line in lines)
    whole, kept = (d for d in widget.figure.spec["data"] if d["type"] == "heatmap")
    dropped = sum(a is not None and b is None for r in zip(whole["z"], kept["z"], strict=True)
                  for a, b in zip(*r, strict=True))  # fmt: skip
    assert dropped > 0 and all(v is None for v in whole["z"][0][1:])


def test_without_maps_it_says_so(tmp_path: Path) -> None:
    widget = fa.sparse_quality(folder=tmp_path)
    assert "make measure ARGS=--maps" in widget.sentence.value
    assert widget.figure.spec["data"] == [] and widget.pattern.disabled and not widget.qualities


def test_a_file_that_cannot_be_read_gives_way_to_the_next(folder: Path) -> None:
    later = folder / "20270101-h200-maps.npz"
    later.write_bytes(b"x")
    assert NAME in fa.sparse_quality(folder=folder).table.value
    (folder / f"{NAME}.npz").write_bytes(b"x")
    load_maps.cache_clear()
    said = plain(fa.sparse_quality(folder=folder).sentence.value)
    assert f"data/maps/{NAME}.npz cannot be read" in said and "git checkout data/maps" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"head": 9}, "head = 9 is not offered here: use one of 0, 1"),
        ({"pattern": "dense"}, "pattern = 'dense' is not offered here: use one of best, local"),
        ({"density": 0.3}, "density = 0.3 is not offered here"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], words: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=words):
        fa.sparse_quality(**arguments, folder=folder)


def test_densities_in_words() -> None:
    assert [asked_words(s) for s in (1 / 32, 3 / 16, 0.25, 3 / 8, 1.0)] == [
        "1/32", "3/16", "1/4", "3/8", "1",
    ]  # fmt: skip


@pytest.mark.skipif(not list_maps(), reason="no maps are recorded yet")
def test_recorded_maps_are_shown() -> None:
    widget = fa.sparse_quality()
    assert list_maps()[0] in widget.table.value
    for name, compared in widget.qualities.items():
        masses = [one.own.mass for one in compared]
        assert masses == sorted(masses) or name in ("strided", "bigbird"), name
        assert masses[-1] == pytest.approx(1.0)


def test_a_pin_compares_what_the_mask_keeps_and_loses(folder: Path) -> None:
    widget = fa.sparse_quality(folder=folder)
    before = [value for value, _ in widget.headline().values()]
    widget.pattern.value = next(name for name in NAMES if name != widget.pattern.value)
    own = widget.qualities[widget.pattern.value][ASKED.index(widget.density.value)].own
    now = [value for value, _ in widget.headline().values()]
    assert now == [100 * own.density, 100 * own.mass, 100 * own.error if own.error > 1e-9 else 0]
    assert now != before
