"""The explorer's figure: valid for plotly, honest about sources, nothing joined or invented."""

from __future__ import annotations

import itertools
import json
import re
import time
from dataclasses import replace
from typing import Any

import pytest

from fa_kernels.device import Device, device
from fa_kernels.figures import theme
from fa_kernels.figures.explorer import explorer_figure, explorer_spec
from fa_kernels.figures.over_seqlen import SEQLENS
from fa_kernels.figures.panel import LEAST_WIDTH, LETTER, MEMORY, RUNTIME, Panel, paper, width_px
from fa_kernels.figures.point import Point
from fa_kernels.figures.recorded import RecordedRun
from fa_kernels.figures.sparse import CHOICES
from fa_kernels.figures.tile_panel import current_tile, kept_tiles
from fa_kernels.measure.records import Row, Run, load_run
from fa_kernels.patterns import EVEN_PATTERNS
from fa_kernels.units import KIB
from fa_kernels.variants import ALGORITHMS, VARIANTS
from tests.figures.synthetic import RUN_ID, row

#: What stands before the label of a line: its marker, or dots where it is a bound.
GLYPHS = "".join({style.named[0] for style in theme.STYLES.values()}) + "┄"
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
    for height, (name, variant) in zip((3, 2, 1, 0), ALGORITHMS.items(), strict=True):
        total = sum(x for x, y in zip(bar["x"], bar["y"], strict=True) if y == height)
        if name != "standard_naive":
            assert total * 1e9 == pytest.approx(point.traffic(variant).total_bytes)
    text = words(explorer_spec(point))
    assert "<b>standard</b>: 26.6 GB, 550 GFLOP, 20.7 FLOP/B" in text
    assert "HBM traffic: standard / flash = 3.0×" in text


def test_a_bar_that_would_hide_the_others_is_cut_and_says_so(point: Point) -> None:
    spec = explorer_spec(point)
    bar, axis = trace(spec, "HBM traffic"), spec["layout"]["xaxis2"]["range"]
    cut = [x for x, y in zip(bar["x"], bar["y"], strict=True) if y == 3]
    assert sum(cut) == pytest.approx(axis[1])
    shapes = bar["marker"]["pattern"]["shape"]
    assert {s for s, y in zip(shapes, bar["y"], strict=True) if y == 3} == {"/"}
    assert {s for s, y in zip(shapes, bar["y"], strict=True) if y != 3} == {""}
    naive, standard = (point.traffic(VARIANTS[f"standard_{n}"]) for n in ("naive", "tiled"))
    times = naive.total_bytes / (1.04 * standard.total_bytes)
    assert f"<b>naive standard</b>: 1.12 TB, 550 GFLOP, {550e9 / 1.12e12:.2g}" in words(spec)
    assert f" FLOP/B (cut: {times:.2g} times this long)" in words(spec)
    # The parts keep their shares of the whole.
    assert cut[0] / sum(cut) == pytest.approx(naive.of("q") / naive.total_bytes)


def test_what_was_counted_is_marked_on_every_bar(h200: Device, run: RecordedRun) -> None:
    """Plotly leaves out a marker beyond the axis, by however little."""
    for n in (512, 4096, 16384):
        spec = explorer_spec(Point.of(n, 64, 64, "float16", h200), run)
        marked = trace(spec, "counted")
        assert sorted(marked["y"]) == [0, 1, 2, 3]
        assert max(marked["x"]) < spec["layout"]["xaxis2"]["range"][1]


def test_bars_of_like_length_are_not_cut(h200: Device) -> None:
    spec = explorer_spec(Point.of(4096, 1, 64, "float16", h200))
    assert set(trace(spec, "HBM traffic")["marker"]["pattern"]["shape"]) == {""}
    assert "cut:" not in words(spec)


def test_every_panel_says_its_source(point: Point, run: RecordedRun) -> None:
    text = words(explorer_spec(point, run))
    assert "model · Q tile" in text
    assert f"model (launched) · ◇ counted in kernel: recorded {RUN_ID}" in text
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
        assert cursor["y"][3:5] == layout["yaxis4"]["domain"]
        low, high = layout["yaxis3"]["domain"]
        assert cursor["y"][0] == low and low + 0.7 * (high - low) < cursor["y"][1] <= high


def test_no_line_goes_through_what_was_not_measured(h200: Device) -> None:
    spec = explorer_spec(
        Point.of(4096, 64, 64, "float16", h200), RecordedRun(load_run("20261130-h200-grid"))
    )
    pieces = trace(spec, "words")
    (at,) = (y for y, word in zip(pieces["y"], pieces["text"], strict=True) if "not every" in word)
    assert trace(spec, "N = 4096")["y"][1] < at - 0.01


