"""Figures of published results: what is drawn where, and what is left out."""

from __future__ import annotations

from typing import Any

from fa_kernels.figures.figure2_middle import figure2_middle_spec
from fa_kernels.figures.paper_results import dot_name, paper_spec, style_of
from fa_kernels.measure.paper_figures import BlockSize
from fa_kernels.measure.paper_numbers import SPARSE, STANDS_FOR
from fa_kernels.measure.paper_results import Dot, Line, Result
from fa_kernels.widgets.text import labels

TEXT = labels("paper_results")


def result(**changed: Any) -> Result:
    made: dict[str, Any] = {
        "key": "table 9", "title": "A table", "gpu": "A100", "quantity": "time", "unit": "ms",
        "axis": "N", "lines": (), "dots": (), "verdicts": (),
    }  # fmt: skip
    return Result(**(made | changed))


def heading(spec: dict[str, Any]) -> str:
    return str(spec["layout"]["annotations"][0]["text"])


def test_the_heading_names_only_what_is_drawn() -> None:
    printed = Line("PyTorch", "torch_eager", True, ((128.0, 0.5), (256.0, 2.0)))
    ours = Line("PyTorch", "torch_eager", False, ((128.0, 0.1),))
    both = heading(paper_spec(result(lines=(printed, ours)), "H200", TEXT))
    assert "hollow: printed or read off, A100" in both and "filled: recorded, H200" in both
    assert "PyTorch (torch eager)" in both
    alone = heading(paper_spec(result(lines=(printed,)), "H200", TEXT))
    assert "hollow" in alone and "filled" not in alone and "torch eager" not in alone
    mine = heading(paper_spec(result(lines=(ours,)), "H200", TEXT))
    assert "hollow" not in mine


def test_every_point_is_inside_the_axes() -> None:
    line = Line("PyTorch", "torch_eager", True, ((128.0, 0.04), (65536.0, 2682.0)))
    layout = paper_spec(result(lines=(line,)), "H200", TEXT)["layout"]
    for axis, values in (("xaxis", (128.0, 65536.0)), ("yaxis", (0.04, 2682.0))):
        low, high = layout[axis]["range"]
        assert all(10**low < value < 10**high for value in values)


def test_a_row_with_two_numbers_has_two_markers_and_words_apart() -> None:
    dots = (
        Dot("cuDNN", "no mask", 595.0, 661.0, "torch_cudnn"),
        Dot("FlashAttention-3", "no mask", 648.0, None, ""),
    )
    spec = paper_spec(result(dots=dots, axis="", quantity="rate", unit="TFLOP/s"), "H200", TEXT)
    places = [(t["x"][0], t["textposition"]) for t in spec["data"]]
    assert places == [(595.0, "middle left"), (661.0, "middle right"), (648.0, "middle right")]
    assert spec["layout"]["yaxis"]["ticktext"][0].startswith(dot_name(dots[0]))


def test_every_algorithm_has_a_look_of_its_own() -> None:
    names = [name for name in STANDS_FOR if name not in ("standard",)]
    looks = [style_of(name, STANDS_FOR.get(name, "")) for name in (*names, "Megatron")]
    assert len({(look.colour, look.marker) for look in looks}) == len(looks)
    assert style_of(SPARSE, "flash_mma").label == SPARSE


def test_block_sizes_without_a_time_leave_the_left_panel_empty() -> None:
    sizes = [BlockSize(64, 7 * 10**9, 10**10), BlockSize(128, 3 * 10**9, 5 * 10**9)]
    spec = figure2_middle_spec(sizes, labels("figure2_middle"))
    assert [trace["xaxis"] for trace in spec["data"]] == ["x2", "x2"]
    assert not spec["layout"]["yaxis"]["showticklabels"]
