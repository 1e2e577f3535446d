"""The ghost of a pinned figure: where it lies, how it looks, and that axes hold both."""

from __future__ import annotations

import copy
from typing import Any

import plotly.graph_objects as go
import pytest

from fa_kernels.figures import theme
from fa_kernels.figures.ghost import NAME, ghosted, has_ghost
from fa_kernels.figures.ghost_axes import row_names


def lines(ys: list[float], *, title: str = "bytes (GB)", top: float = 10, **axis: Any) -> Any:
    trace = {
        "type": "scatter", "mode": "lines+markers", "x": [1, 2, 3], "y": ys, "name": "flash",
        "line": {"color": "#009E73", "width": 3, "dash": "solid"}, "text": ["a", "b", "c"],
        "hoverinfo": "text",
    }  # fmt: skip
    layout = theme.base_layout(300)
    layout["xaxis"] = {"title": {"text": "N"}, "range": [0, 4]}
    layout["yaxis"] = {"title": {"text": title}, "range": [0, top], **axis}
    return {"data": [trace], "layout": layout}


def rows(names: list[str], sizes: list[float]) -> Any:
    at = [float(len(names) - 1 - i) for i in range(len(names))]
    bar = {
        "type": "bar", "orientation": "h", "x": sizes, "y": at, "width": 0.6, "name": "time",
        "marker": {"color": "#009E73"},
    }  # fmt: skip
    layout = theme.base_layout(300)
    layout["xaxis"] = {"title": {"text": "time (ms)"}, "range": [0, max(sizes)]}
    layout["yaxis"] = {"tickvals": at, "ticktext": names, "range": [-0.6, len(names) - 0.4]}
    return {"data": [bar], "layout": layout}


def ghosts(spec: Any) -> list[Any]:
    return [trace for trace in spec["data"] if trace["name"] == NAME]


def test_a_line_is_thin_dotted_and_says_nothing_under_the_mouse() -> None:
    now, before = lines([1, 2, 3]), lines([4, 5, 6])
    kept = copy.deepcopy((now, before))
    drawn = ghosted(now, before, "words <here>")
    assert (now, before) == kept, "neither is changed"
    (ghost,) = ghosts(drawn)
    assert drawn["data"][0] is ghost, "behind"
    assert ghost["y"] == [4, 5, 6] and ghost["mode"] == "lines" and ghost["hoverinfo"] == "skip"
    assert ghost["line"]["dash"] == "dot" and ghost["line"]["width"] < 3 and ghost["opacity"] < 1
    assert "text" not in ghost and ghost["line"]["color"] == "#009E73"
    note = drawn["layout"]["annotations"][-1]
    assert note["text"] == "words <here>"
    assert drawn["layout"]["height"] - 300 == drawn["layout"]["margin"]["b"] - 46 > 0
    go.Figure(drawn)  # plotly knows every property


def test_axes_hold_both_and_the_wider_one_says_the_ticks() -> None:
    few: Any = {"tickvals": [0, 10], "ticktext": ["0", "10"]}
    many: Any = {"tickvals": [0, 50, 100], "ticktext": ["0", "50", "100"]}
    drawn = ghosted(lines([1, 2, 3], top=10, **few), lines([40, 50, 90], top=100, **many), "")
    assert drawn["layout"]["yaxis"]["range"] == [0, 100]
    assert drawn["layout"]["yaxis"]["ticktext"] == many["ticktext"]
    drawn = ghosted(lines([40, 50, 90], top=100, **many), lines([1, 2, 3], top=10, **few), "")
    assert drawn["layout"]["yaxis"]["ticktext"] == many["ticktext"]


def test_log_and_linear_axes_keep_their_own_ranges() -> None:
    """The room for labels on a log axis is many times the curves' on a linear one."""
    log = lines([1, 10, 100], type="log")
    log["layout"]["yaxis"]["range"] = [-1, 2]
    drawn = ghosted(lines([1, 2, 3]), log, "")
    assert drawn["layout"]["yaxis"]["range"] == [0, 10]
    assert ghosts(drawn)[0]["y"] == pytest.approx([1, 10, 100])
    drawn = ghosted(log, lines([1, 2, 900], top=1000), "")
    assert drawn["layout"]["yaxis"]["range"] == [-1, 2]