def test_the_line_at_n_goes_up_to_the_top_where_nothing_is_crossed(h200: Device) -> None:
    spec = explorer_spec(Point.of(4096, 64, 64, "float16", h200), None)
    cursor = trace(spec, "N = 4096")
    assert cursor["y"][:2] == spec["layout"]["yaxis3"]["domain"]


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
    assert trace(spec, "naive standard, standard: not measured")["x"] == [65536]
    assert trace(spec, "capacity 141 GiB")["y"] == [141, 141]


def test_crosses_stand_above_all_lines(h200: Device, run: RecordedRun) -> None:
    spec = explorer_spec(Point.of(4096, 64, 64, "float16", h200), run)
    crosses = trace(spec, "naive standard, standard: not measured")["y"]
    tops = [max(t["y"]) for t in spec["data"] if t.get("xaxis") == "x3" and "error_y" in t]
    assert min(crosses) > 1.5 * max(tops), "words of 12 px beside them have room"


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
    assert len(titles) == 6, titles
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


def end_labels(spec: dict[str, Any]) -> tuple[list[tuple[float, float]], ...]:
    """Places of the words beside lines, from bottom to top: of runtime, of memory."""
    text, found = trace(spec, "words"), ([], [])  # type: ignore[var-annotated]
    low = spec["layout"]["yaxis3"]["domain"][1]
    for x, y, t in zip(text["x"], text["y"], text["text"], strict=True):
        if y <= low and re.match(f"&nbsp;&nbsp;&nbsp;[{GLYPHS}] ", t):
            found[x > 0.5].append((x, y))
    return found


@pytest.mark.parametrize("pattern", ["dense", "local", "random"])
def test_labels_do_not_overlap(h200: Device, run: RecordedRun, pattern: str) -> None:
    point = Point.of(4096, 64, 64, "float16", h200, pattern, 1 / 8)
    spec = explorer_spec(point, run)
    inner = spec["layout"]["height"] - 54
    runtime, memory = end_labels(spec)
    assert len(runtime) == len(ALGORITHMS) + 3, "ours and three peers"
    assert len(memory) == len(ALGORITHMS)
    for ends in (runtime, memory):
        heights = sorted(y for _, y in ends)
        assert min((b - a) * inner for a, b in itertools.pairwise(heights)) >= 14


@pytest.mark.parametrize("pattern", CHOICES)
def test_it_is_quick_enough_to_drag(h200: Device, run: RecordedRun, pattern: str) -> None:
    """The goal is 50 ms from slider to redraw; building the spec may take a fifth of it."""
    points = [Point.of(n, 64, 64, "float16", h200, pattern, 1 / 8) for n in SEQLENS]
    for p in points:
        explorer_spec(p, run)  # fills the caches
    start = time.perf_counter()
    for p in points:
        explorer_spec(p, run)
    assert (time.perf_counter() - start) / len(points) < 0.02


@pytest.mark.parametrize("pattern", EVEN_PATTERNS)
def test_a_pattern_that_is_new_stops_nobody(h200: Device, pattern: str) -> None:
    """Nothing is cached at a new N, d or M; the largest mask that is drawn is built once."""
    explorer_spec(Point.of(4096, 64, 64, "float16", h200, pattern, 1 / 8))
    for n, d, kib in ((65536, 64, 61), (32768, 61, 24), (65536, 48, 4)):
        point = Point.of(n, d, kib, "float16", h200, pattern, 1 / 16)
        start = time.process_time()
        explorer_spec(point)
        taken = time.process_time() - start
        # 65536 tokens in blocks of 11: the one mask beyond a million blocks that must be built.
        assert taken < (1 if kib != 4 else 8), (n, d, kib, taken)


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
    # What was skipped at other tiles says nothing here; torch and the naive kernel have no tiles.
    for untiled in ("skipped (estimated): torch", "naive standard: skipped (estimated)"):
        said = said.replace(untiled, "")
    assert "skipped" not in said


