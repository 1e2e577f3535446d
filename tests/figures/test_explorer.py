"""The explorer's figure: valid for plotly, honest about sources, nothing joined or invented."""

from __future__ import annotations

import itertools
import json
import re
import time
from typing import Any

import pytest

from fa_kernels.device import Device, device
from fa_kernels.figures import theme
from fa_kernels.figures.explorer import explorer_figure, explorer_spec
from fa_kernels.figures.over_seqlen import SEQLENS
from fa_kernels.figures.panel import LEAST_WIDTH, paper
from fa_kernels.figures.point import Point
from fa_kernels.figures.recorded import RecordedRun
from fa_kernels.measure.records import Row, Run
from fa_kernels.units import KIB
from fa_kernels.variants import VARIANTS
from tests.figures.synthetic import RUN_ID, row

#: Points that once broke something, or might: one tile, one row, tiles larger than the sequence.
POINTS = [
    (4096, 64, 192, "float16"),
    (128, 16, 4, "float32"),
    (1, 1, 1, "float16"),
    (3000, 96, 100, "float16"),
    (65536, 128, 192, "float16"),
    (2**18, 256, 64, "float16"),
]


def trace(spec: dict[str, Any], name: str, axis: str | None = None) -> dict[str, Any]:
    found = [t for t in spec["data"] if t["name"] == name and axis in (None, t.get("xaxis", "x"))]
    assert len(found) == 1, (name, [t["name"] for t in spec["data"]])
    return found[0]


def words(spec: dict[str, Any]) -> str:
    pieces = [text for t in spec["data"] if t["name"] == "words" for text in t["text"]]
    return "\n".join(
        [*pieces, *(n["text"].replace("<br>", " ") for n in spec["layout"]["annotations"])]
    )


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize(("n", "d", "kib", "dtype"), POINTS)
def test_plotly_accepts_it(
    h200: Device, run: RecordedRun, n: int, d: int, kib: int, dtype: str, log: bool
) -> None:
    point = Point.of(n, d, kib, dtype, h200)
    for recorded in (None, run):
        spec = json.loads(json.dumps(explorer_spec(point, recorded, log=log), allow_nan=False))
        assert spec["data"]
        explorer_figure(point, recorded, log=log)


@pytest.fixture
def point(h200: Device) -> Point:
    return Point.of(4096, 64, 192, "float16", h200)


def test_sram_bar_is_the_launchs_own_layout(point: Point) -> None:
    bar = trace(explorer_spec(point), "on chip")
    layout = point.plan(VARIANTS["flash_q_outer"]).layout
    assert sum(bar["x"][:-1]) * KIB == layout.smem_bytes
    assert bar["x"][-1] * KIB == layout.accumulator_bytes
    assert bar["marker"]["pattern"]["shape"] == [*[""] * len(layout.parts), "/"]
    assert "M = 192 KiB" in words(explorer_spec(point))
    assert "limit per block 227 KiB" in words(explorer_spec(point))


def test_traffic_bars_add_up_to_the_launched_model(point: Point) -> None:
    bar = trace(explorer_spec(point), "HBM traffic")
    for height, variant in zip((1, 0), VARIANTS.values(), strict=True):
        total = sum(x for x, y in zip(bar["x"], bar["y"], strict=True) if y == height)
        assert total * 1e9 == pytest.approx(point.traffic(variant).total_bytes)
    text = words(explorer_spec(point))
    assert "<b>standard</b>: 26.6 GB, 550 GFLOP, 20.7 FLOP/B" in text
    assert "HBM traffic: standard / flash = 3.0×" in text


def test_every_panel_says_its_source(point: Point, run: RecordedRun) -> None:
    text = words(explorer_spec(point, run))
    assert "model · Q tile" in text
    assert f"model (launched) · ◆ counted in kernel: recorded {RUN_ID}" in text
    assert f"recorded {RUN_ID} · bars p20-p80" in text
    assert f"lines: model · markers: recorded {RUN_ID}" in text


def test_recorded_lines_are_the_rows(point: Point, run: RecordedRun) -> None:
    spec = explorer_spec(point, run)
    for name in ("standard_tiled", "flash_q_outer", "torch_flash"):
        rows = [r for r in run.curve(name, point, "latency_ms") if r.median is not None]
        line = trace(spec, theme.style_of(name).label, "x3")
        assert line["x"] == [r.seqlen_q for r in rows]
        assert line["y"] == [r.median for r in rows]
        assert len(line["error_y"]["array"]) == len(rows)
        assert line["line"]["dash"] == theme.style_of(name).dash


def test_cursor_stands_at_the_chosen_length(point: Point, run: RecordedRun) -> None:
    for n in (1024, 3000):
        spec = explorer_spec(point.at(n), run)
        cursor, layout = trace(spec, f"N = {n}"), spec["layout"]
        places = [paper(n, axis, layout) for axis in ("x3", "x4")]
        assert cursor["x"] == [places[0]] * 2 + [None] + [places[1]] * 2 + [None]
        assert cursor["y"][:2] == layout["yaxis3"]["domain"]


def test_no_interpolation(h200: Device, run: RecordedRun) -> None:
    spec = explorer_spec(Point.of(4096, 96, 64, "float16", h200), run)
    assert "no run at d = 96; recorded: 32, 64, 128" in words(spec)
    assert "dotted: model, lower bound" in words(spec)
    assert not [t for t in spec["data"] if t.get("xaxis") == "x3" and "error_y" in t]


def test_a_device_without_a_run_shows_the_bound(run: RecordedRun) -> None:
    point = Point.of(4096, 64, 64, "float16", device("a100-80gb"))
    spec = explorer_spec(point, None)
    assert "no run was recorded on NVIDIA A100 80GB SXM4" in words(spec)
    line = trace(spec, "flash (model)")
    assert line["line"]["dash"] == "dot"
    at = line["x"].index(4096)
    assert line["y"][at] == point.bound(VARIANTS["flash_q_outer"]).ms


