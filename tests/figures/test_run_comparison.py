"""The figure of two runs: a mark per call, in its series' style, never a line between two."""

from __future__ import annotations

import itertools
import math
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fa_kernels.figures import theme
from fa_kernels.figures.recorded_pairs import Pair, RecordedPairs
from fa_kernels.figures.run_comparison import (
    comparison_spec,
    in_series,
    ratio_words,
    value_words,
)
from fa_kernels.measure.records import load_run
from fa_kernels.widgets.text import labels
from tests.figures.synthetic_pairs import (
    A100,
    A100_ID,
    OLD_ID,
    SEQLENS,
    slower,
    write_pair_run,
)

TEXT = labels("run_comparison")


@pytest.fixture(scope="module")
def two_gpus(tmp_path_factory: pytest.TempPathFactory) -> RecordedPairs:
    root: Path = tmp_path_factory.mktemp("pairs")
    write_pair_run(root, OLD_ID)
    write_pair_run(root, A100_ID, lambda row: slower(row, 2.0), A100)
    return RecordedPairs(load_run(A100_ID, root), load_run(OLD_ID, root))


def spec_of(pairs: list[Pair], metric: str = "latency_ms") -> dict[str, Any]:
    return comparison_spec(pairs, (A100_ID, OLD_ID), metric, TEXT)


def marks(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [trace for trace in spec["data"] if trace["type"] == "scatter"]


def test_a_mark_per_call_and_no_line(two_gpus: RecordedPairs) -> None:
    pairs = two_gpus.pairs("latency_ms")
    drawn = marks(spec_of(pairs))
    assert sum(len(trace["x"]) for trace in drawn) == len(pairs)
    assert {trace["mode"] for trace in drawn} == {"markers"}
    assert [trace["name"] for trace in drawn] == list(in_series(pairs))
    for trace in drawn:
        style = theme.style_of(trace["name"])
        assert (trace["marker"]["color"], trace["marker"]["symbol"]) == (style.colour, style.marker)
        assert all(y == pytest.approx(2.0, rel=1e-4) for y in trace["y"])


def test_marks_stand_at_their_n(two_gpus: RecordedPairs) -> None:
    spec = spec_of(two_gpus.pairs("latency_ms"))
    assert spec["layout"]["xaxis"]["tickvals"] == [math.log2(n) for n in SEQLENS]
    places = [place for trace in marks(spec) for place in trace["x"]]
    assert len(set(places)) == len(places), "no two calls at one place"
    assert all(min(abs(x - math.log2(n)) for n in SEQLENS) < 0.45 for x in places)


def test_line_at_1_ticks_and_everything_inside(two_gpus: RecordedPairs) -> None:
    layout = spec_of(two_gpus.pairs("latency_ms"))["layout"]
    (line,) = layout["shapes"]
    assert (line["y0"], line["y1"]) == (1, 1)
    low, high = (10**end for end in layout["yaxis"]["range"])
    assert low < 1 < 2 < high and {1.0, 2.0} <= set(layout["yaxis"]["tickvals"])
    logs = [math.log10(tick) for tick in layout["yaxis"]["tickvals"]]
    assert min(b - a for a, b in itertools.pairwise(logs)) > 0.05 * math.log10(high / low)


def test_the_band_is_what_both_runs_allow(two_gpus: RecordedPairs) -> None:
    spec = spec_of(two_gpus.pairs("latency_ms"))
    band = spec["data"][0]
    assert band["name"] == "band" and len(band["x"]) == len(SEQLENS)
    # The made-up times spread from 0.98 to 1.04 of their median.
    assert band["base"] == pytest.approx([0.98 / 1.04] * 2, rel=1e-3)
    tops = [base + y for base, y in zip(band["base"], band["y"], strict=True)]
    assert tops == pytest.approx([1.04 / 0.98] * 2, rel=1e-3)
    assert TEXT["band"] in spec["layout"]["annotations"][0]["text"]


def test_bytes_have_no_band(two_gpus: RecordedPairs) -> None:
    spec = spec_of(two_gpus.pairs("hbm_bytes"), "hbm_bytes")
    assert len(marks(spec)) == len(spec["data"]) and {y for t in marks(spec) for y in t["y"]} == {1}
    assert "counted bytes" in spec["layout"]["yaxis"]["title"]["text"]
    assert TEXT["band"] not in spec["layout"]["annotations"][0]["text"]


def test_every_series_is_named_on_lines_that_fit(two_gpus: RecordedPairs) -> None:
    pairs = two_gpus.pairs("latency_ms")
    layout = spec_of(pairs)["layout"]
    lines = layout["annotations"][0]["text"].split("<br>")[1:-1]
    plain = [re.sub("<[^>]+>", "", line).replace("&nbsp;", " ") for line in lines]
    assert len(plain) > 1 and all(len(line) < 75 for line in plain)
    for name in in_series(pairs):
        assert any(theme.style_of(name).named in line for line in plain)
    assert layout["margin"]["t"] > 17 * (len(lines) + 2)


def test_nothing_to_draw_says_so() -> None:
    spec = comparison_spec([], ("", ""), "latency_ms", TEXT)
    assert spec["data"] == [] and spec["layout"]["annotations"][0]["text"] == TEXT["nothing_drawn"]


def test_a_call_without_a_ratio_is_not_drawn(two_gpus: RecordedPairs) -> None:
    pair = two_gpus.pairs("latency_ms")[0]
    zero = replace(pair.second, p20=0.0, median=0.0, p80=0.0)
    assert spec_of([Pair(pair.first, zero)])["data"] == []


def test_numbers_have_their_units() -> None:
    said = [
        value_words(metric, 2048.0)
        for metric in ("latency_ms", "launch_us", "extra_mem_bytes", "hbm_bytes", "rmse")
    ]
    assert said == ["2.05 s", "2048 µs", "2 KiB", "2.05 kB", "2048"]
    assert value_words("l2_hit_pct", 12.5) == "12.5 %"
    assert (ratio_words(1.0063), ratio_words(2.4397)) == ("1.006", "2.44")


def test_the_recorded_grids_are_drawn_in_a_second() -> None:
    runs = [load_run(name) for name in ("20261129-h200-grid", "20261130-h200-grid")]
    started = time.perf_counter()
    spec_of(RecordedPairs(*runs).pairs("latency_ms"))
    assert time.perf_counter() - started < 1.0