@pytest.mark.parametrize("log", [True, False])
def test_the_note_covers_no_label(h200: Device, measured_run: Run, log: bool) -> None:
    spec = explorer_spec(
        Point.of(4096, 64, 24, "float16", h200), RecordedRun(measured_run), log=log
    )
    (note,) = spec["layout"]["annotations"]
    domain = spec["layout"]["yaxis3"]["domain"]
    ends, _ = end_labels(spec)
    assert len(ends) == len(ALGORITHMS) + 3
    assert note["text"].count("<br>") == 1
    if log:
        height = (domain[1] - domain[0]) * 0.2
        assert note["yanchor"] == "bottom"
        assert note["y"] + height < min(y for _, y in ends)
    else:
        width = 7 * max(map(len, note["text"].split("<br>"))) / (LEAST_WIDTH - 72)
        assert note["xanchor"] == "left"
        assert note["x"] + width < min(x for x, _ in ends)


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize(("n", "d", "kib", "dtype"), POINTS)
def test_the_words_fit_into_the_narrowest_figure(
    h200: Device, run: RecordedRun, n: int, d: int, kib: int, dtype: str, log: bool
) -> None:
    """A cell of JupyterLab in a window of 1280 px, with the file browser open, has 848 px."""
    assert LEAST_WIDTH <= 848 - 17, "a scroll bar takes its share"
    for recorded in (None, run):
        spec = explorer_spec(Point.of(n, d, kib, dtype, h200), recorded, log=log)
        text, margin = trace(spec, "words"), spec["layout"]["margin"]
        for x, y, at, words_ in zip(
            text["x"], text["y"], text["textposition"], text["text"], strict=True
        ):
            if y > 0.52 or not re.match(f"&nbsp;&nbsp;&nbsp;[{GLYPHS}] ", words_):
                continue
            assert at == "middle right"
            left = margin["l"] + x * (LEAST_WIDTH - margin["l"] - margin["r"])
            long = 5.4 * (len(words_.replace("&nbsp;", "")) + 1.5)
            # Left of the next panel's axis and its title, or left of the edge.
            end = LEAST_WIDTH if x > 0.55 else margin["l"] + MEMORY.x[0] * (LEAST_WIDTH - 72) - 45
            assert left + long <= end, words_


def test_long_captions_take_two_lines_and_notes_as_many_as_they_need() -> None:
    panel = Panel()
    panel.head(MEMORY, "Title", "lines: model · markers: recorded 20261130-h200 · ✕ does not fit")
    assert panel.words[1].text.endswith("20261130-h200<br>✕ does not fit")
    panel.head(MEMORY, "Title", "lines: model · ✕ does not fit")
    assert "<br>" not in panel.words[3].text
    panel.note(RUNTIME, "no run; recorded: " + ", ".join(["butterfly 1/4"] * 9), log=True)
    lines = panel.notes[0]["text"].split("<br>")
    assert lines[0] == "no run;"
    assert max(map(len, lines)) * LETTER < width_px(RUNTIME)


# -- block-sparse ----------------------------------------------------------------------------------


def test_the_pattern_moves_the_flash_variants_only(h200: Device) -> None:
    dense = Point.of(4096, 64, 64, "float16", h200)
    sparse = Point.of(4096, 64, 64, "float16", h200, "local", 1 / 4)
    for variant in ALGORITHMS.values():
        less = sparse.traffic(variant).total_bytes < dense.traffic(variant).total_bytes
        fewer = sparse.flops(variant) < dense.flops(variant)
        assert less == fewer == variant.block_sparse, variant.name
    text = words(explorer_spec(sparse))
    assert "<b>dense standard</b>: " in text
    assert "<b>block-sparse flash</b>: " in text
    assert "HBM traffic: standard / flash = " in text
    assert "local blocks 64 × 128, s = 8/32 = 0.25" in text


def test_the_kept_blocks_are_drawn(h200: Device) -> None:
    point = Point.of(4096, 64, 64, "float16", h200, "butterfly", 1 / 4)
    assert point.blocks is not None
    cells = trace(explorer_spec(point), "kept blocks")["z"]
    kept = [[cell is not None for cell in row] for row in cells]
    assert kept == point.blocks.mask().keep[0, 0].tolist()
    i, j = current_tile(point, kept_tiles(point))
    assert kept[i][j], "the tile that is drawn is one that is visited"
    dense = explorer_spec(Point.of(4096, 64, 64, "float16", h200))
    assert not [t for t in dense["data"] if t["name"] == "kept blocks"]


def test_many_blocks_share_a_cell_and_too_many_are_not_drawn(h200: Device) -> None:
    point = Point.of(65536, 64, 64, "float16", h200, "random", 1 / 8)
    cells = trace(explorer_spec(point), "kept blocks")["z"]
    assert (len(cells), len(cells[0])) == (64, 64)
    shares = [cell or 0.0 for row in cells for cell in row]
    assert sum(shares) / len(shares) == pytest.approx(1 / 8, abs=5e-3)
    text = words(explorer_spec(Point.of(65536, 64, 16, "float16", h200, "random", 1 / 8)))
    assert "2048 × 2048 blocks:" in text
    assert "too fine to draw" in text
    small = Point.of(1000, 64, 16, "float16", h200, "random", 1 / 16)
    assert small.blocks is not None
    i, j = current_tile(small, None)
    assert small.blocks.mask().keep[0, 0, i, j], "also where none can be drawn"


