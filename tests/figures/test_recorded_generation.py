"""Recorded texts, looked up by prompt and way."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import plotly.graph_objects as go
import pytest

from fa_kernels.device import Device, device
from fa_kernels.figures.generation import generation_spec
from fa_kernels.figures.recorded_generation import WAYS, RecordedGeneration, Text
from fa_kernels.measure.generation_run import WAYS as MEASURED
from fa_kernels.widgets.text import labels
from tests.figures.synthetic_generation import (
    BATCH,
    CACHED_MARKS,
    FIRST_MS,
    GENERATION_ID,
    MARKS,
    MEMORY_BYTES,
    MS,
    PROMPTS,
    generation_rows,
    write_generation_run,
)
from tests.figures.test_explorer import sizes

TEXT = labels("generation")


def test_every_way_that_is_measured_has_a_key() -> None:
    assert list(WAYS.values()) == [(way.provider, way.variant) for way in MEASURED]
    assert set(WAYS) == set(TEXT["ways"]) == set(TEXT["short"]) == set(TEXT["ways_short"])


def test_rows_are_found_by_prompt_and_way(tmp_path: Path, h200: Device) -> None:
    write_generation_run(tmp_path)
    found = RecordedGeneration.on(h200, tmp_path)
    assert found.run_id == GENERATION_ID and tuple(found.texts) == PROMPTS
    for prompt, texts in found.texts.items():
        for key, one in texts.items():
            marks = CACHED_MARKS if key in ("cache", "both") else MARKS
            assert tuple(one.times) == marks and one.memory is not None
            assert one.first is not None and one.first.median == FIRST_MS[prompt]
            assert one.memory.median == MEMORY_BYTES
            assert one.tokens_per_s == pytest.approx(BATCH * 1e3 / MS[key])
    assert RecordedGeneration.on(device("t4"), tmp_path) == RecordedGeneration()


def test_what_failed_has_no_rate_and_its_reason(tmp_path: Path, h200: Device) -> None:
    rows = [row for row in generation_rows() if (row.provider, row.variant) != WAYS["both"]]
    failed = replace(
        rows[0], provider=WAYS["both"][0], variant=WAYS["both"][1], status="failed", detail="wrong",
        p20=None, median=None, p80=None, n=0, max_abs_err=None,
    )  # fmt: skip
    write_generation_run(tmp_path, [*rows, failed])
    one = RecordedGeneration.on(h200, tmp_path).texts[512]["both"]
    assert one.failed is not None and one.failed.detail == "wrong" and one.tokens_per_s == 0.0


@pytest.mark.parametrize("missing", [(), ("both",), tuple(WAYS)])
def test_plotly_takes_what_is_there(tmp_path: Path, h200: Device, missing: tuple[str, ...]) -> None:
    write_generation_run(tmp_path)
    texts = dict(RecordedGeneration.on(h200, tmp_path).texts[4096])
    texts |= {key: Text() for key in missing}
    spec = generation_spec(texts, TEXT)
    go.Figure(spec)
    assert min(sizes(spec)) >= 12
    bars, *lines = spec["data"]
    assert [bool(rate) for rate in bars["y"]] == [key not in missing for key in WAYS]
    assert [line["name"] for line in lines] == [key for key in WAYS if key not in missing]
    for line in lines:
        marks = CACHED_MARKS if line["name"] in ("cache", "both") else MARKS
        assert line["x"] == [0, *marks]
        last = FIRST_MS[4096] + MS[line["name"]] * (marks[-1] - 1)
        assert line["y"][-1] == pytest.approx(last / 1e3)
    empty = [n for n in spec["layout"]["annotations"] if n["text"] == TEXT["empty"]]
    assert len(empty) == (2 if len(missing) == 4 else 0)


def test_names_of_lines_that_end_together_stand_apart(tmp_path: Path, h200: Device) -> None:
    write_generation_run(tmp_path)
    texts = RecordedGeneration.on(h200, tmp_path).texts[4096]
    same = dict.fromkeys(WAYS, texts["cache"])
    notes = generation_spec(same, TEXT)["layout"]["annotations"]
    places = sorted(note["y"] for note in notes if note.get("yref") == "y2")
    assert len(places) == 4 and all(b - a > 0.07 * places[0] for a, b in itertools.pairwise(places))