def test_what_does_not_fit_is_marked_where_it_would_be(h200: Device, run: RecordedRun) -> None:
    spec = explorer_spec(Point.of(4096, 64, 192, "float16", h200), run)
    assert "does not fit (estimated 513 GiB)" in words(spec)
    assert trace(spec, "standard: does not fit")["x"] == [65536]
    assert trace(spec, "standard: not measured")["x"] == [65536]
    assert trace(spec, "capacity 141 GiB")["y"] == [141, 141]


def test_live_points_have_their_own_marker(point: Point, run: RecordedRun) -> None:
    measured: Row = row(
        point.problem, "fa_kernels", "flash_q_outer", point.tiling, "latency_ms", 20.0
    )
    spec = explorer_spec(point, run, [measured], "NVIDIA H200")
    assert trace(spec, "live")["marker"]["symbol"] == "star"
    assert trace(spec, "live")["y"] == [20.0]
    assert "★ live on NVIDIA H200" in words(spec)


def axis_titles(spec: dict[str, Any]) -> list[str]:
    layout = spec["layout"]
    return [a["title"]["text"] for k, a in layout.items() if "axis" in k and "title" in a]


def test_axis_titles_carry_units(point: Point, run: RecordedRun) -> None:
    titles = axis_titles(explorer_spec(point, run))
    assert len(titles) == 6
    for title in titles:
        assert re.search(r"\((ms|GiB|KiB|GB|tokens)\)$", title), title


def sizes(node: Any, key: str = "") -> list[float]:
    if isinstance(node, list):
        return [size for item in node for size in sizes(item, key)]
    if isinstance(node, dict):
        found = []
        for name, value in node.items():
            if key.endswith("font") and name == "size":
                found += value if isinstance(value, list) else [value]
            found += sizes(value, name)
        return found
    return []


def test_nothing_is_smaller_than_twelve_pixels(point: Point, run: RecordedRun) -> None:
    found = sizes(explorer_spec(point, run))
    assert len(found) > 20
    assert min(found) >= 12


def test_every_colour_is_the_themes(point: Point, run: RecordedRun) -> None:
    """A colour the theme does not know would not follow the page into the dark."""
    known = {*theme.TENSOR_COLOURS.values(), *theme.DARK}
    known |= {style.colour for style in theme.STYLES.values()}
    used = set(re.findall(r"#[0-9A-Fa-f]{6}", json.dumps(explorer_spec(point, run))))
    assert used <= known


def test_linear_axes_keep_the_words_inside(point: Point, run: RecordedRun) -> None:
    spec = explorer_spec(point, run, log=False)
    assert spec["layout"]["yaxis3"]["type"] == "linear"
    assert max(trace(spec, "words")["y"]) <= 1
    assert "does not fit (estimated" not in words(spec), "it would lie above the panel"


def test_labels_do_not_overlap(point: Point, run: RecordedRun) -> None:
    spec = explorer_spec(point, run)
    text = trace(spec, "words")
    ends = [y for y, t in zip(text["y"], text["text"], strict=True) if re.search("[■●▲▼✦] ", t)]
    inner = spec["layout"]["height"] - 54
    gaps = [(b - a) * inner for half in (ends[:5], ends[5:]) for a, b in itertools.pairwise(half)]
    assert len(ends) == 7, "five lines of runtime, two of memory"
    assert min(gaps) >= 14


def test_it_is_quick_enough_to_drag(h200: Device, run: RecordedRun) -> None:
    """The goal is 50 ms from slider to redraw; building the spec may take a fifth of it."""
    points = [Point.of(n, 64, 192, "float16", h200) for n in SEQLENS]
    explorer_spec(points[0], run)  # fills the caches
    start = time.perf_counter()
    for p in points:
        explorer_spec(p, run)
    assert (time.perf_counter() - start) / len(points) < 0.02


@pytest.mark.parametrize(
    ("d", "kib", "dtype"),
    [(64, 4, "float16"), (64, 24, "float16"), (64, 48, "float16"), (128, 224, "float32")],
)
def test_an_m_without_a_run_says_so(
    h200: Device, measured_run: Run, d: int, kib: int, dtype: str
) -> None:
    point = Point.of(4096, d, kib, dtype, h200)
    said = words(explorer_spec(point, RecordedRun(measured_run)))
    assert f"no run at M = {kib} KiB; recorded: " in said
    assert "dotted: model, lower bound" in said
    assert "skipped" not in said.replace("skipped (estimated): torch", "")


@pytest.mark.parametrize("log", [True, False])
def test_the_note_covers_no_label(h200: Device, measured_run: Run, log: bool) -> None:
    spec = explorer_spec(
        Point.of(4096, 64, 24, "float16", h200), RecordedRun(measured_run), log=log
    )
    (note,) = spec["layout"]["annotations"]
    text, domain = trace(spec, "words"), spec["layout"]["yaxis3"]["domain"]
    ends = [
        (x, y)
        for x, y, t in zip(text["x"], text["y"], text["text"], strict=True)
        if x < 0.5 and re.search("\\(model\\)|[▲▼✦] ", t)
    ]
    assert len(ends) == 5
    assert note["text"].count("<br>") == 1
    if log:
        height = (domain[1] - domain[0]) * 0.2
        assert note["yanchor"] == "bottom"
        assert note["y"] + height < min(y for _, y in ends)
    else:
        width = 7 * max(map(len, note["text"].split("<br>"))) / (LEAST_WIDTH - 72)
        assert note["xanchor"] == "left"
        assert note["x"] + width < min(x for x, _ in ends)