def test_asked_and_achieved_density_are_both_said(h200: Device) -> None:
    spec = explorer_spec(Point.of(4096, 64, 192, "float16", h200, "local", 1 / 4))
    assert "local blocks 64 × 384, s = 3/11 = 0.273, asked 0.25" in words(spec)
    spec = explorer_spec(Point.of(128, 64, 64, "float16", h200, "local", 1 / 32))
    assert "s = 1/1 = 1, asked 0.0312" in words(spec), "at least one block per row"


def test_masked_rows_are_shown_where_they_exist(h200: Device, run: RecordedRun) -> None:
    point = Point.of(4096, 64, 64, "float16", h200, "local", 1 / 8)
    spec = explorer_spec(point, run)
    line = trace(spec, "flash", "x3")
    rows = run.curve("flash_q_outer", point, "latency_ms")
    assert line["x"] == [r.seqlen_q for r in rows] == [2**e for e in range(10, 17)]
    assert {r.block_mask for r in rows} == {"local 64x128"}
    assert line["y"] == [r.median for r in rows]
    assert trace(spec, "standard", "x3")["x"][0] == 128, "dense"
    assert "dotted" not in words(spec)


@pytest.mark.parametrize(
    ("kib", "pattern", "density", "said"),
    [
        (64, "random", 1 / 8,
         "no run with random blocks at s = 1/8; recorded: butterfly 1/4, local 1/2, local 1/8"),
        (64, "local", 1 / 4,
         "no run with local blocks at s = 1/4; recorded: butterfly 1/4, local 1/2, local 1/8"),
        (16, "local", 1 / 8,
         "no run with local blocks at s = 1/8; none was recorded at this d, dtype and M"),
    ],
)  # fmt: skip
def test_a_pattern_without_a_run_shows_the_bound_of_flash(
    h200: Device, run: RecordedRun, kib: int, pattern: str, density: float, said: str
) -> None:
    spec = explorer_spec(Point.of(4096, 64, kib, "float16", h200, pattern, density), run)
    assert said in words(spec)
    assert trace(spec, "flash (model)")["line"]["dash"] == "dot"
    assert not [t for t in spec["data"] if t["name"] == "standard (model)"]
    assert "dotted: model, lower bound" in words(spec)


def test_a_curve_point_without_a_mask_is_left_out_and_named(h200: Device) -> None:
    point = Point.of(4096, 64, 3, "float16", h200, "local", 1 / 8)
    spec = explorer_spec(point, None)
    assert max(trace(spec, "flash (model)")["x"]) == 32768
    assert max(trace(spec, "standard (model)")["x"]) == 65536


def test_a_variant_the_run_lacks_shows_its_bound(h200: Device, run: RecordedRun) -> None:
    """As an older run of two variants, made of the rows of a newer one."""
    rows = tuple(r for r in run.run.rows if r.variant not in ("standard_naive", "flash_kv_outer"))
    older = RecordedRun(Run(run.run_id, run.run.about, rows))
    spec = explorer_spec(Point.of(4096, 64, 64, "float16", h200), older)
    assert trace(spec, "naive standard (model)")["line"]["dash"] == "dot"
    assert trace(spec, "flash", "x3")["line"]["dash"] == "solid"
    assert "no run of naive standard; no run of flash, K/V outer" in words(spec)
    assert len(trace(spec, "counted")["x"]) == 2


def test_the_naive_rows_are_found_at_every_budget(h200: Device, run: RecordedRun) -> None:
    for kib in (16, 64, 192):
        spec = explorer_spec(Point.of(4096, 64, kib, "float16", h200), run)
        assert trace(spec, "naive standard", "x3")["x"][0] == 128


def test_bf16_has_its_own_rows(h200: Device, run: RecordedRun) -> None:
    spec = explorer_spec(Point.of(4096, 64, 64, "bfloat16", h200), run)
    assert "no run in bf16; recorded: fp16, fp32" in words(spec)


def test_a_series_without_a_row_at_this_length_is_named(h200: Device, measured_run: Run) -> None:
    """Neither a time nor a reason is there: nothing is interpolated, and nothing is crossed."""

    def lost(row: Row) -> bool:
        return (row.variant, row.seqlen_q) == ("standard_tiled", 32768)

    def spec_at(n: int, run: Run) -> dict[str, Any]:
        return explorer_spec(Point.of(n, 64, 64, "float16", h200), RecordedRun(run))

    rows = tuple(row for row in measured_run.rows if not lost(row))
    gappy = replace(measured_run, rows=rows)
    spec = spec_at(32768, gappy)
    assert "no row of standard at N = 32768" in words(spec)
    assert 32768 not in trace(spec, VARIANTS["standard_tiled"].label, "x3")["x"]
    for n, run in ((16384, gappy), (65536, gappy), (32768, measured_run), (16384, measured_run)):
        assert "no row of" not in words(spec_at(n, run)), n