def test_bytes_in_another_unit_are_converted_and_another_quantity_is_left_out() -> None:
    drawn = ghosted(lines([1, 2, 3]), lines([400, 500, 600], title="bytes (MB)", top=900), "")
    assert ghosts(drawn)[0]["y"] == pytest.approx([0.4, 0.5, 0.6])
    assert drawn["layout"]["yaxis"]["range"] == [0, 10]
    drawn = ghosted(lines([1, 2, 3]), lines([4, 5, 6], title="time (ms)", top=900), "")
    assert ghosts(drawn) == [] and drawn["layout"]["yaxis"]["range"] == [0, 10]


def test_an_axis_in_units_of_the_setting_is_scaled() -> None:
    drawn = ghosted(lines([1, 2, 4]), lines([4, 8, 12]), "", {"yaxis": 0.25})
    assert ghosts(drawn)[0]["y"] == [1, 2, 3]


def test_what_is_there_already_has_no_ghost() -> None:
    assert ghosts(ghosted(lines([1, 2, 3]), lines([1, 2, 3]), "")) == []
    same = rows(["a", "b"], [1, 2])
    assert ghosts(ghosted(same, copy.deepcopy(same), "")) == []


def test_bars_are_outlined_in_the_row_of_their_name() -> None:
    now, before = rows(["<b>a</b>", "c"], [5, 6]), rows(["a", "b", "c"], [1, 2, 3])
    drawn = ghosted(now, before, "")
    (ghost,) = ghosts(drawn)
    assert drawn["data"][-1] is ghost, "over the bars, which would hide it"
    assert ghost["x"] == [0, 3, 3, 0, 0, None, 0, 1, 1, 0, 0, None], "b has no row now"
    lower, upper = [-0.3, -0.3, 0.3, 0.3, -0.3, None], [0.7, 0.7, 1.3, 1.3, 0.7, None]
    assert ghost["y"] == pytest.approx(lower + upper)
    go.Figure(drawn)


def test_parts_of_one_bar_share_an_outline_and_cut_ones_have_none() -> None:
    before = rows(["a", "b"], [3, 9])
    bar = before["data"][0]
    bar |= {"x": [1, 2, 4, 9], "base": [0, 1, 3, 0], "y": [1.0, 1.0, 1.0, 0.0]}
    bar["meta"] = {"cut": [False, False, False, True]}
    (ghost,) = ghosts(ghosted(rows(["a", "b"], [5, 6]), before, ""))
    assert ghost["x"] == [0, 7, 7, 0, 0, None]


def test_bars_on_a_log_axis_begin_at_its_low_end_in_both_figures() -> None:
    now, before = rows(["a"], [9]), rows(["a"], [99])
    for spec, low, high in ((now, -1.0, 1.0), (before, 0.0, 2.0)):
        bar = spec["data"][0]
        spec["layout"]["xaxis"] |= {"type": "log", "range": [low, high]}
        bar["base"], bar["x"] = [10**low], [bar["x"][0] - 10**low]
    for first, second in ((now, before), (before, now)):
        drawn = ghosted(first, second, "")
        assert drawn["layout"]["xaxis"]["range"] == [-1.0, 2.0]
        (ghost,), bar = ghosts(drawn), drawn["data"][0]
        assert bar["base"] == [0.1] and min(x for x in ghost["x"] if x is not None) == 0.1
        assert bar["base"][0] + bar["x"][0] == pytest.approx(9 if first is now else 99)
        assert max(x for x in ghost["x"] if x is not None) == pytest.approx(
            108 - 9 * (1 if first is now else 11)
        )


def test_rows_under_several_names_are_told_apart() -> None:
    layout = rows(["<b>01 naive</b>, scores", "output", "<b>02</b>, scores", "output"], [1] * 4)
    assert row_names(layout["layout"], "yaxis") == [
        "01 naive: 01 naive, scores", "01 naive: output", "02: 02, scores", "02: output",
    ]  # fmt: skip
    assert row_names(layout["layout"], "xaxis") == []


def test_pictures_have_no_ghost() -> None:
    assert has_ghost(lines([1, 2, 3])) and has_ghost(rows(["a"], [1]))
    heat = lines([1, 2, 3])
    heat["data"] += [{"type": "heatmap", "z": [[1]]}]
    assert not has_ghost(heat)
    assert not has_ghost(rows([str(i) for i in range(99)], [1] * 99))
    words = lines([1, 2, 3])
    words["data"][0]["mode"] = "text"
    assert not has_ghost(words)
